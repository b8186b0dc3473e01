"""A device is ready once pods can have it: where a publisher has ever reported, and where its DeviceClasses exist."""

from __future__ import annotations

import pytest

from crds.device_classes import BASE_DRIVERS, class_name
from crds.device_names import NamedKind
from tests.builders.objects import device_report, device_rule, node_policy, report
from tests.builders.paper_binder import address
from tests.builders.paper_fleet import PaperFleet, fleet_of

A, B = address(0), address(1)
BASE = frozenset(class_name(driver, kind) for driver in BASE_DRIVERS for kind in (NamedKind.NPU, NamedKind.VFIO))


def publish(fleet: PaperFleet, node: str, *words: tuple[str, str, str], generation: int | None = None) -> None:
    """The publisher's report: address, state and reason of devices; of the present orders and boot."""
    state = fleet.states[node]
    found = [device_report(place, how, reason, message="of the publisher") for place, how, reason in words]
    given = state["metadata"]["generation"] if generation is None else generation
    boot = fleet.nodes[node]["status"]["nodeInfo"]["bootID"]
    state["status"]["publication"] = report(found, generation=given, boot_id=boot)


def publish_all(fleet: PaperFleet) -> None:
    for name in fleet.states:
        publish(fleet, name, *((place, "Ready", "Published") for place in fleet.orders(name)))


@pytest.mark.parametrize("mode", ["Passthrough", "Container"])
def test_prepared_device_is_ready_once_it_is_published(mode: str) -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p", mode=mode))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady"), "a cluster without a publisher"
    publish(fleet, "node-0", (A, "Pending", "WaitsForBinding"))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("False", "RollingOut")
    assert fleet.status("p")["devices"] == {"matched": 1, "ready": 0}
    assert fleet.rollout("node-0")["Available"] == ("False", "Changing")
    publish_all(fleet)
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert fleet.rollout("node-0")["Available"] == ("True", "NoDisruption")


@pytest.mark.parametrize("lacking", ["the device", "these orders", "this boot", "a living publisher", "sense"])
def test_publisher_has_to_speak_of_this_device_these_orders_and_this_boot(lacking: str) -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    publish_all(fleet)
    told = fleet.states["node-0"]["status"]["publication"]
    if lacking == "the device":
        told["devices"] = []
    elif lacking == "these orders":
        told["observedGeneration"] -= 1
    elif lacking == "this boot":
        told["bootID"] = "boot-node-0-0"
    elif lacking == "a living publisher":
        fleet.world_extra = {"silent": {"node-0": frozenset({"npufleet-dra-publisher"})}}
    else:
        told["devices"] = [{"state": "Fine"}]
    fleet.settle()
    expected = {
        "the device": ("False", "RollingOut"),
        "these orders": ("False", "RollingOut"),
        "this boot": ("Unknown", "Rebooted"),
        "a living publisher": ("Unknown", "DaemonSilent"),
        "sense": ("False", "DevicesFailed"),
    }
    assert fleet.conditions("p")["Ready"] == expected[lacking]


def test_device_that_cannot_be_published_is_blocked_and_not_away() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    publish(fleet, "node-0", (A, "Blocked", "OtherPlugin"))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesBlocked")
    [blocker] = fleet.status("p")["blockers"]
    assert (blocker["node"], blocker["device"], blocker["reason"]) == ("node-0", A, "OtherPlugin")
    assert fleet.rollout("node-0")["Available"] == ("True", "NoDisruption")


def test_what_the_host_says_comes_first() -> None:
    fleet = fleet_of()
    fleet.cards["node-0"][A].vetoes = ["/dev/sda1 is mounted"]
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    publish(fleet, "node-0", (A, "Pending", "WaitsForBinding"))
    fleet.settle()
    assert [blocker["reason"] for blocker in fleet.status("p")["blockers"]] == ["Vetoed"]


