"""The host port over a simulated kernel in the same process: what unit tests give a daemon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from node_host.host.protocol import Names, Uevent
from node_host.host.rooted import RootedFiles

if TYPE_CHECKING:
    from simulated_node.kernel import SimulatedKernel


class InProcessHost(RootedFiles):
    """``Host`` of a kernel object. A blocked write blocks its thread only, so no child is ever needed."""

    def __init__(self, kernel: "SimulatedKernel") -> None:
        super().__init__(kernel.root)
        self._kernel = kernel

    def read(self, path: str) -> bytes:
        self._kernel.before_read(path)
        return super().read(path)

    def list(self, path: str) -> Names:
        self._kernel.before_read(path, "list")
        return super().list(path)

    def read_link(self, path: str) -> str:
        self._kernel.before_read(path, "link")
        return super().read_link(path)

    def write(self, path: str, data: bytes) -> None:
        self._kernel.write(path, data)

    def write_command(self, path: str, data: bytes) -> Names | None:
        return None

    def load_module(self, name: str) -> None:
        self._kernel.load_module(name)

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[Uevent]]:
        return self._events()

    @asynccontextmanager
    async def _events(self) -> AsyncIterator[AsyncIterator[Uevent]]:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the listener's loop ended before the listener did
                loop.call_soon_threadsafe(ready.set)

        subscription = self._kernel.subscribe(wake)

        async def read() -> AsyncIterator[Uevent]:
            while True:
                await ready.wait()
                ready.clear()
                for event in subscription.take():
                    ready.set()  # what ends the stream may stand behind the last event
                    yield event

        try:
            yield read()
        finally:
            self._kernel.unsubscribe(subscription)
