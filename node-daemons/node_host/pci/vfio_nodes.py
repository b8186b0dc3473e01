"""The nodes through which a VM opens a device: its group's, and its own where the kernel has IOMMUFD device nodes.

Source: Documentation/driver-api/vfio.rst.
"""

from collections.abc import Collection
from typing import Final

from crds.models.modes import IOMMUBackend
from node_host.host import Host
from node_host.pci.device import PCIDevice

_VFIO: Final = "/dev/vfio"
_DEVICES: Final = "/dev/vfio/devices"


def read_vfio_nodes(host: Host) -> frozenset[str]:
    """Paths of all that exist, e.g. /dev/vfio/42 and /dev/vfio/devices/vfio0. Raises OSError."""
    found = set()
    for directory in (_VFIO, _DEVICES):
        try:
            found |= {f"{directory}/{name}" for name in host.list(directory)}
        except (FileNotFoundError, NotADirectoryError):
            continue
    return frozenset(found)


def missing_node(device: PCIDevice, backend: IOMMUBackend, nodes: Collection[str]) -> str | None:
    """Why a VM with this backend could not open the device, or None."""
    group = "the node of its group" if device.iommu_group is None else f"{_VFIO}/{device.iommu_group}"
    own = "its IOMMUFD node" if device.vfio_device is None else f"{_DEVICES}/{device.vfio_device}"
    wanted = {IOMMUBackend.LEGACY: (group,), IOMMUBackend.IOMMUFD: (own,)}.get(backend, (group, own))
    if any(node in nodes for node in wanted):
        return None
    if backend is IOMMUBackend.IOMMUFD:
        return f"{own} does not exist: this kernel has no IOMMUFD device nodes, use iommu Auto or Legacy"
    return f"{' and '.join(wanted)} {'do' if len(wanted) > 1 else 'does'} not exist"
