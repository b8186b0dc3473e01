"""A device that pods may have changes hands: real API server, scheduler, controller, binder and publisher, and a
simulated node, whose kubelet has claims prepared.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.run.control_plane import ControlPlane
from cli.demo.fleet import BINDER, PUBLISHER, Fleet
from node_host.evidence.checkpoint import CHECKPOINT, decode
from node_host.handover.token_files import HANDOVER
from simulated_node.control import Control
from tests.builders.api_calls import delete
from tests.builders.live_drains import DrainFleet
from tests.builders.node_policy_cluster import LEASE, NODES, POLICIES, STATES, condition
from tests.builders.objects import node_policy
from tests.builders.waiting import eventually
from tests.builders.workloads import claim

NODE, POLICY = "hand-over", "hand-over"
POOL = {"npufleet.io/pool": "hand-over"}
FIRST, SECOND = "0000:21:00.0", "0000:22:00.0"
NAMES = {FIRST: "npu-0000-21-00-0", SECOND: "npu-0000-22-00-0"}
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
Object = dict[str, Any]


class Stage:
    """A node with two devices that pods may have, its daemons and the controller."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.api = plane.api()
        self.workloads = DrainFleet(self.api)
        self.fleet = Fleet(plane, directory)
        self.fleet.start_node(NODE, "node-mixed", POOL)
        self.fleet.start_controllers()
        eventually(lambda: self.api.call("GET", f"{NODES}/{NODE}"), what="the node is registered")
        self.fleet.start_daemons(NODE)
        eventually(lambda: not self.fleet.not_ready(), seconds=60, what="controller and daemons are ready")
        self.root = self.fleet.nodes[NODE].root
        self.machine = Control(self.root)
        eventually(lambda: self.api.call("GET", f"{STATES}/{NODE}"), what="the node has a state")

    def end(self) -> None:
        self.fleet.stop()
        self.workloads.clear()
        slices = [f"{SLICES}/{one['metadata']['name']}" for one in self.slices()]
        for path in (f"{POLICIES}/{POLICY}", f"{NODES}/{NODE}", f"{STATES}/{NODE}", LEASE, *slices):
            delete(self.api, path)

    def order(self, mode: str) -> None:
        """Commit the policy."""
        self.workloads.apply(node_policy(POLICY, nodes=POOL, mode=mode, rollout={"drain": "Never"}))

    def until(self, holds: Callable[[], object], what: str, *, seconds: float = 60) -> None:
        eventually(holds, seconds=seconds, every=0.2, what=what)

    def ready(self) -> bool:
        """Whether the policy is ready as it is now."""
        policy = self.api.call("GET", f"{POLICIES}/{POLICY}")
        current = (policy.get("status") or {}).get("observedGeneration") == policy["metadata"]["generation"]
        return current and condition(policy, "Ready") == ("True", "AllDevicesReady")

    def arrives(self, mode: str, kind: str) -> None:
        self.order(mode)
        names = [f"{kind}-0000-21-00-0", f"{kind}-0000-22-00-0"]
        self.until(lambda: self.ready() and self.offered() == dict.fromkeys(names, ()), f"all is {kind}, and ready")

    def slices(self) -> list[Object]:
        found: list[Object] = self.api.call("GET", f"{SLICES}?fieldSelector=spec.nodeName={NODE}")["items"]
        return found

    def offered(self) -> dict[str, tuple[str, ...]]:
        """Names of the devices in the slices, with the keys of their taints."""
        devices = [device for one in self.slices() for device in one["spec"].get("devices") or []]
        return {one["name"]: tuple(taint["key"] for taint in one.get("taints") or []) for one in devices}

    def modes(self) -> dict[str, tuple[str, str]]:
        """Mode and intent ordered of each device."""
        state = self.api.call("GET", f"{STATES}/{NODE}")
        return {entry["address"]: (entry["mode"], entry["intent"]) for entry in state["spec"].get("devices", [])}

    def said(self, subtree: str, address: str) -> tuple[str, str, str]:
        """State, reason and message that a daemon tells of the present orders."""
        state = self.api.call("GET", f"{STATES}/{NODE}")
        report = state["status"].get(subtree) or {}
        if report.get("observedGeneration") == state["metadata"]["generation"]:
            for one in report.get("devices", []):
                if one["address"] == address:
                    return one["state"], one["reason"], one.get("message", "")
        return "", "", ""

    def binding(self, address: str) -> tuple[str, str]:
        return self.said("bindings", address)[:2]

    def publication(self, address: str) -> tuple[str, str]:
        return self.said("publication", address)[:2]

    def blockers(self) -> dict[str, Object]:
        status = self.api.call("GET", f"{POLICIES}/{POLICY}").get("status") or {}
        return {blocker["device"]: blocker for blocker in status.get("blockers", [])}

    def written(self, address: str) -> list[str]:
        """Paths of the writes that named a device, over the whole life of the machine."""
        return [one.path for one in self.fleet.write_log(NODE) if address in one.path or address in one.data]

    def tokens(self) -> list[str]:
        directory = self.root / HANDOVER[1:]
        return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []

    def prepared(self) -> dict[str, str]:
        """Device by name of the claim, as the publisher's checkpoint has it."""
        file = self.root / CHECKPOINT[1:]
        claims = decode(file.read_bytes()).claims.values() if file.exists() else ()
        return {one.name: device.address for one in claims for device in one.devices}

    def schedule(self, name: str, address: str) -> None:
        """A pod with a claim on the device, left to the scheduler."""
        wanted = claim(name, namespace=self.workloads.namespace)
        wanted["metadata"].pop("finalizers")
        cel = f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'
        wanted["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": cel}}]
        namespace = self.workloads.namespace
        self.api.call("POST", f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims", wanted)
        body = {
            "metadata": {"name": name},
            "spec": {
                "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "npu"}]}}],
                "resourceClaims": [{"name": "npu", "resourceClaimName": name}],
                "nodeSelector": POOL,
                "terminationGracePeriodSeconds": 0,
            },
        }
        self.api.call("POST", f"/api/v1/namespaces/{namespace}/pods", body)

    def is_running(self, name: str) -> bool:
        pod = self.workloads.pods().get(name, {})
        return bool(pod) and (pod.get("status") or {}).get("phase") == "Running"


@pytest.fixture(scope="module")
def stage(installed: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(control_plane, tmp_path_factory.mktemp("hand-over"))
    yield made
    made.end()


def test_a_device_of_a_scheduled_pod_is_left_to_it_while_the_other_one_changes(stage: Stage) -> None:
    stage.arrives("Container", "npu")
    stage.schedule("trainer", FIRST)
    stage.until(lambda: stage.is_running("trainer"), "the scheduler gave the pod its device, and it runs")
    assert stage.prepared() == {"trainer": FIRST}
    stage.order("Passthrough")
    stage.until(lambda: stage.binding(SECOND) == ("Ready", "Bound"), "the other one is handed over and bound")
    stage.until(
        lambda: stage.offered() == {NAMES[FIRST]: (), "vfio-0000-22-00-0": ()}, "both are published as they are"
    )
    stage.until(lambda: "trainer" in stage.blockers().get(FIRST, {}).get("message", ""), "the policy names the claim")
    assert stage.modes()[FIRST] != ("Passthrough", "Apply")
    stage.arrives("Container", "npu")
    assert stage.written(FIRST) == []
    assert stage.tokens() == []
    assert stage.is_running("trainer")
    assert stage.prepared() == {"trainer": FIRST}
    stage.workloads.end_pod("trainer")
    stage.until(lambda: not stage.prepared(), "the claim is taken back")
    assert stage.written(FIRST) == []


def test_a_device_that_a_pod_has_open_is_not_even_ordered_away(stage: Stage) -> None:
    stage.arrives("Container", "npu")
    pod = stage.workloads.add_pod("solver", NODE, claims=[NAMES[FIRST]])
    before = stage.written(FIRST)
    stage.machine.open_device("/dev/rbln0", pid=5151, comm="solver", pod_uid=pod["metadata"]["uid"])
    stage.fleet.restart_daemon(NODE, BINDER)  # nobody tells a binder of an opened node, but each looks at its start
    stage.until(lambda: pod["metadata"]["uid"] in _users(stage, FIRST), "the inventory names the pod")
    stage.order("Passthrough")
    stage.until(lambda: stage.binding(SECOND) == ("Ready", "Bound"), "the other one is bound")
    stage.until(lambda: FIRST in stage.blockers(), "the policy tells who is in the way")
    assert stage.blockers()[FIRST]["reason"] == "InUse"
    assert "solver" in stage.blockers()[FIRST]["message"]
    assert stage.modes()[FIRST] != ("Passthrough", "Apply")
    stage.arrives("Container", "npu")
    stage.machine.close_device("/dev/rbln0")
    stage.workloads.end_pod("solver")
    assert stage.written(FIRST) == before


def _users(stage: Stage, address: str) -> list[str]:
    inventory = stage.api.call("GET", f"{STATES}/{NODE}")["status"]["inventory"]
    (device,) = (one for one in inventory["devices"] if one["address"] == address)
    return [user.get("podUID", "") for user in device.get("usedBy", [])]


def test_a_claim_that_is_allocated_while_its_device_is_withheld_is_served_and_waited_for_too(stage: Stage) -> None:
    """A scheduler whose slices are old allocates it; the publisher hands nothing over that it finds allocated."""
    stage.until(lambda: not stage.prepared() and _users(stage, FIRST) == [], "nobody has it")
    stage.arrives("Container", "npu")
    before = stage.written(FIRST)
    stage.workloads.add_claim("early", NODE, NAMES[FIRST])
    stage.order("Passthrough")
    stage.until(lambda: stage.publication(FIRST) == ("Pending", "HandOver"), "the device is withheld")
    stage.until(lambda: stage.binding(FIRST) == ("Blocked", "Published"), "and is not handed over")
    assert "early" in stage.said("publication", FIRST)[2]
    assert stage.offered()[NAMES[FIRST]] == ("npufleet.io/handover",)
    assert f"{FIRST}.json" not in stage.tokens()
    stage.workloads.add_pod("latecomer", NODE, claims=[NAMES[FIRST]])
    stage.until(lambda: stage.prepared() == {"latecomer": FIRST}, "the kubelet gave it to the second claim's pod")
    stage.workloads.end_claim("early")
    assert stage.written(FIRST) == before
    assert f"{FIRST}.json" not in stage.tokens()
    stage.workloads.end_pod("latecomer")
    stage.until(lambda: stage.binding(FIRST) == ("Ready", "Bound"), "the device is bound")
    stage.until(lambda: stage.ready() and not stage.tokens(), "all is ready, and the hand-over finished")
    assert stage.offered() == {"vfio-0000-21-00-0": (), "vfio-0000-22-00-0": ()}
    assert len(stage.written(FIRST)) == len(before) + 3


def test_slices_that_somebody_deletes_come_back_and_a_restart_writes_nothing(stage: Stage) -> None:
    before = stage.offered()
    assert before
    for one in stage.slices():
        stage.api.call("DELETE", f"{SLICES}/{one['metadata']['name']}")
    stage.until(lambda: stage.offered() == before, "the slices are back", seconds=10)
    versions = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in stage.slices()}
    report = stage.api.call("GET", f"{STATES}/{NODE}")["status"]["publication"]
    stage.fleet.restart_daemon(NODE, PUBLISHER)
    stage.until(lambda: not stage.fleet.not_ready(), "the new publisher is ready")
    assert {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in stage.slices()} == versions
    assert stage.api.call("GET", f"{STATES}/{NODE}")["status"]["publication"] == report
