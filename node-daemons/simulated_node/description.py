"""What a simulated node consists of: hardware, kernel modules, processes.

These models are the schema of a description. It describes the machine, not its state: which driver holds a device
follows from the kernel's rules at boot.
"""

import errno
import ipaddress
import re
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

# "Try again later", which the kernel keeps to itself: user space has no errno for it.
PROBE_DEFER = "EPROBE_DEFER"

Address = Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]$")]
Parent = Annotated[str, Field(pattern=r"^(pci[0-9a-f]{4}:[0-9a-f]{2}|[0-9a-f]{4}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7])$")]
Hex2 = Annotated[str, Field(pattern=r"^[0-9a-f]{2}$")]
Hex4 = Annotated[str, Field(pattern=r"^[0-9a-f]{4}$")]
Hex6 = Annotated[str, Field(pattern=r"^[0-9a-f]{6}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
HostPath = Annotated[str, Field(pattern=r"^/[\x20-\x7e]*$")]
DeviceNumber = Annotated[str, Field(pattern=r"^[0-9]{1,4}:[0-9]{1,7}$")]


def _is_interface_address(value: str) -> str:
    ipaddress.ip_interface(value)
    return value


def _is_address(value: str) -> str:
    ipaddress.ip_address(value)
    return value


def _is_errno(value: str) -> str:
    if value != PROBE_DEFER and not hasattr(errno, value):
        raise ValueError(f"no errno is called {value!r}")
    return value


Errno = Annotated[str, AfterValidator(_is_errno)]
InterfaceAddress = Annotated[str, AfterValidator(_is_interface_address)]
Gateway = Annotated[str, AfterValidator(_is_address)]


class DescriptionError(ValueError):
    """A description that is not one; the message names source, field and fault, one a line."""


class Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


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


class ProbeError(Described):
    """A probe that fails: the driver's own errno, ``times`` times (absent: always)."""

    driver: Name
    errno: Errno
    times: Annotated[int, Field(ge=1)] | None = None


class SriovError(Described):
    """Setting the number of VFs that fails: the driver's own errno, ``times`` times (absent: always)."""

    errno: Errno
    times: Annotated[int, Field(ge=1)] | None = None


class VirtualGroups(StrEnum):
    OWN = "Own"
    PHYSICAL_FUNCTION = "PhysicalFunction"


class VirtualFunctions(Described):
    """What the VFs of a physical function are like; an id or class that is absent is the physical function's.

    ``first_offset`` and ``stride`` lead from its routing id (bus, slot and function as one number) to theirs.
    ``last_bus`` is the last bus number that the bridge above passes on, ``enabled_at_most`` the number of VFs that it
    makes however many are asked for.
    """

    device: Hex4 | None = None
    pci_class: Annotated[Hex6 | None, Field(alias="class")] = None
    subsystem_vendor: Hex4 | None = None
    subsystem_device: Hex4 | None = None
    first_offset: Annotated[int, Field(ge=1, le=0xFFFF)] = 128
    stride: Annotated[int, Field(ge=1, le=0xFFFF)] = 2
    iommu_groups: VirtualGroups = VirtualGroups.OWN
    bars: tuple[Annotated[int, Field(ge=16)], ...] = Field(default=(16 << 10,), max_length=3)
    enabled_at_most: Annotated[int, Field(ge=0)] | None = None
    last_bus: Hex2 | None = None
    errors: tuple[SriovError, ...] = ()
    probe_errors: tuple[ProbeError, ...] = ()


class Device(Described):
    """One PCI function. ``parent`` is the bridge above it or its root complex ("pci0000:20")."""

    address: Address
    parent: Parent
    vendor: Hex4
    device: Hex4
    pci_class: Annotated[Hex6, Field(alias="class")]
    subsystem_vendor: Hex4 = "0000"
    subsystem_device: Hex4 = "0000"
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{2}$")] = "00"
    numa_node: Annotated[int, Field(ge=-1)] = -1
    iommu_group: Annotated[int, Field(ge=0)] | None = None
    serial: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    boot_vga: Annotated[int, Field(ge=0, le=1)] | None = Field(default=None, alias="bootVGA")
    sriov_total_vfs: Annotated[int, Field(ge=1, le=0xFFFF)] | None = Field(default=None, alias="sriovTotalVFs")
    virtual_functions: VirtualFunctions = VirtualFunctions()
    bars: tuple[Annotated[int, Field(ge=16)], ...] = Field(default=(16 << 20,), max_length=3)
    interfaces: tuple[Interface, ...] = ()
    storage: Storage | None = None
    probe_errors: tuple[ProbeError, ...] = ()

    @property
    def is_bridge(self) -> bool:
        return self.pci_class.startswith("0604")

    def virtual_function(self, index: int) -> "Device":
        """The VF of that index, as it comes; ValueError when it would lie beyond the last bus number."""
        own = self.virtual_functions
        domain, bus, slot, function = re.split("[:.]", self.address)
        routing_id = (int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)) + own.first_offset + own.stride * index
        if routing_id > 0xFFFF:
            raise ValueError(f"{self.address}: VF {index} would have no address")
        return Device(
            address=f"{domain}:{routing_id >> 8:02x}:{routing_id >> 3 & 0x1F:02x}.{routing_id & 7}",
            parent=self.parent,
            vendor=self.vendor,
            device=own.device or self.device,
            pci_class=own.pci_class or self.pci_class,
            subsystem_vendor=own.subsystem_vendor or self.subsystem_vendor,
            subsystem_device=own.subsystem_device or self.subsystem_device,
            revision=self.revision,
            numa_node=self.numa_node,
            bars=own.bars,
            probe_errors=own.probe_errors,
        )

    @model_validator(mode="after")
    def _vfs_have_addresses(self) -> Self:
        if self.sriov_total_vfs is not None:
            self.virtual_function(self.sriov_total_vfs - 1)
        elif self.virtual_functions != VirtualFunctions():
            raise ValueError(f"{self.address}: virtualFunctions without sriovTotalVFs")
        return self


class DriverKind(StrEnum):
    NATIVE = "Native"
    VFIO = "VFIO"
    PORT = "Port"
    STUB = "Stub"


class WhenOpen(StrEnum):
    SUCCEEDS = "Succeeds"
    BLOCKS = "Blocks"


class VfsOnUnbind(StrEnum):
    DESTROYED = "Destroyed"
    LEFT = "Left"


class DriverSriov(Described):
    """A driver that sets the number of VFs through sysfs: ``maximum`` is its own limit, ``on_unbind`` what becomes of
    the VFs when it leaves.
    """

    maximum: Annotated[int, Field(ge=1)] | None = None
    on_unbind: VfsOnUnbind = VfsOnUnbind.DESTROYED


class MatchId(Described):
    """A row of a driver's id table; what is absent matches anything. ``class`` may be a prefix ("12", "0604")."""

    vendor: Hex4 | None = None
    device: Hex4 | None = None
    pci_class: Annotated[str, Field(pattern=r"^[0-9a-f]{2,6}$")] | None = Field(default=None, alias="class")


class NodeTemplate(Described):
    """A character device that a native driver makes for each device: "rbln{index}" below /dev, lowest free index
    first.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_/-]+\{index\}[a-z0-9_/-]*$")]
    first: Annotated[int, Field(ge=0)] = 0
    major: Annotated[int, Field(ge=1)]
    sysfs_class: Name | None = None
    index_attribute: Name | None = None


class Driver(Described):
    """A PCI driver: its name is the directory's ("vfio-pci"), its module the file's ("vfio_pci").

    Without ``sriov`` it neither makes VFs nor destroys them.
    """

    name: Name
    module: Name
    kind: DriverKind = DriverKind.NATIVE
    ids: tuple[MatchId, ...] = ()
    override_only_ids: tuple[MatchId, ...] = ()
    nodes: tuple[NodeTemplate, ...] = ()
    shared_nodes: tuple[Annotated[str, Field(pattern=r"^[a-z0-9_/-]+$")], ...] = ()
    listing: HostPath | None = None
    unbind_when_open: WhenOpen = WhenOpen.SUCCEEDS
    sriov: DriverSriov | None = None


class ModuleState(StrEnum):
    ABSENT = "Absent"
    LOADABLE = "Loadable"
    LOADED = "Loaded"
    BUILTIN = "Builtin"


class Module(Described):
    """A kernel module. ``ids`` are the "vendor:device" pairs of vfio-pci.ids: ids its drivers take from the start."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    state: ModuleState = ModuleState.LOADABLE
    requires: tuple[Name, ...] = ()
    ids: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")], ...] = ()


class Process(Described):
    """A process of the first boot that holds device nodes open."""

    pid: Annotated[int, Field(ge=2)]
    comm: Annotated[str, Field(min_length=1, max_length=15)]
    cgroup: HostPath = "/system.slice"
    opens: tuple[HostPath, ...] = ()


class Iommu(StrEnum):
    ENABLED = "Enabled"
    DISABLED = "Disabled"
    UNSAFE_NO_IOMMU = "UnsafeNoIOMMU"


class VfioNodes(StrEnum):
    GROUP = "Group"
    GROUP_AND_CDEV = "GroupAndCdev"


class Kernel(Described):
    release: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+[^/\s]*$")] = "6.8.0-60-generic"
    command_line: str = "root=/dev/nvme0n1p2 ro intel_iommu=on iommu=pt"
    iommu: Iommu = Iommu.ENABLED
    vfio_nodes: VfioNodes = VfioNodes.GROUP_AND_CDEV


class HostDescription(Described):
    """A whole node. Modules and drivers named here are added to, or replace, the known ones (known_drivers.yaml)."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]
    kernel: Kernel = Kernel()
    modules: tuple[Module, ...] = ()
    drivers: tuple[Driver, ...] = ()
    devices: Annotated[tuple[Device, ...], Field(max_length=1024)]
    virtual_interfaces: tuple[Interface, ...] = ()
    volumes: tuple[Volume, ...] = ()
    mounts: tuple[Mount, ...] = ()
    swaps: tuple[Name, ...] = ()
    processes: tuple[Process, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        addresses = [device.address for device in self.devices]
        _unique("devices: address", addresses)
        _unique("modules: name", [module.name for module in self.modules])
        _unique("drivers: name", [driver.name for driver in self.drivers])
        _unique("processes: pid", [str(process.pid) for process in self.processes])
        _no_vf_meets_a_device(self.devices)
        bridges = {device.address for device in self.devices if device.is_bridge}
        for device in self.devices:
            if not device.parent.startswith("pci") and device.parent not in bridges:
                raise ValueError(f"devices: {device.address}: parent {device.parent} is no bridge of this node")
        block = [disk.name for device in self.devices if device.storage for disk in device.storage.disks]
        block += [
            partition.name
            for device in self.devices
            if device.storage
            for disk in device.storage.disks
            for partition in disk.partitions
        ]
        _unique("block devices: name", block)
        for volume in self.volumes:
            for slave in volume.slaves:
                if slave not in block:
                    raise ValueError(f"volumes: {volume.name}: slave {slave} is no disk or partition of this node")
        block += [volume.name for volume in self.volumes]
        for where, source in [
            *((f"mounts: {m.point}", m.source) for m in self.mounts),
            *(("swaps", s) for s in self.swaps),
        ]:
            if source not in block:
                raise ValueError(f"{where}: {source} is no block device of this node")
        return self


class KnownDrivers(Described):
    modules: tuple[Module, ...]
    drivers: tuple[Driver, ...]


def _no_vf_meets_a_device(devices: tuple[Device, ...]) -> None:
    owners = {device.address: device.address for device in devices}
    for device in devices:
        for index in range(device.sriov_total_vfs or 0):
            address = device.virtual_function(index).address
            if address in owners:
                raise ValueError(f"devices: {device.address}: its VF {index} and {owners[address]} meet at {address}")
            owners[address] = device.address


def _unique(what: str, values: list[str]) -> None:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{what}: {', '.join(twice)} stands twice")
