"""The host port over a simulated kernel in another process: reads are its plain files, orders go through its socket."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

from node_host.host import write_child
from node_host.host.kernel_files import child_command
from node_host.host.protocol import Names, ToolResult, Uevent
from node_host.host.rooted import RootedFiles

READS = ".simulated-kernel/reads"
"""Is there while reads may fail or hang: the kernel is asked before each, then."""


class SimulatedHost(RootedFiles):
    """``Host`` of the simulated kernel that serves this root."""

    def read(self, path: str) -> bytes:
        self._ask_first("read", path)
        return super().read(path)

    def list(self, path: str) -> Names:
        self._ask_first("list", path)
        return super().list(path)

    def read_link(self, path: str) -> str:
        self._ask_first("link", path)
        return super().read_link(path)

    def write(self, path: str, data: bytes) -> None:
        write_child.ask_simulated_kernel(self.root, {"op": "write", "path": path, "data": data.decode("latin-1")})

    def write_command(self, path: str, data: bytes) -> Names | None:
        return child_command(self.root, path, data)

    def load_module(self, name: str) -> None:
        write_child.ask_simulated_kernel(self.root, {"op": "load_module", "name": name})

    def run_tool(self, path: str, arguments: Sequence[str], *, inherit: Sequence[int] = ()) -> ToolResult:
        request = {"op": "tool", "path": path, "arguments": list(arguments)}
        answer = write_child.ask_simulated_kernel(self.root, request)
        return ToolResult(int(answer["status"]), str(answer["output"]))

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[Uevent]]:
        return self._events()

    def _ask_first(self, kind: str, path: str) -> None:
        if not os.path.exists(f"{self.root}/{READS}"):  # noqa: PTH110 - before every read
            return
        with suppress(ConnectionRefusedError):  # a kernel that was killed holds nobody up
            write_child.ask_simulated_kernel(self.root, {"op": "read", "kind": kind, "path": path})

    @asynccontextmanager
    async def _events(self) -> AsyncIterator[AsyncIterator[Uevent]]:
        connection = write_child.connect(self.root)
        connection.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            writer.write(b'{"op": "subscribe"}\n')
            await writer.drain()
            _refuse_errno(await reader.readline())
            yield _read(reader)
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> AsyncIterator[Uevent]:
    while True:
        answer = _refuse_errno(await reader.readline())
        yield Uevent(answer["action"], answer["devpath"], answer["subsystem"], answer["driver"], answer["slot"])


def _refuse_errno(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the simulated kernel went away")
    answer: dict[str, Any] = json.loads(line)
    number = answer.get("errno")
    if isinstance(number, int):
        raise OSError(number, os.strerror(number))
    return answer
