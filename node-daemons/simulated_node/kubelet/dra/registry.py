"""Finds plugins by their sockets in the registry directory, and registers them as a kubelet does.

Source: kubelet pkg/kubelet/pluginmanager (a socket made anew under its name is another plugin; names that begin with a
dot are left alone; what fails is tried again after 0.5 s, and ever later up to 2 min); cm/dra/plugin (of several
plugins of one driver the one that came last is called, if it is connected). The directory is looked at here, not
watched.
"""

import asyncio
import logging
import os
import random
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from kubelet_api import registration_pb2 as messages
from kubelet_api.registration_pb2_grpc import RegistrationStub
from node_host.host import Host
from runtime.backoff import Backoff
from simulated_node.kubelet.dra.paths import REGISTRY, SocketPlace
from simulated_node.kubelet.dra.plugin import SERVICES, TYPE, Plugin, answered, channel_to, end

if TYPE_CHECKING:
    from kubelet_api.registration_pb2_grpc import RegistrationAsyncStub

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.1
_ANSWER_SECONDS: Final = 10.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 122.0

_Incarnation = tuple[int, int]


@dataclass
class _Found:
    """A socket in the directory, and what came of it."""

    which: _Incarnation
    registering: asyncio.Task[None]
    plugin: Plugin | None = None


def _check(found: _Found) -> None:
    """Raises what has ended the work on a plugin: a fault of this program, that would otherwise be seen by nobody."""
    if found.registering.done():
        found.registering.result()
    if found.plugin is not None:
        found.plugin.check()


class RefusedError(Exception):
    """The plugin is none that this kubelet can call; the text is what it is told."""


class PluginRegistry:
    """The plugins of one kubelet, while ``run`` runs. ``changed`` is called when one comes, goes, or its connection."""

    def __init__(
        self,
        host: Host,
        changed: Callable[[], None],
        *,
        look_seconds: float = LOOK_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self._host = host
        self._changed = changed
        self._look_seconds = look_seconds
        self._sleep = sleep
        self._random = jitter or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._found: dict[str, _Found] = {}
        # In the order of their registration.
        self._plugins: list[Plugin] = []

    @property
    def drivers(self) -> frozenset[str]:
        """Drivers of which a plugin is registered."""
        return frozenset(plugin.driver for plugin in self._plugins)

    def plugin(self, driver: str) -> Plugin | None:
        """The plugin that is called for a driver: of those that are connected the last, else the last."""
        of_driver = [plugin for plugin in reversed(self._plugins) if plugin.driver == driver]
        return next((plugin for plugin in of_driver if plugin.is_connected), of_driver[0] if of_driver else None)

    def is_connected(self, driver: str) -> bool:
        """Whether any of its plugins is."""
        return any(plugin.is_connected for plugin in self._plugins if plugin.driver == driver)

    async def run(self) -> None:
        """Look until cancelled; then forget all."""
        self._host.local(REGISTRY).mkdir(parents=True, exist_ok=True)
        try:
            while True:
                await self._look()
                await self._sleep(self._look_seconds)
        finally:
            for name in list(self._found):
                await self._forget(name)

    async def _look(self) -> None:
        for found in self._found.values():
            _check(found)
        there = self._sockets()
        for name in [name for name, found in self._found.items() if there.get(name) != found.which]:
            await self._forget(name)
        for name, which in there.items():
            if name not in self._found:
                self._found[name] = _Found(which, asyncio.ensure_future(self._register(name)))

    def _sockets(self) -> dict[str, _Incarnation]:
        found: dict[str, _Incarnation] = {}
        with suppress(OSError), os.scandir(self._host.local(REGISTRY)) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    state = entry.stat(follow_symlinks=False)
                    if stat.S_ISSOCK(state.st_mode) and not entry.name.startswith("."):
                        found[entry.name] = (state.st_ino, state.st_ctime_ns)
        return found

    async def _forget(self, name: str) -> None:
        found = self._found.pop(name)
        await end(found.registering)
        if found.plugin is not None:
            self._plugins.remove(found.plugin)
            await found.plugin.close()
            log.info("Plugin %s is gone", name)
            self._changed()

    async def _register(self, name: str) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, self._random)
        while True:
            try:
                plugin = await self._introduced(name)
            except (grpc.aio.AioRpcError, OSError, RefusedError) as error:
                pause = backoff.next()
                text = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else error
                log.warning("Plugin %s is not registered, again in %.1f s: %s", name, pause, text)
                await self._sleep(pause)
            else:
                self._found[name].plugin = plugin
                self._plugins.append(plugin)
                log.info("Plugin %s is registered for driver %s at %s", name, plugin.driver, plugin.endpoint)
                self._changed()
                return

    async def _introduced(self, name: str) -> Plugin:
        """Ask who it is, and tell what comes of it."""
        plugin: Plugin | None = None
        try:
            with SocketPlace(self._host.local(REGISTRY) / name) as place:
                async with channel_to(place) as channel:
                    stub = RegistrationStub(channel)
                    info = await answered(stub.GetInfo(messages.InfoRequest(), timeout=_ANSWER_SECONDS))
                    try:
                        plugin = self._plugin(info)
                    except RefusedError as error:
                        await _tell(stub, error=str(error))
                        raise
                    await _tell(stub)
        except BaseException:
            if plugin is not None:
                await plugin.close()
            raise
        return plugin

    def _plugin(self, info: messages.PluginInfo) -> Plugin:
        if info.type != TYPE:
            raise RefusedError(f"no handler registered for plugin type: {info.type}")
        service = next((known for known in SERVICES if known in info.supported_versions), None)
        if service is None:
            served = ", ".join(info.supported_versions) or "none"
            raise RefusedError(f"the kubelet calls {', '.join(SERVICES)}, the plugin serves {served}")
        if any(known.driver == info.name and known.endpoint == info.endpoint for known in self._plugins):
            raise RefusedError(f"endpoint {info.endpoint} already registered")
        try:
            return Plugin(info.name, info.endpoint, self._host.local(info.endpoint), service, self._changed)
        except OSError as error:
            raise RefusedError(f"endpoint {info.endpoint}: {error.strerror or error}") from error


async def _tell(stub: "RegistrationAsyncStub", *, error: str = "") -> None:
    status = messages.RegistrationStatus(plugin_registered=not error, error=error)
    await answered(stub.NotifyRegistrationStatus(status, timeout=_ANSWER_SECONDS))
