"""Drains after which the change was not made: nobody is moved away again and again for nothing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from controllers.node_policy.plan import Plan
from controllers.node_policy.plan.drain_outcome import retry_seconds
from controllers.node_policy.plan.events import About
from controllers.node_policy.plan.orders import RolloutLimits
from tests.builders.objects import device_rule, node_policy
from tests.builders.paper_binder import Card, address
from tests.builders.paper_drains import DrainedFleet
from tests.builders.paper_fleet import Object

A, B = address(0), address(1)
EVICTS = {"drain": "IfInUse", "drainTimeoutSeconds": 120}


def fleet_of(cards: int = 1, mode: str = "Passthrough", **rollout: Any) -> DrainedFleet:
    """A node whose devices a policy wants, and that the host refuses to change; a pod uses the first one."""
    fleet = DrainedFleet()
    fleet.add_node("node-0", cards)
    fleet.settle()
    fleet.cards["node-0"][A].fails = True
    fleet.cards["node-0"][A].pods = ["pod-0"]
    fleet.report("node-0")
    fleet.add_policy(node_policy("p", mode=mode, rollout=EVICTS | rollout))
    return fleet


def turn(fleet: DrainedFleet) -> Plan:
    made = fleet.plan()
    fleet.write(made)
    fleet.drain(made)
    fleet.report("node-0")
    return made


def turns(fleet: DrainedFleet) -> list[Plan]:
    made = []
    for _ in range(40):
        made.append(turn(fleet))
        before = fleet.facts
        if made[-1].empty and fleet.plan().empty and fleet.facts == before:
            return made
    raise AssertionError(f"no end: {made[-1]}")


def rollout(fleet: DrainedFleet) -> Object:
    found: Object = fleet.states["node-0"]["status"]["rollout"]
    return found


def draining(fleet: DrainedFleet) -> tuple[str, str, str]:
    [found] = [c for c in rollout(fleet)["conditions"] if c["type"] == "Draining"]
    return found["status"], found["reason"], found["message"]


def test_change_that_the_host_refuses_after_a_drain_counts_as_a_drain_in_vain() -> None:
    fleet = fleet_of()
    made = turns(fleet)
    assert fleet.evicted == ["pod-0"]
    status, reason, message = draining(fleet)
    assert (status, reason) == ("False", "ChangeFailed")
    assert f"{A}: BindFailed: EINVAL at drivers_probe" in message
    assert message.endswith("tried again after 120 s, after nodes where none was given up")
    assert (rollout(fleet)["drain"]["aborts"], rollout(fleet)["drain"]["devices"]) == (1, [A])
    assert rollout(fleet)["admitted"] == "Aborted"
    assert not fleet.annotations("node-0")
    warnings = [(e.about, e.reason) for plan in made for e in plan.events if e.warning and e.node]
    assert warnings == [(About.POLICY, "ChangeFailed"), (About.NODE, "ChangeFailed")]
    assert [time.outcome for plan in made for time in plan.drain_seconds] == ["ChangeFailed"]


def test_pods_that_come_back_are_left_alone_ever_longer() -> None:
    """A workload that is there again after half a minute, for six hours."""
    fleet = fleet_of()
    card = fleet.cards["node-0"][A]
    times = []
    for second in range(0, 6 * 3600, 15):
        before = len(fleet.evicted)
        fleet.pass_time(15)
        turn(fleet)
        if len(fleet.evicted) > before:
            times.append(second)
        if second % 30 == 0 and not card.pods:
            card.pods = [f"pod-{second}"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert 6 <= len(times) <= 11
    assert pauses == sorted(pauses)
    assert max(pauses) <= 3600 + 120
    assert fleet.conditions("p")["Degraded"][0] == "True"


def test_drains_in_vain_are_remembered_by_the_objects_and_are_no_progress() -> None:
    fleet = fleet_of(progressDeadlineSeconds=900)
    turns(fleet)
    fleet.cards["node-0"][A].pods = ["pod-1"]
    fleet.report("node-0")
    turns(fleet)
    assert fleet.intents() == {A: "Hold"}
    assert fleet.status("p")["blockers"][0]["reason"] == "ChangeFailed"
    assert fleet.rollout("node-0")["Updated"] == ("False", "ChangeFailed")
    fleet.pass_time(121)
    turns(fleet)
    assert fleet.evicted == ["pod-0", "pod-1"]
    assert rollout(fleet)["drain"]["aborts"] == 2
    fleet.cards["node-0"][A].pods = ["pod-2"]
    for _ in range(9):
        fleet.pass_time(100)
        turns(fleet)
    assert fleet.conditions("p")["Progressing"] == ("False", "ProgressStalled")


def test_change_that_succeeds_in_the_end_is_no_longer_held_against_the_node() -> None:
    fleet = fleet_of()
    turns(fleet)
    fleet.cards["node-0"][A].fails = False
    turns(fleet)
    assert fleet.bound() == [f"node-0/{A}"]
    assert "drain" not in rollout(fleet)
    assert rollout(fleet)["admitted"] == "Admitted"


def test_another_target_waits_for_nothing() -> None:
    fleet = fleet_of()
    turns(fleet)
    fleet.cards["node-0"][A].pods = ["pod-1"]
    fleet.report("node-0")
    turns(fleet)
    assert fleet.intents() == {A: "Hold"}
    fleet.add_policy(node_policy("p", mode="HardVNPU", products=("RBLN-CA25",), rollout=EVICTS))
    turn(fleet)
    assert fleet.intents() == {A: "Apply"}


def test_what_becomes_of_other_devices_is_nothing_to_a_drain_in_vain() -> None:
    """Somebody edits the policy of another card every ten minutes."""
    fleet = fleet_of(2)
    fleet.cards["node-0"][B] = Card(device="1251")
    fleet.report("node-0")
    other = {"vendors": ["1eff"], "devices": ["1251"]}
    count = 0
    for minute in range(60):
        if minute % 10 == 0:
            mode = "Passthrough" if minute % 20 else "Container"
            fleet.add_policy(
                node_policy("q", rules=[device_rule(mode=mode, match=other)], rollout=EVICTS, priority=500)
            )
        for _ in range(12):
            fleet.pass_time(5)
            turn(fleet)
        if not fleet.cards["node-0"][A].pods:
            count += 1
            fleet.cards["node-0"][A].pods = [f"pod-{count}"]
    assert len(fleet.evicted) <= 6
    assert rollout(fleet)["drain"]["aborts"] >= 4
    assert rollout(fleet)["drain"]["devices"] == [A]


def test_drain_of_another_device_does_not_forget_the_one_in_vain() -> None:
    fleet = fleet_of(2)
    turns(fleet)
    assert rollout(fleet)["drain"]["aborts"] == 1
    other = {"vendors": ["1eff"], "devices": ["1250"], "addresses": [B]}
    fleet.cards["node-0"][B].pods = ["pod-b"]
    fleet.report("node-0")
    fleet.add_policy(node_policy("q", rules=[device_rule(mode="Container", match=other)], rollout=EVICTS, priority=500))
    fleet.pass_time(121)
    turns(fleet)
    assert "pod-b" in fleet.evicted
    assert rollout(fleet)["drain"]["aborts"] == 2
    assert set(rollout(fleet)["drain"]["devices"]) >= {A}


def test_process_of_the_host_that_turns_up_in_a_drain_makes_it_vain() -> None:
    fleet = fleet_of()
    fleet.refusing.add("pod-0")
    turns(fleet)
    assert draining(fleet)[0] == "True"
    fleet.cards["node-0"][A].users = ["vllm"]
    fleet.report("node-0")
    turns(fleet)
    assert draining(fleet)[:2] == ("False", "ChangeFailed")
    assert "no eviction moves a process of the host" in draining(fleet)[2]
    assert fleet.intents() == {A: "Hold"}


def test_hand_over_after_which_the_change_fails_moved_nobody_away_and_is_not_in_vain() -> None:
    fleet = fleet_of(drain="Never")
    card = fleet.cards["node-0"][A]
    card.pods, card.fails = [], False
    fleet.publishers.add("node-0")
    turns(fleet)
    card.fails = True
    fleet.claims[f"node-0/{A}"] = {"pod-0"}
    fleet.add_policy(node_policy("p", mode="Container", rollout=EVICTS | {"drain": "Never"}))
    made = turns(fleet)
    assert draining(fleet)[:2] == ("True", "WaitingForPublisher")
    fleet.claims.clear()
    made = turns(fleet)
    assert draining(fleet)[:2] == ("False", "ChangeFailed")
    assert "tried again" not in draining(fleet)[2]
    assert "drain" not in rollout(fleet)
    assert rollout(fleet)["admitted"] == "Admitted"
    assert not any(event.node for plan in made for event in plan.events)


def test_drain_is_judged_by_its_own_devices_alone() -> None:
    fleet = fleet_of(2)
    fleet.cards["node-0"][A].fails = False
    fleet.cards["node-0"][B] = Card(users=["vllm"])
    fleet.report("node-0")
    turns(fleet)
    assert draining(fleet)[:2] == ("False", "Drained")
    assert fleet.bound() == [f"node-0/{A}"]


def test_device_that_is_given_back_after_its_drain_is_drained() -> None:
    fleet = fleet_of()
    fleet.cards["node-0"][A].fails, fleet.cards["node-0"][A].pods = False, []
    turns(fleet)
    fleet.cards["node-0"][A].pods = ["pod-0"]
    fleet.report("node-0")
    fleet.policies.clear()
    turns(fleet)
    assert fleet.evicted == ["pod-0"]
    assert draining(fleet)[1] == "Drained"


@pytest.mark.parametrize("reason", ["Changed", "GroupLocked"])
def test_hindrance_that_passes_is_waited_for(reason: str) -> None:
    fleet = fleet_of()
    while draining_or_none(fleet) != "True":
        turn(fleet)
    fleet.cards["node-0"][A].pods = []
    fleet.report("node-0")
    [device] = fleet.states["node-0"]["status"]["bindings"]["devices"]
    device |= {"state": "Blocked", "reason": reason}
    fleet.forget("node-0")
    fleet.write(fleet.plan())
    assert draining(fleet)[:2] == ("True", "WaitingForChange")
    fleet.pass_time(121)
    fleet.write(fleet.plan())
    assert draining(fleet)[:2] == ("False", "ChangeFailed")


def draining_or_none(fleet: DrainedFleet) -> str:
    found = fleet.states["node-0"].get("status", {}).get("rollout", {}).get("conditions", [])
    return next((c["status"] for c in found if c["type"] == "Draining"), "")


@pytest.mark.parametrize(
    ("timeout", "aborts", "seconds"),
    [(1, 1, 60), (600, 1, 600), (600, 2, 1200), (600, 3, 2400), (600, 4, 3600), (86400, 1, 3600), (1, 2**31 - 1, 3600)],
)
def test_time_until_the_next_drain_doubles_up_to_an_hour(timeout: int, aborts: int, seconds: int) -> None:
    assert retry_seconds((RolloutLimits("p", drain_timeout_seconds=timeout),), aborts) == seconds
