"""Mediated devices of older cards: which types their parents offer, and which devices there are.

Source: Documentation/driver-api/vfio-mediated-device.rst and Documentation/ABI/testing/sysfs-bus-mdev.
"""

import errno
from dataclasses import dataclass, field
from typing import Final

from node_host.host import Host
from node_host.pci.device import last_address
from node_host.vgpu.types import profile_of

PARENTS: Final = "/sys/class/mdev_bus"
DEVICES: Final = "/sys/bus/mdev/devices"
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class MdevType:
    """A type of a parent: `directory` is its name in sysfs (`nvidia-231`), `available` how many more it makes now."""

    directory: str
    name: str
    available: int

    @property
    def profile(self) -> str:
        """The name as maps have it."""
        return profile_of(self.name)


@dataclass(frozen=True, slots=True)
class MdevParent:
    """A function that makes mediated devices. `faults` are types that cannot be read, by directory."""

    address: str
    types: tuple[MdevType, ...] = ()
    faults: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mdev:
    """A mediated device. `profile` is None where its type cannot be read; `group` is its IOMMU group."""

    uuid: str
    parent: str
    profile: str | None
    group: int | None


def read_parent(host: Host, address: str) -> MdevParent | None:
    """The function as a parent; None when it is none. Raises OSError."""
    path = f"{PARENTS}/{address}/mdev_supported_types"
    try:
        directories = host.list(path)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    types, faults = [], {}
    for directory in directories:
        try:
            name = host.read(f"{path}/{directory}/name").decode("utf-8", "replace").strip()
            available = int(host.read(f"{path}/{directory}/available_instances"))
        except (OSError, ValueError) as error:
            faults[directory] = str(getattr(error, "strerror", None) or error)
            continue
        types.append(MdevType(directory, name, available))
    return MdevParent(address, tuple(types), faults)


def read_mdevs(host: Host) -> tuple[Mdev, ...]:
    """All mediated devices, by UUID. Raises OSError; one that vanishes meanwhile is left out."""
    try:
        names = host.list(DEVICES)
    except OSError as error:
        if error.errno in _ABSENT:
            return ()
        raise
    found = []
    for uuid in names:
        try:
            # .../0000:3b:00.0/<uuid>: the parent is the directory above.
            parent = last_address(host.resolve(f"{DEVICES}/{uuid}"))
        except OSError as error:
            if error.errno in _ABSENT:
                continue
            raise
        if parent is not None:
            found.append(Mdev(uuid, parent, _profile(host, uuid), _group(host, uuid)))
    return tuple(found)


def _profile(host: Host, uuid: str) -> str | None:
    try:
        return profile_of(host.read(f"{DEVICES}/{uuid}/mdev_type/name").decode("utf-8", "replace").strip())
    except OSError:
        return None


def _group(host: Host, uuid: str) -> int | None:
    try:
        text = host.read_link(f"{DEVICES}/{uuid}/iommu_group").rpartition("/")[2]
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
