"""Devices are given back on order, within limits, and are done with once the host says so."""

from __future__ import annotations

from tests.builders.objects import device_report, node_policy, report
from tests.builders.paper_binder import address
from tests.builders.paper_fleet import fleet_of

A = address(0)


def test_deleted_policy_gives_back_within_its_limits_and_the_order_stays_until_the_host_confirms() -> None:
    fleet = fleet_of(nodes=3)
    fleet.add_policy(node_policy("p", rollout={"maxUnavailable": 2}))
    fleet.settle()
    del fleet.policies["p"]
    made = fleet.plan()
    assert sum(change is not None for change in made.specs.values()) == 2, "its limits outlive it"
    fleet.write(made)
    assert fleet.intents() == {A: "Release"}
    assert fleet.orders("node-0")[A]["decidedBy"]["policy"] == "p"
    assert fleet.orders("node-0")[A]["passthrough"]["driver"] == "Auto"
    fleet.write(fleet.plan())
    assert fleet.intents() == {A: "Release"}, "nothing was confirmed yet"
    fleet.settle()
    assert all(not fleet.orders(name) for name in fleet.nodes)
    assert not any(card.bound for cards in fleet.cards.values() for card in cards.values())


def test_policy_deleted_while_the_node_is_down_is_undone_when_it_is_back() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.add_policy(node_policy("other", nodes={"pool": "y"}))
    fleet.settle()
    fleet.reboot("node-0")
    del fleet.policies["p"]
    fleet.settle(only=[])
    assert fleet.intents() == {A: "Apply"}, "no inventory of this boot: the orders stay as they are"
    fleet.report("node-0")
    fleet.write(fleet.plan())
    assert fleet.intents() == {A: "Release"}
    fleet.settle()
    assert fleet.orders("node-0") == {}
    assert not fleet.cards["node-0"][A].bound


def test_policy_is_not_ready_until_what_it_lost_is_given_back() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.cards["node-0"][A].users = ["qemu-kvm"]
    fleet.add_policy(node_policy("p", nodes={"pool": "y"}))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesBlocked")
    assert fleet.intents() == {A: "Hold"}, "a VM took it before it could be given back: nothing is ordered that waits"
    fleet.cards["node-0"][A].users = []
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "NoNodesMatched")


def test_release_is_confirmed_by_an_answer_to_these_orders_and_this_boot_only() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    del fleet.policies["p"]
    fleet.write(fleet.plan())
    generation = fleet.states["node-0"]["metadata"]["generation"]
    released = [device_report(A, "Released", "Restored")]
    status = fleet.states["node-0"]["status"]
    status["bindings"] = report(released, generation=generation - 1, boot_id="boot-node-0-1")
    fleet.write(fleet.plan())
    assert fleet.intents() == {A: "Release"}
    status["bindings"] = report(released, generation=generation, boot_id="boot-node-0-0")
    fleet.write(fleet.plan())
    assert fleet.intents() == {A: "Release"}
    status["bindings"] = report(released, generation=generation, boot_id="boot-node-0-1")
    fleet.write(fleet.plan())
    assert fleet.intents() == {}


def test_device_that_npufleet_changed_and_nobody_orders_is_given_back() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p", nodes={"pool": "y"}))
    fleet.settle()
    for name in fleet.nodes:
        fleet.cards[name][A].bound = True
        fleet.report(name)
    made = fleet.plan()
    changes = [change for change in made.specs.values() if change is not None]
    assert len(changes) == 1, "orphans have a limit too"
    [order] = changes[0].spec()["devices"]
    assert (order["intent"], order["mode"], order["onRelease"]) == ("Release", "Passthrough", "Restore")
    assert order["decidedBy"] == {"policy": "orphaned.npufleet.io", "rule": "orphaned"}
    fleet.settle()
    assert not any(card.bound for cards in fleet.cards.values() for card in cards.values())
    assert all(not fleet.orders(name) for name in fleet.nodes)


def test_orphan_that_a_policy_wants_is_taken_over_and_not_given_back() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.cards["node-0"][A].bound = True
    fleet.settle(only=[])
    fleet.report("node-0")
    fleet.write(fleet.plan())
    assert fleet.intents() == {A: "Apply"}


def test_orphans_stay_while_there_is_no_policy_at_all() -> None:
    fleet = fleet_of()
    fleet.cards["node-0"][A].bound = True
    fleet.settle()
    assert fleet.intents() == {}
    assert fleet.cards["node-0"][A].bound
    fleet.world_extra = {"confirmation": "all"}
    fleet.settle()
    assert not fleet.cards["node-0"][A].bound


def test_flip_to_containers_and_back_changes_the_driver_and_ends() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.add_policy(node_policy("p", mode="Container"))
    assert fleet.settle() <= 4
    assert not fleet.cards["node-0"][A].bound
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert fleet.plan().empty
    fleet.add_policy(node_policy("p"))
    assert fleet.settle() <= 4
    assert fleet.cards["node-0"][A].bound


def test_node_of_whose_labels_nothing_is_known_keeps_its_orders() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p", nodes={"pool": "x"}))
    fleet.settle()
    before = fleet.orders("node-0")
    fleet.nodes["node-0"]["metadata"]["labels"] = {}
    fleet.world_extra = {"unsettled": frozenset({"node-0"})}
    fleet.settle()
    assert fleet.orders("node-0") == before
    assert "labels" in str(fleet.states["node-0"]["status"]["rollout"]["conditions"])
    fleet.world_extra = {}
    fleet.settle()
    assert not fleet.bound()
