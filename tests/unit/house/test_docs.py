"""What the documents say is there: links lead somewhere, make targets exist, every reason is explained."""

import re
import subprocess
from pathlib import Path

import pytest

from controllers.node_policy.plan.view import BlockerReason, NodeReason
from crds.models.condition_reference import REASONS
from crds.models.node_policy import PolicyReason
from crds.models.node_state import Admission, DeviceState

ROOT = Path(__file__).parents[3]


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    return [ROOT / name for name in listed.stdout.splitlines()]


def without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("page", tracked("*.md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#|mailto:)([^)\s#]+)", without_code(page.read_text()))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_make_targets_of_the_documents_exist() -> None:
    known = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name
        for page in tracked("*.md")
        for block in re.findall(r"`[^`]*`", page.read_text())
        for name in re.findall(r"\bmake ([a-z][a-z0-9-]+)", block)
    }
    assert named
    assert named <= known


def test_every_reason_of_a_policy_is_explained_to_its_reader() -> None:
    text = (ROOT / "docs/how-to/read-status.md").read_text()
    assert [reason for reason in PolicyReason if f"`{reason}`" not in text] == []


def test_every_reason_of_a_node_is_on_the_page_of_states_and_every_state_of_its_diagram_in_the_table() -> None:
    text = (ROOT / "docs/concepts/rollouts.md").read_text()
    assert [reason for reason in NodeReason if f"`{reason}`" not in text] == []
    assert [word for word in Admission if f"ROLLOUT {word}" not in text] == []
    (diagram,) = re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL)
    drawn = {name for pair in re.findall(r"(\w+) --> (\w+)", diagram) for name in pair}
    told = set(re.findall(r"^\| (?:\W )?(\w+) \|", text, re.MULTILINE))
    assert len(drawn) > 8
    assert drawn <= told


def test_every_obstacle_has_an_advice() -> None:
    text = (ROOT / "docs/how-to/blocked-nodes.md").read_text()
    told = [row for table in REASONS["NPUNodeState"] for row in table.reasons]
    in_the_way = [row.reason for row in told if row.status in (DeviceState.BLOCKED, DeviceState.FAILED)]
    assert [reason for reason in (*in_the_way, *BlockerReason) if not re.search(rf"\b{reason}\b", text)] == []
