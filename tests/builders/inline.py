"""Calls and writes without threads: where nothing hangs, thousands of hosts are looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.locks import Locks
from node_host.bounded_call import BoundedCalls

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


def _result(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:
        return error
