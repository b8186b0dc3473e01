"""The rounds of a daemon: the live host is looked at again and again, and at once when something may have changed."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

_log = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 0.2
_SHARE_OF_TIME: Final = 5  # a storm of events keeps the daemon busy for at most one part in five
FINISH_SECONDS: Final = 8.0


class Wake(asyncio.Event):
    """Set when something may have changed: then the daemon looks at once."""


async def _wait_for_any(seconds: float, *ends: asyncio.Future[Any]) -> None:
    await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


async def run_rounds(
    make: Callable[[], Coroutine[Any, Any, float]],
    stop: asyncio.Event,
    wake: Wake,
    *,
    wait: Callable[..., Coroutine[Any, Any, None]] = _wait_for_any,
    settle_at_most: float,
    given_up: str,
    clock: Callable[[], float],
    spent: Callable[[], float] = time.process_time,
) -> None:
    """Round after round until ``stop``; the one at hand is finished if that does not take long.

    ``make`` makes a round and returns how many seconds to wait for the next at the most; ``wait`` waits as long, or
    until one of the futures that it is given is done. ``spent`` is the processor time of this process. ``given_up`` is
    told of a round that does not end. From the end of one round to the next it is at most what ``make`` returned, or
    ``settle_at_most`` where that is more, and 0.2 s.
    """
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while not stop.is_set():
            wake.clear()
            began = spent()
            making = asyncio.ensure_future(make())
            await asyncio.wait({stopping, making}, return_when=asyncio.FIRST_COMPLETED)
            if not making.done():
                await asyncio.wait({making}, timeout=FINISH_SECONDS)
            if not making.done():
                _log.warning(given_up)
                making.cancel()
                await asyncio.wait({making})
                return
            seconds, ended = await making, clock()
            # Of processor time: a round that waits, for a slow machine say, takes nothing from others.
            rest = min((spent() - began) * (_SHARE_OF_TIME - 1), settle_at_most)
            woken = asyncio.ensure_future(wake.wait())
            await wait(seconds, stopping, woken)
            woken.cancel()
            # A change seldom comes alone: a bind is half a dozen events. What a long round owes others counts from its
            # end: a change after a quiet time does not wait for it again.
            settle = min(SETTLE_SECONDS, settle_at_most) if wake.is_set() else 0.0
            await asyncio.wait({stopping}, timeout=max(settle, rest - (clock() - ended)))
    finally:
        stopping.cancel()
