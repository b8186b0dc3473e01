"""What vanished in great number at once is held until it is back or its removal is confirmed."""

from __future__ import annotations

import copy

import pytest

from controllers.node_policy.plan.removal_hold import Holds, Subject, device_key, node_key, removal_hold, removal_id
from tests.builders.objects import node_policy
from tests.builders.paper_binder import Card, address
from tests.builders.paper_fleet import PaperFleet, fleet_of, fleet_of_policies

A = address(0)


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
    [event] = told
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
