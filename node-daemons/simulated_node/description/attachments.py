"""What hangs on a device: net devices, disks; and what the host makes of them: volumes, mounts."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from simulated_node.description.base import Described, DeviceNumber, Gateway, HostPath, InterfaceAddress, Name


class LinkState(StrEnum):
    UP = "Up"
    DOWN = "Down"


class InterfaceKind(StrEnum):
    PHYSICAL = "Physical"
    BOND = "Bond"
    BRIDGE = "Bridge"


class Interface(Described):
    """A net device. The first gateway of each family makes a default route; ``master`` names its bond or bridge."""

    name: Name
    kind: InterfaceKind = InterfaceKind.PHYSICAL
    state: LinkState = LinkState.UP
    mac_address: Annotated[str, Field(pattern=r"^([0-9a-f]{2}:){5}[0-9a-f]{2}$")] = "02:00:00:00:00:01"
    addresses: tuple[InterfaceAddress, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    master: Name | None = None


class Partition(Described):
    name: Name
    number: DeviceNumber


class Disk(Described):
    name: Name
    number: DeviceNumber
    partitions: tuple[Partition, ...] = ()


class StorageKind(StrEnum):
    NVME = "NVMe"
    ATA = "ATA"


class Storage(Described):
    """A disk controller: ``name`` is the kernel's for it, "nvme0" or "ata1"."""

    kind: StorageKind
    name: Name
    disks: tuple[Disk, ...]


class Volume(Described):
    """A device-mapper volume on disks or partitions."""

    name: Annotated[str, Field(pattern=r"^dm-[0-9]+$")]
    label: Name
    number: DeviceNumber
    slaves: Annotated[tuple[Name, ...], Field(min_length=1)]


class Mount(Described):
    source: Name
    point: HostPath
    filesystem: Name = "ext4"
