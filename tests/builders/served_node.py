"""npufleet on a node with a real kubelet: the controller, the binder and the publisher, each with its own rights."""

from __future__ import annotations

import json
from typing import Any

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.run.control_plane import ControlPlane
from node_host.evidence.checkpoint import CHECKPOINT
from tests.builders.api_calls import delete, find
from tests.builders.node_daemons import BINDER, NAMESPACE, PUBLISHER, NodeDaemon
from tests.builders.node_policy_cluster import LEASE, NODES, POLICIES, STATES, ControllerProcess, condition
from tests.builders.real_node import SLICES, RealMachine
from tests.builders.waiting import eventually

Object = dict[str, Any]
DRIVER = "npufleet.io"


class ServedNode:
    """The processes; `start` returns when the node's state is there, `stop` ends them and removes what they made."""

    def __init__(self, plane: ControlPlane, machine: RealMachine, *, pod_uid: str | None = None) -> None:
        self._plane = plane
        self.machine = machine
        self.api = plane.api()
        self.name = machine.name
        self._policies: set[str] = set()
        directory = machine.directory / "daemons"
        directory.mkdir()
        account = "npufleet-node-policy"
        kubeconfig = service_account_kubeconfig(plane, NAMESPACE, account, directory / f"{account}.kubeconfig")
        self.controllers = ControllerProcess(kubeconfig, directory / f"{account}.log")
        self.binder = NodeDaemon(plane, BINDER, node=machine.name, root=machine.root, directory=directory)
        self.publisher = self.new_publisher(pod_uid)

    def new_publisher(self, pod_uid: str | None) -> NodeDaemon:
        """One more pod of the publisher's DaemonSet, as in a rolling update; with None it thinks that it is alone."""
        directory = self.machine.directory / "daemons" / (pod_uid or "alone")
        directory.mkdir()
        options = () if pod_uid is None else ("--pod-uid", pod_uid)
        return NodeDaemon(
            self._plane,
            PUBLISHER,
            node=self.machine.name,
            root=self.machine.root,
            directory=directory,
            options=options,
        )

    def start(self) -> None:
        eventually(lambda: find(self.api, f"{STATES}/{self.name}"), what="the node has a state")
        self.binder.start()
        self.publisher.start()

    def stop(self) -> None:
        self.publisher.stop()
        self.binder.stop()
        self.controllers.stop()
        paths = [f"{POLICIES}/{name}" for name in self._policies]
        for path in (*paths, f"{STATES}/{self.name}", LEASE):
            delete(self.api, path)

    def apply(self, policy: Object) -> None:
        """Create or replace a policy, as a commit does."""
        name = policy["metadata"]["name"]
        body = {**policy, "metadata": {"name": name}}
        body.pop("status", None)
        known = find(self.api, f"{POLICIES}/{name}")
        self._policies.add(name)
        if known is None:
            self.api.call("POST", POLICIES, body)
        else:
            body["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]
            self.api.call("PUT", f"{POLICIES}/{name}", body)

    def is_ready(self, policy: str) -> bool:
        found = self.api.call("GET", f"{POLICIES}/{policy}")
        current = (found.get("status") or {}).get("observedGeneration") == found["metadata"]["generation"]
        return current and condition(found, "Ready") == ("True", "AllDevicesReady")

    def slices(self, driver: str = DRIVER) -> list[Object]:
        items: list[Object] = self.api.call("GET", f"{SLICES}?fieldSelector=spec.driver={driver}")["items"]
        return [one for one in items if one["spec"]["pool"]["name"] == self.name]

    def devices(self, driver: str = DRIVER) -> dict[str, Object]:
        """What is offered now, by the names of the devices; nothing while the pool is not complete."""
        slices = self.slices(driver)
        generation = max((one["spec"]["pool"]["generation"] for one in slices), default=0)
        newest = [one for one in slices if one["spec"]["pool"]["generation"] == generation]
        if not newest or len(newest) != newest[0]["spec"]["pool"]["resourceSliceCount"]:
            return {}
        return {device["name"]: device for one in newest for device in one["spec"].get("devices") or []}

    def taints(self, device: str) -> dict[str, str]:
        """Keys and values of the taints of an offered device; fails when it is not offered."""
        return {taint["key"]: taint.get("value", "") for taint in self.devices()[device].get("taints") or []}

    def prepared(self) -> set[str]:
        """Names of the claims in the publisher's checkpoint."""
        file = self.machine.root / CHECKPOINT[1:]
        if not file.exists():
            return set()
        claims = json.loads(file.read_bytes())["content"]["claims"]
        return {one["name"] for one in (claims.values() if isinstance(claims, dict) else claims)}

    def cdi_files(self, uid: str) -> list[str]:
        """Names of the CDI files of a claim."""
        return sorted(path.name for path in (self.machine.root / "run/cdi").iterdir() if uid in path.name)

    def report(self, address: str) -> tuple[str, str, str]:
        """State, reason and message that the publisher reports of a device."""
        status = (find(self.api, f"{STATES}/{self.name}") or {}).get("status") or {}
        for one in (status.get("publication") or {}).get("devices") or []:
            if one["address"] == address:
                return one["state"], one["reason"], one.get("message", "")
        return "", "", ""

    def describe(self) -> str:
        """For messages of failed tests: what the daemons report."""
        status = (find(self.api, f"{STATES}/{self.name}") or {}).get("status") or {}
        return json.dumps({part: (status.get(part) or {}).get("devices") for part in ("bindings", "publication")})


__all__ = ["DRIVER", "NODES", "ServedNode"]
