"""One exchange with the API server: sent once or repeated safely, always within a deadline, errors by type.

What may be repeated is decided here and nowhere else. A call that was certainly not acted on (429, connection refused,
401 with newer credentials) is always repeated; one whose answer was lost only if doing it twice is doing it once.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

from runtime import errors
from runtime.backoff import Backoff
from runtime.credentials import Credentials
from runtime.errors import ApiError, NotFound, TooManyRequests, Unauthorized, Unreachable
from runtime.rate_limit import TokenBucket

# Deadlines are ours (asyncio.timeout), because aiohttp's total knows nothing of retries.
_NO_LIMIT = aiohttp.ClientTimeout(total=None)
_RETRY_SECONDS = (0.1, 2.0)
# aiohttp has no error of its own for a read on a connection that has just gone: a RuntimeError says it.
_BROKEN = (aiohttp.ClientError, OSError, RuntimeError)


class WriteCounter(Protocol):
    """Counts the outcome of each write: `result` is "ok" or the name of the error class."""

    def count_write(self, kind: str, result: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """What to send; `kind` is the object's, for the count of writes. GET is a read, everything else a write.

    `busy_is_answer`: 429 is for the caller to read, and not a throttled call to be sent again.
    """

    method: str
    path: str
    kind: str
    query: Mapping[str, str | None]
    body: Any = None
    content_type: str = "application/json"
    idempotent: bool = False
    urgent: bool = False
    busy_is_answer: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Transport:
    """Sends calls over one connection pool under one identity."""

    def __init__(
        self,
        client: ApiClient,
        credentials: Credentials,
        *,
        agent: str,
        bucket: TokenBucket,
        timeout_seconds: float,
        writes: WriteCounter | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.credentials = credentials
        self.timeout_seconds = timeout_seconds
        self._client = client
        self._host = str(credentials.configuration.host).rstrip("/")
        self._agent = agent
        self._bucket = bucket
        self._writes = writes
        self._clock = clock
        self._sleep = sleep
        self._random = jitter or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._now = now
        self.clock_skew: timedelta | None = None
        """How far this host's clock was ahead of the server's at the last answer; None before one that told."""

    async def exchange(self, call: Call) -> dict[str, Any]:
        """The JSON object that answers `call`; the deadline starts when the write limit lets it go. Raises ApiError."""
        if call.method == "GET":
            return await self._with_retries(call)
        result = "ok"
        try:
            return await self._with_retries(call)
        except ApiError as error:
            result = type(error).__name__  # a bounded set, unlike the reasons that webhooks invent
            raise
        except asyncio.CancelledError:
            result = "Cancelled"
            raise
        finally:
            if self._writes is not None:
                self._writes.count_write(call.kind, result)

    async def lines(self, call: Call, inactivity_seconds: float) -> AsyncGenerator[bytes, None]:
        """The lines of a streamed answer, until the server ends it.

        Raises ApiError for an answer that is not 200, Unreachable when the stream breaks or is silent for too long.
        """
        response = await self._open(call)
        with closing(response):
            buffer = b""
            while True:
                try:
                    async with asyncio.timeout(inactivity_seconds):
                        chunk = await response.content.readany()
                except TimeoutError:
                    silence = f"no event and no bookmark for {inactivity_seconds:g} s"
                    raise Unreachable(0, "Silent", silence, call=str(call)) from None
                except _BROKEN as error:
                    raise Unreachable(0, "StreamBroken", _text(error), call=str(call)) from error
                if not chunk:
                    return
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield line

    async def _with_retries(self, call: Call) -> dict[str, Any]:
        deadline: float | None = None
        refreshed = False
        backoff = Backoff(*_RETRY_SECONDS, self._random)
        while True:
            if call.method != "GET":
                await self._bucket.take(urgent=call.urgent)
            if deadline is None:
                deadline = self._clock() + self.timeout_seconds
            try:
                return await self._attempt(call, deadline - self._clock())
            except NotFound:
                if call.method == "DELETE" and backoff.failures:
                    return {}  # an earlier attempt of ours, whose answer was lost, has deleted it
                raise
            except Unauthorized:
                if refreshed or not await self.credentials.refresh():
                    raise
                refreshed = True
            except ApiError as error:
                untouched = isinstance(error, TooManyRequests) or error.reason == "ConnectionFailed"
                repeatable = untouched or call.idempotent or call.method == "GET"
                answered = call.busy_is_answer and isinstance(error, TooManyRequests)
                if not error.transient or not repeatable or answered:
                    raise
                pause = error.retry_after or backoff.next()
                if self._clock() + pause >= deadline:
                    raise
                await self._sleep(pause)

    async def _attempt(self, call: Call, seconds: float) -> dict[str, Any]:
        headers: Mapping[str, str] = {}
        status, data = 0, b""
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                with closing(await self._send(call)) as response:
                    data = await response.read()
                    status, headers = response.status, response.headers
                    self._note_time(headers.get("Date"))
        except TimeoutError:
            raise self._no_answer(call) from None
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(0, "ConnectionFailed", _text(error), call=str(call)) from error
        except _BROKEN as error:
            raise Unreachable(0, "AnswerLost", _text(error), call=str(call)) from error
        if not 200 <= status < 300:
            raise errors.from_response(status, data, headers, call=str(call))
        try:
            answer = json.loads(data)
        except ValueError as error:
            raise Unreachable(0, "NotJSON", f"the answer is not JSON: {data[:80]!r}", call=str(call)) from error
        if not isinstance(answer, dict):
            raise Unreachable(0, "NotJSON", f"the answer is not a JSON object: {data[:80]!r}", call=str(call))
        return answer

    async def _open(self, call: Call) -> aiohttp.ClientResponse:
        refreshed = False
        while True:
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    response = await self._send(call)
                    if response.status == 200:
                        return response
                    with closing(response):
                        data = await response.read()
            except TimeoutError:
                raise self._no_answer(call) from None
            except _BROKEN as error:
                raise Unreachable(0, "ConnectionFailed", _text(error), call=str(call)) from error
            failure = errors.from_response(response.status, data, response.headers, call=str(call))
            if not isinstance(failure, Unauthorized) or refreshed or not await self.credentials.refresh():
                raise failure
            refreshed = True

    async def _send(self, call: Call) -> aiohttp.ClientResponse:
        query = urlencode({key: value for key, value in call.query.items() if value is not None})
        url = f"{self._host}{call.path}?{query}" if query else f"{self._host}{call.path}"
        headers = {"Accept": "application/json", "Content-Type": call.content_type, "User-Agent": self._agent}
        authorization = self.credentials.authorization()
        if authorization is not None:
            headers["Authorization"] = authorization
        answer = await self._client.call_api(
            call.method, url, header_params=headers, body=call.body, _request_timeout=_NO_LIMIT
        )
        response: aiohttp.ClientResponse = answer.response
        return response

    def _note_time(self, told: str | None) -> None:
        if told is not None:
            with suppress(ValueError, TypeError):  # no date, or one without a zone
                self.clock_skew = self._now() - parsedate_to_datetime(told)

    def _no_answer(self, call: Call) -> Unreachable:
        return Unreachable(0, "Deadline", f"no answer within {self.timeout_seconds:g} s", call=str(call))


class _AnswerLost(aiohttp.ClientError):
    """The connection broke after the request went out: the server may or may not have acted on it."""


async def send_writes_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Middleware that keeps aiohttp from repeating a PUT or DELETE by itself when the connection breaks.

    A repeated compare-and-swap answers Conflict though the first one took effect.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method == "GET":
            raise
        raise _AnswerLost(_text(error)) from error


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
