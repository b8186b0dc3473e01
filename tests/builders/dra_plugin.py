"""A DRA plugin, for the kubelet's side of the protocol: it does what a test says, and remembers its calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from kubelet_api import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc, registration_pb2
from kubelet_api.registration_pb2_grpc import RegistrationServicer, add_RegistrationServicer_to_server

DRIVER = "npufleet.io"


class PlayedPlugin(RegistrationServicer):
    """A plugin on a host's root. ``error`` is the answer for each claim while it is set; ``hangs`` keeps calls waiting.

    Each claim gets one device of the driver's pool `node`, by `device_of`.
    """

    def __init__(
        self,
        root: Path,
        driver: str = DRIVER,
        *,
        instance: str = "dra",
        kind: str = "DRAPlugin",
        versions: tuple[str, ...] = ("v1.DRAPlugin", "v1beta1.DRAPlugin"),
        endpoint: str | None = None,
    ) -> None:
        self.driver = driver
        self._kind = kind
        self._versions = versions
        self._root = root
        self._endpoint = f"/var/lib/kubelet/plugins/{driver}/{instance}.sock"
        self._registration = f"/var/lib/kubelet/plugins_registry/{driver}-{instance}-reg.sock"
        self._told_endpoint = endpoint or self._endpoint
        self.prepared: list[str] = []
        self.unprepared: list[str] = []
        self.told: list[tuple[bool, str]] = []
        self.error = ""
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.device_of: Callable[[str], str] = lambda uid: f"vfio-{uid}"
        self._servers: list[grpc.aio.Server] = []
        self._descriptors: list[int] = []

    async def __aenter__(self) -> Self:
        await self.serve()
        await self.register()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def serve(self) -> None:
        """Listen for calls."""

        def add(server: grpc.aio.Server) -> None:
            dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_V1(self), server)
            dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(_V1Beta1(self), server)

        await self._listen(self._endpoint, add)

    async def register(self) -> None:
        """Be found by the kubelet."""
        await self._listen(self._registration, lambda server: add_RegistrationServicer_to_server(self, server))

    async def stop(self) -> None:
        """Away with all sockets."""
        self.hangs.set()
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()
        for path in (self._registration, self._endpoint):
            with suppress(FileNotFoundError):
                (self._root / path[1:]).unlink()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    async def GetInfo(self, request: Any, context: Any) -> registration_pb2.PluginInfo:  # noqa: N802 - gRPC's name
        return registration_pb2.PluginInfo(
            type=self._kind, name=self.driver, endpoint=self._told_endpoint, supported_versions=self._versions
        )

    async def NotifyRegistrationStatus(  # noqa: N802 - gRPC's name
        self, request: registration_pb2.RegistrationStatus, context: Any
    ) -> registration_pb2.RegistrationStatusResponse:
        self.told.append((request.plugin_registered, request.error))
        return registration_pb2.RegistrationStatusResponse()

    async def _listen(self, path: str, add: Callable[[grpc.aio.Server], None]) -> None:
        local = self._root / path[1:]
        local.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(local.parent, os.O_PATH | os.O_DIRECTORY)
        self._descriptors.append(descriptor)
        with suppress(FileNotFoundError):
            local.unlink()
        server = grpc.aio.server()
        add(server)
        server.add_insecure_port(f"unix:/proc/self/fd/{descriptor}/{local.name}")
        await server.start()
        self._servers.append(server)


class _V1(dra_v1_pb2_grpc.DRAPluginServicer):
    def __init__(self, plugin: PlayedPlugin) -> None:
        self._plugin = plugin

    async def NodePrepareResources(  # noqa: N802 - gRPC's name
        self, request: dra_v1_pb2.NodePrepareResourcesRequest, context: Any
    ) -> dra_v1_pb2.NodePrepareResourcesResponse:
        plugin, answer = self._plugin, dra_v1_pb2.NodePrepareResourcesResponse()
        plugin.prepared += [f"{claim.namespace}/{claim.name}" for claim in request.claims]
        await plugin.hangs.wait()
        for claim in request.claims:
            if plugin.error:
                answer.claims[claim.uid].error = plugin.error
            else:
                device = dra_v1_pb2.Device(
                    request_names=["npu"],
                    pool_name="node",
                    device_name=plugin.device_of(claim.uid),
                    cdi_device_ids=[f"k8s.{plugin.driver}/claim={claim.uid}"],
                )
                answer.claims[claim.uid].devices.append(device)
        return answer

    async def NodeUnprepareResources(  # noqa: N802 - gRPC's name
        self, request: dra_v1_pb2.NodeUnprepareResourcesRequest, context: Any
    ) -> dra_v1_pb2.NodeUnprepareResourcesResponse:
        plugin, answer = self._plugin, dra_v1_pb2.NodeUnprepareResourcesResponse()
        plugin.unprepared += [f"{claim.namespace}/{claim.name}" for claim in request.claims]
        for claim in request.claims:
            answer.claims[claim.uid].error = plugin.error
        return answer


class _V1Beta1(dra_v1beta1_pb2_grpc.DRAPluginServicer):
    """The older service, as the newer one says."""

    def __init__(self, plugin: PlayedPlugin) -> None:
        self._v1 = _V1(plugin)

    async def NodePrepareResources(  # noqa: N802 - gRPC's name
        self, request: dra_v1beta1_pb2.NodePrepareResourcesRequest, context: Any
    ) -> dra_v1beta1_pb2.NodePrepareResourcesResponse:
        newer = dra_v1_pb2.NodePrepareResourcesRequest.FromString(request.SerializeToString())
        answer = await self._v1.NodePrepareResources(newer, context)
        return dra_v1beta1_pb2.NodePrepareResourcesResponse.FromString(answer.SerializeToString())

    async def NodeUnprepareResources(  # noqa: N802 - gRPC's name
        self, request: dra_v1beta1_pb2.NodeUnprepareResourcesRequest, context: Any
    ) -> dra_v1beta1_pb2.NodeUnprepareResourcesResponse:
        newer = dra_v1_pb2.NodeUnprepareResourcesRequest.FromString(request.SerializeToString())
        answer = await self._v1.NodeUnprepareResources(newer, context)
        return dra_v1beta1_pb2.NodeUnprepareResourcesResponse.FromString(answer.SerializeToString())
