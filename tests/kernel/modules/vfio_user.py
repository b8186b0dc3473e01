"""A user of a VFIO device: what a virtual machine does first, so that tests can hold a device the way one would.

`python -m tests.kernel.modules.vfio_user BDF [--until group|container|device]` holds it from a process of its own:
prints "held" and lets go at the end of its input.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from cli.checkout import ROOT

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
def vfio_process(bdf: str, until: Until = Until.DEVICE) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the device; lets go at exit at the latest. Raises RuntimeError when it cannot."""
    command = [sys.executable, "-m", "tests.kernel.modules.vfio_user", bdf, "--until", until]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "held\n":
            raise RuntimeError(f"{bdf}: the process that should hold it ended with {process.wait(30)}")
        yield process
    finally:
        process.communicate(timeout=30)


def main() -> None:
    """Hold until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bdf")
    parser.add_argument("--until", type=Until, default=Until.DEVICE)
    options = parser.parse_args()
    with VfioUser(options.bdf, options.until):
        print("held", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
