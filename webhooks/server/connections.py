"""The connections of the server: one that asks for nothing is closed, and there are never more than a bound.

A connection costs a TLS session and its buffers, and whoever reaches the port can open one: aiohttp waits for the first
request of a new one without an end.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_runner import BaseSite

_BACKLOG = 512

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class BoundedServer(web.Server):
    """A server that closes connections without a first request after `head_seconds`; and, where there are more than
    `most`, the one that has been without a request for the longest time."""

    def __init__(self, handler: Handler, *, most: int, head_seconds: float, **options: Any) -> None:
        super().__init__(self._counted(handler), **options)
        self._most = most
        self._head_seconds = head_seconds
        self._idle: dict[RequestHandler, None] = {}  # the longest idle first
        self._unasked: set[RequestHandler] = set()

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """aiohttp's hook."""
        super().connection_made(handler, transport)
        self._idle[handler] = None
        self._unasked.add(handler)
        asyncio.get_running_loop().call_later(self._head_seconds, self._expect_first, handler)
        if len(self.connections) > self._most and self._idle:
            self._close(next(iter(self._idle)))

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """aiohttp's hook."""
        super().connection_lost(handler, exc)
        self._idle.pop(handler, None)
        self._unasked.discard(handler)

    def _counted(self, handler: Handler) -> Handler:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            connection = request.protocol
            self._idle.pop(connection, None)
            self._unasked.discard(connection)
            try:
                return await handler(request)
            finally:
                if connection.transport is not None:
                    self._idle[connection] = None

        return handle

    def _expect_first(self, handler: RequestHandler) -> None:
        if handler in self._unasked:
            self._close(handler)

    def _close(self, handler: RequestHandler) -> None:
        self._idle.pop(handler, None)
        # What could still be sent is nothing: a half-open TLS session may never take the polite end.
        handler.force_close()
        if handler.transport is not None:
            handler.transport.abort()


class BoundedSite(web.TCPSite):
    """A listener whose connections have `handshake_seconds` for TLS: before its end no server hears of them, and
    asyncio waits for a minute."""

    def __init__(
        self, runner: web.BaseRunner, host: str | None, port: int, context: ssl.SSLContext, *, handshake_seconds: float
    ) -> None:
        super().__init__(runner, host, port, ssl_context=context, backlog=_BACKLOG)
        self._handshake_seconds = handshake_seconds

    async def start(self) -> None:
        """As a TCPSite does it. Raises OSError."""
        await BaseSite.start(self)
        server = self._runner.server
        assert server is not None
        self._server = await asyncio.get_running_loop().create_server(
            server,
            self._host,
            self._port,
            ssl=self._ssl_context,
            ssl_handshake_timeout=self._handshake_seconds,
            backlog=self._backlog,
        )
