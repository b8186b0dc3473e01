"""One DRA plugin that is registered: the calls that a kubelet makes to it, and whether it is there.

Source: kubelet pkg/kubelet/cm/dra/plugin (dra_plugin.go, dra_plugin_manager.go): 45 s for a call; the service is the
newest that both know; a plugin whose connection is gone stays registered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import grpc
from grpc.aio import Channel

from kubelet_api import dra_v1_pb2 as messages
from simulated_node.kubelet.dra.paths import SocketPlace

R = TypeVar("R")

TYPE: Final = "DRAPlugin"
CALL_SECONDS: Final = 45.0
# By the name that a plugin gives its service; v1beta1 has the same messages, without shares.
SERVICES: Final[Mapping[str, str]] = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
_RECONNECT_MS: Final = 1000
_MISSING: Final = "the plugin's answer does not have the claim"


@dataclass(frozen=True, slots=True)
class ClaimName:
    """What a plugin is told of a claim."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device as a plugin gave it. ``requests`` empty: for all of the claim."""

    driver: str
    pool: str
    device: str
    requests: tuple[str, ...]
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


class PluginError(Exception):
    """The plugin could not be asked."""


async def answered(call: Awaitable[R]) -> R:
    """What a call returns or raises. gRPC forgets a cancellation that comes together with the answer."""
    try:
        return await call
    finally:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError


async def end(task: asyncio.Future[None]) -> None:
    """Cancel it, and wait until it has ended."""
    task.cancel()
    await asyncio.wait({task})


def channel_to(place: SocketPlace) -> Channel:
    """A channel that comes back within about a second after the other end did."""
    options = [
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),
        ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS),
        ("grpc.enable_http_proxy", 0),
        # The address is the number of a descriptor: no connection may be shared by it.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.insecure_channel(place.address, options=options)


class Plugin:
    """A registered plugin. ``changed`` is called when its connection comes or goes."""

    def __init__(self, driver: str, endpoint: str, socket: Path, service: str, changed: Callable[[], None]) -> None:
        """``service`` is one of SERVICES. Raises OSError when the endpoint's directory is not there."""
        self.driver = driver
        self.endpoint = endpoint
        self.is_connected = False
        self._changed = changed
        self._place = SocketPlace(socket)
        self._channel = channel_to(self._place)
        self._prepare = self._channel.unary_unary(
            f"/{SERVICES[service]}/NodePrepareResources",
            request_serializer=messages.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=messages.NodePrepareResourcesResponse.FromString,
        )
        self._unprepare = self._channel.unary_unary(
            f"/{SERVICES[service]}/NodeUnprepareResources",
            request_serializer=messages.NodeUnprepareResourcesRequest.SerializeToString,
            response_deserializer=messages.NodeUnprepareResourcesResponse.FromString,
        )
        self._following = asyncio.ensure_future(self._follow())

    async def prepare(self, claims: Sequence[ClaimName]) -> Mapping[str, tuple[GivenDevice, ...] | str]:
        """Devices, or the plugin's error, by the claim's UID. Raises PluginError."""
        request = messages.NodePrepareResourcesRequest(claims=[_named(claim) for claim in claims])
        try:
            answer = await answered(self._prepare(request, timeout=CALL_SECONDS))
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from error
        return {
            claim.uid: self._given(answer.claims[claim.uid]) if claim.uid in answer.claims else _MISSING
            for claim in claims
        }

    async def unprepare(self, claims: Sequence[ClaimName]) -> Mapping[str, str]:
        """The plugin's error by the claim's UID, empty for none. Raises PluginError."""
        request = messages.NodeUnprepareResourcesRequest(claims=[_named(claim) for claim in claims])
        try:
            answer = await answered(self._unprepare(request, timeout=CALL_SECONDS))
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from error
        return {
            claim.uid: answer.claims[claim.uid].error if claim.uid in answer.claims else _MISSING for claim in claims
        }

    def check(self) -> None:
        """Raises what has ended the look at the connection, which goes on until `close`."""
        if self._following.done():
            self._following.result()

    async def close(self) -> None:
        await end(self._following)
        await self._channel.close()
        self._place.close()

    async def _follow(self) -> None:
        """Whether the connection is up, now and whenever that changes; it is made anew by itself."""
        while True:
            state = self._channel.get_state(try_to_connect=True)
            is_connected = state is grpc.ChannelConnectivity.READY
            if is_connected is not self.is_connected:
                self.is_connected = is_connected
                self._changed()
            await self._channel.wait_for_state_change(state)

    def _given(self, answer: messages.NodePrepareResourceResponse) -> tuple[GivenDevice, ...] | str:
        if answer.error:
            return answer.error
        return tuple(
            GivenDevice(
                self.driver,
                device.pool_name,
                device.device_name,
                tuple(device.request_names),
                tuple(device.cdi_device_ids),
                device.share_id if device.HasField("share_id") else None,
            )
            for device in answer.devices
        )


def _named(claim: ClaimName) -> messages.Claim:
    return messages.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def _failed(error: grpc.aio.AioRpcError) -> PluginError:
    return PluginError(f"{error.code().name}: {error.details()}")
