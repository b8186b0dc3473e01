"""What is told of a device: the attributes that CEL selectors of claims ask for, and its capacity.

Names and types of devices for VMs are those of the vendor's documentation (VM Passthrough with the NPU DRA Driver),
for every vendor. What is not known is left out: a selector that asks for it then does not match.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from crds.catalogue import Product
from crds.device_names import NamedKind
from crds.models.node_state import GroupViability
from dra_publisher.offers.offer import Attribute
from node_host.pci.device import PCIDevice

STANDARD: Final = "resource.kubernetes.io"
"""Domain of the attributes that all drivers name alike."""
PCI_BUS_ID: Final = f"{STANDARD}/pciBusID"
PCIE_ROOT: Final = f"{STANDARD}/pcieRoot"
NUMA_NODE: Final = "numaNode"
NUMA_NODES: Final = (NUMA_NODE, f"{STANDARD}/{NUMA_NODE}", f"dra.net/{NUMA_NODE}")


@dataclass(frozen=True, slots=True)
class VGPU:
    """What a vGPU is: its profile, the card that it is a part of, and its frame buffer (MiB) where that is known."""

    profile: str
    parent: str
    frame_buffer_mib: int | None


def vgpu_of(profile: str, parent: str, product: Product | None) -> VGPU:
    """The vGPU of that profile on a card of the product."""
    known = product.profile(profile) if product is not None else None
    return VGPU(profile, parent, known.frame_buffer_gib * 1024 if known is not None else None)


def attributes_of(
    kind: NamedKind, device: PCIDevice, product: Product | None, viability: GroupViability, vgpu: VGPU | None = None
) -> dict[str, Attribute]:
    """Attributes by name; names without a domain are in the driver's."""
    known: Mapping[str, Attribute | None] = {
        "type": str(kind),
        "iommuGroup": device.iommu_group,
        "pciDeviceID": device.device,
        "productName": product.name if product is not None else None,
        "vf": device.is_virtual,
        "groupViability": str(viability),
        PCI_BUS_ID: device.address,
        PCIE_ROOT: device.pcie_root,
        **dict.fromkeys(NUMA_NODES, device.numa_node),
        "profile": vgpu.profile if vgpu is not None else None,
        "frameBufferMiB": vgpu.frame_buffer_mib if vgpu is not None else None,
        "parent": vgpu.parent if vgpu is not None else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def capacity_of(product: Product | None) -> dict[str, str]:
    """Capacities by name, as quantities: the memory of the card where the catalogue knows it."""
    return {"memory": product.memory} if product is not None and product.memory is not None else {}


def capacity_of_vgpu(vgpu: VGPU) -> dict[str, str]:
    """The memory of a vGPU is its frame buffer."""
    return {} if vgpu.frame_buffer_mib is None else {"memory": f"{vgpu.frame_buffer_mib}Mi"}
