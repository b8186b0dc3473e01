"""The simulated kubelet on a real API server: it has the rights of a node, and a pod with a claim its devices."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from cli.cluster.access.identities import node_kubeconfig
from cli.cluster.run.control_plane import ControlPlane
from node_host.host.kernel_files import KernelFiles
from runtime.api import Api, NotFound
from runtime.resources import EVENTS, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from simulated_node.kubelet.dra.node_devices import NodeDevices
from simulated_node.kubelet.kubelet import SimulatedKubelet
from simulated_node.kubelet.objects import NodeFacts
from tests.builders.dra_plugin import DRIVER, PlayedPlugin
from tests.builders.workloads import allocation

NODE = "node-kubelet"
BOOT = "6b3f8f1e-0f57-4b1e-9d5e-7a0c4f1b2d3e"
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)


async def test_a_claim_is_prepared_with_the_rights_of_the_node_and_slices_go_with_their_plugin(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    identity = node_kubeconfig(control_plane, NODE, tmp_path / "kubelet.kubeconfig")
    namespace = f"kubelet-{uuid.uuid4().hex[:8]}"
    root = tmp_path / "root"
    root.mkdir()

    async with (
        Api.connect(kubeconfig=control_plane.admin_kubeconfig, component="test") as admin,
        Api.connect(kubeconfig=identity, component="simulated-kubelet") as api,
    ):
        devices = NodeDevices(api, KernelFiles(root), NODE, lambda: BOOT, grace_seconds=1.0)
        kubelet = SimulatedKubelet(
            api,
            lambda: NodeFacts(NODE, {}, "6.8.0", BOOT, "2026-11-30T12:00:00Z"),
            devices,
            prepare_again_seconds=0.3,
        )
        running = asyncio.create_task(kubelet.run())

        async def find(resource: Resource, name: str, where: str | None = None) -> Any:
            try:
                return await admin.get(resource, name, where)
            except NotFound:
                return None

        async def phase() -> str | None:
            pod = await find(PODS, "vm", namespace)
            return None if pod is None else pod["status"]["phase"]

        async def slices() -> list[str]:
            listing = await admin.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={NODE}")
            return [item["metadata"]["name"] for item in listing.items]

        async def is_told() -> bool:
            events = await admin.list(EVENTS, namespace)
            return any("the device waits" in str(item.get("note")) for item in events.items)

        try:
            await admin.create(NAMESPACES, {"metadata": {"name": namespace}})
            await _waited(lambda: find(ACCOUNTS, "default", namespace), what="the account of pods")
            await _waited(lambda: find(NODES, NODE), what="the Node is registered")
            await admin.create(RESOURCE_CLAIMS, _claim(), namespace)
            pod = await admin.create(PODS, _pod(), namespace)
            claim = await admin.get(RESOURCE_CLAIMS, "npu", namespace)
            claim["status"] = allocation(["vfio-0000-23-00-0"], [pod], pool=NODE, driver=DRIVER)
            await admin.replace(RESOURCE_CLAIMS, claim, namespace, subresource="status")
            async with PlayedPlugin(root) as plugin:
                plugin.error = "the device waits for npufleet-vfio-binder"
                await _waited(is_told, what="an Event")
                assert await phase() == "Pending"
                await admin.create(RESOURCE_SLICES, _slice())
                plugin.error = ""
                await _waited(lambda: _is(phase, "Running"), what="the pod runs")
                assert await slices() == ["of-the-plugin"]
                await admin.delete(PODS, "vm", namespace)
                await _waited(lambda: _is(phase, None), what="the pod is gone")
                assert plugin.unprepared == [f"{namespace}/npu"]
            await _waited(lambda: _is(slices, []), what="slices go some time after their plugin")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await admin.delete(NAMESPACES, namespace)


async def _waited(ask: Callable[[], Awaitable[object]], *, what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not await ask():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.05)


async def _is(ask: Any, wanted: object) -> bool:
    return bool(await ask() == wanted)


def _slice() -> dict[str, Any]:
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [{"name": "vfio-0000-23-00-0"}]}
    return {"metadata": {"name": "of-the-plugin"}, "spec": spec}


def _claim() -> dict[str, Any]:
    request = {"name": "npu", "exactly": {"deviceClassName": "npufleet.io"}}
    finalizers = ["resource.kubernetes.io/delete-protection"]
    return {"metadata": {"name": "npu", "finalizers": finalizers}, "spec": {"devices": {"requests": [request]}}}


def _pod() -> dict[str, Any]:
    return {
        "metadata": {"name": "vm"},
        "spec": {
            "nodeName": NODE,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "npu"}]}}],
            "resourceClaims": [{"name": "npu", "resourceClaimName": "npu"}],
        },
    }
