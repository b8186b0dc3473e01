"""Layouts of an L40S that nobody can make, told by server and lint; and a map that goes while a policy names it."""

from __future__ import annotations

import pytest
import yaml

from crds.catalogue import load_catalogue
from crds.models.kinds import BY_NAME
from tests.builders.linting import found_in
from tests.builders.objects import device_rule, node_policy, profile_map
from webhooks.rules import KnownView, Severity, Subject
from webhooks.rules.judge import SERVER_LAYERS, judge

CANNOT = {
    "two of 48 GB": ({"L40S-48Q": 2}, Severity.ERROR),
    "three of 24 GB": ({"L40S-24Q": 3}, Severity.ERROR),
    "sizes mixed without Allow": ({"L40S-24Q": 1, "L40S-12Q": 2}, Severity.ERROR),
    "seventeen on sixteen functions": ({"L40S-1Q": 17}, Severity.ERROR),
    "seventeen of two profiles": ({"L40S-1Q": 9, "L40S-2Q": 8}, Severity.ERROR),
}
RULES = {
    "two of 48 GB": "NPF-PM-105",
    "three of 24 GB": "NPF-PM-105",
    "sizes mixed without Allow": "NPF-PM-106",
    "seventeen on sixteen functions": "NPF-PM-105",
    "seventeen of two profiles": "NPF-PM-107",
}


@pytest.mark.parametrize("what", CANNOT)
def test_what_cannot_fit_is_told_by_the_server_and_by_lint(what: str) -> None:
    layout, severity = CANNOT[what]
    content = profile_map(layout=layout)
    subject = Subject.of(BY_NAME["VGPUProfileMap"], content)
    judged = judge(subject, KnownView(load_catalogue()), layers=SERVER_LAYERS)
    assert (RULES[what], severity) in {(one.rule, one.severity) for one in judged}
    linted = found_in(yaml.safe_dump(content))
    assert (RULES[what], severity) in {(one.rule, one.violation.severity) for one in linted}


@pytest.mark.parametrize(
    ("layout", "mixed"),
    [
        ({"L40S-48Q": 1}, "Forbid"),
        ({"L40S-24Q": 2}, "Forbid"),
        ({"L40S-1Q": 16}, "Forbid"),
        ({"L40S-24Q": 1, "L40S-12Q": 2}, "Allow"),
    ],
)
def test_what_fits_is_taken(layout: dict[str, int], mixed: str) -> None:
    content = profile_map(layout=layout, mixedSizes=mixed)
    assert [one for one in found_in(yaml.safe_dump(content)) if one.rule.startswith("NPF-PM-10")] == []


def test_a_map_that_a_policy_names_cannot_go_from_git() -> None:
    rule = device_rule(products=["L40S"], mode="VGPU", vgpu={"profileMapRef": {"name": "map"}})
    policy = node_policy(rules=[rule])
    both = yaml.safe_dump_all([policy, profile_map("map")])
    assert "NPF-NP-151" not in {one.rule for one in found_in(both)}
    left = [one for one in found_in(yaml.safe_dump(policy)) if one.rule == "NPF-NP-151"]
    assert [one.is_error for one in left] == [True]
