"""One open watch on its way through the proxy: what is held back, repeated or shuffled before it is passed on."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.builders.fault_proxy.faults import Kind

Write = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something to be done to a stream from now on: to so many events, or for so long."""

    kind: Kind
    times: int = 1
    seconds: float = 0.0


class Ended(Exception):  # noqa: N818 - the stream is over; `cut`: without its proper end
    def __init__(self, *, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut


class Stream:
    """Passes lines from the server on to `write`. `trouble` may be called at any moment from the same event loop."""

    def __init__(self, plural: str, write: Write, *, on_hit: Callable[[Kind], None], rng: random.Random) -> None:
        self.plural = plural
        self._write = write
        self._on_hit = on_hit
        self._rng = rng
        self._items: asyncio.Queue[bytes | Trouble | None] = asyncio.Queue()
        self._now: Trouble | None = None
        self._left = 0
        self._silent = False

    def line(self, line: bytes | None) -> None:
        """A line of the server, with its line feed; None when it has ended the stream."""
        self._items.put_nowait(line)

    def trouble(self, trouble: Trouble) -> None:
        self._items.put_nowait(trouble)

    async def run(self) -> None:
        """Until the stream ends. Raises Ended."""
        while True:
            item = await self._items.get()
            if item is None:
                raise Ended
            if isinstance(item, Trouble):
                await self._begin(item)
            elif not self._silent:
                await self._pass_on(item)

    async def _begin(self, trouble: Trouble) -> None:
        if trouble.kind is Kind.STALL:
            self._silent = True
            self._on_hit(trouble.kind)
        elif trouble.kind is Kind.EXPIRE:
            self._on_hit(trouble.kind)
            await self.expire()
        elif trouble.kind is Kind.CUT:
            self._on_hit(trouble.kind)
            await self._write(b'{"type":"MODIFIED","obj')
            raise Ended(cut=True)
        elif trouble.kind is Kind.GONE:  # provoked by a fault of another kind, and no fault by itself
            await self.expire()
        elif trouble.kind is Kind.DELAY:  # likewise: the server ends the stream in good order
            raise Ended
        else:
            self._now, self._left = trouble, trouble.times

    async def expire(self) -> None:
        await self._write(gone_event())
        raise Ended

    async def _pass_on(self, line: bytes) -> None:
        if self._now is None or b'"type":"BOOKMARK"' in line[:40]:
            await self._write(line)
            return
        trouble = self._now
        self._on_hit(trouble.kind)
        if trouble.kind is Kind.DROP:
            await self._gather(trouble.seconds, most=1000)
            await self.expire()
        elif trouble.kind is Kind.REORDER:
            lines = [line, *await self._gather(trouble.seconds, most=7)]
            self._rng.shuffle(lines)
            for each in lines:
                await self._write(each)
            self._used()
        elif trouble.kind is Kind.DUPLICATE:
            more = await self._gather(0.1, most=1)
            for each in (line, line, *more, line):
                await self._write(each)
            self._used()
        else:
            await asyncio.sleep(trouble.seconds)
            await self._write(line)
            self._used()

    def _used(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._now = None

    async def _gather(self, seconds: float, *, most: int) -> list[bytes]:
        """What comes within so many seconds; troubles and the end are put back."""
        found: list[bytes] = []
        deadline = asyncio.get_running_loop().time() + seconds
        while len(found) < most:
            try:
                async with asyncio.timeout_at(deadline):
                    item = await self._items.get()
            except TimeoutError:
                break
            if isinstance(item, bytes):
                found.append(item)
            else:
                self._items.put_nowait(item)
                break
        return found


def gone_event() -> bytes:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Expired",
        "code": 410,
        "message": "too old resource version",
    }
    return json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
