"""From a profile map to typed virtual functions and back: real API server, controllers and daemons under their own
identities, a simulated node with two L40S.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.run.control_plane import ControlPlane
from cli.demo import vgpus
from cli.demo.cluster_view import ClusterView
from cli.demo.fleet import BINDER, PROFILE_WRITER, Fleet
from node_host.host import open_host
from simulated_node.control import Control
from tests.builders.api_calls import delete, find
from tests.builders.node_policy_cluster import LEASE, NODES, POLICIES, STATES
from tests.builders.objects import device_rule, node_policy, profile_map
from tests.builders.waiting import eventually

Object = dict[str, Any]
NODE, POLICY, MAP = "node-l40s", "vgpus", "vgpu-layout"
MAPS = "/apis/npufleet.io/v1alpha1/vgpuprofilemaps"
CARDS = ("0000:21:00.0", "0000:22:00.0")
VF = "0000:21:00.4"
HALVES = {"L40S-24Q": 2}
MIXED = {"L40S-24Q": 1, "L40S-12Q": 2}


class Stage:
    """A node with two L40S, its binder and profile writer, and the controllers."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.plane = plane
        self.fleet = Fleet(plane, directory)
        self.view = ClusterView(plane.admin_kubeconfig)

    def start(self) -> None:
        components = (BINDER, PROFILE_WRITER)
        self.fleet.start_node(NODE, NODE, {"npufleet.io/pool": "vgpus"}, components=components)
        self.fleet.start_controllers()
        eventually(lambda: self.view.run("get", "node", NODE), what="the node is registered")
        self.fleet.start_daemons(NODE)
        eventually(lambda: not self.fleet.not_ready(), seconds=60, what="controllers and daemons are ready")

    def end(self) -> None:
        """Nothing of it stays in the control plane that other tests use too."""
        self.fleet.stop()
        lease = LEASE.replace("npufleet-node-policy", "npufleet-profile-map")
        paths = (f"{POLICIES}/{POLICY}", f"{MAPS}/{MAP}", f"{NODES}/{NODE}", f"{STATES}/{NODE}", LEASE, lease)
        for path in paths:
            delete(self.plane.api(), path)

    @property
    def machine(self) -> Control:
        return Control(self.fleet.nodes[NODE].root)

    def commit(self, layout: dict[str, int]) -> None:
        """The policy, and its map with this layout, as Argo CD would apply them."""
        rule = device_rule(products=["L40S"], mode="VGPU", vgpu={"profileMapRef": {"name": MAP}})
        policy = node_policy(POLICY, nodes={"npufleet.io/pool": "vgpus"}, rules=[rule])
        mixed = "Allow" if len(layout) > 1 else None
        for path, obj in (
            (POLICIES, policy),
            (MAPS, profile_map(MAP, layout=layout, mixedSizes=mixed, unassigned="Clear")),
        ):
            self._apply(path, obj)

    def _apply(self, path: str, obj: Object) -> None:
        api, name = self.plane.api(), obj["metadata"]["name"]
        body = {**obj, "metadata": {"name": name}}
        body.pop("status", None)
        known = find(api, f"{path}/{name}")
        if known is None:
            api.call("POST", path, body)
        else:
            body["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]
            api.call("PUT", f"{path}/{name}", body)

    def ready(self, path: str = f"{POLICIES}/{POLICY}") -> tuple[str, str]:
        found = find(self.plane.api(), path) or {}
        status = found.get("status") or {}
        if status.get("observedGeneration") != (found.get("metadata") or {}).get("generation"):
            return "", ""
        ready = [one for one in status.get("conditions", []) if one["type"] == "Ready"]
        return (ready[0]["status"], ready[0]["reason"]) if ready else ("", "")

    def map_ready(self) -> tuple[str, str]:
        return self.ready(f"{MAPS}/{MAP}")

    def columns(self) -> list[str]:
        """What `kubectl get vgpuprofilemaps` shows of the map, but for its age."""
        header, row = self.view.run("get", "vgpuprofilemaps", MAP).splitlines()
        assert header.split() == ["NAME", "DESIRED", "READY", "IN", "USE", "REASON", "AGE"]
        return row.split()[1:5]

    def types(self) -> dict[str, tuple[str, int]]:
        return vgpus.vgpus(self.fleet.nodes[NODE].root)

    def node_of(self, function: str) -> str:
        group = open_host(self.fleet.nodes[NODE].root).resolve(f"/sys/bus/pci/devices/{function}/iommu_group")
        return f"/dev/vfio/{group.rpartition('/')[2]}"


@pytest.fixture
def stage(installed: None, control_plane: ControlPlane, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(control_plane, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_map_is_carried_on_every_card_and_comes_back_after_a_reboot_by_itself(stage: Stage) -> None:
    stage.commit(HALVES)
    eventually(lambda: stage.map_ready() == ("True", "AllTyped"), seconds=60, what="both cards carry 2 x L40S-24Q")
    eventually(lambda: stage.ready() == ("True", "AllDevicesReady"), what="the policy says so")
    assert stage.columns() == ["4", "4", "0", "AllTyped"]
    assert vgpus.summary(stage.types()) == "; ".join(f"{card} has 2 x type 1155" for card in CARDS)
    orders = [order for order in vgpus.orders(stage.machine.writes) if "0000:21" in order]
    assert orders == [
        f"/usr/lib/nvidia/sriov-manage -e {CARDS[0]}",
        "0000:21:00.4 current_vgpu_type ← 1155",
        "0000:21:00.5 current_vgpu_type ← 1155",
    ]
    stage.commit(MIXED)
    eventually(lambda: stage.map_ready() == ("True", "AllTyped"), seconds=60, what="both cards carry 24Q + 2 x 12Q")
    carried = stage.types()
    assert stage.columns() == ["6", "6", "0", "AllTyped"]
    boot = stage.fleet.reboot(NODE)
    assert stage.types() == {}
    stage.fleet.start_daemons(NODE)
    eventually(lambda: stage.types() == carried, seconds=60, what="the same functions have the same types again")
    eventually(lambda: stage.map_ready() == ("True", "AllTyped"), what="the map says so")
    state = find(stage.plane.api(), f"{STATES}/{NODE}") or {}
    assert state["status"]["profiles"]["bootID"] == boot
    # Sooner than the daemon looks by itself: the kernel's events wake it.
    stage.machine.reload_driver("nvidia", release="600.10")
    assert stage.types() == {}
    eventually(lambda: stage.types() == carried, seconds=40, what="types are back after another release of the driver")
    eventually(lambda: stage.map_ready() == ("True", "AllTyped"), what="the map says so")
    before = len([record for record in stage.machine.writes if vgpus.is_order(record)])
    stage.fleet.restart_daemons(NODE)
    eventually(lambda: not stage.fleet.not_ready(), what="the restarted daemons are ready")
    assert len([record for record in stage.machine.writes if vgpus.is_order(record)]) == before


def test_function_that_a_vm_holds_keeps_its_type_and_a_missing_map_takes_nothing_away(stage: Stage) -> None:
    stage.commit(HALVES)
    eventually(lambda: stage.map_ready() == ("True", "AllTyped"), seconds=60, what="both cards carry 2 x L40S-24Q")
    node = stage.node_of(VF)
    stage.machine.open_device(node)
    eventually(lambda: stage.columns()[2] == "1", seconds=30, what="the map counts the VM")
    stage.commit({"L40S-12Q": 4})
    eventually(lambda: stage.ready()[1] == "DevicesBlocked", seconds=60, what="the card of the VM is blocked")
    eventually(lambda: stage.types().get("0000:22:00.4", ("", 0))[1] == 1153, seconds=60, what="the other card changes")
    assert stage.types()[VF] == (CARDS[0], 1155)
    policy = find(stage.plane.api(), f"{POLICIES}/{POLICY}") or {}
    assert "qemu-kvm" in policy["status"]["blockers"][0]["message"]
    stage.machine.close_device(node)
    eventually(lambda: stage.map_ready() == ("True", "AllTyped"), seconds=60, what="every card carries 4 x L40S-12Q")
    carried = stage.types()
    delete(stage.plane.api(), f"{MAPS}/{MAP}")
    eventually(lambda: stage.ready() == ("False", "ProfileMapMissing"), what="the policy misses its map")
    assert stage.types() == carried
    state = find(stage.plane.api(), f"{STATES}/{NODE}") or {}
    assert {device["intent"] for device in state["spec"]["devices"]} == {"Hold"}
    stage.commit({"L40S-12Q": 4})
    eventually(lambda: stage.ready() == ("True", "AllDevicesReady"), seconds=60, what="the map is back")
    delete(stage.plane.api(), f"{POLICIES}/{POLICY}")
    eventually(lambda: stage.types() == {}, seconds=60, what="the vGPUs are given back")
    numbers = [stage.fleet.nodes[NODE].root / f"sys/bus/pci/devices/{card}/sriov_numvfs" for card in CARDS]
    eventually(lambda: [path.read_text().strip() for path in numbers] == ["0", "0"], what="as before npufleet came")
