"""A user of a VFIO device: what a virtual machine does first, so that tests can hold a device the way one would."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kernel.modules.processes import exit_code, forked

# _IO(';', 100 + n) of include/uapi/linux/vfio.h
SET_IOMMU = 0x3B66
GROUP_GET_STATUS = 0x3B67
GROUP_SET_CONTAINER = 0x3B68
GROUP_GET_DEVICE_FD = 0x3B6A
TYPE1_IOMMU = 1
GROUP_VIABLE = 1


class Until(enum.StrEnum):
    """How far a user goes: the group node open; a container attached, which claims the group's DMA; the device open."""

    GROUP = "group"
    CONTAINER = "container"
    DEVICE = "device"


def group_node(bdf: str) -> Path:
    """/dev/vfio/<group> of a device. Raises FileNotFoundError when it is in no group."""
    link = Path("/sys/bus/pci/devices", bdf, "iommu_group").readlink()
    return Path("/dev/vfio", link.name)


class VfioUser:
    """Holds a device until closed. Raises OSError with the kernel's errno: EBUSY when somebody else has the group."""

    def __init__(self, bdf: str, until: Until = Until.DEVICE) -> None:
        self._descriptors: list[int] = []
        try:
            self._hold(bdf, until)
        except BaseException:
            self.close()
            raise

    def _hold(self, bdf: str, until: Until) -> None:
        group = self._open(group_node(bdf))
        if until is Until.GROUP:
            return
        status = bytearray(struct.pack("II", 8, 0))
        fcntl.ioctl(group, GROUP_GET_STATUS, status)
        if not struct.unpack("II", status)[1] & GROUP_VIABLE:
            raise PermissionError(f"{bdf}: a member of its group belongs to a driver of the host")
        container = self._open(Path("/dev/vfio/vfio"))
        fcntl.ioctl(group, GROUP_SET_CONTAINER, struct.pack("i", container))
        fcntl.ioctl(container, SET_IOMMU, TYPE1_IOMMU)
        if until is Until.DEVICE:
            # A mutable argument: only then the answer is what the call returned, a descriptor.
            self._descriptors.append(fcntl.ioctl(group, GROUP_GET_DEVICE_FD, bytearray(bdf.encode() + b"\0")))

    def _open(self, node: Path) -> int:
        self._descriptors.append(os.open(node, os.O_RDWR | os.O_CLOEXEC))
        return self._descriptors[-1]

    def close(self) -> None:
        """The device first, then the container, then the group."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def vfio_process(bdf: str, until: Until = Until.DEVICE) -> Iterator[int]:
    """The id of another process that holds the device; it lets go at exit at the latest. Raises RuntimeError when it
    cannot."""
    held, stop = os.pipe(), os.pipe()
    child = forked(lambda: _hold_until_end(bdf, until, held[1], stop))
    os.close(held[1])
    os.close(stop[0])
    try:
        if os.read(held[0], 1) != b"h":
            raise RuntimeError(f"{bdf}: the process that should hold it ended with {exit_code(child)}")
        yield child
    finally:
        os.close(held[0])
        os.close(stop[1])
        with contextlib.suppress(ChildProcessError):
            exit_code(child)


def _hold_until_end(bdf: str, until: Until, held: int, stop: tuple[int, int]) -> None:
    os.close(stop[1])
    with VfioUser(bdf, until):
        os.write(held, b"h")
        os.read(stop[0], 1)
