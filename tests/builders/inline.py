"""Calls and writes without threads: where nothing hangs, thousands of hosts are looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from node_host.acting.bounded_tool import BoundedTools
from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.locks import Locks
from node_host.bounded_call import BoundedCalls
from node_host.host import ToolResult

T = TypeVar("T")


class InlineCalls(BoundedCalls):
    """Calls made where they stand."""

    async def run(self, key: str, call: Callable[[], T]) -> T:
        return call()

    async def each(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, T | Exception]:
        return {key: _result(call) for key, call in calls.items()}


class InlineWriter(BoundedWriter):
    """Writes made where they stand."""

    async def write(self, path: str, data: bytes, locks: Locks) -> None:
        self._host.write(path, data)


class InlineTools(BoundedTools):
    """Programs of the host run where they stand."""

    async def run(self, path: str, arguments: Sequence[str], locks: Locks) -> ToolResult:
        return self._host.run_tool(path, arguments)


def _result(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:
        return error
