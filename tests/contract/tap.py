"""Listening to a host's events beside an act: in a thread of its own, so that acts stay plain code."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from node_host.host import Host, Uevent

_SECONDS = 10


class Tap:
    """Collects events from the moment of entering."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._events: list[Uevent] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(_SECONDS):
            raise TimeoutError("events cannot be listened to")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_SECONDS)

    @property
    def seen(self) -> list[Uevent]:
        return list(self._events)

    def first(self, wanted: Callable[[Uevent], bool]) -> Uevent | None:
        """The first event that is wanted, None when none came in ten seconds."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            found = next((event for event in self.seen if wanted(event)), None)
            if found is not None:
                return found
            time.sleep(0.01)
        return None

    async def _listen(self) -> None:
        async with self._host.events() as events:
            self._ready.set()
            reading = asyncio.create_task(self._read(events))
            try:
                while not self._stop.is_set() and not reading.done():
                    await asyncio.wait([reading], timeout=0.02)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, events: AsyncIterator[Uevent]) -> None:
        async for event in events:
            self._events.append(event)
