"""Reads that fail or hang. A reader goes to a plain file; only while a fault is ordered, or a lock that a read needs is
held, does the host port ask the kernel first: a mark in the private directory says so.
"""

import errno as errnos
import os
from collections.abc import Callable
from pathlib import Path

from node_host.host.simulated import READS
from simulated_node.faults import Faults
from simulated_node.model.attributes import Kind
from simulated_node.model.state import Machine
from simulated_node.rules.registry import rule
from simulated_node.sleeping import Sleepers
from simulated_node.tree.entries import File, Tree, lookup

TAKES_LOCK = rule(
    "read.takes-device-lock",
    "Reading sriov_numvfs, and driver_override before late 6.12, takes the device's lock: while an unbind or a change "
    "of the VFs sleeps, the reader sleeps too.",
    source="drivers/pci/pci-sysfs.c driver_override_show; drivers/pci/iov.c sriov_numvfs_show",
)
VANISHED = rule(
    "read.device-vanished",
    "A read that was opened before the device went away fails.",
    errno="ENODEV",
    source="fs/kernfs/file.c kernfs_fop_read_iter",
)
FAULTY = rule(
    "read.fails-or-hangs",
    "Reading an attribute may fail with whatever the device comes to (EIO, ENODEV), or not come back: read with a "
    "time limit.",
    source="drivers/pci/access.c, drivers/pci/vpd.c; ordered by a test, nothing here breaks by itself",
)


class ReadGate:
    """Stands between a host port and the files. The kernel calls it with its lock."""

    def __init__(self, root: Path, faults: Faults, sleepers: Sleepers) -> None:
        self._mark = root / READS
        self._faults = faults
        self._sleepers = sleepers
        self._mark.unlink(missing_ok=True)
        self.closed = False

    def update(self, machine: Machine) -> None:
        """Whether readers have to ask."""
        closed = self._faults.strike_reads or any(device.holder is not None for device in machine.devices.values())
        if closed and not self.closed:
            self._mark.touch()
        elif self.closed and not closed:
            self._mark.unlink(missing_ok=True)
        self.closed = closed

    def before(self, kind: str, path: str, operation: int, machine: Machine, tree: Callable[[], Tree]) -> None:
        """Sleep, or OSError, where this read does. ``kind`` is "read", "list" or "link"."""
        found = lookup(tree(), path)
        real, entry = found or (None, None)
        names = [f"{kind}:{name}" for name in dict.fromkeys((path, real)) if name is not None]
        if self._faults.hold(operation, *names):
            FAULTY.fires()
            self._sleepers.hold(operation, *names)
        if (
            kind == "read"
            and isinstance(entry, File)
            and entry.attribute
            and _takes_lock(machine, entry.attribute.kind)
        ):
            self._wait_for_lock(machine, entry.attribute.subject, names[0])
        if kind == "read" and real is not None and real not in tree():
            raise VANISHED.refuses(f"{path} went away")
        struck, errno = self._faults.hit(*names)
        if struck and errno is not None:
            FAULTY.fires()
            raise OSError(getattr(errnos, errno), os.strerror(getattr(errnos, errno)), path)

    def _wait_for_lock(self, machine: Machine, address: str, name: str) -> None:
        def free() -> bool:
            device = machine.devices.get(address)
            return device is None or device.holder is None

        if not free():
            TAKES_LOCK.fires()
            self._sleepers.until(name, free)


def _takes_lock(machine: Machine, kind: Kind) -> bool:
    if kind is Kind.DRIVER_OVERRIDE:
        return machine.description.kernel.override_takes_lock
    return kind is Kind.SRIOV_NUMVFS
