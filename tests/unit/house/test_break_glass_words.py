"""Admission policies are YAML and import nothing: they name the same group, annotations and components as the code."""

from pathlib import Path
from typing import Any

from controllers.registry import CONTROLLERS
from crds.break_glass import GROUP, REASON_ANNOTATION, UNTIL_ANNOTATION
from crds.models.kinds import KINDS
from crds.yaml_documents import read_documents

POLICIES = Path(__file__).parents[3] / "kustomize/components/only-git-writes/policies"


def resources(name: str) -> set[str]:
    policy: Any = read_documents((POLICIES / name).read_text(), name)[0].content
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    return set(rule["resources"])


def test_group_and_annotations_are_those_of_the_code() -> None:
    for name in ("writers.yaml", "orders.yaml"):
        text = (POLICIES / name).read_text()
        for word in (GROUP, REASON_ANNOTATION, UNTIL_ANNOTATION):
            assert f"'{word}'" in text
    assert GROUP in (POLICIES / "break-glass.yaml").read_text()


def test_every_kind_that_users_write_is_guarded_and_its_status_too() -> None:
    plurals = {kind.plural for kind in KINDS if kind.name != "NPUNodeState"}
    assert len(plurals) == 3
    assert resources("writers.yaml") == plurals
    assert resources("reports.yaml") == {f"{plural}/status" for plural in plurals}
    others = {kind.plural for kind in KINDS} - plurals
    assert resources("orders.yaml") == others | {f"{plural}/status" for plural in others}


def test_every_controller_may_report() -> None:
    text = (POLICIES / "reports.yaml").read_text()
    assert [controller.component for controller in CONTROLLERS if f"'{controller.component}'" not in text] == []
