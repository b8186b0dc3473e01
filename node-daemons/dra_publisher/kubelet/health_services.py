"""The health of a driver's devices, told to the kubelet as long as it listens.

Each message names all devices. It is sent again well before the kubelet would count them as unknown, which also keeps
the connection from looking idle (kubelets 1.34.0 and 1.34.1 drop one after half an hour without traffic).
"""
# Names of methods are those of the .proto files.
# ruff: noqa: N802

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from grpc.aio import Server, ServicerContext

from dra_publisher.kubelet.service import DeviceHealth, HealthSource
from kubelet_api import health_v1_pb2 as v1
from kubelet_api import health_v1alpha1_pb2 as v1alpha1
from kubelet_api.health_v1_pb2_grpc import DRAResourceHealthServicer as V1Servicer
from kubelet_api.health_v1_pb2_grpc import add_DRAResourceHealthServicer_to_server as add_v1
from kubelet_api.health_v1alpha1_pb2_grpc import DRAResourceHealthServicer as V1Alpha1Servicer
from kubelet_api.health_v1alpha1_pb2_grpc import add_DRAResourceHealthServicer_to_server as add_v1alpha1

TIMEOUT_SECONDS: Final = 60
AGAIN_SECONDS: Final = 20.0
_SETTLE_SECONDS: Final = 0.1
_MESSAGE_BYTES: Final = 1024


class HealthStreams:
    """The open streams of all drivers."""

    def __init__(
        self, source: HealthSource, *, again_seconds: float = AGAIN_SECONDS, clock: Callable[[], float] = time.time
    ) -> None:
        self._source = source
        self._again = again_seconds
        self._clock = clock
        self._wakes: set[asyncio.Event] = set()
        source.subscribe(self.wake)

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._wakes)

    def wake(self) -> None:
        """Look whether something has changed."""
        for wake in self._wakes:
            wake.set()

    async def lists(self, driver: str, ended: asyncio.Event) -> AsyncIterator[tuple[int, tuple[DeviceHealth, ...]]]:
        """Seconds since 1970 and all devices: now, at each change, and when the last ones get old; until ``ended``."""
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            sent: tuple[DeviceHealth, ...] | None = None
            due = 0.0
            loop = asyncio.get_running_loop()
            while not ended.is_set():
                wake.clear()
                devices = self._source.devices(driver)
                if devices != sent or loop.time() >= due:
                    sent, due = devices, loop.time() + self._again
                    yield int(self._clock()), devices
                await _any(due - loop.time(), wake, ended)
                await _any(_SETTLE_SECONDS, ended)  # changes seldom come alone
        finally:
            self._wakes.discard(wake)


def add_health_services(server: Server, driver: str, streams: HealthStreams, ended: asyncio.Event) -> None:
    """Serve both versions for this driver. ``ended`` closes its streams, which would hold up the server's end."""
    add_v1(_V1(driver, streams, ended), server)
    add_v1alpha1(_V1Alpha1(driver, streams, ended), server)


class _V1(V1Servicer):
    def __init__(self, driver: str, streams: HealthStreams, ended: asyncio.Event) -> None:
        self._driver, self._streams, self._ended = driver, streams, ended

    async def NodeWatchResources(
        self, request: v1.NodeWatchResourcesRequest, context: ServicerContext[Any, Any]
    ) -> AsyncIterator[v1.NodeWatchResourcesResponse]:
        async for now, devices in self._streams.lists(self._driver, self._ended):
            yield v1.NodeWatchResourcesResponse(
                devices=[
                    v1.DeviceHealth(
                        device=v1.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
                        health=_V1_HEALTH[device.healthy],
                        last_updated_time=now,
                        health_check_timeout_seconds=TIMEOUT_SECONDS,
                        message=_cut(device.message),
                    )
                    for device in devices
                ]
            )


class _V1Alpha1(V1Alpha1Servicer):
    def __init__(self, driver: str, streams: HealthStreams, ended: asyncio.Event) -> None:
        self._driver, self._streams, self._ended = driver, streams, ended

    async def NodeWatchResources(
        self, request: v1alpha1.NodeWatchResourcesRequest, context: ServicerContext[Any, Any]
    ) -> AsyncIterator[v1alpha1.NodeWatchResourcesResponse]:
        async for now, devices in self._streams.lists(self._driver, self._ended):
            yield v1alpha1.NodeWatchResourcesResponse(
                devices=[
                    v1alpha1.DeviceHealth(
                        device=v1alpha1.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
                        health=_V1ALPHA1_HEALTH[device.healthy],
                        last_updated_time=now,
                        health_check_timeout_seconds=TIMEOUT_SECONDS,
                        message=_cut(device.message),
                    )
                    for device in devices
                ]
            )


_V1_HEALTH: Final = {None: v1.UNKNOWN, True: v1.HEALTHY, False: v1.UNHEALTHY}
_V1ALPHA1_HEALTH: Final = {None: v1alpha1.UNKNOWN, True: v1alpha1.HEALTHY, False: v1alpha1.UNHEALTHY}


def _cut(message: str) -> str:
    return message.encode()[:_MESSAGE_BYTES].decode(errors="ignore")


async def _any(seconds: float, *events: asyncio.Event) -> None:
    """Wait until one of them is set, or for so long."""
    waits = {asyncio.ensure_future(event.wait()) for event in events}
    try:
        await asyncio.wait(waits, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