def test_next_node_waits_until_the_devices_of_the_first_are_published_again() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p", mode="Container", rollout={"maxUnavailable": 1}))
    fleet.settle()
    publish_all(fleet)
    fleet.settle()
    fleet.add_policy(node_policy("p", rollout={"maxUnavailable": 1}))
    fleet.settle()
    assert fleet.bound() == [f"node-0/{A}"]
    assert fleet.rollout("node-1")["Updated"] == ("False", "WaitingForBudget")
    publish(fleet, "node-0", (A, "Ready", "Published"))
    fleet.settle()
    assert fleet.bound() == [f"node-0/{A}", f"node-1/{A}"]


def test_release_asks_no_publisher() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    publish_all(fleet)
    fleet.settle()
    fleet.policies.clear()
    fleet.settle()
    assert fleet.orders("node-0") == {}
    assert not fleet.bound()


def test_device_in_use_that_was_never_offered_is_let_go_without_a_drain() -> None:
    fleet = fleet_of()
    fleet.cards["node-0"][A].users = ["training"]
    fleet.add_policy(node_policy("p", mode="Container"))
    fleet.settle()
    assert fleet.intents() == {A: "Apply"}
    publish(fleet, "node-0", (A, "Blocked", "OtherPlugin"))
    fleet.policies.clear()
    fleet.settle()
    assert fleet.orders("node-0") == {}


def test_device_in_use_that_was_offered_is_not_let_go_under_its_user() -> None:
    fleet = fleet_of()
    fleet.cards["node-0"][A].users = ["training"]
    fleet.add_policy(node_policy("p", mode="Container"))
    fleet.settle()
    publish_all(fleet)
    fleet.policies.clear()
    fleet.settle()
    assert fleet.orders("node-0") != {}


def test_missing_device_class_is_told_with_the_fix_and_counts_against_nothing_else() -> None:
    fleet = fleet_of(nodes=2)
    fleet.world_extra = {"device_classes": BASE}
    fleet.add_policy(node_policy("p", driver_name="npu.example.com"))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("False", "DeviceClassMissing")
    assert fleet.status("p")["nodes"] == {"matched": 2, "updated": 2, "ready": 2, "blocked": 0}
    [blocker] = fleet.status("p")["blockers"]
    assert (blocker["node"], blocker["device"], blocker["reason"]) == ("", "", "DeviceClassMissing")
    assert "DeviceClass vfio-npu.example.com does not exist" in blocker["message"]
    assert "`npufleet deviceclasses npu.example.com`" in blocker["message"]
    ready = next(found for found in fleet.status("p")["conditions"] if found["type"] == "Ready")
    assert f"; DeviceClassMissing: {blocker['message']}" in ready["message"]
    fleet.world_extra = {"device_classes": BASE | {"vfio-npu.example.com"}}
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert not fleet.status("p")["blockers"]


def test_only_classes_of_its_modes_are_missed() -> None:
    fleet = fleet_of(cards=2)
    fleet.world_extra = {"device_classes": frozenset({"vfio-npufleet.io"})}
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=1), device_rule("rest", mode="Container")]))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("False", "DeviceClassMissing")
    assert "DeviceClass npufleet.io does not exist" in fleet.status("p")["blockers"][0]["message"]


@pytest.mark.parametrize("known", [None, BASE])
def test_no_class_is_missed_while_nobody_knows_or_nothing_is_asked_for(known: frozenset[str] | None) -> None:
    fleet = fleet_of()
    fleet.world_extra = {"device_classes": known}
    driver = "npu.example.com" if known is None else "npufleet.io"
    fleet.add_policy(node_policy("p", driver_name=driver))
    fleet.add_policy(node_policy("q", products=["RBLN-CA22"], driver_name="npu.example.com"))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert fleet.conditions("q")["Ready"] == ("True", "NoDevicesMatched")


def test_failed_devices_and_missing_daemons_are_told_before_a_missing_class() -> None:
    fleet = fleet_of(nodes=2)
    fleet.world_extra = {"device_classes": frozenset()}
    fleet.cards["node-1"][A].fails = True
    fleet.cards["node-0"][A].users = ["x"]
    fleet.add_policy(node_policy("p", rollout={"maxUnavailable": 2}))
    fleet.settle()
    told = [(blocker["node"], blocker["reason"]) for blocker in fleet.status("p")["blockers"]]
    assert told == [("node-1", "BindFailed"), ("", "DeviceClassMissing"), ("node-0", "InUse")]
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesFailed")
