"""The test card with vGPU functions as a test uses it: sysfs paths in, plain values out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PCI_DEVICES = Path("/sys/bus/pci/devices")
DRIVER = Path("/sys/bus/pci/drivers/nvidia")
MODULE = Path("/sys/module/sim_vgpu")
DEBUGFS = Path("/sys/kernel/debug/sim_vgpu")

HEADER = "ID    : vGPU Name"
FRAME_BUFFER_GIB = 48
# Id of each type by its frame buffer in GiB.
IDS: Mapping[int, int] = {4: 1150, 6: 1151, 8: 1152, 12: 1153, 16: 1154, 24: 1155, 48: 1156}
ROW = re.compile(r"^(\d+) +: NVIDIA L40S-(\d+)Q$")


def write(path: Path, value: str) -> None:
    """One write, as the kernel answers it. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Function:
    """A virtual function. Writes raise OSError with the errno of the driver."""

    bdf: str

    @property
    def path(self) -> Path:
        return PCI_DEVICES / self.bdf

    @property
    def driver(self) -> str | None:
        link = self.path / "driver"
        return link.resolve().name if link.is_symlink() else None

    @property
    def group_node(self) -> Path:
        return Path("/dev/vfio", (self.path / "iommu_group").readlink().name)

    @property
    def current(self) -> int:
        return int((self.path / "nvidia/current_vgpu_type").read_text())

    def set(self, value: int | str) -> None:
        write(self.path / "nvidia/current_vgpu_type", str(value))

    def creatable(self) -> dict[int, int]:
        """Frame buffer in GiB by id, of the types in this function's list."""
        header, *rows = (self.path / "nvidia/creatable_vgpu_types").read_text().splitlines()
        assert header == HEADER
        matches = [ROW.match(row) for row in rows]
        assert all(matches), rows
        return {int(match[1]): int(match[2]) for match in matches if match is not None}


@dataclass(frozen=True, slots=True)
class Card:
    """A physical function with its virtual functions."""

    bdf: str

    @property
    def path(self) -> Path:
        return PCI_DEVICES / self.bdf

    @property
    def enabled(self) -> int:
        return int((self.path / "sriov_numvfs").read_text())

    def enable(self, count: int) -> None:
        """Blocks as long as a user holds a function that goes."""
        write(self.path / "sriov_numvfs", str(count))

    def functions(self) -> list[Function]:
        links = sorted(self.path.glob("virtfn*"), key=lambda link: int(link.name.removeprefix("virtfn")))
        return [Function(link.readlink().name) for link in links]

    @property
    def used_gib(self) -> int:
        return int((DEBUGFS / self.bdf / "used_gib").read_text())

    @property
    def mixed_sizes(self) -> bool:
        return bool(int((DEBUGFS / self.bdf / "mixed_sizes").read_text()))

    def allow_mixed_sizes(self, allowed: bool) -> None:
        write(DEBUGFS / self.bdf / "mixed_sizes", str(int(allowed)))
