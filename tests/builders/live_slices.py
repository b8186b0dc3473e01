"""Slices on a real API server: nodes on paper, a publisher with its own identity, claims that are allocated."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.errors import ApiCallError
from cli.cluster.run.control_plane import ControlPlane
from dra_publisher.offers.offer import Offer
from dra_publisher.slices.writer import Outcome, SliceWriter
from runtime.api import Api
from tests.builders.waiting import eventually

Object = dict[str, Any]
NODES = "/api/v1/nodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PUBLISHER = "npufleet-dra-publisher"
SYSTEM = "npufleet-system"


class LivePublisher:
    """Publishes what it was given last whenever it is woken, as the daemon does, until the context ends."""

    def __init__(self, api: Api, node: str, uid: str) -> None:
        self._uid = uid
        self._offers: Mapping[str, Sequence[Offer]] | None = None
        self._woken = asyncio.Event()
        self.writer = SliceWriter(api, node, wake=self._woken.set)
        self.outcomes: list[Outcome] = []

    async def publish(self, offers: Mapping[str, Sequence[Offer]]) -> Outcome:
        self._offers = offers
        self.outcomes.append(await self.writer.publish(offers, node_uid=self._uid))
        return self.outcomes[-1]

    async def keep(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            if self._offers is not None:
                await self.publish(self._offers)


@asynccontextmanager
async def publishing(api: Api, node: str, uid: str) -> AsyncIterator[LivePublisher]:
    """A publisher at work; its slices stay behind."""
    made = LivePublisher(api, node, uid)
    tasks = [asyncio.create_task(made.writer.run()), asyncio.create_task(made.keep())]
    try:
        async with asyncio.timeout(20):
            await made.writer.wait_synced()
        yield made
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class SliceStage:
    """Nodes that can take pods but run none, and a namespace for claims and pods; `end` removes all."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.api: ApiAccess = plane.api()
        self._plane = plane
        self._directory = directory
        self._nodes: dict[str, str] = {}
        self.namespace = f"slices-{uuid.uuid4().hex[:8]}"
        self._path = f"/api/v1/namespaces/{self.namespace}"
        self._claims = f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims"
        self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        eventually(lambda: self.api.call("GET", f"{self._path}/serviceaccounts/default"), what="the account of pods")

    def add_node(self, name: str) -> None:
        """A Node with room for pods."""
        node = self.api.call("POST", NODES, {"metadata": {"name": name}})
        self._nodes[name] = node["metadata"]["uid"]
        room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        # The node controller may write it at the same time.
        eventually(lambda: self._tell(name, {"capacity": room, "allocatable": room}), what=f"room on {name}")

    def _tell(self, name: str, status: Object) -> bool:
        node = self.api.call("GET", f"{NODES}/{name}")
        self.api.call("PUT", f"{NODES}/{name}/status", {**node, "status": {**node.get("status", {}), **status}})
        return True

    def kubeconfig(self, node: str) -> Path:
        """The publisher's identity on the node."""
        out = self._directory / f"{node[:40]}-{uuid.uuid4().hex[:6]}.kubeconfig"
        return service_account_kubeconfig(self._plane, SYSTEM, PUBLISHER, out, node=node)

    @asynccontextmanager
    async def publishing(self, node: str) -> AsyncIterator[LivePublisher]:
        """A publisher of the node under its own identity; its slices stay behind."""
        async with (
            Api.connect(kubeconfig=self.kubeconfig(node), component=PUBLISHER) as api,
            publishing(api, node, self._nodes[node]) as made,
        ):
            yield made

    def slices(self, node: str) -> list[Object]:
        items: list[Object] = self.api.call("GET", f"{SLICES}?fieldSelector=spec.nodeName%3D{node}")["items"]
        return sorted(items, key=lambda one: str(one["metadata"]["name"]))

    def devices(self, node: str) -> dict[str, Object]:
        """Published devices by name."""
        return {device["name"]: device for one in self.slices(node) for device in one["spec"].get("devices") or []}

    # Claims.

    def ask(
        self, name: str, node: str, device_class: str, *expressions: str, count: int = 1, same: str | None = None
    ) -> None:
        """A pod for the node, and its claim for devices of a class that fit CEL expressions, all alike in `same`."""
        selectors = [{"cel": {"expression": text}} for text in expressions]
        exactly = {"deviceClassName": device_class, "selectors": selectors, "count": count}
        devices: Object = {"requests": [{"name": "npu", "exactly": exactly}]}
        if same is not None:
            devices["constraints"] = [{"matchAttribute": same}]
        self.api.call("POST", self._claims, {"metadata": {"name": name}, "spec": {"devices": devices}})
        spec = {
            "nodeSelector": {},
            "affinity": _on(node),
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "npu"}]}}],
            "resourceClaims": [{"name": "npu", "resourceClaimName": name}],
        }
        self.api.call("POST", f"{self._path}/pods", {"metadata": {"name": name}, "spec": spec})

    def ask_by_resource(self, name: str, node: str, resource: str) -> None:
        """A pod that asks for one of an extended resource, and has no claim."""
        container = {"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}
        spec = {"affinity": _on(node), "tolerations": [{"operator": "Exists"}], "containers": [container]}
        self.api.call("POST", f"{self._path}/pods", {"metadata": {"name": name}, "spec": spec})

    def results(self, name: str) -> list[tuple[str, str]]:
        """Pool and device of each result of a claim's allocation; none while it has no allocation."""
        return _results(self.api.call("GET", f"{self._claims}/{name}"))

    def results_of_pod(self, name: str) -> list[tuple[str, str]]:
        """The same for the claim that the scheduler made for a pod."""
        for claim in self.api.call("GET", self._claims)["items"]:
            owners = claim["metadata"].get("ownerReferences") or []
            if any(owner["kind"] == "Pod" and owner["name"] == name for owner in owners):
                return _results(claim)
        return []

    def allocated(self, name: str, *, seconds: float = 30) -> list[str]:
        """The devices of the claim, once it has some."""
        eventually(lambda: self.results(name), seconds=seconds, what=f"claim {name} is allocated")
        return [device for _, device in self.results(name)]

    def unschedulable(self, name: str) -> str:
        """Why the scheduler has found no place for the pod; empty when it has not said so."""
        pod = self.api.call("GET", f"{self._path}/pods/{name}")
        for found in (pod.get("status") or {}).get("conditions") or []:
            if found["type"] == "PodScheduled" and found["status"] == "False":
                return str(found.get("message") or "")
        return ""

    def let_go(self, name: str) -> None:
        """End the pod; its claim goes with it."""
        for path in (f"{self._path}/pods/{name}", f"{self._claims}/{name}"):
            with suppress(ApiCallError):
                self.api.call("DELETE", path, {"gracePeriodSeconds": 0})

    def end(self) -> None:
        """Remove everything."""
        for path in (f"{self._path}/pods", self._claims):
            for item in self.api.call("GET", path)["items"]:
                self.let_go(item["metadata"]["name"])
        for path in [*(f"{NODES}/{name}" for name in self._nodes), self._path]:
            with suppress(ApiCallError):
                self.api.call("DELETE", path)
        for name in self._nodes:
            for item in self.slices(name):
                with suppress(ApiCallError):
                    self.api.call("DELETE", f"{SLICES}/{item['metadata']['name']}")


def _on(node: str) -> Object:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [field]}]}
        }
    }


def _results(claim: Object) -> list[tuple[str, str]]:
    found = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", [])
    return [(one["pool"], one["device"]) for one in found]
