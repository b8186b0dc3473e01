"""The machine that statements speak to: a host port, and what the world around a host can do to it.

Two machines keep this protocol: the simulated kernel in the same process, and the Linux guest from inside. A statement
sees no difference but the one that its raw result tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from node_host.host import Host
from tests.contract.orders import Order


class Hold(Protocol):
    """Another process that has something open."""

    def close(self) -> None:
        """It lets go. A second time does nothing."""
        ...


class Use(Hold, Protocol):
    """A user of a device through VFIO, as a virtual machine is one."""

    def requested(self) -> bool:
        """Whether the kernel has asked for the device back, within five seconds."""
        ...


class Reader(Protocol):
    """A file that was opened before and is read later."""

    def read(self) -> bytes: ...

    def close(self) -> None: ...


class Machine(Protocol):
    """``roles`` maps what a device is there for to its address, e.g. ``pf``, ``twin_a``, ``shared_b``."""

    name: str
    host: Host

    @property
    def roles(self) -> Mapping[str, str]: ...

    def order(self, path: str, data: bytes) -> Order:
        """A write by somebody else, which may sleep."""
        ...

    def flood(self, address: str) -> None:
        """More events of a device than a reader's buffer takes, at once."""
        ...

    def hold(self, node: str, *, pod_uid: str | None = None) -> Hold:
        """Another process, "holder", opens a node of /dev; OSError as open(2). With ``pod_uid`` it is in a cgroup that
        a kubelet would make for that pod.
        """
        ...

    def use(self, address: str) -> Use:
        """Another process opens the group of a device, makes it its own, and opens the device; OSError of the step
        that fails.
        """
        ...

    def viable(self, address: str) -> bool:
        """Whether the kernel calls the device's group viable (VFIO_GROUP_FLAGS_VIABLE)."""
        ...

    def asleep(self, order: Order) -> bool:
        """Whether an order has come to sleep in the kernel, within five seconds."""
        ...

    def opened(self, path: str) -> Reader:
        """A file, opened now."""
        ...

    def remove(self, address: str) -> None:
        """Take a device off the bus by its `remove` attribute."""
        ...

    def rescan(self) -> None:
        """Find again what was taken off the bus."""
        ...

    def plug(self, card: str) -> str:
        """Put a card ("edu", "variant") into the empty port; its address, once it is there."""
        ...

    def unplug(self, address: str) -> None:
        """Pull it out; returns when it is gone."""
        ...

    def network(self, address: str, state: str) -> AbstractContextManager[None]:
        """The device's net device as "address" (up, with one), "bond" or "bridge" (a member of one), and back."""
        ...

    def built_with(self, **kernel: str) -> AbstractContextManager[None]:
        """The same machine with a kernel of another build meanwhile; only a simulated machine can."""
        ...

    def sick(self, path: str, errno: str) -> AbstractContextManager[None]:
        """Reading the file fails with this errno meanwhile; only a simulated machine can."""
        ...

    def load_vgpu(self) -> None:
        """The driver "nvidia" for virtual functions of the lab's cards."""
        ...

    def failing_probe(self, number: int) -> AbstractContextManager[str]:
        """A driver whose probe fails with this number (of errno, or 517 for EPROBE_DEFER) meanwhile; its name."""
        ...
