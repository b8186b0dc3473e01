"""Tells from another thread whether an event loop still turns: a process that hangs must not look alive."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable


class LoopBeat:
    """`poke()` it about once a second from another thread; `age()` is how long the loop has not answered."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._waiting_since: float | None = None

    def poke(self) -> None:
        """Ask the loop for a sign of life, unless the last question is still open."""
        if self._waiting_since is not None:
            return
        self._waiting_since = self._clock()
        with contextlib.suppress(RuntimeError):  # a closed loop will never answer, and `age` says so
            self._loop.call_soon_threadsafe(self._answer)

    def age(self) -> float:
        """Seconds for which the open question has had no answer; 0.0 when there is none."""
        since = self._waiting_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    def _answer(self) -> None:
        self._waiting_since = None
