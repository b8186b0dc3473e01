"""Reports count when they are of these orders, of this boot, and of a daemon that is alive."""

from __future__ import annotations

from typing import Any

import pytest

from controllers.node_policy.plan import Cache
from tests.builders.objects import device_report, device_rule, node_policy, profile_map, report
from tests.builders.paper_binder import address
from tests.builders.paper_fleet import fleet_of

A, B = address(0), address(1)


@pytest.mark.parametrize(
    ("mode", "block", "daemon", "subtree"),
    [
        ("VGPU", {"vgpu": {"profileMapRef": {"name": "m"}}}, "npufleet-profile-writer", "profiles"),
        (
            "SoftVNPU",
            {"soft_vnpu": {"library": {"name": "vcann-rt", "version": "1.2.0"}}},
            "npufleet-vnpu-installer",
            "libraries",
        ),
        ("HardVNPU", {}, "npufleet-dra-publisher", "publication"),
    ],
)
def test_mode_whose_daemon_does_not_report_is_not_ready(
    mode: str, block: dict[str, Any], daemon: str, subtree: str
) -> None:
    fleet = fleet_of()
    fleet.maps = {"m": profile_map("m", products=["RBLN-CA25"])}
    fleet.add_policy(node_policy("p", rules=[device_rule(mode=mode, **block)]))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("False", "DaemonMissing")
    [blocker] = fleet.status("p")["blockers"]
    assert (blocker["device"], blocker["reason"]) == ("", "DaemonMissing")
    assert daemon in blocker["message"]
    state = fleet.states["node-0"]
    generation = state["metadata"]["generation"]
    state["status"][subtree] = report([device_report(A)], generation=generation, boot_id="boot-node-0-1")
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_reboot_makes_what_was_reported_unknown_until_it_is_reported_again() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.reboot("node-0")
    fleet.settle(only=["node-1"])
    assert fleet.conditions("p")["Ready"] == ("Unknown", "Rebooted")
    assert fleet.status("p")["devices"] == {"matched": 2, "ready": 1}
    assert fleet.rollout("node-0")["Available"] == ("Unknown", "Rebooted")
    assert fleet.intents() == {A: "Apply"}
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_silent_daemon_makes_what_it_reported_unknown() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.world_extra = {"silent": {"node-0": frozenset({"npufleet-vfio-binder"})}}
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("Unknown", "DaemonSilent")
    assert fleet.status("p")["devices"]["ready"] == 0
    fleet.world_extra = {}
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_silence_is_seen_though_no_object_changes() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    cache = Cache()
    assert fleet.plan(cache).empty
    silent = {"node-0": frozenset({"npufleet-vfio-binder"})}
    assert set(fleet.plan(cache, silent=silent).policy_statuses) == {"p"}
    assert fleet.plan(cache).empty


def test_report_of_older_orders_is_not_ready() -> None:
    fleet = fleet_of(cards=2)
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=1)]))
    fleet.settle()
    fleet.add_policy(node_policy("p"))
    fleet.settle(only=[])
    assert fleet.conditions("p")["Ready"] == ("False", "RollingOut")
    assert fleet.status("p")["devices"] == {"matched": 2, "ready": 0}


@pytest.mark.parametrize("fault", ["unready", "unreadable", "old-boot", "no-boot-id"])
def test_inventory_that_says_nothing_now_leaves_the_orders_alone(fault: str) -> None:
    fleet = fleet_of(cards=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    inventory = fleet.states["node-0"]["status"]["inventory"]
    if fault == "unready":
        inventory["conditions"][0] |= {"status": "False", "reason": "SysfsUnreadable", "message": "EIO"}
    elif fault == "unreadable":
        inventory["devices"] = [{"address": 7}]
    elif fault == "old-boot":
        inventory["bootID"] = "boot-node-0-0"
    else:
        fleet.nodes["node-0"]["status"]["nodeInfo"]["bootID"] = ""
    inventory["devices"] = inventory["devices"][:1]
    fleet.add_policy(node_policy("p", mode="Container"))
    fleet.settle(only=[])
    assert fleet.intents() == {A: "Apply", B: "Apply"}
    assert {o["mode"] for o in fleet.orders("node-0").values()} == {"Passthrough"}
    assert fleet.conditions("p")["Ready"][1] in {"InventoryPending", "Rebooted"}


def test_unreadable_report_is_one_condition() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.states["node-0"]["status"]["bindings"]["devices"] = [{"state": "Fine"}]
    fleet.settle(only=[])
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesFailed")
    [blocker] = fleet.status("p")["blockers"]
    assert blocker["reason"] == "ReportUnreadable"
    assert "status.bindings.devices[0]" in blocker["message"]


def test_orders_that_cannot_be_read_are_never_rewritten() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.states["node-0"]["spec"]["devices"][0]["mode"] = "Teleport"
    fleet.policies.clear()
    fleet.add_policy(node_policy("q"))
    fleet.settle(only=[])
    assert fleet.states["node-0"]["spec"]["devices"][0]["mode"] == "Teleport"
    assert fleet.conditions("q")["Ready"] == ("False", "InventoryPending")
    assert fleet.status("q")["blockers"][0]["reason"] == "StateUnreadable"
