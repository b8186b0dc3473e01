"""Calls to a host that may hang (reads of a broken device, a module that loads, a disk), each with a deadline.

A call that hangs keeps its thread (nothing can take it back), so what hangs is not asked again until it has answered:
one broken device costs one thread, not one per pass.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from runtime.own_thread import in_own_thread

T = TypeVar("T")

CALL_SECONDS: Final = 10.0
_AT_ONCE: Final = 8


class HungError(Exception):
    """The kernel did not answer before the deadline, or still has not answered an earlier read."""


class BoundedCalls:
    """Runs calls in threads that do not keep the process alive."""

    def __init__(self, *, deadline_seconds: float = CALL_SECONDS) -> None:
        self._deadline = deadline_seconds
        self._hung: set[str] = set()

    async def run(self, key: str, call: Callable[[], T]) -> T:
        """What ``call`` returns or raises; HungError names ``key``."""
        if key in self._hung:
            raise self._error(key)
        done = in_own_thread(key, call)
        done.add_done_callback(lambda _: self._hung.discard(key))
        await asyncio.wait({done}, timeout=self._deadline)
        if not done.done():
            self._hung.add(key)
            raise self._error(key)
        return done.result()

    def _error(self, key: str) -> HungError:
        # The same words every time: they stand in a status.
        return HungError(f"no answer within {self._deadline:g} s ({key})")

    async def each(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, T | Exception]:
        """Several at once; what one raises is its result, so that one bad device does not cost the others."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(key: str, call: Callable[[], T]) -> T | Exception:
            async with gate:
                try:
                    return await self.run(key, call)
                except Exception as error:
                    return error

        results = await asyncio.gather(*(one(key, call) for key, call in calls.items()))
        return dict(zip(calls, results, strict=True))
