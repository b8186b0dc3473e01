"""What one object says, however absurd, and what goes wrong with one node, never stops the plan for the fleet."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from controllers.node_policy.plan import Cache, evaluate, judgements, node_status, planner, rollup
from controllers.node_policy.plan.moments import later, one_more
from tests.builders.objects import node_policy
from tests.builders.paper_binder import address
from tests.builders.paper_drains import DrainedFleet
from tests.builders.paper_fleet import START

A = address(0)
EVICTS = {"drain": "IfInUse", "drainTimeoutSeconds": 120}
LAST = "9999-12-31T23:59:59Z"


def fleet_of(nodes: int = 2) -> DrainedFleet:
    fleet = DrainedFleet()
    for number in range(nodes):
        fleet.add_node(f"node-{number}", 1)
    fleet.add_policy(node_policy("p", rollout=EVICTS | {"maxUnavailable": "100%"}))
    fleet.settle()
    return fleet


def say(fleet: DrainedFleet, kind: str, when: str, status: str = "True", message: str = "") -> None:
    """The condition as somebody wrote it into the rollout of node-0."""
    conditions = fleet.states["node-0"]["status"]["rollout"]["conditions"]
    conditions[:] = [c for c in conditions if c["type"] != kind]
    text = {"status": status, "reason": "DrainTimedOut", "message": message, "lastTransitionTime": when}
    conditions.append({"type": kind, **text})
    fleet.forget("node-0")


def since(fleet: DrainedFleet, kind: str) -> str:
    [found] = [c for c in fleet.states["node-0"]["status"]["rollout"]["conditions"] if c["type"] == kind]
    return str(found["lastTransitionTime"])


def stamp(fleet: DrainedFleet) -> str:
    return fleet.now.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("when", [LAST, "2099-01-01T00:00:00Z", "0001-01-01T00:00:00Z"])
@pytest.mark.parametrize("kind", ["NodeRenewed", "NodePresent", "Draining", "Available", "Updated"])
@pytest.mark.parametrize("status", ["True", "False"])
def test_time_that_cannot_be_stops_nobody(kind: str, when: str, status: str) -> None:
    fleet = fleet_of()
    say(fleet, kind, when, status, "with UID uid-node-0")
    fleet.add_policy(node_policy("p", mode="Container", rollout=EVICTS | {"maxUnavailable": "100%"}))
    fleet.settle()
    assert fleet.bound() == []
    for found in fleet.states["node-0"]["status"]["rollout"]["conditions"]:
        assert found["lastTransitionTime"] <= stamp(fleet)


def test_grace_of_a_node_that_is_gone_since_the_future_begins_now() -> None:
    fleet = fleet_of()
    del fleet.nodes["node-0"]
    fleet.write(fleet.plan())
    say(fleet, "NodePresent", LAST, "False")
    fleet.write(fleet.plan())
    assert since(fleet, "NodePresent") == stamp(fleet)
    fleet.pass_time(1801)
    assert list(fleet.plan().deletions) == ["node-0"]


def test_grace_of_a_node_that_was_renewed_in_the_future_begins_now() -> None:
    fleet = fleet_of()
    cache = Cache()
    say(fleet, "NodeRenewed", "2099-01-01T00:00:00Z", "True", "the Node was created anew, with UID uid-node-0")
    fleet.write(fleet.plan(cache))
    assert since(fleet, "NodeRenewed") == stamp(fleet)
    fleet.pass_time(1801)
    fleet.write(fleet.plan(cache))
    assert "NodeRenewed" not in fleet.rollout("node-0")


def test_clock_that_is_put_back_starts_times_anew_also_where_nothing_else_changes() -> None:
    fleet = fleet_of()
    cache = Cache()
    assert fleet.plan(cache).empty
    fleet.pass_time(-86400)
    made = fleet.plan(cache)
    assert set(made.rollouts) == {"node-0", "node-1"}
    fleet.write(made)
    assert since(fleet, "Available") == stamp(fleet)


def test_policy_whose_progress_lies_in_the_future_is_stalled_all_the_same() -> None:
    fleet = fleet_of()
    fleet.cards["node-0"][A].fails = True
    fleet.cards["node-0"][A].bound = False
    fleet.settle()
    for found in fleet.policies["p"]["status"]["conditions"]:
        found["lastTransitionTime"] = LAST
    fleet.add_policy(fleet.policies["p"])
    fleet.settle()
    fleet.pass_time(901)
    fleet.settle()
    assert fleet.conditions("p")["Progressing"] == ("False", "ProgressStalled")


@pytest.mark.parametrize("aborts", [2**31 - 1, 2**63 - 1])
def test_drain_that_was_given_up_as_often_as_can_be_counted(aborts: int) -> None:
    fleet = fleet_of()
    fleet.refusing.add("pod-0")
    fleet.cards["node-0"][A].pods = ["pod-0"]
    fleet.report("node-0")
    fleet.add_policy(node_policy("p", mode="Container", rollout=EVICTS))
    for _ in range(6):
        made = fleet.plan()
        fleet.write(made)
        fleet.drain(made)
        fleet.report("node-0")
        fleet.report("node-1")
    fleet.states["node-0"]["status"]["rollout"]["drain"]["aborts"] = aborts
    fleet.forget("node-0")
    fleet.pass_time(121)
    for _ in range(3):
        fleet.write(fleet.plan())
    assert fleet.states["node-0"]["status"]["rollout"]["admitted"] in ("Aborted", "Draining")
    assert fleet.plan().next_check is not None


@pytest.mark.parametrize("generation", [0, None, "x", -1, 2**70, True])
def test_generation_that_cannot_be_stops_nobody(generation: Any) -> None:
    fleet = fleet_of()
    fleet.states["node-0"]["metadata"]["generation"] = generation
    fleet.policies["p"]["metadata"]["generation"] = generation
    fleet.forget("node-0")
    fleet._views.clear()
    fleet.add_node("node-2", 1)
    for _ in range(4):
        made = fleet.plan()
        assert "InternalError" not in str(made.policy_statuses)
        fleet.write(made)
        fleet.report("node-2")
    assert f"node-2/{A}" in fleet.bound()


def test_sums_end_at_the_last_moment_and_at_the_last_number() -> None:
    assert later(START, 1e15).year == 9999
    assert later(START, 60) > START
    assert one_more(2**31 - 1) == 2**31 - 1
    assert one_more(1) == 2


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (judgements, "evaluate"),
        (planner, "drain_step"),
        (planner, "_spec_change"),
        (planner, "back_off_ends"),
    ],
)
def test_fault_with_one_node_costs_that_node_alone(
    module: Any, function: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = fleet_of(3)
    works = getattr(module, function)

    def fails(subject: Any, *args: Any, **more: Any) -> Any:
        if "node-1" in str(getattr(subject, "node", subject).name):
            raise ArithmeticError("a number of no sense")
        return works(subject, *args, **more)

    before = fleet.orders("node-1")
    fleet.add_policy(node_policy("p", mode="Container", rollout=EVICTS | {"maxUnavailable": 2}))
    cache = Cache()
    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(module, function, fails)
        for _ in range(5):
            made = fleet.plan(cache)
            fleet.write(made)
            for name in fleet.nodes:
                fleet.report(name)
    assert fleet.orders("node-1") == before
    assert fleet.bound() == [f"node-1/{A}"], "the others have changed"
    [blocker] = [b for b in fleet.status("p")["blockers"] if b["node"] == "node-1"]
    assert blocker["reason"] == "InternalError"
    assert "ArithmeticError: a number of no sense" in blocker["message"]
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesBlocked")
    assert len([record for record in caplog.records if "node-1 cannot be judged" in record.message]) == 1
    for _ in range(5):
        fleet.write(fleet.plan(cache))
        fleet.report("node-1")
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_node_of_which_nothing_can_be_said_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of()
    works = node_status.rollout_of

    def fails(evaluation: Any, *args: Any) -> Any:
        if evaluation.node.name == "node-1":
            raise ZeroDivisionError("of no sense")
        return works(evaluation, *args)

    monkeypatch.setattr(planner, "rollout_of", fails)
    fleet.add_policy(node_policy("p", mode="Container", rollout=EVICTS | {"maxUnavailable": 2}))
    for _ in range(3):
        fleet.write(fleet.plan())
        fleet.report("node-0")
        fleet.report("node-1")
    [blocker] = fleet.status("p")["blockers"]
    assert (blocker["node"], blocker["reason"]) == ("node-1", "InternalError")
    assert fleet.rollout("node-0")["Updated"] == ("True", "Current")


def test_node_that_cannot_be_judged_counts_against_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of(3)
    works = evaluate.evaluate

    def fails(node: Any, *args: Any, **more: Any) -> Any:
        if node.name == "node-1":
            raise KeyError("x")
        return works(node, *args, **more)

    monkeypatch.setattr(judgements, "evaluate", fails)
    fleet.add_policy(node_policy("p", mode="Container", rollout=EVICTS | {"maxUnavailable": 1}))
    made = fleet.plan()
    assert made.waiting == {"node-0": ("p",), "node-2": ("p",)}


def test_fault_with_one_policy_costs_the_status_of_that_policy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of()
    works = rollup.roll_up

    def fails(policy: Any, *args: Any, **more: Any) -> Any:
        if policy.name == "p":
            raise OverflowError
        return works(policy, *args, **more)

    monkeypatch.setattr(planner, "roll_up", fails)
    fleet.add_policy(node_policy("p", mode="Container", rollout=EVICTS))
    fleet.add_policy(node_policy("q", nodes={"pool": "none"}))
    made = fleet.plan()
    assert set(made.policy_statuses) == {"q"}
    assert any(made.specs.values())
