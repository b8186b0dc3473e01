"""The publisher's process on a simulated node, beside a real binder: what others do to its slices and its devices."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.run.control_plane import ControlPlane
from cli.demo.fleet import BINDER, Fleet
from node_host.host import open_host
from node_host.pci.device import DEVICES, DRIVERS
from simulated_node.control import Control
from tests.builders.api_calls import delete
from tests.builders.binder import order
from tests.builders.live_slices import NODES, SLICES
from tests.builders.waiting import eventually

NODE = "publisher"
STATES = "/apis/npufleet.io/v1alpha1/npunodestates"
FIRST, SECOND = "0000:21:00.0", "0000:22:00.0"
OFFERED = {"vfio-0000-21-00-0": (), "vfio-0000-22-00-0": ()}
SHOWN_SECONDS = 10.0
"""Within so long whatever an event tells of shows, with time to spare: it takes a second."""
Object = dict[str, Any]


class Stage:
    """A node with orders for two devices, which nobody changes, and its daemons."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.api = plane.api()
        self.fleet = Fleet(plane, directory)
        self.fleet.start_node(NODE, "node-mixed", {})
        eventually(lambda: self.api.call("GET", f"{NODES}/{NODE}"), what="the node is registered")
        uid = self.api.call("GET", f"{NODES}/{NODE}")["metadata"]["uid"]
        spec = {"revision": "0", "nodeUID": uid, "devices": [order(FIRST), order(SECOND)]}
        self.api.call(
            "POST",
            STATES,
            {"apiVersion": "npufleet.io/v1alpha1", "kind": "NPUNodeState", "metadata": {"name": NODE}, "spec": spec},
        )
        self.fleet.start_daemons(NODE)
        self.machine = Control(self.fleet.nodes[NODE].root)
        self.arrives(OFFERED, seconds=60)

    def end(self) -> None:
        self.fleet.stop()
        slices = [f"{SLICES}/{one['metadata']['name']}" for one in self.slices()]
        for path in (f"{NODES}/{NODE}", f"{STATES}/{NODE}", *slices):
            delete(self.api, path)

    def slices(self) -> list[Object]:
        found: list[Object] = self.api.call("GET", f"{SLICES}?fieldSelector=spec.nodeName={NODE}")["items"]
        return found

    def offered(self) -> dict[str, tuple[str, ...]]:
        """Names of the devices in our slices, with the keys of their taints."""
        ours = [one for one in self.slices() if "labels" in one["metadata"]]
        devices = [device for one in ours for device in one["spec"].get("devices") or []]
        return {one["name"]: tuple(taint["key"] for taint in one.get("taints") or []) for one in devices}

    def arrives(self, offered: Mapping[str, tuple[str, ...]], *, seconds: float = SHOWN_SECONDS) -> None:
        try:
            eventually(lambda: self.offered() == offered, seconds=seconds, what=f"offered: {offered}")
        except AssertionError as error:
            error.add_note(f"offered is {self.offered()}; told: {self.said(FIRST)}, {self.said(SECOND)}")
            raise

    def said(self, address: str) -> tuple[str, str, str]:
        """State, reason and message of the publisher's report."""
        report = self.api.call("GET", f"{STATES}/{NODE}")["status"].get("publication") or {}
        devices: list[dict[str, str]] = report.get("devices", [])
        found = next((one for one in devices if one["address"] == address), dict[str, str]())
        return found.get("state", ""), found.get("reason", ""), found.get("message", "")

    def move(self, address: str, driver: str) -> None:
        """What somebody does by hand on the host."""
        host = open_host(self.fleet.nodes[NODE].root)
        now = host.read_link(f"{DEVICES}/{address}/driver").rpartition("/")[2]
        host.write(f"{DEVICES}/{address}/driver_override", f"{driver}\n".encode())
        host.write(f"{DRIVERS}/{now}/unbind", address.encode())
        host.write(f"{DRIVERS}/{driver}/bind", address.encode())


@pytest.fixture(scope="module")
def stage(installed: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(control_plane, tmp_path_factory.mktemp("publisher"))
    try:
        yield made
        made.fleet.check()
    finally:
        made.end()


def test_t20_a_device_that_somebody_rebinds_is_withheld_at_once_and_comes_back(stage: Stage) -> None:
    stage.fleet.stop_daemon(NODE, BINDER)
    stage.move(FIRST, "rebellions")
    stage.arrives({**OFFERED, "vfio-0000-21-00-0": ("npufleet.io/driver-changed",)})
    eventually(lambda: stage.said(FIRST)[0] not in ("", "Ready"), what="the publisher tells that it is not published")
    assert stage.said(SECOND)[:2] == ("Ready", "Published")
    stage.fleet.start_daemon(NODE, BINDER)
    stage.arrives(OFFERED, seconds=60)
    eventually(lambda: stage.said(FIRST)[:2] == ("Ready", "Published"), what="the publisher tells that it is back")


def test_t19_a_kubelet_that_starts_again_wipes_the_slices_for_a_moment(stage: Stage) -> None:
    before = {one["metadata"]["name"]: one for one in stage.slices()}
    stage.machine.stop_kubelet()
    stage.machine.start_kubelet()
    eventually(
        lambda: (now := stage.slices()) and {one["metadata"]["uid"] for one in now}.isdisjoint(_uids(before.values())),
        what="the kubelet has wiped the slices",
    )
    stage.arrives(OFFERED)
    for one in stage.slices():
        assert one["spec"]["pool"]["generation"] > before[one["metadata"]["name"]]["spec"]["pool"]["generation"]


def _uids(slices: Any) -> set[str]:
    return {one["metadata"]["uid"] for one in slices}


def test_another_plugin_under_our_driver_and_pool_is_named_and_the_pool_left_to_it(stage: Stage) -> None:
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    name = f"{NODE}-npufleet.io-x1y2z"
    body = {
        "metadata": {"name": name},
        "spec": {"driver": "npufleet.io", "nodeName": NODE, "pool": pool, "devices": []},
    }
    stage.api.call("POST", SLICES, body)
    try:
        stage.arrives({})
        eventually(lambda: stage.said(FIRST)[1] == "OtherPlugin", what="the publisher tells why")
        assert name in stage.said(FIRST)[2]
    finally:
        stage.api.call("DELETE", f"{SLICES}/{name}")
    stage.arrives(OFFERED)
