"""A device that pods may have changes hands: real API server, controller, binder process and simulated node, and a
publisher that is played.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.errors import ApiCallError
from cli.cluster.run.control_plane import ControlPlane
from cli.demo.fleet import Fleet
from node_host.handover.token_files import HANDOVER
from simulated_node.control import Control
from tests.builders.cluster_publisher import ClusterPublisher
from tests.builders.live_drains import DrainFleet
from tests.builders.node_policy_cluster import LEASE, NODES, POLICIES, STATES, condition
from tests.builders.objects import node_policy
from tests.builders.played_publisher import Offer, Shape, Stand
from tests.builders.waiting import eventually

NODE, POLICY = "hand-over", "hand-over"
POOL = {"npufleet.io/pool": "hand-over"}
FIRST, SECOND = "0000:21:00.0", "0000:22:00.0"
NAMES = {FIRST: "npu-0000-21-00-0", SECOND: "npu-0000-22-00-0"}
Object = dict[str, Any]


class Stage:
    """A node with two devices that pods may have, its binder, the controller and a publisher."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.api = plane.api()
        self.workloads = DrainFleet(self.api)
        self.fleet = Fleet(plane, directory)
        self.fleet.start_node(NODE, "node-mixed", POOL)
        self.fleet.start_controllers()
        eventually(lambda: self.api.call("GET", f"{NODES}/{NODE}"), what="the node is registered")
        self.fleet.start_binder(NODE)
        eventually(lambda: not self.fleet.not_ready(), seconds=60, what="controller and binder are ready")
        self.root = self.fleet.nodes[NODE].root
        self.machine = Control(self.root)
        eventually(lambda: self.api.call("GET", f"{STATES}/{NODE}"), what="the node has a state")
        self.publisher = ClusterPublisher(self.api, self.root, NODE)

    def end(self) -> None:
        self.fleet.stop()
        self.workloads.clear()
        for path in (f"{POLICIES}/{POLICY}", f"{NODES}/{NODE}", f"{STATES}/{NODE}", LEASE):
            try:
                self.api.call("DELETE", path)
            except ApiCallError as error:
                if error.status != 404:
                    raise

    def order(self, mode: str) -> None:
        """Commit the policy."""
        self.workloads.apply(node_policy(POLICY, nodes=POOL, mode=mode, rollout={"drain": "Never"}))

    def until(self, holds: Callable[[], object], what: str, *, seconds: float = 60) -> None:
        """Wait while the publisher is at work."""

        def look() -> object:
            self.publisher.look()
            return holds()

        eventually(look, seconds=seconds, every=0.2, what=what)

    def ready(self) -> bool:
        """Whether the policy is ready as it is now, and both devices are published."""
        policy = self.api.call("GET", f"{POLICIES}/{POLICY}")
        current = (policy.get("status") or {}).get("observedGeneration") == policy["metadata"]["generation"]
        return current and condition(policy, "Ready") == ("True", "AllDevicesReady")

    def arrives(self, mode: str, shape: Shape) -> None:
        self.order(mode)
        offers = {FIRST: Offer(shape), SECOND: Offer(shape)}
        self.until(lambda: self.ready() and self.publisher.slices == offers, f"all is {shape}")

    def modes(self) -> dict[str, tuple[str, str]]:
        """Mode and intent ordered of each device."""
        state = self.api.call("GET", f"{STATES}/{NODE}")
        return {entry["address"]: (entry["mode"], entry["intent"]) for entry in state["spec"].get("devices", [])}

    def binding(self, address: str) -> tuple[str, str]:
        """State and reason that the binder tells of the present orders."""
        state = self.api.call("GET", f"{STATES}/{NODE}")
        bindings = state["status"]["bindings"]
        if bindings.get("observedGeneration") != state["metadata"]["generation"]:
            return "", ""
        found = next((one for one in bindings["devices"] if one["address"] == address), {"state": "", "reason": ""})
        return found["state"], found["reason"]

    def blockers(self) -> dict[str, Object]:
        status = self.api.call("GET", f"{POLICIES}/{POLICY}").get("status") or {}
        return {blocker["device"]: blocker for blocker in status.get("blockers", [])}

    def written(self, address: str) -> list[str]:
        """Paths of the writes that named a device, over the whole life of the machine."""
        return [one.path for one in self.fleet.write_log(NODE) if address in one.path or address in one.data]

    def tokens(self) -> list[str]:
        directory = self.root / HANDOVER[1:]
        return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


