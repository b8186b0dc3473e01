"""All driver names of one process with the kubelet: sockets follow the names in use, and are looked after."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dra_publisher.kubelet.calls import ClaimCalls, OnCall
from dra_publisher.kubelet.health_services import AGAIN_SECONDS, HealthStreams
from dra_publisher.kubelet.names import KUBELET, REGISTRY, SocketNameError, SocketNames
from dra_publisher.kubelet.plugin import Plugin
from dra_publisher.kubelet.registry import Registry
from dra_publisher.kubelet.service import ClaimService, HealthSource
from node_host.host import Host

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
DRAIN_SECONDS: Final = 10.0


class Plugins:
    """The kubelet's side of one publisher. ``serve`` says which driver names it has; ``stop`` ends it.

    ``pod_uid`` gives each instance sockets of its own, so that two can serve during an update; None: the only instance.
    ``changed`` is called when `problem` or `other_plugin` may say something else.
    """

    def __init__(
        self,
        host: Host,
        service: ClaimService,
        health: HealthSource,
        *,
        pod_uid: str | None = None,
        on_call: OnCall | None = None,
        changed: Callable[[], None] = lambda: None,
        kubelet: str = KUBELET,
        look_seconds: float = LOOK_SECONDS,
        health_again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        self._host = host
        self._pod_uid = pod_uid
        self._changed = changed
        self._kubelet = kubelet
        self._look_seconds = look_seconds
        self._calls = ClaimCalls(service, on_call)
        self._streams = HealthStreams(health, again_seconds=health_again_seconds)
        self._registry = Registry(host, f"{kubelet}/{REGISTRY}")
        self._wanted: frozenset[str] | None = None
        self._plugins: dict[str, Plugin] = {}
        self._unnameable: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._stopped = False
        self._others: dict[str, str] = {}

    async def serve(self, drivers: frozenset[str]) -> None:
        """Have sockets for these names, and for no other one of this process. The kubelet registers them when it will.

        What keeps a name from being served is told by `problem`, and tried again.
        """
        async with self._lock:
            if self._stopped:
                return
            new = self._wanted is None or bool(drivers - self._wanted)
            self._wanted = drivers
            await self._converge(look=new)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_after(), name="kubelet sockets")

    def problem(self) -> str | None:
        """Why the kubelet cannot use a driver name here, for readiness; None when all is well.

        A name that another plugin has is none: `other_plugin` tells it.
        """
        if self._wanted is None:
            return "the kubelet's sockets are not served yet"
        texts = [
            text
            for driver in sorted(self._wanted)
            if (text := self._unnameable.get(driver) or self._problem_of(driver)) is not None
        ]
        return "; ".join(texts) or None

    def other_plugin(self, driver: str) -> str | None:
        """Another plugin's live registration of this driver name, named; None when there is none.

        A name that was not served before it came is not served while it is there: the kubelet would send its claims
        here. One that is served stays so, for the claims that it has.
        """
        return self._others.get(driver)

    async def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Registrations go first, then what was asked is answered, then the sockets that serve go. Call it once."""
        self._stopped = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        async with self._lock:
            until = asyncio.get_running_loop().time() + drain_seconds
            await self._close(list(self._plugins), drain_seconds)
            await self._calls.finish(max(0.0, until - asyncio.get_running_loop().time()))

    def _problem_of(self, driver: str) -> str | None:
        plugin = self._plugins.get(driver)
        if plugin is not None:
            return plugin.problem
        return None if driver in self._others else f"driver {driver} is not served yet"

    async def _look_after(self) -> None:
        """Sockets that were removed come back, and other plugins are noticed."""
        # A cancellation that comes together with the answer of a call is lost in gRPC, so `stop` says it twice.
        while not self._stopped:
            await asyncio.sleep(self._look_seconds)
            try:
                async with self._lock:
                    await self._converge(look=True)
            except Exception:
                # A fault of this program. The sockets that are there go on serving.
                _log.exception("Looking after the kubelet's sockets failed")

    async def _converge(self, *, look: bool) -> None:
        wanted = self._wanted or frozenset()
        before = (self.problem(), dict(self._others))
        await self._close([driver for driver in self._plugins if driver not in wanted], DRAIN_SECONDS)
        self._name(wanted)
        if look:
            await self._registry.look(
                {plugin.names.registration for plugin in self._plugins.values() if plugin.is_served}
            )
        self._others = {driver: text for driver in wanted if (text := self._registry.other_plugin(driver)) is not None}
        for driver, plugin in list(self._plugins.items()):
            if driver in self._others and not plugin.is_served:
                await self._close([driver], DRAIN_SECONDS)
            else:
                await plugin.ensure()
        if (self.problem(), self._others) != before:
            self._changed()

    def _name(self, wanted: frozenset[str]) -> None:
        self._unnameable = {}
        for driver in sorted(wanted - self._plugins.keys()):
            try:
                names = SocketNames(driver, self._pod_uid, self._kubelet)
            except SocketNameError as error:
                self._unnameable[driver] = str(error)
            else:
                self._plugins[driver] = Plugin(self._host, names, self._calls, self._streams, self._changed)

    async def _close(self, drivers: list[str], drain_seconds: float) -> None:
        plugins = [self._plugins[driver] for driver in drivers]
        await asyncio.gather(*(plugin.stop_registration() for plugin in plugins))
        await asyncio.gather(*(plugin.stop_serving(drain_seconds) for plugin in plugins))
        # Not before: who is cancelled in the middle leaves them to `stop`.
        for driver in drivers:
            del self._plugins[driver]
