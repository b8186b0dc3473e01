"""The HTTP side: bytes in, answer out, within bounds of size, time and number. It keeps nothing between two reviews."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Callable
from typing import Final

from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

from runtime.own_thread import in_own_thread
from webhooks.rules.judge import OutOfTimeError
from webhooks.server.connections import BoundedServer, BoundedSite
from webhooks.server.limits import Limits
from webhooks.server.metrics import ServerMetrics
from webhooks.server.request import Malformed, Request, read_request
from webhooks.server.review import OTHER, Outcome, RememberingView, review, too_much

log = logging.getLogger(__name__)

PATH: Final = "/validate"

# Longer than the API server keeps an idle connection (90 s): the one that closes must be the one that asks, or a
# request and the end of its connection meet half-way.
_KEEP_ALIVE_SECONDS: Final = 180.0
_JSON: Final = {"Content-Type": "application/json"}

ViewNow = Callable[[], RememberingView]


class _NoAnswer(Exception):  # noqa: N818 - an answer of HTTP instead of a review's
    """The API server is told by HTTP that there is no verdict; its failurePolicy decides then."""

    def __init__(self, status: int, text: str, verdict: str) -> None:
        super().__init__(text)
        self.status = status
        self.verdict = verdict


class AdmissionApp:
    """Answers reviews. `view` gives what is known now, `rules` is the version of the rules, `is_former` tells whether a
    connection should be opened anew, because it knows a former certificate."""

    def __init__(
        self,
        view: ViewNow,
        metrics: ServerMetrics,
        *,
        rules: str,
        limits: Limits | None = None,
        is_former: Callable[[ssl.SSLObject], bool] = lambda _: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._view = view
        self._metrics = metrics
        self._rules = rules
        self._limits = limits or Limits()
        self._is_former = is_former
        self._clock = clock
        self._in_flight = 0
        self._judging = 0
        self._receiving = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._server: BoundedServer | None = None
        self._places = asyncio.Semaphore(self._limits.threads)

    def server(self) -> web.Server:
        """What a ServerRunner serves."""
        self._server = BoundedServer(
            self.handle,
            most=self._limits.connections,
            head_seconds=self._limits.head_seconds,
            access_log=None,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            tcp_keepalive=True,
        )
        return self._server

    def site(self, runner: web.BaseRunner, host: str | None, port: int, context: ssl.SSLContext) -> web.BaseSite:
        """A listener for that runner; port 0 picks a free one."""
        return BoundedSite(runner, host, port, context, handshake_seconds=self._limits.head_seconds)

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._server.connections) if self._server is not None else 0

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def judging(self) -> int:
        """Reviews that have arrived whole and have no verdict yet."""
        return self._judging

    @property
    def receiving_bytes(self) -> int:
        """What has come of bodies that are not there as a whole yet."""
        return self._receiving

    def drain(self) -> None:
        """From now on every answer ends its connection: whoever asked looks for another replica."""
        self._draining = True

    async def idle(self) -> None:
        """Returns once nothing is in flight."""
        await self._idle.wait()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Any request at all."""
        started = self._clock()
        self._in_flight += 1
        self._idle.clear()
        self._metrics.in_flight.inc()
        try:
            response, kind, verdict, broken = await self._answered(request)
        finally:
            self._in_flight -= 1
            self._metrics.in_flight.dec()
            if not self._in_flight:
                self._idle.set()
        self._metrics.reviewed(kind, verdict, self._clock() - started, broken)
        if self._draining or self._is_stale(request):
            response.force_close()
        return response

    async def _answered(self, request: web.BaseRequest) -> tuple[web.Response, str, str, tuple[str, ...]]:
        try:
            seconds = self._limits.seconds_for(request.query.get("timeout"))
            async with asyncio.timeout(seconds):
                outcome = await self._judged(request)
            body = json.dumps(outcome.answer).encode()
        except _NoAnswer as error:
            return self._sorry(error.status, str(error)), OTHER, error.verdict, ()
        except ConnectionError:
            # Nobody is there to read an answer; who hangs up while sending is no failure of ours.
            return self._sorry(400, "the caller hung up"), OTHER, "gone", ()
        except TimeoutError:
            return self._sorry(504, f"no verdict within {seconds:.1f} s"), OTHER, "late", ()
        except Exception:
            # One bad request, one bad answer: the next one is another story.
            log.exception("A review failed")
            return self._sorry(500, "the review failed: see the log of npufleet-webhook"), OTHER, "failed", ()
        return web.Response(body=body, headers=_JSON), outcome.kind, outcome.verdict, outcome.broken

    async def _judged(self, request: web.BaseRequest) -> Outcome:
        self._check(request)
        body = await self._body(request)
        if self._judging >= self._limits.in_flight:
            raise _NoAnswer(503, f"{self._limits.in_flight} reviews are in flight already", "overloaded")
        self._judging += 1
        try:
            return await self._verdict(body)
        finally:
            self._judging -= 1

    async def _verdict(self, body: bytes) -> Outcome:
        if len(body) <= self._limits.inline_bytes:
            end = self._clock() + self._limits.inline_seconds
            try:
                return self._judge(self._read(body), self._view(), end)
            except OutOfTimeError:
                pass  # it is longer than it looks: the others need not wait for it
        # A thread cannot be ended: it keeps its place until it has, so that late ones cannot pile up.
        await self._places.acquire()
        try:
            view = self._view()
            work = in_own_thread("review", lambda: self._in_thread(body, view))
        except BaseException:
            self._places.release()
            raise
        work.add_done_callback(lambda _: self._places.release())
        return await asyncio.shield(work)

    def _in_thread(self, body: bytes, view: RememberingView) -> Outcome:
        end = self._clock() + self._limits.judge_seconds
        asked = self._read(body)
        try:
            return self._judge(asked, view, end)
        except OutOfTimeError as error:
            log.warning(
                "A review of %d bytes was given up after %g s (%s)", len(body), self._limits.judge_seconds, error
            )
            return too_much(asked, self._limits.judge_seconds)

    @staticmethod
    def _read(body: bytes) -> Request:
        try:
            return read_request(body)
        except Malformed as error:
            raise _NoAnswer(400, str(error), "malformed") from error

    def _judge(self, asked: Request, view: RememberingView, end: float) -> Outcome:
        return review(asked, view, rules=self._rules, clock=self._clock, still_time=lambda: self._clock() < end)

    def _check(self, request: web.BaseRequest) -> None:
        if request.path != PATH:
            raise _NoAnswer(404, f"reviews are answered at {PATH}", "malformed")
        if request.method != "POST":
            raise _NoAnswer(405, f"reviews are asked for by POST, not {request.method[:20]}", "malformed")
        if request.content_type != "application/json":
            raise _NoAnswer(415, "a review is application/json", "malformed")
        if (request.content_length or 0) > self._limits.body_bytes:
            raise self._too_large()

    async def _body(self, request: web.BaseRequest) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.receive_seconds):
                while part := await self._part(request):
                    size += len(part)
                    self._receiving += len(part)
                    if size > self._limits.body_bytes:
                        raise self._too_large()
                    if self._receiving > self._limits.receiving_bytes:
                        raise _NoAnswer(
                            503, f"{self._limits.receiving_bytes} bytes are being received already", "overloaded"
                        )
                    parts.append(part)
        except TimeoutError:
            raise _NoAnswer(
                408, f"the body did not come within {self._limits.receive_seconds:g} s", "malformed"
            ) from None
        finally:
            self._receiving -= size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _part(self, request: web.BaseRequest) -> bytes:
        try:
            return await request.content.readany()
        except (web.RequestPayloadError, ClientPayloadError, HttpProcessingError) as error:
            raise _NoAnswer(400, "the body is not what its headers say", "malformed") from error

    def _too_large(self) -> _NoAnswer:
        return _NoAnswer(413, f"a review is at most {self._limits.body_bytes} bytes", "malformed")

    @staticmethod
    def _sorry(status: int, text: str) -> web.Response:
        response = web.Response(status=status, text=text + "\n")
        if status in (408, 413, 415, 503, 504):
            # What is left of the body was not read, and nobody wants to.
            response.force_close()
        return response

    def _is_stale(self, request: web.BaseRequest) -> bool:
        """Whether the connection was opened with a certificate that is not served any more."""
        transport = request.transport
        connection = transport.get_extra_info("ssl_object") if transport is not None else None
        return connection is not None and self._is_former(connection)
