"""Devices in use: put off, or emptied first where the policy lets their users be evicted, and always with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controllers.node_policy.plan import Plan
from controllers.node_policy.plan.events import About
from controllers.node_policy.plan.view import DrainFacts
from tests.builders.objects import device_report, device_rule, node_policy, profile_map, report
from tests.builders.paper_binder import Card, address
from tests.builders.paper_drains import CORDONED_BY, DRAIN_DONE, DRAIN_REQUEST, DrainedFleet
from tests.builders.paper_fleet import Object

A, B = address(0), address(1)
EVICTS = {"drain": "IfInUse", "drainTimeoutSeconds": 120}


def fleet_of(nodes: int = 1, cards: int = 1) -> DrainedFleet:
    """Nodes whose inventories are there, and no policy yet."""
    fleet = DrainedFleet()
    for number in range(nodes):
        fleet.add_node(f"node-{number}", cards)
    fleet.settle()
    return fleet


def commit(fleet: DrainedFleet, mode: str = "Passthrough", name: str = "p", **spec: Any) -> None:
    fleet.add_policy(node_policy(name, mode=mode, **({"rollout": EVICTS} | spec)))


def use(fleet: DrainedFleet, pod: str = "pod-0", name: str = "node-0", place: str = A) -> None:
    """A pod begins to use a device, and the binder sees it."""
    fleet.cards[name][place].pods.append(pod)
    fleet.report(name)


def turn(fleet: DrainedFleet) -> Plan:
    """One plan, carried out by everybody."""
    made = fleet.plan()
    fleet.write(made)
    fleet.drain(made)
    for name in fleet.nodes:
        fleet.report(name)
    return made


def turns(fleet: DrainedFleet, most: int = 40) -> list[Plan]:
    """Until nothing happens any more."""
    made = []
    for _ in range(most):
        made.append(turn(fleet))
        before = fleet.facts
        if made[-1].empty and fleet.plan().empty and fleet.facts == before:
            return made
    raise AssertionError(f"no end after {most} turns: {made[-1]}")


def rollout(fleet: DrainedFleet, name: str = "node-0") -> Object:
    found: Object = fleet.states[name]["status"]["rollout"]
    return found


def draining(fleet: DrainedFleet, name: str = "node-0") -> tuple[str, str, str]:
    """Status, reason and message of the condition."""
    [found] = [c for c in rollout(fleet, name)["conditions"] if c["type"] == "Draining"]
    return found["status"], found["reason"], found["message"]


def blockers(fleet: DrainedFleet, policy: str = "p") -> list[tuple[str, str]]:
    return [(b["node"], b["reason"]) for b in fleet.status(policy)["blockers"]]


# Put off.


def test_change_of_a_device_in_use_is_not_ordered_and_keeps_nobody_else() -> None:
    fleet = fleet_of(3)
    use(fleet)
    commit(fleet, rollout={"drain": "Never"})
    turns(fleet)
    assert fleet.intents("node-0") == {A: "Hold"}
    assert fleet.bound() == [f"node-1/{A}", f"node-2/{A}"]
    assert blockers(fleet) == [("node-0", "InUse")]
    message = fleet.status("p")["blockers"][0]["message"]
    assert "train" in message
    assert "drain: IfInUse" in message
    assert fleet.status("p")["nodes"] == {"matched": 3, "updated": 2, "ready": 2, "blocked": 1}
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesBlocked")
    assert fleet.rollout("node-0")["Available"] == ("True", "NoDisruption")
    assert fleet.rollout("node-0")["Updated"] == ("False", "InUse")
    fleet.pod_ends("pod-0")
    turns(fleet)
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_device_that_fulfils_its_order_keeps_it_while_it_is_in_use() -> None:
    fleet = fleet_of()
    commit(fleet)
    turns(fleet)
    use(fleet)
    before = fleet.orders("node-0")
    commit(fleet, "Container", rollout={"drain": "Never"})
    turns(fleet)
    assert {place: (order["mode"], order["intent"]) for place, order in fleet.orders("node-0").items()} == {
        A: ("Passthrough", "Apply")
    }
    commit(fleet)
    turns(fleet)
    assert fleet.orders("node-0") == before


def test_order_that_the_host_has_not_answered_yet_is_kept_as_well() -> None:
    """A change that moves nothing went before: for a moment nobody says how the device stands."""
    fleet = fleet_of()
    commit(fleet, rollout={"drain": "Never"})
    turns(fleet)
    use(fleet)
    commit(fleet, rollout={"drain": "Never", "maxUnavailable": 2})
    fleet.write(fleet.plan())
    commit(fleet, "Container", rollout={"drain": "Never", "maxUnavailable": 3})
    for _ in range(3):
        fleet.write(fleet.plan())
        assert [(o["mode"], o["intent"]) for o in fleet.orders("node-0").values()] == [("Passthrough", "Apply")]
        fleet.report("node-0")


def test_process_of_the_host_is_waited_for_whatever_the_policy_allows() -> None:
    fleet = fleet_of()
    use(fleet)
    fleet.cards["node-0"][A].users = ["vllm"]
    fleet.report("node-0")
    commit(fleet)
    made = turns(fleet)
    assert fleet.intents() == {A: "Hold"}
    assert not any(plan.drains or plan.marks for plan in made)
    message = fleet.status("p")["blockers"][0]["message"]
    assert message.startswith("in use by vllm, train"), "who cannot be moved comes first"
    assert "no eviction moves a process of the host" in message


def test_device_taken_after_it_was_ordered_is_held_again_where_nobody_is_evicted() -> None:
    fleet = fleet_of(2)
    commit(fleet, rollout={"drain": "Never"})
    made = fleet.plan()
    assert made.specs["node-0"] is not None
    fleet.write(made)
    use(fleet)
    assert fleet.moving("p") == {"node-0"}
    turns(fleet)
    assert fleet.intents() == {A: "Hold"}
    assert fleet.bound() == [f"node-1/{A}"]


def test_device_that_is_so_already_is_adopted_in_use_without_a_drain() -> None:
    fleet = fleet_of(2)
    fleet.cards["node-1"][A].fails = True
    commit(fleet, "Passthrough", "q", priority=1)
    use(fleet)
    use(fleet, "pod-1", "node-1")
    commit(fleet, "Container")
    made = turns(fleet)
    assert fleet.intents() == {A: "Apply"}
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert not any(plan.drains for plan in made)
    assert not fleet.evicted


def test_device_held_and_not_done_needs_room_to_go_on() -> None:
    fleet = fleet_of(3)
    for name in fleet.nodes:
        use(fleet, f"pod-{name}", name)
    commit(fleet, rollout={"drain": "Never"})
    turns(fleet)
    assert all(fleet.intents(name) == {A: "Hold"} for name in fleet.nodes)
    for name in fleet.nodes:
        fleet.pod_ends(f"pod-{name}")
        fleet.report(name)
    made = fleet.plan()
    assert sorted(name for name, change in made.specs.items() if change) == ["node-0"]
    assert made.waiting == {"node-1": ("p",), "node-2": ("p",)}


def test_resumed_policy_moves_nothing_that_is_as_it_asks() -> None:
    fleet = fleet_of(3)
    commit(fleet)
    turns(fleet)
    commit(fleet, state="Paused")
    turns(fleet)
    commit(fleet)
    assert sum(change is not None for change in fleet.plan().specs.values()) == 3


def test_group_is_in_use_with_any_of_its_devices() -> None:
    fleet = fleet_of(cards=2)
    use(fleet, place=B)
    for device in fleet.states["node-0"]["status"]["inventory"]["devices"]:
        device["iommuGroup"] = 7
    rule = device_rule(match={"vendors": ["1eff"], "addresses": [A], "devices": ["1250"]})
    fleet.forget("node-0")
    fleet.add_policy(node_policy("p", rules=[rule | {"passthrough": {"companions": "Bind"}}]))
    [order] = [change.orders.devices[0] for change in fleet.plan().specs.values() if change is not None]
    assert (order.address, order.intent) == (A, "Hold")
    fleet.add_policy(node_policy("p", rules=[rule]))
    [order] = [change.orders.devices[0] for change in fleet.plan().specs.values() if change is not None]
    assert order.intent == "Apply", "the binder refuses companions: nobody else is in the way"


# Drained.


def test_drain_is_told_before_the_node_is_marked_and_anybody_evicted() -> None:
    fleet = fleet_of()
    use(fleet)
    commit(fleet)
    turn(fleet)
    assert fleet.intents() == {A: "Apply"}
    made = turn(fleet)
    assert rollout(fleet)["admitted"] == "Draining"
    assert rollout(fleet)["drain"]["policy"] == "p"
    assert draining(fleet)[:2] == ("True", "Evicting")
    assert not made.drains
    assert not made.marks
    told = [(event.about, event.name, event.node, event.reason) for event in made.events if event.node]
    assert told == [
        (About.POLICY, "p", "node-0", "DrainStarted"),
        (About.NODE, "node-0", "node-0", "DrainStarted"),
    ]
    made = fleet.plan()
    assert made.drains["node-0"].devices[0].pods == {"pod-0"}
    assert made.drains["node-0"].devices[0].withheld
    assert made.marks["node-0"].drain_request == made.drains["node-0"].revision
    assert made.marks["node-0"].unschedulable is None
    assert fleet.conditions("p")["Ready"] == ("False", "RollingOut")
    turn(fleet)
    assert fleet.conditions("p")["Ready"] == ("False", "RollingOut")
    assert blockers(fleet) == [("node-0", "Draining")]


def test_drain_ends_with_the_change_and_leaves_no_mark() -> None:
    fleet = fleet_of()
    use(fleet)
    commit(fleet)
    made = turns(fleet)
    assert fleet.evicted == ["pod-0"]
    assert fleet.bound() == [f"node-0/{A}"]
    assert draining(fleet)[:2] == ("False", "Drained")
    assert "drain" not in rollout(fleet)
    assert rollout(fleet)["admitted"] == "Admitted"
    assert not fleet.annotations("node-0")
    assert [time.outcome for plan in made for time in plan.drain_seconds] == ["Drained"]
    assert [e.reason for plan in made for e in plan.events if e.about is About.NODE] == ["DrainStarted", "Drained"]
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_drain_given_up_is_undone_and_names_who_was_in_the_way() -> None:
    fleet = fleet_of(3)
    fleet.refusing.add("pod-0")
    use(fleet)
    commit(fleet)
    turns(fleet)
    assert fleet.moving("p") == {"node-0"}, "the drain uses up the limit"
    assert fleet.plan().next_check is not None
    fleet.pass_time(121)
    made = fleet.plan()
    assert made.specs["node-0"] is None, "that it was given up is said before anything is undone"
    [time] = made.drain_seconds
    assert (time.node, time.policy, time.outcome) == ("node-0", "p", "DrainTimedOut")
    assert 120 <= time.seconds <= 125
    warnings = [(event.about, event.reason) for event in made.events if event.warning]
    assert (About.NODE, "DrainAborted") in warnings
    assert (About.POLICY, "DrainAborted") in warnings
    turns(fleet)
    assert fleet.intents() == {A: "Hold"}
    assert not fleet.annotations("node-0")
    assert rollout(fleet)["admitted"] == "Aborted"
    status, reason, message = draining(fleet)
    assert (status, reason) == ("False", "DrainTimedOut")
    assert "pod pod-0: a disruption budget forbids it" in message
    assert fleet.bound() == [f"node-1/{A}", f"node-2/{A}"], "the others are next"
    assert blockers(fleet) == [("node-0", "DrainTimedOut")]
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesBlocked")


def test_drain_given_up_is_tried_again_after_its_time() -> None:
    fleet = fleet_of(2)
    fleet.refusing.add("pod-0")
    use(fleet)
    commit(fleet)
    turns(fleet)
    fleet.pass_time(121)
    turns(fleet)
    assert rollout(fleet)["drain"]["aborts"] == 1
    fleet.pass_time(100)
    turns(fleet)
    assert fleet.intents() == {A: "Hold"}
    fleet.pass_time(21)
    turns(fleet)
    assert rollout(fleet)["admitted"] == "Draining"
    fleet.pass_time(121)
    turns(fleet)
    assert rollout(fleet)["drain"]["aborts"] == 2
    assert "tried again after 240 s" in draining(fleet)[2]
    fleet.refusing.clear()
    fleet.pass_time(230)
    turns(fleet)
    assert fleet.intents() == {A: "Hold"}, "the second time it takes twice as long"
    fleet.pass_time(11)
    turns(fleet)
    assert draining(fleet)[1] == "Drained"


def test_node_whose_drain_was_given_up_comes_after_those_where_none_was() -> None:
    fleet = fleet_of(3)
    fleet.refusing |= {"pod-0", "pod-1"}
    use(fleet)
    use(fleet, "pod-1", "node-1")
    use(fleet, "pod-2", "node-2")
    commit(fleet)
    turns(fleet)
    assert rollout(fleet, "node-0")["admitted"] == "Draining"
    for expected in (["Aborted", "Draining", "Waiting"], ["Draining", "Aborted", "Admitted"]):
        fleet.pass_time(121)
        turns(fleet)
        assert [rollout(fleet, name)["admitted"] for name in sorted(fleet.nodes)] == expected
    assert fleet.bound() == [f"node-2/{A}"]


def test_device_that_became_free_waits_for_no_retry() -> None:
    fleet = fleet_of()
    fleet.refusing.add("pod-0")
    use(fleet)
    commit(fleet)
    turns(fleet)
    fleet.pass_time(121)
    turns(fleet)
    assert fleet.intents() == {A: "Hold"}
    fleet.pod_ends("pod-0")
    turns(fleet)
    assert fleet.bound() == [f"node-0/{A}"]
    assert rollout(fleet)["admitted"] == "Admitted"


def test_another_target_waits_for_no_retry_and_a_revert_heals_at_once() -> None:
    fleet = fleet_of()
    commit(fleet)
    turns(fleet)
    fleet.refusing.add("pod-0")
    use(fleet)
    commit(fleet, "Container")
    turns(fleet)
    fleet.pass_time(121)
    turns(fleet)
    assert rollout(fleet)["admitted"] == "Aborted"
    commit(fleet, "HardVNPU", products=("RBLN-CA25",))
    turn(fleet)
    assert [order["intent"] for order in fleet.orders("node-0").values()] == ["Apply"]
    commit(fleet)
    turns(fleet)
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert rollout(fleet)["admitted"] == "Admitted"
    assert fleet.cards["node-0"][A].pods == ["pod-0"], "nobody was disturbed"


def test_revert_heals_a_node_whose_drain_was_given_up_without_room_in_the_limits() -> None:
    fleet = fleet_of(2)
    commit(fleet)
    turns(fleet)
    fleet.refusing.add("pod-0")
    use(fleet)
    commit(fleet, "Container")
    turns(fleet)
    fleet.pass_time(121)
    fleet.write(fleet.plan())
    for _ in range(5):  # the binder of node-1 says nothing of the orders that it gets
        fleet.write(fleet.plan())
        fleet.report("node-0")
    assert (fleet.intents("node-0"), fleet.intents("node-1")) == ({A: "Hold"}, {A: "Apply"})
    assert fleet.moving("p") == {"node-1"}
    commit(fleet)
    for _ in range(5):
        fleet.write(fleet.plan())
        fleet.report("node-0")
    assert fleet.orders("node-0")[A]["mode"] == "Passthrough"
    assert fleet.intents("node-0") == {A: "Apply"}


def revert(fleet: DrainedFleet) -> None:
    commit(fleet, "Passthrough")


def pause(fleet: DrainedFleet) -> None:
    commit(fleet, "Container", state="Paused")


def delete(fleet: DrainedFleet) -> None:
    fleet.policies.clear()
    fleet._views.clear()


def narrow(fleet: DrainedFleet) -> None:
    commit(fleet, "Container", products=("L40S",), rollout=EVICTS | {"drain": "Never"})


@pytest.mark.parametrize("take_back", [revert, pause, delete, narrow])
@pytest.mark.parametrize("room", [True, False])
def test_nobody_is_evicted_for_an_order_that_is_taken_back(
    take_back: Callable[[DrainedFleet], None], room: bool
) -> None:
    fleet = fleet_of()
    commit(fleet)
    turns(fleet)
    fleet.refusing.add("pod-0")
    use(fleet)
    commit(fleet, "Container")
    turns(fleet)
    assert fleet.plan().drains["node-0"].devices
    take_back(fleet)
    if not room:
        fleet.world_extra = {"refused": frozenset({"node-0"}), "in_flight": {"node-0": frozenset({"p"})}}
    for _ in range(3):
        made = fleet.plan()
        assert not any(order.devices for order in made.drains.values()), "the drainer goes by this plan"
        if room:
            fleet.write(made)
            fleet.report("node-0")
            if fleet.orders("node-0").get(A, {}).get("intent") == "Release":
                break


def test_policy_that_takes_back_its_leave_ends_the_drain() -> None:
    fleet = fleet_of()
    fleet.refusing.add("pod-0")
    use(fleet)
    commit(fleet)
    turns(fleet)
    commit(fleet, rollout={"drain": "Never"})
    turns(fleet)
    assert draining(fleet)[:2] == ("False", "Withdrawn")
    assert fleet.intents() == {A: "Hold"}
    assert not fleet.annotations("node-0")


@pytest.mark.parametrize(
    ("mode", "settings", "subtree"),
    [
        ("VGPU", {"vgpu": {"profileMapRef": {"name": "m"}}}, "profiles"),
        ("SoftVNPU", {"softVNPU": {"library": {"name": "vcann-rt", "version": "1.2.0"}}}, "libraries"),
        ("HardVNPU", {}, "publication"),
    ],
)
def test_device_in_use_that_another_daemon_has_cut_up_is_not_given_back_under_its_user(
    mode: str, settings: Object, subtree: str
) -> None:
    """It never left its driver, so the binder has nothing to give back; its user would lose it all the same."""
    fleet = fleet_of()
    fleet.maps = {"m": profile_map("m", products=["RBLN-CA25"])}
    rule = device_rule(mode=mode) | settings
    fleet.add_policy(node_policy("p", rules=[rule], rollout={"drain": "Never"}))
    turn(fleet)
    assert fleet.intents() == {A: "Apply"}
    state = fleet.states["node-0"]
    said = report(
        [device_report(A, "Ready", "Done")], generation=state["metadata"]["generation"], boot_id="boot-node-0-1"
    )
    state["status"][subtree] = said
    use(fleet)
    fleet.forget("node-0")
    fleet.policies.clear()
    fleet._views.clear()
    turn(fleet)
    assert fleet.intents() != {A: "Release"}
    fleet.pod_ends("pod-0")
    fleet.report("node-0")
    turn(fleet)
    assert fleet.intents() == {A: "Release"}


def test_device_of_a_deleted_policy_is_drained_as_that_policy_allowed() -> None:
    fleet = fleet_of()
    commit(fleet)
    turns(fleet)
    use(fleet)
    fleet.refusing.add("pod-0")
    fleet.policies.clear()
    turns(fleet)
    assert fleet.intents() == {A: "Release"}
    assert rollout(fleet)["drain"]["policy"] == "p"
    fleet.pass_time(121)
    turns(fleet)
    assert fleet.intents() == {A: "Hold"}, "the release waits for the retry"
    fleet.pass_time(121)
    fleet.refusing.clear()
    turns(fleet)
    assert fleet.orders("node-0") == {}
    assert not fleet.bound()


def test_new_controller_goes_on_where_the_last_one_stopped() -> None:
    fleet = fleet_of()
    fleet.refusing.add("pod-0")
    use(fleet)
    commit(fleet)
    turns(fleet)
    fleet.facts = {}
    made = fleet.plan()
    assert made.drains["node-0"].devices[0].pods == {"pod-0"}
    assert not made.marks
    assert not any(event.node for event in made.events)
    fleet.pass_time(121)
    turns(fleet)
    assert draining(fleet)[1] == "DrainTimedOut"


def test_drain_that_began_in_the_future_begins_now() -> None:
    """A clock was wrong and has been put right: nobody waits until it is that late."""
    fleet = fleet_of()
    fleet.refusing.add("pod-0")
    use(fleet)
    commit(fleet)
    fleet.pass_time(86400)
    turns(fleet)
    fleet.pass_time(-86400)
    turns(fleet)
    assert draining(fleet)[0] == "True"
    fleet.pass_time(121)
    turns(fleet)
    assert draining(fleet)[1] == "DrainTimedOut"
    fleet.pass_time(-86400)
    turns(fleet)
    fleet.pass_time(121)
    turns(fleet)
    assert rollout(fleet)["admitted"] == "Draining", "the time until the retry as well"


# Cordons.


def needs_cordon(fleet: DrainedFleet) -> None:
    """A fleet in which a pod without a claim uses the device, and does not leave."""
    fleet.refusing.add("pod-0")
    fleet.loose.add("pod-0")
    use(fleet)
    commit(fleet)
    turns(fleet)


def test_node_is_cordoned_only_for_users_that_no_claim_explains() -> None:
    fleet = fleet_of()
    needs_cordon(fleet)
    assert not fleet.schedulable("node-0")
    assert fleet.annotations("node-0")[CORDONED_BY] == "p"
    assert rollout(fleet)["cordonedBy"] == "p"
    fleet.facts = {}
    assert not fleet.plan().marks, "it stays while the drain does, whatever is known of its users"
    fleet.refusing.clear()
    turns(fleet)
    assert fleet.schedulable("node-0")
    assert not fleet.annotations("node-0")
    assert not rollout(fleet).get("cordonedBy")
    assert fleet.bound() == [f"node-0/{A}"]


def test_cordon_is_undone_when_the_drain_is_given_up() -> None:
    fleet = fleet_of()
    needs_cordon(fleet)
    fleet.pass_time(121)
    turns(fleet)
    assert draining(fleet)[1] == "DrainTimedOut"
    assert fleet.schedulable("node-0")
    assert not fleet.annotations("node-0")


def test_cordon_of_somebody_else_is_good_enough_and_stays() -> None:
    fleet = fleet_of()
    fleet.nodes["node-0"]["spec"]["unschedulable"] = True
    needs_cordon(fleet)
    assert CORDONED_BY not in fleet.annotations("node-0")
    fleet.refusing.clear()
    turns(fleet)
    assert fleet.bound() == [f"node-0/{A}"]
    assert not fleet.schedulable("node-0")


def test_person_who_uncordons_ends_the_drain() -> None:
    fleet = fleet_of()
    needs_cordon(fleet)
    fleet.nodes["node-0"]["spec"]["unschedulable"] = False
    turns(fleet)
    assert draining(fleet)[:2] == ("False", "Uncordoned")
    assert not fleet.annotations("node-0")
    assert fleet.schedulable("node-0")
    assert fleet.intents() == {A: "Hold"}
    assert blockers(fleet) == [("node-0", "Uncordoned")]


def test_person_who_takes_over_the_cordon_keeps_it() -> None:
    fleet = fleet_of()
    needs_cordon(fleet)
    del fleet.annotations("node-0")[CORDONED_BY]
    fleet.refusing.clear()
    turns(fleet)
    assert fleet.bound() == [f"node-0/{A}"]
    assert not fleet.schedulable("node-0")


@pytest.mark.parametrize("mark", ["p", "Nobody Of This Name"])
def test_marks_without_a_drain_are_taken_away(mark: str) -> None:
    fleet = fleet_of(2)
    fleet.nodes["node-0"]["spec"]["unschedulable"] = True
    fleet.nodes["node-0"]["metadata"]["annotations"] = {CORDONED_BY: mark, DRAIN_REQUEST: "1", DRAIN_DONE: "1"}
    commit(fleet)
    turns(fleet)
    assert not fleet.annotations("node-0")
    assert fleet.schedulable("node-0")
    assert len(fleet.bound()) == 2


@pytest.mark.parametrize("unschedulable", [True, False])
def test_marks_on_a_node_without_a_state_are_taken_away_once_it_is_known_that_there_is_none(
    unschedulable: bool,
) -> None:
    fleet = fleet_of(2)
    fleet.nodes["node-0"]["spec"]["unschedulable"] = unschedulable
    fleet.nodes["node-0"]["metadata"]["annotations"] = {CORDONED_BY: "p", DRAIN_REQUEST: "1", DRAIN_DONE: "1"}
    fleet.nodes["node-1"]["spec"]["unschedulable"] = True
    fleet.states.clear()
    made = fleet.plan(states_known=False)
    assert not made.marks, "a kind that is not served is not empty"
    assert made.next_check is not None, "and it may be served again without a word"
    made = fleet.plan()
    assert set(made.marks) == {"node-0"}
    fleet.write(made)
    assert not fleet.annotations("node-0")
    assert fleet.schedulable("node-0")
    assert not fleet.schedulable("node-1"), "that is somebody else's"


def test_node_that_vanishes_in_mid_change_keeps_its_place_in_the_limit() -> None:
    fleet = fleet_of(2)
    fleet.add_policy(node_policy("p", mode="Passthrough", rollout={"maxUnavailable": 1}))
    fleet.write(fleet.plan())
    assert fleet.away("p") == {"node-0"}
    gone = fleet.nodes.pop("node-0")
    for _ in range(3):
        fleet.write(fleet.plan())
    fleet.nodes["node-0"] = gone
    fleet.write(fleet.plan())
    assert fleet.away("p") == {"node-0"}


def test_node_that_is_cordoned_for_a_policy_uses_up_its_limit() -> None:
    fleet = fleet_of(2)
    fleet.cards["node-0"].clear()  # nothing of the policy is there any more
    fleet.report("node-0")
    fleet.forget("node-0")
    fleet.nodes["node-0"]["spec"]["unschedulable"] = True
    fleet.nodes["node-0"]["metadata"]["annotations"] = {CORDONED_BY: "p"}
    commit(fleet)
    made = fleet.plan()
    assert made.marks["node-0"].unschedulable is False
    assert made.specs["node-1"] is None


# Others who drain, and publishers.


def test_external_drainer_is_asked_and_waited_for() -> None:
    fleet = fleet_of()
    fleet.world_extra = {"external_drainer": True}
    use(fleet)
    commit(fleet)
    turns(fleet)
    request = fleet.annotations("node-0")[DRAIN_REQUEST]
    assert draining(fleet)[:2] == ("True", "WaitingForDrainer")
    assert fleet.plan().drains["node-0"].devices == ()
    assert not fleet.evicted
    fleet.annotations("node-0")[DRAIN_DONE] = "of other orders"
    turns(fleet)
    assert draining(fleet)[1] == "WaitingForDrainer"
    fleet.annotations("node-0")[DRAIN_DONE] = request
    fleet.write(fleet.plan())
    assert draining(fleet)[1] == "Evicting", "it says that it is done, and there is still somebody"
    fleet.pod_ends("pod-0")
    turns(fleet)
    assert fleet.bound() == [f"node-0/{A}"]
    assert not fleet.annotations("node-0")


def test_external_drainer_that_does_nothing_is_given_up() -> None:
    fleet = fleet_of()
    fleet.world_extra = {"external_drainer": True}
    use(fleet)
    commit(fleet)
    turns(fleet)
    fleet.pass_time(121)
    turns(fleet)
    status, reason, message = draining(fleet)
    assert (status, reason) == ("False", "DrainTimedOut")
    assert "in use by train" in message
    assert fleet.intents() == {A: "Hold"}


def published(claim: str, drain: str) -> DrainedFleet:
    """Two nodes on which devices are published; one is claimed, and not in use, when it has to change."""
    fleet = fleet_of(2)
    fleet.publishers |= set(fleet.nodes)
    commit(fleet)
    turns(fleet)
    fleet.claims[f"node-0/{A}"] = {claim}
    fleet.refusing.add(claim)
    commit(fleet, "Container", rollout=EVICTS | {"drain": drain})
    return fleet


def test_hand_over_is_waited_for_until_the_deadline_even_where_nobody_is_evicted() -> None:
    fleet = published("pod-0", "Never")
    made = turns(fleet)
    assert draining(fleet)[:2] == ("True", "WaitingForPublisher")
    assert "claims of pod-0" in draining(fleet)[2]
    assert not any(plan.drains or plan.marks for plan in made)
    assert not any(event.about is About.NODE for plan in made for event in plan.events), "nobody is moved away"
    assert fleet.conditions("p")["Ready"] == ("False", "RollingOut")
    fleet.pass_time(121)
    turns(fleet)
    assert rollout(fleet)["admitted"] == "Aborted"
    assert rollout(fleet)["drain"]["unseen"] == [A]
    assert fleet.intents() == {A: "Hold"}, "no user is seen, and it is not tried at once"
    assert fleet.bound() == [f"node-0/{A}"], "the other node has changed"
    fleet.pod_ends("pod-0")
    fleet.pass_time(121)
    turns(fleet)
    assert not fleet.bound()


def test_pods_with_claims_that_they_do_not_use_are_evicted() -> None:
    fleet = published("pod-0", "IfInUse")
    turns(fleet)
    assert draining(fleet)[:2] == ("True", "Evicting")
    assert "pod pod-0: a disruption budget forbids it" in draining(fleet)[2]
    fleet.refusing.clear()
    made = turns(fleet)
    assert fleet.evicted == ["pod-0"]
    assert not fleet.bound()
    assert draining(fleet)[1] == "Drained"
    assert [time.outcome for plan in made for time in plan.drain_seconds] == ["Drained"]


def test_drained_device_is_named_with_its_functions() -> None:
    fleet = fleet_of()
    part = "0000:20:00.1"
    fleet.cards["node-0"][part] = Card(device="1251", parent=A, pods=["pod-0"])
    fleet.refusing.add("pod-0")
    fleet.report("node-0")
    rule = device_rule(match={"vendors": ["1eff"], "devices": ["1250"]})
    fleet.add_policy(node_policy("p", rules=[rule], driver_name="npu.rebellions.ai", rollout=EVICTS))
    fleet.write(fleet.plan())
    generation = fleet.states["node-0"]["metadata"]["generation"]
    bindings = fleet.states["node-0"]["status"]["bindings"]
    bindings["observedGeneration"] = generation
    bindings["devices"] = [{"address": A, "state": "Blocked", "reason": "InUse"}]
    fleet.forget("node-0")
    fleet.write(fleet.plan())
    [device] = fleet.plan().drains["node-0"].devices
    assert device.addresses == {A, part}
    assert device.pods == {"pod-0"}


# Limits.


def test_device_on_its_way_goes_to_another_policy_only_where_that_has_room() -> None:
    fleet = fleet_of(2)
    fleet.refusing |= {"pod-0", "pod-1"}
    use(fleet)
    use(fleet, "pod-1", "node-1")
    commit(fleet, rollout=EVICTS | {"maxUnavailable": 2})
    turns(fleet)
    assert {rollout(fleet, name)["admitted"] for name in fleet.nodes} == {"Draining"}
    commit(fleet, name="q", priority=200)
    turns(fleet)
    deciders = [fleet.orders(name)[A]["decidedBy"]["policy"] for name in sorted(fleet.nodes)]
    assert deciders == ["q", "p"]


def test_change_that_moves_nothing_makes_no_way_for_one_that_does() -> None:
    """A node that has not answered yet is counted, and gets no leave for that."""
    fleet = fleet_of(2)
    commit(fleet)
    turns(fleet)
    commit(fleet, "Container")
    fleet.write(fleet.plan())
    assert fleet.moving("p") == {"node-0"}
    commit(fleet, "Container", on_release="Leave")
    fleet.write(fleet.plan())
    fleet.report("node-1")
    fleet.write(fleet.plan())
    assert fleet.orders("node-1")[A]["mode"] == "Passthrough"


def test_rollout_that_only_tries_again_is_degraded() -> None:
    fleet = fleet_of()
    fleet.refusing.add("pod-0")
    use(fleet)
    commit(fleet, rollout=EVICTS | {"progressDeadlineSeconds": 900})
    turns(fleet)
    for _ in range(12):
        fleet.pass_time(121)
        turns(fleet)
    assert fleet.conditions("p")["Degraded"] == ("True", "ProgressStalled")
    [degraded] = [c for c in fleet.status("p")["conditions"] if c["type"] == "Degraded"]
    assert "node-0" in degraded["message"]


def test_facts_of_other_orders_say_nothing() -> None:
    fleet = fleet_of()
    fleet.refusing.add("pod-0")
    use(fleet)
    commit(fleet)
    turns(fleet)
    fleet.facts = {"node-0": DrainFacts("other", True, ("a pod of the past",), (), frozenset())}
    made = fleet.plan()
    assert "node-0" not in made.marks
    assert "a pod of the past" not in str(made.rollouts)


def test_end_of_a_drain_is_told_although_the_node_would_not_take_other_orders() -> None:
    fleet = fleet_of()
    fleet.refusing.add("pod-0")
    needs_cordon(fleet)
    fleet.pass_time(121)
    commit(fleet, "Container")
    fleet.world_extra = {"refused": frozenset({"node-0"})}
    made = fleet.plan()
    assert made.specs["node-0"] is None
    [said] = [c for c in made.rollouts["node-0"].conditions if c.type == "Draining"]
    assert (said.status, said.reason) == ("False", "Withdrawn")
