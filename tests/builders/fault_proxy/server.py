"""The proxy itself: plain HTTP to the component, TLS to the server, and on the way whatever the weather brings.

The component's own token goes through unchanged: its rights are those that the server gives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from cli.cluster.access.kubeconfig import Access, ClusterEndpoint, read_kubeconfig, write_kubeconfig
from tests.builders.fault_proxy.faults import Fault, Kind
from tests.builders.fault_proxy.requests import Asked, Verb, asked
from tests.builders.fault_proxy.streams import Ended, Stream
from tests.builders.fault_proxy.weather import Weather

_HOP = {"host", "connection", "content-length", "transfer-encoding", "content-encoding", "accept-encoding"}
_REMEMBERED = 6
_STATUS = {
    Kind.GONE: (410, "Expired"),
    Kind.ERROR: (500, "InternalError"),
    Kind.FORBIDDEN: (403, "Forbidden"),
    Kind.THROTTLED: (429, "TooManyRequests"),
    Kind.TIMED_OUT: (504, "Timeout"),
}


class ProxyServer:
    """`async with ProxyServer(kubeconfig, out, weather):` serves; `out` is a kubeconfig that leads through it."""

    def __init__(self, kubeconfig: Path, out: Path, weather: Weather) -> None:
        self.kubeconfig = out
        self.weather = weather
        self._access = read_kubeconfig(kubeconfig)
        self._stack = contextlib.AsyncExitStack()
        self._stop = asyncio.Event()
        self._answers: dict[str, list[bytes]] = {}
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> ProxyServer:
        assert self._access.endpoint.authority is not None
        tls = ssl.create_default_context(cadata=self._access.endpoint.authority.decode())
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=False, read_bufsize=2**20, auto_decompress=True
        )
        await self._stack.enter_async_context(self._session)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        endpoint = ClusterEndpoint(f"http://{host}:{port}", None)
        write_kubeconfig(self.kubeconfig, Access(endpoint, token=self._access.token), user="through-proxy")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await self._stack.aclose()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        what = asked(request.method, request.path, request.query)
        body = await request.read()
        fault = self.weather.strikes(what)
        if fault is not None and (early := await self._instead(request, fault)) is not None:
            return early
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        try:
            async with self._session.request(
                request.method, self._access.endpoint.server + request.path_qs, headers=headers, data=body or None
            ) as upstream:
                if what.verb is Verb.WATCH and upstream.status == 200:
                    return await self._stream(request, upstream, what.plural)
                content = await upstream.read()
        except aiohttp.ClientError as error:  # the server itself is away
            return _failure(503, "ServiceUnavailable", f"the proxy got no answer: {error}")
        if what.verb is Verb.WRITE:
            self.weather.wrote(f"{request.method} {request.path}", what, upstream.status)
            if upstream.status < 300:
                await self._after_write(what)
        if fault is not None and (late := await self._afterwards(request, fault)) is not None:
            return late
        if what.verb is Verb.LIST and upstream.status == 200:
            content = self._remember(request.path_qs, content, fault)
        return web.Response(body=content, status=upstream.status, content_type=upstream.content_type)

    async def _after_write(self, what: Asked) -> None:
        """For those who decide by hand whether a write is answered."""

    async def _instead(self, request: web.Request, fault: Fault) -> web.StreamResponse | None:
        """What is answered without asking the server; None: it is asked."""
        if fault.kind in (Kind.GONE, Kind.ERROR, Kind.FORBIDDEN, Kind.THROTTLED):
            status, reason = _STATUS[fault.kind]
            headers = {"Retry-After": str(int(fault.seconds))} if fault.kind is Kind.THROTTLED else None
            return _failure(status, reason, f"{request.method} {request.path}: {reason}, by the test", headers)
        if fault.kind is Kind.KILL_UNSENT:
            self.weather.kill()
            return _broken(request)
        if fault.kind is Kind.HANG:
            await self._pause(fault.seconds)
            return _broken(request)
        if fault.kind is Kind.DELAY:
            await self._pause(fault.seconds)
        return None

    async def _afterwards(self, request: web.Request, fault: Fault) -> web.StreamResponse | None:
        """What is answered though the server has said something else; None: what it said."""
        if fault.kind is Kind.LOST:
            return _broken(request)
        if fault.kind is Kind.TIMED_OUT:
            return _failure(*_STATUS[fault.kind], "the request timed out, by the test")
        if fault.kind is Kind.KILL_UNANSWERED:
            self.weather.kill()
            return _broken(request)
        if fault.kind is Kind.KILL_ANSWERED:
            # After the answer has left; what the process makes of it in a few milliseconds is a matter of luck.
            asyncio.get_running_loop().call_later(0.01, self.weather.kill)
        return None

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        self.weather.over()

    def _remember(self, key: str, content: bytes, fault: Fault | None) -> bytes:
        answers = self._answers.setdefault(key, [])
        if not answers or answers[-1] != content:
            answers.append(content)
            del answers[1:-_REMEMBERED]  # the first one stays: the oldest is the worst
        if fault is not None and fault.kind is Kind.STALE and len(answers) > 1:
            self.weather.hit(Kind.STALE)
            return answers[0]
        return content

    async def _stream(self, request: web.Request, upstream: aiohttp.ClientResponse, plural: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        stream = Stream(plural, response.write, on_hit=self.weather.hit, rng=self.weather.stream_rng())
        self.weather.open(stream)
        reader = asyncio.ensure_future(_read(upstream, stream))
        stopped = asyncio.ensure_future(self._stop.wait())
        running = asyncio.ensure_future(stream.run())
        try:
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        except Ended as end:
            if end.cut and request.transport is not None:
                request.transport.abort()
        except (aiohttp.ClientError, ConnectionError):
            pass
        finally:
            self.weather.close(stream)
            for task in (reader, stopped, running):
                task.cancel()
            await asyncio.gather(reader, stopped, running, return_exceptions=True)
        return response


async def _read(upstream: aiohttp.ClientResponse, stream: Stream) -> None:
    try:
        async for line in _lines(upstream):
            stream.line(line)
    except (aiohttp.ClientError, ConnectionError):
        pass
    finally:  # whatever it was: nobody shall wait for a stream that nobody reads
        stream.line(None)


async def _lines(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    while chunk := await upstream.content.readany():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"


def _failure(status: int, reason: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return web.json_response(
        {**body, "reason": reason, "code": status, "message": message}, status=status, headers=headers
    )


def _broken(request: web.Request) -> web.Response:
    """The connection ends instead of an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)
