"""Callers that ask again as soon as they have their answer, on connections that stay open, as an API server's do.

The client is a bare one: on a small machine what it costs is taken from whom it measures.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of each call, sorted, and of all of them together."""

    each: list[float]
    whole: float

    @property
    def rate(self) -> float:
        return len(self.each) / self.whole

    def percentile(self, part: float) -> float:
        """Milliseconds that this part of the calls does not exceed."""
        return 1000 * self.each[min(len(self.each) - 1, int(len(self.each) * part))]


class AskFailed(Exception):  # noqa: N818 - an end of the measurement
    """An answer was none; the text has it."""


async def measure(callers: int, work: Iterable[object], ask: Callable[[int, object], Awaitable[None]]) -> Measured:
    """Let so many callers share the work; `ask` gets the caller's number."""
    rest = iter(work)
    each: list[float] = []

    async def caller(number: int) -> None:
        for item in rest:
            began = time.perf_counter()
            await ask(number, item)
            each.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(callers):
            group.create_task(caller(number))
    return Measured(sorted(each), time.perf_counter() - began)


class Connections:
    """One TLS connection for each caller, opened before the clock runs."""

    def __init__(self, host: str, port: int, path: str, authorities: str) -> None:
        self._host, self._port = host, port
        self._head = (
            f"POST {path}?timeout=5s HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: application/json\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()
        self._context = ssl.create_default_context(cadata=authorities)
        self._open: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open(self, number: int) -> None:
        while len(self._open) < number:
            self._open.append(await asyncio.open_connection(self._host, self._port, ssl=self._context))

    async def ask(self, caller: int, body: object) -> None:
        """Raises AskFailed for anything but a review that lets the object in."""
        assert isinstance(body, bytes)
        reader, writer = self._open[caller]
        writer.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = await reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200") or b'"allowed": true' not in answer:
            raise AskFailed(f"{head[:60]!r} {answer[:400]!r}")

    def close(self) -> None:
        for _, writer in self._open:
            writer.close()


def each_of(lists: Iterable[Iterator[object]], count: int) -> list[object]:
    """`count` items, by turns from each of the iterators."""
    iterators = list(lists)
    return [next(iterators[number % len(iterators)]) for number in range(count)]
