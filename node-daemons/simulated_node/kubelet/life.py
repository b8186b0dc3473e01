"""Starts and stops the kubelet of a machine that goes on running: as an upgrade or a crash of the real one does."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

_ANSWER_SECONDS = 30.0


class Kubelet(Protocol):
    """One run of a kubelet."""

    async def run(self) -> None:
        """Until cancelled."""
        ...

    def rebooted(self) -> None:
        """The machine came up again."""
        ...


class Resources(Protocol):
    """What it tells of devices of plugins."""

    plugin_devices: Mapping[str, Sequence[str]]
    given: Mapping[tuple[str, str], Mapping[str, Sequence[str]]]


class Devices(Protocol):
    """Its part for devices."""

    @property
    def pod_resources(self) -> Resources: ...


class KubeletLife:
    """Makes a new kubelet for each start. Use it within one event loop."""

    def __init__(self, start: Callable[[], tuple[Kubelet, Devices]]) -> None:
        self._start = start
        self._running: tuple[Kubelet, Devices, asyncio.Future[None]] | None = None
        self._changed = asyncio.Event()
        self._plugin_devices: dict[str, tuple[str, ...]] = {}
        self._given: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}

    async def run(self) -> None:
        """A kubelet, until cancelled or it fails."""
        self.start()
        try:
            while True:
                self._changed.clear()
                waiting = asyncio.ensure_future(self._changed.wait())
                ends: list[asyncio.Future[Any]] = [waiting]
                if self._running is not None:
                    ends.append(self._running[2])
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if self._running is not None and self._running[2].done():
                    self._running[2].result()
        finally:
            await self.stop()

    def start(self) -> None:
        """Nothing happens when it runs."""
        if self._running is None:
            kubelet, devices = self._start()
            self._running = kubelet, devices, asyncio.ensure_future(kubelet.run())
            self._show()
            self._changed.set()

    async def stop(self) -> None:
        """Nothing of it runs when this returns."""
        if self._running is not None:
            _, _, task = self._running
            self._running = None
            self._changed.set()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def rebooted(self) -> None:
        """The machine came up again."""
        if self._running is not None:
            self._running[0].rebooted()

    def serve(self, resource: str, ids: Sequence[str]) -> None:
        """A device plugin serves these from now on; none: it is gone."""
        self._plugin_devices[resource] = tuple(ids)
        if not ids:
            del self._plugin_devices[resource]
        self._show()

    def give(self, namespace: str, pod: str, resource: str, ids: Sequence[str]) -> None:
        """A pod has these devices of a device plugin."""
        self._given.setdefault((namespace, pod), {})[resource] = tuple(ids)
        self._show()

    def _show(self) -> None:
        if self._running is not None:
            resources = self._running[1].pod_resources
            resources.plugin_devices, resources.given = dict(self._plugin_devices), dict(self._given)


class KubeletControl:
    """The same for the threads of the machine's server; each call returns when it is done."""

    def __init__(self, life: KubeletLife, loop: asyncio.AbstractEventLoop) -> None:
        self._life = life
        self._loop = loop

    def start(self) -> None:
        self._done(self._call(self._life.start))

    def stop(self) -> None:
        self._done(asyncio.run_coroutine_threadsafe(self._life.stop(), self._loop))

    def serve(self, resource: str, ids: Sequence[str]) -> None:
        self._done(self._call(lambda: self._life.serve(resource, ids)))

    def give(self, namespace: str, pod: str, resource: str, ids: Sequence[str]) -> None:
        self._done(self._call(lambda: self._life.give(namespace, pod, resource, ids)))

    def _call(self, act: Callable[[], None]) -> Future[None]:
        async def work() -> None:
            act()

        return asyncio.run_coroutine_threadsafe(work(), self._loop)

    @staticmethod
    def _done(future: "Future[Any]") -> None:
        future.result(_ANSWER_SECONDS)
