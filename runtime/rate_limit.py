"""The client-side limit on API writes: one token bucket per process, so that a start-up never becomes a herd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class TokenBucket:
    """Grants `rate` tokens a second after a first `burst`, in the order in which they were asked for.

    A caller takes its token at once and then sleeps until that token is due, so waiting needs no queue of its own and
    the order is the order of `take`.
    """

    def __init__(
        self,
        rate: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"a token bucket needs rate > 0 and burst >= 1, not rate={rate}, burst={burst}")
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._sleep = sleep
        self._tokens = float(burst)
        self._updated = clock()

    async def take(self, *, urgent: bool = False) -> None:
        """Wait for one token. An urgent caller does not wait, but its token is missing to those behind it.

        Urgent is for calls that have a pace of their own and must not starve behind a queue: Lease renewals.
        """
        now = self._clock()
        self._tokens = min(float(self._burst), self._tokens + (now - self._updated) * self._rate)
        self._updated = now
        self._tokens -= 1.0
        if urgent or self._tokens >= 0:
            return
        try:
            await self._sleep(-self._tokens / self._rate)
        except BaseException:
            self._tokens += 1.0  # the call will not be made: its place goes to those who come later
            raise
