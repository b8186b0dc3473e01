"""A connection to the admission app without a network: bytes in, bytes out, in one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry

from tests.builders.reviews import ALL_KNOWN
from webhooks.server.app import PATH, AdmissionApp
from webhooks.server.metrics import ServerMetrics
from webhooks.server.review import RememberingView


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Wire:
    """The app of one event loop. Everything that is sent goes over a connection of its own."""

    def __init__(self, view: Callable[[], RememberingView] = ALL_KNOWN) -> None:
        self.registry = CollectorRegistry()
        self.app = AdmissionApp(view, ServerMetrics(self.registry), rules="test")
        self._server = self.app.server()

    async def send(self, parts: Iterable[bytes], *, is_whole: bool) -> bytes:
        """All that comes back. Unless the request is whole, the caller hangs up when nothing more is to be sent."""
        transport = _Transport()
        protocol = self._server()
        protocol.connection_made(transport)
        for part in parts:
            protocol.data_received(part)
            await asyncio.sleep(0)
        end = time.monotonic() + 30
        turns = 0
        while not transport.closed and (is_whole or turns < 20):
            assert time.monotonic() < end, "no answer"
            await asyncio.sleep(0 if turns < 200 else 0.001)
            turns += 1
        protocol.connection_lost(None)
        await asyncio.sleep(0)
        if self.in_flight():
            await asyncio.wait_for(self.app.idle(), 30)
        return bytes(transport.written)

    def in_flight(self) -> float:
        # Collected alone: all the histograms together cost more than the review that is tested.
        alone = self.registry.restricted_registry(["npufleet_webhook_reviews_in_flight"])
        return sum(sample.value for metric in alone.collect() for sample in metric.samples)


def posted(body: bytes, *, headers: bytes = b"") -> bytes:
    """The request of an API server, which ends the connection after it."""
    return (
        b"POST %s?timeout=5s HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n%s\r\n%s" % (PATH.encode(), len(body), headers, body)
    )


def taken_apart(answer: bytes) -> tuple[int, bytes]:
    """Status and body of the first answer over HTTP. Raises ValueError when it is none."""
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    head, found, body = answer.partition(b"\r\n\r\n")
    version, _, rest = head.partition(b" ")
    length = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    if not found or not version.startswith(b"HTTP/") or len(length) != 1 or len(body) < length[0]:
        raise ValueError(f"no answer: {answer[:200]!r}")
    return int(rest[:3]), body[: length[0]]
