"""A host of a kubelet, claims that are answered as a test says, and plugins that end with the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_publisher.kubelet.plugins import Plugins
from dra_publisher.kubelet.service import AnsweredDevice, ClaimRef, DeviceHealth
from node_host.host import open_host
from tests.builders.fake_kubelet import FakeKubelet

DRIVER = "npufleet.io"


def claim(number: int = 1) -> ClaimRef:
    return ClaimRef("team", f"claim-{number}", f"00000000-0000-0000-0000-{number:012}")


def device(number: int = 1, share_id: str | None = None) -> AnsweredDevice:
    name = f"vfio-0000-{number:02x}-00-0"
    return AnsweredDevice(("npu",), "node-a", name, (f"k8s.npufleet.io/vfio={name}",), share_id)


@dataclass
class Claims:
    """A claim service that is told what to answer, and tells what it was asked."""

    answer: Callable[[ClaimRef], tuple[AnsweredDevice, ...] | str] = lambda claim: (device(),)
    error: Callable[[ClaimRef], str | None] = lambda claim: None
    before: Callable[[], Awaitable[Any]] | None = None
    asked: list[tuple[str, str, tuple[ClaimRef, ...]]] = field(default_factory=list)
    ended: int = 0

    async def prepare(self, driver: str, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[AnsweredDevice, ...] | str]:
        self.asked.append(("prepare", driver, tuple(claims)))
        if self.before is not None:
            await self.before()
        self.ended += 1
        return {claim.uid: self.answer(claim) for claim in claims}

    async def unprepare(self, driver: str, claims: Sequence[ClaimRef]) -> Mapping[str, str | None]:
        self.asked.append(("unprepare", driver, tuple(claims)))
        if self.before is not None:
            await self.before()
        self.ended += 1
        return {claim.uid: self.error(claim) for claim in claims}


class Health:
    """Health that a test sets."""

    def __init__(self) -> None:
        self.list: tuple[DeviceHealth, ...] = (DeviceHealth("node-a", "vfio-0000-01-00-0", True),)
        self._callbacks: list[Callable[[], None]] = []

    def devices(self, driver: str) -> tuple[DeviceHealth, ...]:
        return self.list

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def set(self, *devices: DeviceHealth) -> None:
        self.list = devices
        for callback in self._callbacks:
            callback()


class Node:
    """A host root with a kubelet's directories, and the publishers that run on it."""

    def __init__(self, root: Path, stack: AsyncExitStack) -> None:
        self.root = root
        self.claims = Claims()
        self.health = Health()
        self._stack = stack
        self._kubelets: list[FakeKubelet] = []

    async def kubelet(self, **options: Any) -> FakeKubelet:
        return await self._stack.enter_async_context(FakeKubelet(self.root, **options))

    def plugins(self, **options: Any) -> Plugins:
        options = {"look_seconds": 0.05, **options}
        plugins = Plugins(open_host(self.root), self.claims, self.health, **options)
        self._stack.push_async_callback(plugins.stop, 0.2)
        return plugins

    @property
    def registry(self) -> Path:
        return self.root / "var/lib/kubelet/plugins_registry"

    def directory(self, driver: str = DRIVER) -> Path:
        return self.root / "var/lib/kubelet/plugins" / driver

    def sockets(self) -> list[str]:
        """All sockets that either directory shows, by name."""
        paths = [*self.registry.glob("*"), *(self.root / "var/lib/kubelet/plugins").glob("*/*")]
        return sorted(path.name for path in paths if path.is_socket())


async def turns(number: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(number):
        await asyncio.sleep(0)
