"""Stands between a component and the real API server, and does what networks and servers do on a bad day.

It speaks plain HTTP to the component and TLS to the server, so that faults can be made per kind and per request. The
component's own token goes through unchanged: its rights are those that the server gives it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import aiohttp
from aiohttp import web

from cli.cluster.access.kubeconfig import Access, ClusterEndpoint, read_kubeconfig, write_kubeconfig

WRITES = {"POST", "PUT", "PATCH", "DELETE"}
_HOP = {"host", "connection", "content-length", "transfer-encoding", "content-encoding", "accept-encoding"}


class FaultProxy:
    """`with FaultProxy(kubeconfig, out) as proxy:` serves in a thread; `out` is a kubeconfig that leads through it."""

    def __init__(self, kubeconfig: Path, out: Path) -> None:
        self.kubeconfig = out
        self.writes: list[str] = []
        """Writes that the server has answered, as "VERB path", Leases and Events apart."""
        self.on_write: Callable[[int], bool] = lambda count: True
        """Called when a write has taken effect, with how many there were; False keeps the answer back for ever."""
        self._access = read_kubeconfig(kubeconfig)
        self._refused: set[str] = set()
        self._swallowed: set[str] = set()
        self._streams: dict[asyncio.Event, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="fault-proxy", daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        assert self._ready.wait(10), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    # What tests do.

    def refuse(self, plural: str) -> None:
        """From now on lists and watches of this kind get 403, and the open watches end."""
        self._refused.add(plural)
        self._end_streams(plural)

    def accept(self, plural: str) -> None:
        """End `refuse`."""
        self._refused.discard(plural)

    def swallow(self, plural: str) -> None:
        """Open watches of this kind stay open and carry nothing any more."""
        self._swallowed.add(plural)

    def expire(self, plural: str) -> None:
        """End `swallow`: the open watches get 410 in the stream; what happened meanwhile is never told."""
        self._swallowed.discard(plural)
        self._end_streams(plural)

    # The proxy.

    def _end_streams(self, plural: str) -> None:
        def end() -> None:
            for event, kind in self._streams.items():
                if kind == plural:
                    event.set()

        assert self._loop is not None
        self._loop.call_soon_threadsafe(end)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        assert self._access.endpoint.authority is not None
        tls = ssl.create_default_context(cadata=self._access.endpoint.authority.decode())
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:
            app = web.Application(client_max_size=2**24)

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._handle(request, session)

            app.router.add_route("*", "/{tail:.*}", handle)
            runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            endpoint = ClusterEndpoint(f"http://{host}:{port}", None)
            write_kubeconfig(self.kubeconfig, Access(endpoint, token=self._access.token), user="through-proxy")
            self._ready.set()
            await self._stop.wait()
            for event in self._streams:
                event.set()
            await runner.cleanup()

    async def _handle(self, request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
        plural = _plural(request.path)
        watch = request.method == "GET" and request.query.get("watch") in {"true", "1"}
        if plural in self._refused and request.method == "GET":
            message = f"{plural} is forbidden: by the test"
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}
            return web.json_response({**status, "message": message}, status=403)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        async with session.request(
            request.method,
            self._access.endpoint.server + request.path_qs,
            headers=headers,
            data=await request.read() or None,
        ) as upstream:
            if watch and upstream.status == 200:
                return await self._stream(request, upstream, plural)
            body = await upstream.read()
        if request.method in WRITES and upstream.status < 300 and plural not in {"leases", "events"}:
            self.writes.append(f"{request.method} {request.path}")
            if not self.on_write(len(self.writes)):
                assert self._stop is not None
                await self._stop.wait()
        return web.Response(body=body, status=upstream.status, content_type=upstream.content_type)

    async def _stream(self, request: web.Request, upstream: aiohttp.ClientResponse, plural: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        ended = asyncio.Event()
        self._streams[ended] = plural
        await response.prepare(request)
        stop = asyncio.ensure_future(ended.wait())
        try:
            while True:
                read = asyncio.ensure_future(upstream.content.readany())
                await asyncio.wait({read, stop}, return_when=asyncio.FIRST_COMPLETED)
                if stop.done():
                    read.cancel()
                    await response.write(_gone())
                    return response
                chunk = read.result()
                if not chunk:
                    return response
                if plural not in self._swallowed:
                    await response.write(chunk)
        except (aiohttp.ClientError, ConnectionError):
            return response
        finally:
            stop.cancel()
            del self._streams[ended]


def _plural(path: str) -> str:
    """The kind of a URL: the plural after the version, or after the namespace."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    return rest[0] if rest else ""


def _gone() -> bytes:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Expired",
        "code": 410,
        "message": "too old resource version",
    }
    return json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
