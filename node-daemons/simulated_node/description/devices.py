"""PCI functions, physical and virtual."""

import re
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from simulated_node.description.attachments import Interface, Storage
from simulated_node.description.base import Address, Described, Errno, Hex2, Hex4, Hex6, Name, Parent


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


class VgpuType(Described):
    """A vGPU type under the number and the name that the driver gives it ("NVIDIA L40S-24Q")."""

    id: Annotated[int, Field(ge=1, le=0xFFFF_FFFF)]
    name: Annotated[str, Field(pattern=r"^[\x20-\x7e]+$")]
    frame_buffer: Annotated[int, Field(ge=1, alias="frameBufferGiB")]


class VgpuCard(Described):
    """A card whose frame buffer its VFs share as vGPUs. ``vfio_pci_too``: vfio-pci takes its VFs as well."""

    frame_buffer: Annotated[int, Field(ge=1, alias="frameBufferGiB")]
    types: tuple[VgpuType, ...]
    vfio_pci_too: bool = False


class Device(Described):
    """One PCI function. ``parent`` is the bridge above it or its root complex ("pci0000:20"); one that is not
    ``express`` has 256 bytes of configuration space.
    """

    address: Address
    parent: Parent
    vendor: Hex4
    device: Hex4
    pci_class: Annotated[Hex6, Field(alias="class")]
    subsystem_vendor: Hex4 = "0000"
    subsystem_device: Hex4 = "0000"
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{2}$")] = "00"
    express: bool = True
    numa_node: Annotated[int, Field(ge=-1)] = -1
    iommu_group: Annotated[int, Field(ge=0)] | None = None
    serial: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    boot_vga: Annotated[int, Field(ge=0, le=1)] | None = Field(default=None, alias="bootVGA")
    sriov_total_vfs: Annotated[int, Field(ge=1, le=0xFFFF)] | None = Field(default=None, alias="sriovTotalVFs")
    virtual_functions: VirtualFunctions = VirtualFunctions()
    vgpu: VgpuCard | None = None
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
    def _has_only_what_it_can_have(self) -> Self:
        if not self.express and (self.serial is not None or self.sriov_total_vfs is not None):
            raise ValueError(f"{self.address}: only a PCI Express function has a serial number or virtual functions")
        if self.sriov_total_vfs is not None:
            self.virtual_function(self.sriov_total_vfs - 1)
        elif self.virtual_functions != VirtualFunctions() or self.vgpu is not None:
            raise ValueError(f"{self.address}: virtualFunctions or vgpu without sriovTotalVFs")
        return self
