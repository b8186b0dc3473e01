"""Calls to a host that may hang (reads of a broken device, a module that loads, a disk), each with a deadline.

A call that hangs keeps its thread (nothing can take it back), so what hangs is not asked again until it has answered:
one broken device costs one thread, not one per pass.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

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
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            self._hung.discard(key)
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result: T | None = None
            failure: BaseException | None = None
            try:
                result = call()
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop may be gone by now
                loop.call_soon_threadsafe(settle, result, failure)

        threading.Thread(target=work, name=key, daemon=True).start()
        try:
            # Not asyncio.timeout: it may report the deadline of a call that has answered in the same turn of the loop.
            await asyncio.wait({done}, timeout=self._deadline)
            if done.done():
                return done.result()
            self._hung.add(key)
            raise self._error(key)
        finally:
            done.cancel()

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
