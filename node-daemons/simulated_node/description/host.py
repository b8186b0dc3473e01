"""A whole node."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from simulated_node.description.attachments import Interface, Mount, Volume
from simulated_node.description.base import Described, HostPath, Name
from simulated_node.description.devices import Device
from simulated_node.description.drivers import Driver, Module


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
    """``override_takes_lock``: writing and reading driver_override takes the device's lock (not so in late 6.12)."""

    release: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+[^/\s]*$")] = "6.8.0-60-generic"
    command_line: str = "root=/dev/nvme0n1p2 ro intel_iommu=on iommu=pt"
    iommu: Iommu = Iommu.ENABLED
    vfio_nodes: VfioNodes = VfioNodes.GROUP_AND_CDEV
    override_takes_lock: bool = True


class HostDescription(Described):
    """A whole node. Modules and drivers named here are added to, or replace, the known ones (known_drivers.yaml);
    ``tools`` are paths of the vendor's programs that it has.
    """

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
    tools: tuple[HostPath, ...] = ()
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
