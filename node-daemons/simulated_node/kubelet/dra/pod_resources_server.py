"""Tells others on the host which pod has which devices: the PodResources API of a kubelet."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc
from grpc.aio import ServicerContext

from kubelet_api import pod_resources_v1_pb2 as messages
from kubelet_api import pod_resources_v1_pb2_grpc as stubs
from node_host.host import Host
from simulated_node.kubelet.dra.paths import POD_RESOURCES, SOCKET, SocketPlace
from simulated_node.kubelet.dra.plugin import GivenDevice
from simulated_node.kubelet.dra.pod_claims import PodClaims

# By resource, the ids of devices of device plugins.
PluginDevices = Mapping[str, Sequence[str]]


class PodResourcesServer(stubs.PodResourcesListerServicer):
    """``pods`` are those that run, ``devices`` gives the devices of a claim by its name and namespace.

    ``plugin_devices`` are those that device plugins would serve, ``given`` those of them that pods have, by the pod's
    namespace and name: nothing on this machine plays a device plugin.
    """

    def __init__(
        self, host: Host, pods: Callable[[], Iterable[PodClaims]], devices: Callable[[str, str], Sequence[GivenDevice]]
    ) -> None:
        self._directory = host.local(POD_RESOURCES)
        self._pods = pods
        self._devices = devices
        self.plugin_devices: PluginDevices = {}
        self.given: Mapping[tuple[str, str], PluginDevices] = {}

    async def run(self) -> None:
        """Serve until cancelled; then the socket is gone."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with SocketPlace(self._directory / SOCKET) as place:
            place.clear()
            server = grpc.aio.server()
            stubs.add_PodResourcesListerServicer_to_server(self, server)
            server.add_insecure_port(place.address)
            await server.start()
            try:
                await server.wait_for_termination()
            finally:
                with suppress(BaseException):
                    await server.stop(None)

    async def List(  # noqa: N802 - gRPC's name
        self, request: messages.ListPodResourcesRequest, context: ServicerContext[Any, Any]
    ) -> messages.ListPodResourcesResponse:
        return messages.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._pods()])

    async def GetAllocatableResources(  # noqa: N802 - gRPC's name
        self, request: messages.AllocatableResourcesRequest, context: ServicerContext[Any, Any]
    ) -> messages.AllocatableResourcesResponse:
        return messages.AllocatableResourcesResponse(devices=_plugin_devices(self.plugin_devices))

    async def Get(  # noqa: N802 - gRPC's name
        self, request: messages.GetPodResourcesRequest, context: ServicerContext[Any, Any]
    ) -> messages.GetPodResourcesResponse:
        for pod in self._pods():
            if (pod.pod.namespace, pod.pod.name) == (request.pod_namespace, request.pod_name):
                return messages.GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.NOT_FOUND, text)
        raise AssertionError("unreachable")

    def _pod(self, pod: PodClaims) -> messages.PodResources:
        dynamic: defaultdict[str, list[messages.DynamicResource]] = defaultdict(list)
        for use in pod.uses:
            devices = [
                _device(device)
                for device in self._devices(use.claim, pod.pod.namespace)
                if not use.request or not device.requests or use.request in device.requests
            ]
            if devices:
                dynamic[use.container].append(
                    messages.DynamicResource(
                        claim_name=use.claim, claim_namespace=pod.pod.namespace, claim_resources=devices
                    )
                )
        containers = [
            messages.ContainerResources(name=name, dynamic_resources=dynamic.pop(name, ())) for name in pod.containers
        ]
        if containers:
            containers[0].devices.extend(_plugin_devices(self.given.get((pod.pod.namespace, pod.pod.name), {})))
        return messages.PodResources(name=pod.pod.name, namespace=pod.pod.namespace, containers=containers)


def _device(device: GivenDevice) -> messages.ClaimResource:
    return messages.ClaimResource(
        cdi_devices=[messages.CDIDevice(name=name) for name in device.cdi_ids],
        driver_name=device.driver,
        pool_name=device.pool,
        device_name=device.device,
        share_id=device.share_id,
    )


def _plugin_devices(by_resource: PluginDevices) -> list[messages.ContainerDevices]:
    return [messages.ContainerDevices(resource_name=name, device_ids=ids) for name, ids in by_resource.items()]
