"""Calls and writes without threads: where nothing hangs, thousands of hosts are looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.locks import Locks
from node_host.bounded_call import BoundedCalls

T = TypeVar("T")


class InlineCalls(BoundedCalls):
    """Calls made where they stand."""

    async def run(self, key: str, call: Callable[[], T]) -> T:
        return call()


class InlineWriter(BoundedWriter):
    """Writes made where they stand."""

    async def write(self, path: str, data: bytes, locks: Locks) -> None:
        self._host.write(path, data)
