"""The host port over a simulated kernel in the same process: what unit tests give a daemon."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from node_host.host.protocol import Names, ToolResult, Uevent
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
        files = self._kernel.files_in_memory(path)
        return super().read(path) if files is None else files.read(path)

    def list(self, path: str) -> Names:
        self._kernel.before_read(path, "list")
        files = self._kernel.files_in_memory(path)
        return super().list(path) if files is None else [*files.list(path)]

    def read_link(self, path: str) -> str:
        self._kernel.before_read(path, "link")
        files = self._kernel.files_in_memory(path)
        return super().read_link(path) if files is None else files.read_link(path)

    def scan(self, path: str) -> Sequence[tuple[str, bool]]:
        files = self._kernel.files_in_memory(path)
        return super().scan(path) if files is None else files.scan(path)

    def links(self, path: str) -> Mapping[str, str | OSError]:
        files = self._kernel.files_in_memory(path)
        return super().links(path) if files is None else files.links(path, self.list(path))

    def resolve(self, path: str) -> str:
        files = self._kernel.files_in_memory(path)
        return super().resolve(path) if files is None else files.resolve(path)

    def exists(self, path: str) -> bool:
        files = self._kernel.files_in_memory(path)
        return super().exists(path) if files is None else files.exists(path)

    def stat(self, path: str) -> os.stat_result:
        files = self._kernel.files_in_memory(path)
        return super().stat(path) if files is None else files.stat(path)

    def write(self, path: str, data: bytes) -> None:
        self._kernel.write(path, data)

    def write_command(self, path: str, data: bytes) -> Names | None:
        return None

    def load_module(self, name: str) -> None:
        self._kernel.load_module(name)

    def run_tool(self, path: str, arguments: Sequence[str], *, inherit: Sequence[int] = ()) -> ToolResult:
        return self._kernel.run_tool(path, arguments)

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
