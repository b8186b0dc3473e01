"""Nodes that lose their labels, vanish or are created anew lose no orders before a grace is over."""

from __future__ import annotations

from tests.builders.objects import node, node_policy
from tests.builders.paper_binder import address
from tests.builders.paper_fleet import PaperFleet, fleet_of, fleet_of_policies

A, B = address(0), address(1)
POOL = {"pool": "x"}


def test_node_that_flaps_its_label_comes_back_to_the_same_orders() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p", nodes=POOL))
    fleet.settle()
    before = fleet.states["node-0"]["spec"]
    fleet.nodes["node-0"]["metadata"]["labels"] = {}
    fleet.write(fleet.plan())
    assert fleet.intents() == {A: "Release"}
    fleet.nodes["node-0"]["metadata"]["labels"] = POOL
    fleet.settle()
    assert fleet.states["node-0"]["spec"] == before
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_state_of_a_gone_node_is_deleted_after_the_grace_and_not_before() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    del fleet.nodes["node-0"]
    fleet.settle()
    assert fleet.rollout("node-0")["NodePresent"] == ("False", "NodeGone")
    assert fleet.conditions("p")["Ready"] == ("True", "NoNodesMatched")
    check = fleet.plan().next_check
    assert check is not None
    assert (check - fleet.now).total_seconds() == 1800
    fleet.pass_time(1799)
    assert fleet.plan().empty
    fleet.pass_time(1)
    assert set(fleet.plan().deletions) == {"node-0"}
    fleet.settle()
    assert not fleet.states


def test_node_that_returns_within_the_grace_loses_nothing() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    gone = fleet.nodes.pop("node-0")
    fleet.settle()
    fleet.pass_time(1000)
    fleet.nodes["node-0"] = gone
    fleet.settle()
    assert "NodePresent" not in fleet.rollout("node-0")
    fleet.nodes.clear()
    fleet.settle()
    fleet.pass_time(1000)
    assert not fleet.plan().deletions, "the grace starts anew"


def test_node_created_anew_keeps_its_orders_under_its_new_uid() -> None:
    fleet = fleet_of(cards=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.nodes["node-0"] = node("node-0", uid="another", boot_id="boot-node-0-1", labels=POOL)
    fleet.write(fleet.plan())
    assert fleet.rollout("node-0")["NodeRenewed"] == ("True", "NodeCreatedAnew"), "noted before the orders follow"
    change = fleet.plan().specs["node-0"]
    assert change is not None
    assert change.spec()["nodeUID"] == "another"
    assert change.spec()["devices"] == fleet.states["node-0"]["spec"]["devices"]
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert fleet.intents() == {A: "Apply", B: "Apply"}


def test_state_that_was_deleted_by_hand_is_made_again_and_filled() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    del fleet.states["node-0"]
    fleet.settle()
    assert fleet.intents() == {A: "Apply"}
    assert fleet.cards["node-0"][A].bound


def renew(fleet: PaperFleet, uid: str, labels: dict[str, str] | None = None) -> None:
    fleet.nodes["node-0"] = node("node-0", uid=uid, boot_id="boot-node-0-1", labels=labels)


def test_node_created_anew_without_its_labels_keeps_its_devices_for_the_grace() -> None:
    fleet = fleet_of_policies(1)
    before = fleet.states["node-0"]["spec"]["devices"]
    renew(fleet, "another")
    fleet.settle()
    assert fleet.intents() == {A: "Hold"}
    assert fleet.rollout("node-0")["NodeRenewed"] == ("True", "NodeCreatedAnew")
    check = fleet.plan().next_check
    assert check is not None
    assert (check - fleet.now).total_seconds() == 1800
    fleet.pass_time(1799)
    assert fleet.plan().empty
    renew(fleet, "another", {"pool": "0"})
    fleet.settle()
    assert fleet.states["node-0"]["spec"]["devices"] == before
    assert len(fleet.bound()) == 1


def test_node_whose_labels_do_not_come_back_gives_its_devices_back_after_the_grace() -> None:
    fleet = fleet_of_policies(1)
    renew(fleet, "another")
    fleet.settle()
    fleet.pass_time(1800)
    fleet.settle()
    assert fleet.intents() == {}
    assert not fleet.bound()
    assert "NodeRenewed" not in fleet.rollout("node-0"), "only stated while it lasts"


def test_node_created_anew_a_second_time_begins_the_grace_again() -> None:
    fleet = fleet_of_policies(1)
    renew(fleet, "another")
    fleet.settle()
    fleet.pass_time(1000)
    renew(fleet, "third")
    fleet.settle()
    fleet.pass_time(1000)
    fleet.settle()
    assert fleet.intents() == {A: "Hold"}
    fleet.pass_time(800)
    fleet.settle()
    assert fleet.intents() == {}


def test_orders_follow_a_new_uid_only_after_the_grace_stands_in_the_object() -> None:
    fleet = fleet_of_policies(1)
    renew(fleet, "another")
    made = fleet.plan()
    assert made.specs["node-0"] is None
    assert set(made.rollouts) == {"node-0"}
    assert fleet.plan().specs["node-0"] is None, "nothing was written"
    fleet.write(made)
    change = fleet.plan().specs["node-0"]
    assert change is not None
    assert change.spec()["nodeUID"] == "another"


def test_release_that_was_ordered_before_goes_on_when_the_node_is_created_anew() -> None:
    fleet = fleet_of_policies(1)
    fleet.policies.clear()
    fleet.write(fleet.plan())
    assert fleet.intents() == {A: "Release"}
    renew(fleet, "another")
    fleet.settle()
    assert fleet.intents() == {}
    assert not fleet.bound()
