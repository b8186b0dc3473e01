"""A binder on the real kernel of the lab's guest, and what that kernel itself says of writes to it."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import re
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from crds.catalogue import Catalogue, load_catalogue
from crds.models.node_state import NodeStateStatus
from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.journal import JOURNAL, Journal, JournalState
from node_host.acting.locks import Locks
from node_host.host import Host, open_host
from node_host.orders import Orders
from tests.builders.binder import NODE_UID, FakeClock, order, spec
from tests.builders.inline import InlineCalls, InlineWriter
from vfio_binder.binder import Binder, Pass

PCI: Final = Path("/sys/bus/pci/devices")
NPUFLEET: Final = Path("/var/lib/npufleet")
_TRACING: Final = Path("/sys/kernel/tracing")
_GROUP: Final = "npufleet"
# Everything that is written through sysfs comes by one of these (fs/sysfs/file.c), opened by whatever path.
_WRITERS: Final = ("sysfs_kf_write", "sysfs_kf_bin_write")
# The attribute, and the directories that it is in, innermost first.
_ARGUMENTS: Final = {
    name: f"of->kn{'->parent' * depth}->name:string" for depth, name in enumerate(("name", "d1", "d2", "d3"))
}
_LINE = re.compile(r"-(?P<pid>\d+)\s+\[.*? " + " ".join(rf'{name}="?(?P<{name}>[^"\n]*)"?' for name in _ARGUMENTS))
_BDF: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Written to drivers and to the bus; of a device, every attribute counts.
_OF_PCI: Final = frozenset(
    {
        "bind",
        "unbind",
        "new_id",
        "remove_id",
        "drivers_probe",
        "drivers_autoprobe",
        "rescan",
    }
)


@dataclass(frozen=True)
class KernelWrite:
    """A write as the kernel saw it: the writing thread and the attribute, from its device on, or with its directory."""

    pid: int
    path: str

    def __str__(self) -> str:
        return self.path


def _define(event: str) -> None:
    # Not open("a"), which seeks: the kernel refuses that here.
    descriptor = os.open(_TRACING / "kprobe_events", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"{event}\n".encode())
    finally:
        os.close(descriptor)


@functools.cache
def _catalogue() -> Catalogue:
    """Read once: YAML takes seconds in the guest."""
    return load_catalogue()


class KernelTrace:
    """All writes to PCI devices, their drivers and their bus since the last look, by anybody."""

    def __init__(self, instance: Path) -> None:
        self._instance = instance

    def writes(self) -> list[KernelWrite]:
        trace = self._instance / "trace"
        text = trace.read_text()
        trace.write_text("")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        matches = [_LINE.search(line) for line in lines]
        assert all(matches), [line for line, found in zip(lines, matches, strict=True) if not found]
        paths = ((found, _of_pci([found[name] for name in _ARGUMENTS])) for found in matches if found)
        return [KernelWrite(int(found["pid"]), path) for found, path in paths if path is not None]


def _of_pci(names: list[str]) -> str | None:
    """The attribute within its device, or within its directory when it is one of a driver or the bus; None: neither.

    ``names``: the attribute, and the directories that it is in, innermost first.
    """
    for depth, directory in enumerate(names[1:], 2):
        if _BDF.fullmatch(directory):
            return "/".join(reversed(names[:depth]))
    return f"{names[1]}/{names[0]}" if names[0] in _OF_PCI else None


@contextmanager
def traced() -> Iterator[KernelTrace]:
    """Kprobes on the functions that every write to sysfs goes through, in a trace buffer of its own."""
    arguments = " ".join(f"{name}={where}" for name, where in _ARGUMENTS.items())
    with ExitStack() as stack:
        for function in _WRITERS:
            _define(f"p:{_GROUP}/{function} {function} {arguments}")
            stack.callback(_define, f"-:{_GROUP}/{function}")
        instance = _TRACING / "instances" / f"npufleet-{os.getpid()}"
        instance.mkdir()
        stack.callback(instance.rmdir)
        enabled = instance / "events" / _GROUP / "enable"
        enabled.write_text("1")
        stack.callback(enabled.write_text, "0")
        yield KernelTrace(instance)


class HookedWriter(BoundedWriter):
    """Writes by children, with something that happens right before the first write to a matching path."""

    def __init__(self, host: Host, suffix: str, hook: Callable[[], object], *, deadline_seconds: float = 30) -> None:
        super().__init__(host, deadline_seconds=deadline_seconds)
        self._suffix = suffix
        self._hook: Callable[[], object] | None = hook

    async def write(self, path: str, data: bytes, locks: Locks) -> None:
        if self._hook is not None and path.endswith(self._suffix):
            hook, self._hook = self._hook, None
            hook()
        await super().write(path, data, locks)


class KilledWriter(InlineWriter):
    """The process is killed by SIGKILL right after its n-th write. It writes itself: a child costs a second."""

    def __init__(self, host: Host, writes: int) -> None:
        super().__init__(host)
        self._left = writes

    async def write(self, path: str, data: bytes, locks: Locks) -> None:
        await super().write(path, data, locks)
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class GuestBinder:
    """The binder of the guest, one pass at a time; `restart` gives a new one, as after a crash or an upgrade."""

    def __init__(self, journal: Path = NPUFLEET) -> None:
        """``journal``: a directory that takes the place of /var/lib/npufleet, e.g. one that lives over a reboot."""
        if journal != NPUFLEET:
            journal.mkdir(parents=True, exist_ok=True)
            NPUFLEET.symlink_to(journal)
        self.host = open_host("/")
        self.clock = FakeClock()
        self.status = NodeStateStatus()
        self._generations = itertools.count(1)
        self.orders = Orders(None, NODE_UID)
        self.restart()

    def restart(self, writer: BoundedWriter | None = None) -> None:
        self.binder = Binder(
            self.host,
            _catalogue(),
            Journal(self.host.local(JOURNAL)),
            writer or InlineWriter(self.host),
            now=lambda: "2026-11-30T12:00:00Z",
            clock=self.clock,
            calls=InlineCalls(),
            jitter=lambda: 1.0,
        )

    def order(self, *entries: dict[str, Any]) -> None:
        self.orders = Orders(spec(*entries), NODE_UID, next(self._generations))

    def run(self, progress: Callable[[Pass], Awaitable[NodeStateStatus | None]] | None = None) -> Pass:
        """One pass; the status that it reports is what the next one finds."""
        more = {} if progress is None else {"progress": progress}
        done = asyncio.run(self.binder.run(self._standing(), **more))
        self.status = NodeStateStatus(inventory=done.inventory, bindings=done.bindings)
        return done

    def ordered(self, *entries: dict[str, Any]) -> Pass:
        """New orders and a pass."""
        self.order(*entries)
        return self.run()

    def killed_after(self, writes: int) -> bool:
        """Whether a binder in a process of its own, killed after that many writes, got there at all."""
        child = os.fork()
        if child == 0:
            try:
                self.restart(KilledWriter(self.host, writes))
                self.run()
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    def journal(self) -> JournalState:
        return Journal(self.host.local(JOURNAL)).load(set_aside=False)

    def release(self, *addresses: str) -> None:
        """Give back what is on these addresses, and forget all."""
        self.restart()
        if self.journal().entries:
            self.ordered(*(whole(address, intent="Release") for address in addresses if (PCI / address).exists()))
        assert self.journal().entries == {}
        if NPUFLEET.is_symlink():
            NPUFLEET.unlink()
        else:
            shutil.rmtree(NPUFLEET, ignore_errors=True)

    def _standing(self) -> Orders:
        asked = self.orders
        return Orders(asked.spec, asked.node_uid, asked.generation, self.status)


def whole(address: str, **more: Any) -> dict[str, Any]:
    """The order for the device at an address, as whatever it is there."""
    ids = {name: (PCI / address / name).read_text().strip().removeprefix("0x") for name in ("vendor", "device")}
    return order(address, **ids, **more)


def move(address: str, to: str | None) -> None:
    """What somebody does by hand: to a driver that is pinned, or back to the one that takes the device by itself."""
    (PCI / address / "driver_override").write_text(f"{to or ''}\n")
    if driver(address) is not None:
        (PCI / address / "driver/unbind").write_text(address)
    Path("/sys/bus/pci/drivers_probe").write_text(address)


def driver(address: str) -> str | None:
    link = PCI / address / "driver"
    return link.readlink().name if link.is_symlink() else None


def override(address: str) -> str:
    return (PCI / address / "driver_override").read_text().strip()


def functions(card: str) -> list[str]:
    """The virtual functions of a card, in their order."""
    links = sorted((PCI / card).glob("virtfn*"), key=lambda link: int(link.name.removeprefix("virtfn")))
    return [link.readlink().name for link in links]
