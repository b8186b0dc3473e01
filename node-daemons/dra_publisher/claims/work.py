"""A look at devices and the writing that follows from it, in one thread, where only the look may be given up.

A look may hang as reads of a broken device do, and a thread that hangs cannot be taken back. What it would have written
it must not write later, when the lock is another's: so there is a gate between the two. Each change of threads costs a
pod's start more than the look itself, hence one for both.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from node_host.bounded_call import HungError
from runtime.own_thread import in_own_thread

L = TypeVar("L")
W = TypeVar("W")


class Gate:
    """Passed once, or closed once, whichever comes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_settled = False

    def settle(self) -> bool:
        """Whether this is the first who asks."""
        with self._lock:
            first, self._is_settled = not self._is_settled, True
            return first


async def look_then_write(look: Callable[[], L], write: Callable[[L], W], *, seconds: float) -> W:
    """What ``write`` makes of what ``look`` saw. Raises what they raise, and HungError when the look does not come back
    in time: nothing was written then, and nothing will be.

    What is being written is waited for, also by a caller that is cancelled.
    """
    gate = Gate()

    def work() -> W | None:
        seen = look()
        return write(seen) if gate.settle() else None

    done = in_own_thread("claims", work)
    try:
        await asyncio.wait({done}, timeout=seconds)
        if not done.done():
            if gate.settle():
                raise HungError(f"no answer within {seconds:g} s")
            await asyncio.wait({done})
    except asyncio.CancelledError:
        if not gate.settle():
            await asyncio.wait({done})
        raise
    return done.result()  # type: ignore[return-value] # None where this has closed the gate, and that raises
