"""/metrics, /healthz and /readyz of a process, answered within a second however busy the process is.

The server has a thread and an event loop of its own: a long computation in the main loop delays no probe. In exchange
liveness asks the main loop for a sign of life, so that a process whose main loop hangs does fail its probe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from runtime.loop_beat import LoopBeat
from runtime.settings import Address

Check = Callable[[], str | None]
"""Returns None when all is well, else the reason. Called from the health thread: it may only read plain values."""

_HANGS_AFTER_SECONDS = 30.0
_START_SECONDS = 10.0


class ListenError(Exception):
    """The health endpoint cannot listen; the text names the address and the cause."""


class HealthServer:
    """`async with HealthServer(address, registry) as health:` serves until the block is left.

    Liveness fails only for what a restart would cure; readiness for everything that keeps the process from its work.
    Bodies are JSON: {"ok": bool, "checks": {name: {"ok": bool, "reason": str}}}; the status is 200 or 503.
    """

    def __init__(
        self,
        listen: Address,
        registry: CollectorRegistry,
        *,
        announce: TextIO | None = None,
        hangs_after_seconds: float = _HANGS_AFTER_SECONDS,
    ) -> None:
        self._listen = listen
        self._registry = registry
        self._announce = announce if announce is not None else sys.stdout
        self._hangs_after = hangs_after_seconds
        self._liveness: dict[str, Check] = {}
        self._readiness: dict[str, Check] = {}
        self._notes: dict[str, Check] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._beat: LoopBeat | None = None
        self.address: Address | None = None
        """Where the server really listens; set once the block is entered."""

    def add_liveness(self, name: str, check: Check) -> None:
        self._liveness[name] = check

    def add_readiness(self, name: str, check: Check) -> None:
        self._readiness[name] = check

    def add_note(self, name: str, check: Check) -> None:
        """Shown beside readiness with its reason, and never a failure: what will be one if nobody sees to it."""
        self._notes[name] = check

    async def __aenter__(self) -> HealthServer:
        """Bind and print {"listening": "HOST:PORT"} as one line; raises ListenError."""
        loop = asyncio.get_running_loop()
        self._beat = LoopBeat(loop)
        self.add_liveness("event-loop", self._main_loop_turns)
        bound: asyncio.Future[Address] = loop.create_future()

        def settle(result: Address | Exception) -> None:
            if not bound.done():
                if isinstance(result, Exception):
                    bound.set_exception(result)
                else:
                    bound.set_result(result)

        def serve() -> None:
            try:
                asyncio.run(self._serve(lambda address: loop.call_soon_threadsafe(settle, address)))
            except Exception as error:
                failure = ListenError(f"cannot serve health on {self._listen}: {error}")
                with contextlib.suppress(RuntimeError):  # the main loop may be gone already
                    loop.call_soon_threadsafe(settle, failure)

        self._thread = threading.Thread(target=serve, name="health", daemon=True)
        self._thread.start()
        async with asyncio.timeout(_START_SECONDS):
            self.address = await bound
        print(json.dumps({"listening": str(self.address)}), file=self._announce, flush=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None and self._thread is not None:
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                return
            await asyncio.to_thread(self._thread.join, 5.0)

    async def _serve(self, bound: Callable[[Address], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_get("/metrics", self._serve_metrics)
        app.router.add_get("/healthz", self._serve_liveness)
        app.router.add_get("/readyz", self._serve_readiness)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._listen.host or None, self._listen.port).start()
            host, port = runner.addresses[0][:2]
            bound(Address(host, port))
            assert self._beat is not None
            while not self._stop.is_set():
                self._beat.poke()
                try:
                    async with asyncio.timeout(1.0):
                        await self._stop.wait()
                except TimeoutError:
                    continue
        finally:
            await runner.cleanup()

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _serve_liveness(self, request: web.Request) -> web.Response:
        return _verdict(self._liveness)

    async def _serve_readiness(self, request: web.Request) -> web.Response:
        # Nothing to check yet is a process that has not come so far, not one that is ready.
        return _verdict(self._readiness or {"start": lambda: "still starting"}, self._notes)

    def _main_loop_turns(self) -> str | None:
        assert self._beat is not None
        age = self._beat.age()
        return f"the main loop has not turned for {age:.0f} s" if age > self._hangs_after else None


def _verdict(checks: dict[str, Check], notes: dict[str, Check] | None = None) -> web.Response:
    notes = notes or {}
    results: dict[str, dict[str, object]] = {}
    for name, check in list({**checks, **notes}.items()):
        try:
            reason = check()
        except Exception as error:  # a broken check is a failing one
            reason = f"the check itself failed: {type(error).__name__}: {error}"
        results[name] = {"ok": reason is None or name in notes, "reason": reason or ""}
    ok = all(result["ok"] for result in results.values())
    return web.json_response({"ok": ok, "checks": results}, status=200 if ok else 503)
