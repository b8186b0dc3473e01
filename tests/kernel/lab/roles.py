"""What is in the machine: a role per device, where QEMU puts it, and how a test finds it again in the guest's sysfs.

Bus numbers are the kernel's affair, but those of root buses; a slot on a root bus and the slot behind a root port are
QEMU's promise. Both sides use this module, so the launcher and the tests cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PCI_DEVICES = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class Role:
    """`slot`: on the root bus `bus` (device number). `below`: (device, function) on the bus below the port or bridge at
    `slot`; `bridge`: on the way there lies a PCIe-to-PCI bridge at 00.0. `driver`: the one that binds by itself."""

    name: str
    slot: int
    function: int = 0
    below: tuple[int, int] | None = None
    bridge: bool = False
    driver: str | None = None
    bus: int = 0


# A root bus whose devices the IOMMU does not see.
BUS_WITHOUT_IOMMU = 0x40

ROLES: Mapping[str, Role] = {
    role.name: role
    for role in (
        Role("display", 0x01),
        Role("twin_a", 0x02),
        Role("twin_b", 0x03),
        Role("route_nic", 0x04, driver="e1000"),
        Role("beside_route", 0x04, function=1),
        Role("pf", 0x08, below=(0, 0), driver="igb"),
        Role("other_pf", 0x09, below=(0, 0), driver="igb"),
        Role("shared_bridge", 0x0A, below=(0, 0)),
        Role("shared_a", 0x0A, below=(1, 0), bridge=True, driver="e1000"),
        Role("shared_b", 0x0A, below=(2, 0), bridge=True, driver="e1000"),
        Role("disk", 0x0B, below=(0, 0), driver="nvme"),
        Role("empty_port", 0x0C, driver="pcieport"),
        # Its port isolates nothing: both are one IOMMU group.
        Role("below_port", 0x0D, below=(0, 0), driver="e1000e"),
        Role("no_group", 0x00, below=(0, 0), bus=BUS_WITHOUT_IOMMU),
    )
}
# QEMU ids of the ports; a device's QEMU id is its role's name.
PORTS = {
    0x08: "port_pf",
    0x09: "port_other_pf",
    0x0A: "port_shared",
    0x0B: "port_disk",
    0x0C: "empty_port",
    0x0D: "open_port",
}
SLOT_OF_ONE_MORE = 0x07
WITHOUT_ACS = frozenset({"open_port"})

VF_TOTAL = 7
DISK_MOUNT = Path("/mnt/kernel-lab-disk")
ROUTE_ADDRESS, ROUTE_GATEWAY = "10.0.2.15/24", "10.0.2.2"


def find(role: Role, devices: Path = PCI_DEVICES) -> str | None:
    """The BDF of a role's device in this sysfs, or None while there is no such device."""
    path = devices / f"0000:{role.bus:02x}:{role.slot:02x}.{role.function}"
    if not path.exists():
        return None
    if role.below is None:
        return path.name
    if role.bridge:
        bridge = _child(path, 0, 0)
        return None if bridge is None else _name(_child(bridge, *role.below))
    return _name(_child(path, *role.below))


def below(port: Role, devices: Path = PCI_DEVICES) -> str | None:
    """The BDF of what was plugged into a root port, or None while it is empty."""
    return _name(_child(devices / f"0000:00:{port.slot:02x}.{port.function}", 0, 0))


def find_all(devices: Path = PCI_DEVICES) -> dict[str, str]:
    """BDF by role, of the roles that are there."""
    found = {name: find(role, devices) for name, role in ROLES.items()}
    return {name: bdf for name, bdf in found.items() if bdf is not None}


def _child(parent: Path, device: int, function: int) -> Path | None:
    return next(iter(sorted(parent.glob(f"????:??:{device:02x}.{function}"))), None)


def _name(path: Path | None) -> str | None:
    return path.name if path is not None else None
