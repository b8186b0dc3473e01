"""What is shipped for continuous integration says commands that exist, and hooks that find faults."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cli.main import build_parser
from crds.yaml_documents import read_documents
from tests.builders.linting import run_lint

ROOT = Path(__file__).parents[4]
HOW_TO = ROOT / "docs" / "how-to"
FILES = [HOW_TO / "lint.md", *sorted((HOW_TO / "lint").iterdir())]


def commands(path: Path) -> list[str]:
    """Each `npufleet lint` of a file, up to what a shell would take for itself."""
    found = re.findall(r"^.*?(npufleet lint [^`\n]*)", path.read_text(), re.MULTILINE)
    return [re.split(r"\s+(?:#|>|\|)", command.split("`")[0])[0] for command in found]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_command_is_one_that_exists(path: Path) -> None:
    found = commands(path)
    assert found
    for command in found:
        parsed = build_parser().parse_args(shlex.split(command)[1:])
        assert parsed.paths or parsed.kustomize, command


@pytest.mark.parametrize("path", FILES[1:], ids=lambda path: path.name)
def test_files_for_continuous_integration_are_sound_yaml(path: Path) -> None:
    (document,) = read_documents(path.read_text().replace("\non:\n", "\n'on':\n"), path.name)
    assert isinstance(document.content, dict)


def hooks() -> list[dict[str, Any]]:
    (document,) = read_documents((ROOT / ".pre-commit-hooks.yaml").read_text(), "hooks")
    return list(document.content)


def test_hooks_have_what_pre_commit_asks_for() -> None:
    for hook in hooks():
        assert {"id", "name", "entry", "language"} <= set(hook)
        assert hook["language"] == "python"
    assert [hook["id"] for hook in hooks()] == ["npufleet-lint", "npufleet-lint-kustomization"]


def test_hooks_pass_what_is_right_and_stop_what_is_wrong() -> None:
    files, kustomization = (shlex.split(hook["entry"])[2:] for hook in hooks())
    samples = ROOT / "kustomize" / "samples"
    assert run_lint(*files, samples / "npunodepolicy-full.yaml", samples / "vgpuprofilemap-minimal.yaml").code == 0
    assert run_lint(*files, samples / "invalid" / "policy-enum.yaml").code == 1
    assert run_lint(*kustomization, samples).code == 0
