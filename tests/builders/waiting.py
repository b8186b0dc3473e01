"""Waiting in tests: poll a condition up to a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], *, seconds: float = 10.0, what: str = "") -> None:
    """Return as soon as `condition()` is true; fail with `what` when it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}")
        await asyncio.sleep(0.01)


def eventually(condition: Callable[[], object], *, seconds: float = 30.0, every: float = 0.1, what: str = "") -> None:
    """The same for tests without an event loop; a condition that raises is not yet true, and its error is shown."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
            error: Exception | None = None
        except Exception as raised:
            error = raised
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}") from error
        time.sleep(every)
