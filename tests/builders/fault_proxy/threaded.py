"""The proxy for tests without an event loop, driven by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.builders.fault_proxy.faults import Kind
from tests.builders.fault_proxy.requests import Asked
from tests.builders.fault_proxy.server import ProxyServer
from tests.builders.fault_proxy.streams import Trouble
from tests.builders.fault_proxy.weather import UNCOUNTED, Weather


class FaultProxy:
    """`with FaultProxy(kubeconfig, out) as proxy:` serves in a thread; `out` is a kubeconfig that leads through it."""

    def __init__(self, kubeconfig: Path, out: Path) -> None:
        self.kubeconfig = out
        self.on_write: Callable[[int], bool] = lambda count: True
        """Called when a write has taken effect, with how many there were; False keeps the answer back for ever."""
        self._given = kubeconfig
        self._weather = Weather()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="fault-proxy", daemon=True)

    @property
    def writes(self) -> list[str]:
        """Writes that the server has answered, as "VERB path", Leases and Events apart."""
        return self._weather.writes

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

    def refuse(self, plural: str) -> None:
        """From now on lists and watches of this kind get 403, and the open watches end with 410."""
        self._weather.dead[plural] = 0.0
        self._do(plural, Trouble(Kind.GONE))

    def accept(self, plural: str) -> None:
        """End `refuse`."""
        self._weather.revive(plural)

    def swallow(self, plural: str) -> None:
        """Open watches of this kind stay open and carry nothing any more."""
        self._do(plural, Trouble(Kind.STALL))

    def expire(self, plural: str) -> None:
        """End `swallow`: the open watches get 410 in the stream; what happened meanwhile is never told."""
        self._do(plural, Trouble(Kind.GONE))

    def _do(self, plural: str, trouble: Trouble) -> None:
        async def do() -> None:
            self._weather.trouble(plural, trouble)

        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(do(), self._loop).result(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with _Held(self._given, self.kubeconfig, self._weather, self):
            self._ready.set()
            await self._stop.wait()


class _Held(ProxyServer):
    """Keeps answers to writes back where the test says so."""

    def __init__(self, kubeconfig: Path, out: Path, weather: Weather, owner: FaultProxy) -> None:
        super().__init__(kubeconfig, out, weather)
        self._owner = owner

    async def _after_write(self, what: Asked) -> None:
        if what.plural not in UNCOUNTED and not self._owner.on_write(len(self.weather.writes)):
            await self._stop.wait()
