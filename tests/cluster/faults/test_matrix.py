"""The fleet ends as it does without faults, within its limits, whatever strikes between controller and API server.

`make test` runs a sample in which every scenario and every kind of fault comes up, `make test-faults` everything.
A failure names its seed; `FAULTS_ONLY=<id> make test-faults` makes that run again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.faults import ending
from tests.cluster.faults.conftest import Perform, Reference
from tests.cluster.faults.fleet import NODE_COUNT, OURS, node_name
from tests.cluster.faults.judge import Allowed, judge
from tests.cluster.faults.matrix import Case, chosen
from tests.cluster.faults.run import Run
from tests.cluster.faults.scenarios import BY_NAME, SCENARIOS, Scenario

Note = Callable[[str, object], None]


@pytest.mark.parametrize("case", chosen(), ids=lambda case: case.id)
async def test_run_under_faults_ends_as_one_without(
    case: Case, perform_run: Perform, reference: Reference, record_property: Note
) -> None:
    without = await reference(case.scenario)
    run = await perform_run(case.scenario, case.faults, seed=case.seed, wanted=without.ending)
    wrong = judge(run.record, without, allowed(BY_NAME[case.scenario]))
    record_property("faults", told(run, wrong))
    assert not wrong, "\n".join([str(run), *wrong])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_run_without_faults_keeps_the_limits(scenario: Scenario, reference: Reference) -> None:
    found = await reference(scenario.name)
    assert judge(found, found, allowed(scenario)) == []
    if scenario.same_end_as:
        other = await reference(scenario.same_end_as)
        assert ending.differences(other.ending, found.ending) == []


def allowed(scenario: Scenario) -> Allowed:
    """What a scenario allows beyond its run without faults."""
    pool = frozenset((node_name(number), OURS) for number in range(NODE_COUNT))
    return Allowed(limit=scenario.limit, touched=pool if scenario.any_of_pool else frozenset(), writes=scenario.writes)


def told(run: Run, wrong: list[str]) -> dict[str, object]:
    """For the tally at the end of the session."""
    return {
        "scenario": run.scenario.name,
        "struck": {str(kind): count for kind, count in run.struck.items()},
        "planned": [str(fault.kind) for fault in run.faults],
        "ok": not wrong,
        "text": str(run),
    }
