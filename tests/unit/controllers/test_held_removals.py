"""What vanished in great number at once is held until it is back or its removal is confirmed."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from controllers.node_policy.plan import read_state
from controllers.node_policy.plan.removal_hold import Holds, Subject, device_key, node_key, removal_hold, removal_id
from tests.builders.objects import node_policy
from tests.builders.paper_binder import Card, address
from tests.builders.paper_fleet import PaperFleet, fleet_of, fleet_of_policies

A = address(0)
Object = dict[str, Any]


# Policies that are gone.


def test_all_policies_gone_at_once_are_held() -> None:
    fleet = fleet_of_policies(4)
    gone = dict(fleet.policies)
    fleet.policies.clear()
    made = fleet.plan()
    identity = removal_id(gone)
    assert made.holds.policies.id == identity
    assert [event.reason for event in made.events] == ["RemovalHeld"]
    assert identity in made.events[0].message
    fleet.settle()
    for name in fleet.nodes:
        assert fleet.intents(name) == {A: "Hold"}
        assert fleet.rollout(name)["RemovalHeld"] == ("True", "RemovalHeld")
    assert not fleet.plan().events, "told once"
    assert all(card.bound for cards in fleet.cards.values() for card in cards.values())
    fleet.policies = gone
    fleet.settle()
    for name in fleet.nodes:
        assert fleet.intents(name) == {A: "Apply"}
        assert "RemovalHeld" not in fleet.rollout(name)


@pytest.mark.parametrize("answer", ["all", "ID", "000000000000, ID"])
def test_confirmed_removal_gives_everything_back(answer: str) -> None:
    fleet = fleet_of_policies(4)
    identity = removal_id(fleet.policies)
    fleet.policies.clear()
    fleet.settle()
    confirmed: frozenset[str] = frozenset()
    for _ in range(20):
        fleet.world_extra = {"confirmation": answer.replace("ID", identity), "confirmed": confirmed}
        made = fleet.plan()
        confirmed = made.holds.policies.confirmed
        fleet.write(made)
        # One node after the other answers, so the set of missing policies shrinks on the way.
        for name in sorted(fleet.nodes):
            before = copy.deepcopy(fleet.states[name])
            fleet.report(name)
            if before != fleet.states[name]:
                break
    assert all(not fleet.orders(name) for name in fleet.nodes)
    assert not any(card.bound for cards in fleet.cards.values() for card in cards.values())


def test_confirmation_holds_while_the_set_that_it_names_shrinks() -> None:
    fleet = PaperFleet()
    for number in range(4):
        for twin in range(1 if number == 0 else 2):
            fleet.add_node(f"node-{number}-{twin}", 1, labels={"pool": str(number)})
        fleet.add_policy(node_policy(f"p{number}", nodes={"pool": str(number)}))
    fleet.settle()
    identity = removal_id(fleet.policies)
    fleet.policies.clear()
    fleet.world_extra = {"confirmation": identity}
    made = fleet.plan()
    fleet.write(made)
    # p0 names no order that is not a release any more, so the other three alone would be held under another id; but
    # their orders say that it was confirmed, also to a controller that remembers nothing.
    assert fleet.intents("node-0-0") == {A: "Release"}
    for name in ("node-1-1", "node-2-1", "node-3-1"):
        assert fleet.intents(name) == {A: "Apply"}, "the second node of each policy waits for room"
        [limits] = fleet.states[name]["spec"]["rollouts"]
        assert limits["removal"] == "Confirmed"
    again = fleet.plan()
    assert not again.holds.policies.id
    assert not again.holds.policies.held
    fleet.world_extra = {}
    fleet.settle()
    assert all(not fleet.orders(name) for name in fleet.nodes)


def test_policy_that_came_back_is_not_missing_by_leave_when_it_vanishes_again() -> None:
    fleet = fleet_of_policies(3)
    gone = dict(fleet.policies)
    fleet.policies.clear()
    fleet.write(fleet.plan(confirmation="all"))
    for name in fleet.nodes:
        fleet.states[name]["spec"]["devices"][0]["intent"] = "Apply"  # the release was not written yet
    fleet.reboot("node-0")  # no inventory of this boot
    fleet.policies.update(gone)
    fleet.write(fleet.plan())
    assert all("removal" not in r for state in fleet.states.values() for r in state["spec"]["rollouts"])
    fleet.policies.clear()
    assert fleet.plan().holds.policies.held == {"p0", "p1", "p2"}


def test_confirmed_loss_of_orders_is_remembered_by_the_objects() -> None:
    """One device after the other is given back; a new controller goes on without asking anew."""
    fleet = fleet_of(nodes=4)
    fleet.add_policy(node_policy("p", rollout={"maxUnavailable": 4}))
    fleet.settle()
    fleet.states.clear()
    fleet.policies.clear()
    fleet.write(fleet.plan())
    for name in fleet.nodes:
        fleet.report(name)
    made = fleet.plan()
    assert made.holds.orders.id
    fleet.write(fleet.plan(confirmation=made.holds.orders.id))
    fleet.settle()
    assert not fleet.bound()


def test_wrong_id_confirms_nothing() -> None:
    fleet = fleet_of_policies(3)
    fleet.policies.clear()
    fleet.world_extra = {"confirmation": "0123456789ab"}
    fleet.settle()
    assert fleet.intents() == {A: "Hold"}


@pytest.mark.parametrize(
    ("reference", "gone", "held"),
    [
        (2, 2, False),
        (3, 2, False),
        (3, 3, True),
        (5, 3, True),
        (6, 3, False),
        (6, 4, True),
        (7, 4, True),
        (100, 50, False),
    ],
)
def test_at_least_three_and_more_than_half_are_held(reference: int, gone: int, held: bool) -> None:
    names = {f"p{n:03}" for n in range(reference)}
    existing = set(sorted(names)[gone:])
    hold = removal_hold(names, existing, "")
    assert bool(hold.id) is held
    assert hold.held == (names - existing if held else set())


def test_policy_that_wants_a_held_device_says_so() -> None:
    fleet = fleet_of_policies(3)
    fleet.policies.clear()
    fleet.add_policy(node_policy("renamed", mode="Container"))
    fleet.settle()
    assert fleet.intents() == {A: "Hold"}
    assert fleet.conditions("renamed")["Ready"] == ("Unknown", "RemovalHeld")
    assert {b["reason"] for b in fleet.status("renamed")["blockers"]} == {"RemovalHeld"}


def test_few_policies_are_removed_without_asking() -> None:
    fleet = fleet_of_policies(4)
    del fleet.policies["p0"], fleet.policies["p1"]
    fleet.settle()
    assert not fleet.orders("node-0")
    assert not fleet.orders("node-1")
    assert fleet.intents("node-2") == {A: "Apply"}


# Policies that come back one at a time.


def vanish(fleet: PaperFleet) -> dict[str, Object]:
    gone = dict(fleet.policies)
    fleet.policies.clear()
    return gone


def removals(fleet: PaperFleet, name: str) -> dict[str, str]:
    """What the orders of a node remember of removals, by policy."""
    found = fleet.states[name]["spec"].get("rollouts", [])
    return {entry["policy"]: entry["removal"] for entry in found if "removal" in entry}


@pytest.mark.parametrize("restarts", [False, True], ids=["one-process", "restarted"])
@pytest.mark.parametrize("count", [3, 4, 7])
def test_policies_are_held_until_each_is_back(count: int, *, restarts: bool) -> None:
    fleet = fleet_of_policies(count)
    before, generations = fleet.bound(), [fleet.states[name]["metadata"]["generation"] for name in fleet.nodes]
    gone = vanish(fleet)
    fleet.settle()
    for number in range(count):
        assert removals(fleet, f"node-{number}") == {f"p{number}": "Held"}
        assert fleet.intents(f"node-{number}") == {A: "Hold"}
    for back in range(count):
        if restarts:
            fleet.restart()
        fleet.policies[f"p{back}"] = gone[f"p{back}"]
        fleet.settle()
        for number in range(count):
            name = f"node-{number}"
            held = number > back
            assert fleet.intents(name) == {A: "Hold" if held else "Apply"}
            assert removals(fleet, name) == ({f"p{number}": "Held"} if held else {})
            assert ("RemovalHeld" in fleet.rollout(name)) is held
        assert fleet.bound() == before
        missing = {f"p{number}" for number in range(back + 1, count)}
        assert fleet.plan().holds.policies.held == missing
    after = [fleet.states[name]["metadata"]["generation"] for name in fleet.nodes]
    assert after == [generation + 2 for generation in generations], "held and given back, each in one write"
    assert fleet.plan().empty


def test_those_that_are_still_missing_are_named_and_can_be_confirmed() -> None:
    fleet = fleet_of_policies(4)
    gone = vanish(fleet)
    fleet.settle()
    all_four = fleet.plan().holds.policies.id
    fleet.policies |= {name: gone[name] for name in ("p0", "p1", "p2")}
    made = fleet.plan()
    [event] = [event for event in made.events if event.reason == "RemovalHeld"]
    identity = removal_id({"p3"})
    assert made.holds.policies.id == identity
    assert event.message.startswith("policies that orders name do not exist (1: p3): ")
    assert f"npufleet.io/confirm-removal={identity}" in event.message
    fleet.world_extra = {"confirmation": all_four}
    fleet.settle()
    assert fleet.intents("node-3") == {A: "Hold"}, "an id means the set that it was made from"
    fleet.world_extra = {"confirmation": f"{all_four},{identity}"}
    fleet.settle()
    assert fleet.bound() == [device_key(f"node-{number}", A) for number in range(3)]
    assert not fleet.orders("node-3")


def test_all_confirms_also_those_few_that_are_still_missing() -> None:
    fleet = fleet_of_policies(4)
    gone = vanish(fleet)
    fleet.settle()
    fleet.policies |= {name: gone[name] for name in ("p0", "p1", "p2")}
    fleet.world_extra = {"confirmation": "all"}
    fleet.settle()
    assert len(fleet.bound()) == 3


def test_policy_deleted_while_few_others_are_held_is_not_one_of_them() -> None:
    fleet = fleet_of_policies(5)
    gone = vanish(fleet)
    fleet.settle()
    fleet.policies |= {name: gone[name] for name in ("p0", "p1", "p2", "p3")}
    fleet.settle()
    del fleet.policies["p0"]
    fleet.settle()
    assert not fleet.orders("node-0")
    assert fleet.intents("node-4") == {A: "Hold"}
    assert fleet.plan().holds.policies.held == {"p4"}


def test_policy_that_vanishes_while_most_are_held_is_held_with_them() -> None:
    fleet = fleet_of_policies(5)
    del fleet.policies["p0"], fleet.policies["p1"], fleet.policies["p2"]
    fleet.settle()
    del fleet.policies["p3"]
    fleet.settle()
    assert [fleet.intents(f"node-{number}")[A] for number in range(5)] == ["Hold"] * 4 + ["Apply"]
    fleet.world_extra = {"confirmation": removal_id({"p0", "p1", "p2"})}
    fleet.settle()
    assert len(fleet.bound()) == 5, "the one that joined them was not confirmed"


def test_policy_deleted_while_nobody_looked_is_held_with_those_that_are() -> None:
    fleet = fleet_of_policies(5)
    gone = vanish(fleet)
    fleet.settle()
    fleet.policies |= {name: gone[name] for name in ("p0", "p1", "p2", "p3")}
    fleet.settle()
    del fleet.policies["p0"]
    fleet.restart()
    fleet.settle()
    assert fleet.intents("node-0") == fleet.intents("node-4") == {A: "Hold"}
    assert removals(fleet, "node-0") == {"p0": "Held"}


def write_some(fleet: PaperFleet, count: int) -> bool:
    """The controller dies after so many writes of orders; False when that were all."""
    made = fleet.plan()
    changed = [name for name, change in made.specs.items() if change is not None]
    wanted = dict.fromkeys(made.specs) | {name: made.specs[name] for name in changed[:count]}
    fleet.write(replace(made, specs=wanted, rollouts={}, policy_statuses={}))
    fleet.restart()
    return count < len(changed)


def given_back(fleet: PaperFleet) -> list[str]:
    return [name for name in fleet.nodes if "Release" in fleet.intents(name).values()]


@pytest.mark.parametrize("first", range(1, 7))
@pytest.mark.parametrize("second", range(7))
def test_hold_outlives_a_controller_that_dies_while_it_notes_it(first: int, second: int) -> None:
    """Killed after the first so many notes, and again after so many writes when some are back."""
    fleet = fleet_of_policies(6)
    before = fleet.bound()
    gone = vanish(fleet)
    write_some(fleet, first)
    fleet.policies |= {name: gone[name] for name in ("p0", "p1", "p2", "p3")}
    write_some(fleet, second)
    assert not given_back(fleet)
    for _ in range(5):
        fleet.write(fleet.plan())
        assert not given_back(fleet)
        for name in fleet.nodes:
            fleet.report(name)
    for number in range(6):
        name = f"node-{number}"
        assert removals(fleet, name) == ({} if number < 4 else {f"p{number}": "Held"})
    assert fleet.bound() == before


def test_hold_that_is_not_noted_yet_is_remembered_by_the_process() -> None:
    """Thousands of nodes take minutes to write, and the first policies are back within seconds."""
    fleet = fleet_of_policies(4)
    gone = vanish(fleet)
    made = fleet.plan()
    fleet.write(replace(made, specs=dict.fromkeys(made.specs)))
    fleet.policies |= {name: gone[name] for name in ("p0", "p1")}
    fleet.settle()
    assert [fleet.intents(f"node-{number}")[A] for number in range(4)] == ["Apply", "Apply", "Hold", "Hold"]


def test_paused_policies_are_held_as_well_until_they_are_back() -> None:
    fleet = fleet_of_policies(3)
    for number in range(3):
        fleet.add_policy(node_policy(f"p{number}", nodes={"pool": str(number)}, state="Paused"))
    fleet.settle()
    gone = vanish(fleet)
    fleet.settle()
    for back in range(3):
        fleet.restart()
        fleet.policies[f"p{back}"] = gone[f"p{back}"]
        fleet.settle()
        assert [removals(fleet, f"node-{number}") for number in range(3)] == [
            {f"p{number}": "Held"} if number > back else {} for number in range(3)
        ]
        assert fleet.intents(f"node-{back}") == {A: "Hold"}
    assert len(fleet.bound()) == 3


def test_hold_is_noted_also_where_nothing_can_be_said_of_a_node() -> None:
    fleet = fleet_of_policies(4)
    before = fleet.orders("node-3")
    fleet.reboot("node-3")  # no inventory of this boot
    gone = vanish(fleet)
    fleet.write(fleet.plan())
    assert fleet.orders("node-3") == before
    assert removals(fleet, "node-3") == {"p3": "Held"}
    fleet.restart()
    fleet.policies |= {name: gone[name] for name in ("p0", "p1", "p2")}
    fleet.settle()
    assert fleet.intents("node-3") == {A: "Hold"}
    assert len(fleet.bound()) == 4


def test_hold_of_a_controller_that_noted_nothing_is_noted() -> None:
    fleet = fleet_of_policies(4)
    gone = vanish(fleet)
    fleet.settle()
    for state in fleet.states.values():
        del state["spec"]["rollouts"][0]["removal"]  # as it was written before there was such a note
    fleet.restart()
    fleet.settle()
    assert all(removals(fleet, f"node-{number}") == {f"p{number}": "Held"} for number in range(4))
    fleet.policies |= {name: gone[name] for name in ("p0", "p1", "p2")}
    fleet.settle()
    assert fleet.intents("node-3") == {A: "Hold"}


def test_confirmed_removal_goes_on_though_some_orders_still_say_held() -> None:
    fleet = fleet_of_policies(4)
    vanish(fleet)
    fleet.settle()
    fleet.world_extra = {"confirmation": removal_id(f"p{number}" for number in range(4))}
    write_some(fleet, 2)
    fleet.world_extra = {}
    fleet.settle()
    assert [removals(fleet, f"node-{number}") for number in range(4)] == [{}, {}, {"p2": "Held"}, {"p3": "Held"}]
    assert fleet.bound() == [device_key("node-2", A), device_key("node-3", A)], "nobody confirmed these any more"


def test_note_on_a_node_that_is_gone_holds_nobody_for_ever() -> None:
    fleet = fleet_of_policies(4)
    fleet.add_node("more", 1, labels={"pool": "0"})
    fleet.settle()
    gone = vanish(fleet)
    fleet.settle()
    del fleet.nodes["more"]
    fleet.policies |= gone
    fleet.settle()
    assert removals(fleet, "more") == {"p0": "Held"}, "nobody writes to it any more"
    del fleet.policies["p0"]
    fleet.settle()
    assert not fleet.orders("node-0")


def test_note_that_nobody_knows_makes_the_orders_unreadable_and_changes_none() -> None:
    fleet = fleet_of_policies(4)
    fleet.states["node-0"]["spec"]["rollouts"][0]["removal"] = "Perhaps"
    vanish(fleet)
    fleet.settle()
    assert "removal" in read_state(fleet.states["node-0"]).error
    assert fleet.intents("node-0") == {A: "Apply"}
    assert len(fleet.bound()) == 4


# Orders that are gone.


def reinstalled(fleet: PaperFleet, *back: str) -> dict[str, object]:
    """The CRDs were installed anew: no NPUNodeState, and of the policies only those that are `back`; returns all."""
    every = dict(fleet.policies)
    fleet.policies = {name: policy for name, policy in every.items() if name in back}
    fleet.states.clear()
    return dict(every)


def test_crds_installed_anew_release_nothing_while_most_policies_are_not_back() -> None:
    fleet = fleet_of_policies(6)
    before = fleet.bound()
    every = reinstalled(fleet, "p0")
    fleet.settle()
    assert fleet.bound() == before
    assert fleet.intents() == {A: "Apply"}
    for number in range(1, 6):
        assert fleet.intents(f"node-{number}") == {}
        assert fleet.rollout(f"node-{number}")["RemovalHeld"] == ("True", "RemovalHeld")
    assert "RemovalHeld" not in fleet.rollout("node-0")
    fleet.policies = {name: policy for name, policy in every.items() if isinstance(policy, dict)}
    fleet.settle()
    assert fleet.bound() == before
    assert [fleet.intents(f"node-{number}") for number in range(6)] == [{A: "Apply"}] * 6
    assert not any("RemovalHeld" in fleet.rollout(name) for name in fleet.nodes)


def test_held_orders_are_told_once_with_the_command_that_confirms() -> None:
    fleet = fleet_of_policies(6)
    reinstalled(fleet, "p0")
    told = []
    for _ in range(10):
        made = fleet.plan()
        told += [event for event in made.events if event.reason == "RemovalHeld"]
        fleet.write(made)
        for name in fleet.nodes:
            fleet.report(name)
    [event] = set(told)  # the same words are posted once
    hold = made.holds.orders
    assert hold.id == removal_id({device_key(f"node-{number}", A) for number in range(1, 6)})
    for text in (event.message, fleet.states["node-3"]["status"]["rollout"]["conditions"][-1]["message"]):
        assert f"npufleet.io/confirm-removal={hold.id}" in text
        assert f"node-3/{A}" in text
    assert made.holds.active == (hold,)


def test_report_of_older_orders_does_not_make_the_others_few() -> None:
    fleet = fleet_of_policies(4)
    reinstalled(fleet, "p0")
    fleet.settle()
    generation = fleet.states["node-1"]["metadata"]
    generation["generation"] += 1  # its binder has not answered yet
    made = fleet.plan()
    assert len(made.holds.orders.held) == 3
    assert not any(made.specs.values())


@pytest.mark.parametrize("answer", ["all", "ID", "000000000000, ID"])
@pytest.mark.parametrize("back", [["p0"], []], ids=["one-policy", "no-policy"])
def test_confirmed_loss_of_orders_gives_the_devices_back(answer: str, back: list[str]) -> None:
    fleet = fleet_of_policies(6)
    reinstalled(fleet, *back)
    fleet.settle()
    assert len(fleet.bound()) == 6
    identity = fleet.plan().holds.orders.id
    fleet.world_extra = {"confirmation": answer.replace("ID", identity)}
    for _ in range(20):
        made = fleet.plan()
        fleet.world_extra["confirmed"] = made.holds.confirmed
        fleet.write(made)
        for name in fleet.nodes:
            fleet.report(name)
    assert fleet.bound() == [device_key(f"node-{name[1:]}", A) for name in back]
    assert fleet.plan().empty


@pytest.mark.parametrize(
    ("orphans", "ordered", "held"), [(2, 0, False), (3, 0, True), (3, 2, True), (3, 3, False), (4, 3, True)]
)
def test_at_least_three_devices_and_more_than_are_ordered_are_held(orphans: int, ordered: int, held: bool) -> None:
    fleet = PaperFleet()
    fleet.add_node("node-0", ordered, labels={"pool": "x"})
    fleet.add_node("node-1", orphans, labels={"pool": "y"})
    fleet.add_policy(node_policy("p", nodes={"pool": "x"}))
    fleet.settle()
    for card in fleet.cards["node-1"].values():
        card.bound = True
    fleet.report("node-1")
    assert bool(fleet.plan().holds.orders.id) is held
    fleet.settle()
    assert len(fleet.bound()) == ordered + (orphans if held else 0)


def test_devices_of_a_paused_policy_stay_when_their_orders_are_gone() -> None:
    fleet = fleet_of_policies(2)
    fleet.add_policy(node_policy("p1", nodes={"pool": "1"}, state="Paused"))
    fleet.settle()
    fleet.states.clear()
    fleet.settle()
    assert len(fleet.bound()) == 2
    assert fleet.plan().holds.orders.held == frozenset()


@pytest.mark.parametrize("restarts", [False, True], ids=["one-process", "restarted"])
def test_devices_without_orders_are_held_until_their_policies_are_back(*, restarts: bool) -> None:
    fleet = fleet_of_policies(6)
    before = fleet.bound()
    every = dict(fleet.policies)
    reinstalled(fleet, "p0")
    fleet.settle()
    for back in range(1, 6):
        assert {name: removals(fleet, name) for name in fleet.nodes} == {
            f"node-{number}": {"orphaned.npufleet.io": "Held"} if number >= back else {} for number in range(6)
        }
        if restarts:
            fleet.restart()
        fleet.policies[f"p{back}"] = every[f"p{back}"]
        fleet.settle()
        assert fleet.bound() == before
        assert [fleet.intents(f"node-{number}") for number in range(6)] == [
            {A: "Apply"} if number <= back else {} for number in range(6)
        ]
    assert not any(removals(fleet, name) for name in fleet.nodes)
    assert fleet.plan().empty


@pytest.mark.parametrize("first", range(1, 6))
@pytest.mark.parametrize("second", range(7))
def test_hold_of_devices_outlives_a_controller_that_dies_while_it_notes_it(first: int, second: int) -> None:
    fleet = fleet_of_policies(6)
    before = fleet.bound()
    every = dict(fleet.policies)
    reinstalled(fleet, "p0")
    for _ in range(2):  # states are created, and the policy that is there gives its orders
        fleet.write(fleet.plan())
        fleet.report("node-0")
    for name in fleet.nodes:
        fleet.report(name)
    write_some(fleet, first)
    fleet.policies |= {name: every[name] for name in ("p1", "p2", "p3", "p4")}
    write_some(fleet, second)
    assert not given_back(fleet)
    for _ in range(6):
        fleet.write(fleet.plan())
        assert not given_back(fleet)
        for name in fleet.nodes:
            fleet.report(name)
    assert fleet.bound() == before
    assert [name for name in fleet.nodes if removals(fleet, name)] == ["node-5"]


def test_devices_that_are_still_held_can_be_confirmed() -> None:
    fleet = fleet_of_policies(6)
    every = dict(fleet.policies)
    reinstalled(fleet, "p0")
    fleet.settle()
    fleet.policies |= {name: every[name] for name in ("p1", "p2", "p3", "p4")}
    fleet.settle()
    assert len(fleet.bound()) == 6
    fleet.world_extra = {"confirmation": removal_id({device_key("node-5", A)})}
    fleet.settle()
    assert len(fleet.bound()) == 5
    assert not removals(fleet, "node-5")


def test_hold_of_devices_is_remembered_while_their_binder_says_nothing() -> None:
    fleet = fleet_of_policies(6)
    every = dict(fleet.policies)
    reinstalled(fleet, "p0")
    fleet.settle()
    told = fleet.states["node-5"]["status"].pop("bindings")
    fleet.policies |= {name: every[name] for name in ("p1", "p2", "p3", "p4")}
    for _ in range(5):
        fleet.write(fleet.plan())
        for name in sorted(fleet.nodes)[:5]:
            fleet.report(name)
    fleet.restart()
    fleet.states["node-5"]["status"]["bindings"] = told
    fleet.settle()
    assert len(fleet.bound()) == 6


# Nodes that are gone.


def test_empty_answer_about_nodes_deletes_no_state() -> None:
    fleet = fleet_of_policies(4)
    nodes, before = dict(fleet.nodes), {name: state["spec"] for name, state in fleet.states.items()}
    fleet.nodes.clear()
    made = fleet.plan()
    [event] = [event for event in made.events if event.reason == "RemovalHeld"]
    identity = made.holds.nodes.id
    assert f"npufleet.io/confirm-removal={identity}" in event.message
    fleet.settle(only=[])
    assert not fleet.plan().events, "told once"
    fleet.pass_time(100_000)
    assert fleet.plan().empty
    for name in before:
        [gone] = [c for c in fleet.states[name]["status"]["rollout"]["conditions"] if c["type"] == "NodePresent"]
        assert (gone["status"], gone["reason"]) == ("False", "NodeGone")
        assert f"npufleet.io/confirm-removal={identity}" in gone["message"]
    fleet.nodes = nodes
    fleet.settle()
    assert {name: state["spec"] for name, state in fleet.states.items()} == before
    assert len(fleet.bound()) == 4


@pytest.mark.parametrize("answer", ["all", "ID"])
def test_confirmed_loss_of_nodes_deletes_their_states(answer: str) -> None:
    fleet = fleet_of_policies(4)
    del fleet.nodes["node-0"], fleet.nodes["node-1"], fleet.nodes["node-2"]
    fleet.settle()
    fleet.pass_time(1800)
    made = fleet.plan()
    assert not made.deletions
    fleet.world_extra = {"confirmation": answer.replace("ID", made.holds.nodes.id)}
    made = fleet.plan()
    assert set(made.deletions) == {"node-0", "node-1", "node-2"}
    # One after the other is deleted, so the set of missing nodes shrinks on the way.
    del fleet.states["node-0"]
    assert set(fleet.plan(confirmed=made.holds.confirmed).deletions) == {"node-1", "node-2"}


@pytest.mark.parametrize(("nodes", "gone", "held"), [(2, 2, False), (3, 3, True), (6, 3, False), (6, 4, True)])
def test_states_are_deleted_while_few_nodes_are_gone(nodes: int, gone: int, held: bool) -> None:
    fleet = fleet_of_policies(nodes)
    fleet.add_node("idle", {A: Card(product="RBLN-CA22", device="1220")})
    fleet.settle()
    for name in sorted(fleet.nodes)[1 : gone + 1]:
        del fleet.nodes[name]
    del fleet.nodes["idle"]
    fleet.settle()
    fleet.pass_time(1800)
    assert len(fleet.plan().deletions) == (0 if held else gone + 1)


def test_names_of_the_holds_never_meet() -> None:
    names = {"a", "b", "c"}
    holds = Holds(
        removal_hold(names, set(), "all"),
        removal_hold({device_key(name, A) for name in names}, set(), "all", subject=Subject.ORDERS),
        removal_hold({node_key(name) for name in names}, set(), "all", subject=Subject.NODES),
    )
    assert len(holds.confirmed) == 9
    assert holds.active == ()
