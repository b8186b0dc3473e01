"""The kubelet's plugin manager, played: it finds sockets in the registry directory, asks, and says yes or no.

As the real one does: a socket that is made anew under its name is another plugin; one that goes away is forgotten; of
several plugins of one driver name the connected one that came last is called. Unlike it, nothing that a plugin says
against the protocol is let pass: it is kept in ``violations``, and leaving the context fails with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from dra_publisher.kubelet.service import ClaimRef
from kubelet_api import registration_pb2 as messages
from kubelet_api.registration_pb2_grpc import RegistrationStub
from tests.builders.fake_kubelet import rules
from tests.builders.fake_kubelet.registered import Devices, Registered, channel_to
from tests.builders.waiting import until

LOOK_SECONDS = 0.01
_AGAIN_SECONDS = 0.2

_Incarnation = tuple[int, int]


class FakeKubelet:
    """A kubelet for the plugins of the host that is mounted at ``root``.

    ``services`` and ``health_services`` are what it knows, as an older one knows less. ``refuse`` may give a reason not
    to register a plugin.
    """

    def __init__(
        self,
        root: Path,
        *,
        kubelet: str = "/var/lib/kubelet",
        services: Sequence[str] = rules.DRA,
        health_services: Sequence[str] = rules.HEALTH,
        refuse: Callable[[messages.PluginInfo], str | None] = lambda _: None,
    ) -> None:
        self._root = root
        self._kubelet = kubelet
        self._services = services
        self._health_services = health_services
        self.refuse = refuse
        self.violations: list[str] = []
        self.registrations: list[str] = []
        """Driver names in the order in which they were registered, once each time."""
        self.refusals: list[str] = []
        self._plugins: dict[str, list[Registered]] = {}
        self._known: dict[str, _Incarnation] = {}
        self._retry_at: dict[str, float] = {}
        self._watching: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def __aenter__(self) -> Self:
        self._registry.mkdir(parents=True, exist_ok=True)
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()
        if kind is None:
            assert not self.violations, self.violations

    async def restart(self) -> None:
        """Forget everything, and register again whatever is there."""
        await self._stop()
        self._known.clear()
        self._retry_at.clear()
        self._watching = asyncio.create_task(self._watch())

    def plugins(self, driver: str) -> Sequence[Registered]:
        """All that are registered under this name, the last one last."""
        return tuple(self._plugins.get(driver, ()))

    async def registered(self, driver: str, *, seconds: float = 10.0) -> Registered:
        """The plugin that is called for this driver, once there is one and it is connected."""
        await until(lambda: self._called(driver) is not None, seconds=seconds, what=f"{driver} is registered")
        found = self._called(driver)
        assert found is not None
        return found

    async def gone(self, driver: str, *, seconds: float = 10.0) -> None:
        """Wait until no plugin is registered under this name."""
        await until(lambda: not self.plugins(driver), seconds=seconds, what=f"{driver} is gone")

    async def prepare(
        self, driver: str, *claims: ClaimRef, service: str | None = None, seconds: float = 45.0
    ) -> Mapping[str, Devices | str]:
        """By UID: devices, or the error. The version is the one that was chosen, unless ``service`` names another."""
        return await (await self.registered(driver)).prepare(claims, service=service, seconds=seconds)

    async def unprepare(
        self, driver: str, *claims: ClaimRef, service: str | None = None, seconds: float = 45.0
    ) -> Mapping[str, str]:
        """By UID: the error, "" for none."""
        return await (await self.registered(driver)).unprepare(claims, service=service, seconds=seconds)

    @property
    def _registry(self) -> Path:
        return self._root / f"{self._kubelet}/plugins_registry".removeprefix("/")

    def _called(self, driver: str) -> Registered | None:
        return next((plugin for plugin in reversed(self.plugins(driver)) if plugin.is_connected), None)

    async def _stop(self) -> None:
        self._is_stopping = True  # gRPC loses a cancellation that comes together with the answer of a call
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
            if not self._watching.cancelled() and (error := self._watching.exception()) is not None:
                raise error
        for driver in list(self._plugins):
            for plugin in self._plugins.pop(driver):
                await plugin.close()

    async def _watch(self) -> None:
        self._is_stopping = False
        while not self._is_stopping:
            there = self._sockets()
            for path in [path for path, which in self._known.items() if there.get(path) != which]:
                del self._known[path]
                await self._forget(path)
            now = asyncio.get_running_loop().time()
            for path, which in there.items():
                if self._known.get(path) != which and self._retry_at.get(path, 0.0) <= now:
                    self._retry_at[path] = now + _AGAIN_SECONDS
                    if await self._register(path):
                        self._known[path] = which
            await asyncio.sleep(LOOK_SECONDS)

    def _sockets(self) -> dict[str, _Incarnation]:
        found: dict[str, _Incarnation] = {}
        for entry in os.scandir(self._registry):
            with contextlib.suppress(FileNotFoundError):
                state = entry.stat(follow_symlinks=False)
                if stat.S_ISSOCK(state.st_mode) and not entry.name.startswith("."):
                    found[f"{self._kubelet}/plugins_registry/{entry.name}"] = (state.st_ino, state.st_ctime_ns)
        return found

    async def _register(self, path: str) -> bool:
        """Whether the plugin there is registered now."""
        try:
            with channel_to(self._root, path) as channel:
                async with channel:
                    stub = RegistrationStub(channel)
                    info = await stub.GetInfo(messages.InfoRequest(), timeout=1.0)
                    reason = await self._judge(info, path)
                    if reason is None:
                        await self._add(info, path)
                    else:
                        self.refusals.append(f"{info.name}: {reason}")
                    status = messages.RegistrationStatus(plugin_registered=reason is None, error=reason or "")
                    await stub.NotifyRegistrationStatus(status, timeout=5.0)
        except (grpc.RpcError, FileNotFoundError):
            await self._forget(path)
            return False
        return reason is None

    async def _judge(self, info: messages.PluginInfo, path: str) -> str | None:
        found = rules.violations(info, path, self._root, self._kubelet)
        if path not in self._sockets():
            raise FileNotFoundError(path)  # withdrawn while it was asked: nothing of it is there to be judged
        self.violations += found
        if not set(info.supported_versions) & set(self._services):
            return f"none of {list(info.supported_versions)} is supported by the kubelet"
        if any(plugin.endpoint == info.endpoint for plugin in self.plugins(info.name)):
            return f"endpoint {info.endpoint} already registered"
        return self.refuse(info)

    async def _add(self, info: messages.PluginInfo, path: str) -> None:
        service = next(version for version in info.supported_versions if version in self._services)
        health = next((version for version in self._health_services if version in info.supported_versions), "")
        plugin = Registered(self._root, info.name, info.endpoint, path, service, health)
        try:
            await plugin.connect()
        except TimeoutError:
            if path in self._sockets():
                self.violations.append(f"{info.endpoint} is registered and does not listen")
        self._plugins.setdefault(info.name, []).append(plugin)
        self.registrations.append(info.name)

    async def _forget(self, path: str) -> None:
        for plugins in self._plugins.values():
            for plugin in [plugin for plugin in plugins if plugin.registration == path]:
                plugins.remove(plugin)
                await plugin.close()
