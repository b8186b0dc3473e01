"""Whether the kernel would give an IOMMU group to a VM as it is.

The rule of drivers/iommu/iommu.c (iommu_group_claim_dma_owner, since 5.19) and Documentation/driver-api/vfio.rst: each
member is on a VFIO driver, on pci-stub, driverless, or a bridge on a port driver that does no DMA for the host.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from crds.models.node_state import GroupViability
from node_host.pci.device import PCIDevice, is_address
from node_host.pci.vfio_drivers import is_vfio_driver

STUB: Final = "pci-stub"
_PORTS: Final = frozenset({"pcieport", "shpchp"})


def allows_user(device: PCIDevice) -> bool:
    """Whether this member leaves its group to a user."""
    if device.driver is None or device.driver == STUB:
        return True
    if device.is_bridge:
        return device.driver in _PORTS
    return is_vfio_driver(device.driver) or device.vfio_device is not None


def obstacles(members: Iterable[str], devices: Mapping[str, PCIDevice]) -> list[str]:
    """Why a group is not viable, one sentence a member; empty when it is. A member that is not known is one."""
    found = []
    for address in members:
        device = devices.get(address)
        if device is None:
            kind = "cannot be read" if is_address(address) else "is no PCI device"
            found.append(f"{address} {kind}")
        elif not allows_user(device):
            found.append(f"{address} is on {device.driver}")
    return found


def group_viability(group: int | None, members: Iterable[str], devices: Mapping[str, PCIDevice]) -> GroupViability:
    """What the inventory says of a device of the group."""
    if group is None:
        return GroupViability.NO_GROUP
    return GroupViability.NOT_VIABLE if obstacles(members, devices) else GroupViability.VIABLE