@pytest.fixture(scope="module")
def stage(installed: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(control_plane, tmp_path_factory.mktemp("hand-over"))
    yield made
    made.end()


def test_a_device_of_a_running_pod_is_waited_for_and_left_when_the_orders_are_taken_back(stage: Stage) -> None:
    stage.arrives("Container", Shape.NATIVE)
    stage.workloads.add_pod("trainer", NODE, claims=[NAMES[FIRST]])
    stage.order("Passthrough")
    stage.until(lambda: stage.binding(FIRST) == ("Blocked", "Published"), "the device waits for its pod")
    stage.until(lambda: stage.binding(SECOND) == ("Ready", "Bound"), "the other one is handed over and bound")
    assert stage.publisher.look()[FIRST] is Stand.HAND_OVER
    assert stage.modes()[FIRST] == ("Passthrough", "Apply")
    stage.arrives("Container", Shape.NATIVE)
    assert stage.written(FIRST) == []
    assert stage.tokens() == []
    assert "trainer" in stage.workloads.pods()
    stage.workloads.end_pod("trainer")
    stage.until(lambda: not stage.publisher.claims(), "the claim is free")
    assert stage.written(FIRST) == []


def test_a_device_that_a_pod_has_open_is_not_even_ordered_away(stage: Stage) -> None:
    stage.arrives("Container", Shape.NATIVE)
    pod = stage.workloads.add_pod("solver", NODE, claims=[NAMES[FIRST]])
    before = stage.written(FIRST)
    stage.machine.open_device("/dev/rbln0", pid=5151, comm="solver", pod_uid=pod["metadata"]["uid"])
    stage.fleet.restart_binder(NODE)  # nobody tells a binder of an opened node, but each looks at its start
    stage.until(lambda: _users(stage, FIRST) == [pod["metadata"]["uid"]], "the inventory names the pod")
    stage.order("Passthrough")
    stage.until(lambda: stage.binding(SECOND) == ("Ready", "Bound"), "the other one is bound")
    stage.until(lambda: FIRST in stage.blockers(), "the policy tells who is in the way")
    assert stage.blockers()[FIRST]["reason"] == "InUse"
    assert "solver" in stage.blockers()[FIRST]["message"]
    assert stage.modes()[FIRST] != ("Passthrough", "Apply")
    stage.arrives("Container", Shape.NATIVE)
    stage.machine.close_device("/dev/rbln0")
    stage.workloads.end_pod("solver")
    assert stage.written(FIRST) == before


def _users(stage: Stage, address: str) -> list[str]:
    inventory = stage.api.call("GET", f"{STATES}/{NODE}")["status"]["inventory"]
    (device,) = (one for one in inventory["devices"] if one["address"] == address)
    return [user.get("podUID", "") for user in device.get("usedBy", [])]


def test_a_device_is_bound_once_its_pod_is_gone_and_the_publisher_has_handed_it_over(stage: Stage) -> None:
    stage.arrives("Container", Shape.NATIVE)
    stage.fleet.restart_binder(NODE)
    stage.until(lambda: _users(stage, FIRST) == [], "nobody has it open")
    stage.workloads.add_pod("modeller", NODE, claims=[NAMES[FIRST]])
    before = stage.written(FIRST)
    stage.order("Passthrough")
    stage.until(lambda: stage.binding(FIRST) == ("Blocked", "Published"), "the device waits for its pod")
    assert stage.written(FIRST) == before
    assert stage.publisher.slices[FIRST] == Offer(Shape.NATIVE, withheld=True)
    assert f"{FIRST}.json" not in stage.tokens()
    stage.workloads.end_pod("modeller")
    stage.until(lambda: stage.binding(FIRST) == ("Ready", "Bound"), "the device is bound")
    stage.until(lambda: stage.ready() and not stage.tokens(), "all is ready, and the hand-over finished")
    assert stage.publisher.slices == {FIRST: Offer(Shape.VFIO), SECOND: Offer(Shape.VFIO)}
    assert len(stage.written(FIRST)) == len(before) + 3
