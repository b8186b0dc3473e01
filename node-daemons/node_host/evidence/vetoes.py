"""Devices that the host itself needs: no policy gets them.

`read_evidence` gathers, `vetoes_of` judges (pure). A device shares the fate of its IOMMU group, because the group goes
to a VM as a whole. Evidence that cannot be read vetoes every device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from crds.models.node_state import Veto, VetoReason
from node_host.evidence.disks import DiskEvidence, read_disk_evidence
from node_host.evidence.network import NetworkEvidence, read_network_evidence
from node_host.host import Host
from node_host.pci.device import PCIDevice
from node_host.pci.iommu import GROUPS, IOMMUGroups

MAX_VETOES: Final = 16
_TEXT: Final = 1024


@dataclass(frozen=True, slots=True)
class HostEvidence:
    """What the host needs, as read at one moment."""

    network: NetworkEvidence = field(default_factory=NetworkEvidence)
    disks: DiskEvidence = field(default_factory=DiskEvidence)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """What could not be read, with paths."""
        return (*self.network.unreadable, *self.disks.unreadable)


def read_evidence(host: Host) -> HostEvidence:
    """Never raises; may hang as any read of a host may."""
    return HostEvidence(read_network_evidence(host), read_disk_evidence(host))


def vetoes_of(
    devices: Mapping[str, PCIDevice], groups: IOMMUGroups, evidence: HostEvidence
) -> dict[str, tuple[Veto, ...]]:
    """Vetoes by address, for devices that have any. Who shares a group that is not known may be needed: a veto too."""
    own = {address: _own_vetoes(device, evidence) for address, device in devices.items()}
    unreadable = [_veto(VetoReason.UNREADABLE, f"host evidence cannot be read: {text}") for text in evidence.unreadable]
    found = {}
    for address, device in devices.items():
        fault = _group_fault(device, groups)
        unknown = [] if fault is None else [_veto(VetoReason.UNREADABLE, f"its IOMMU group cannot be read: {fault}")]
        shared = [
            _veto(VetoReason.GROUP_MEMBER, f"{member} of its IOMMU group: {own[member][0].message}")
            for member in groups.of(device.iommu_group)
            if member != address and own.get(member)
        ]
        vetoes = (*own[address], *shared, *unknown, *unreadable)
        if vetoes:
            found[address] = vetoes[:MAX_VETOES]
    return found


def _group_fault(device: PCIDevice, groups: IOMMUGroups) -> str | None:
    fault = groups.fault(device.iommu_group)
    if fault is None and device.iommu_group is not None and device.address not in groups.of(device.iommu_group):
        return f"{GROUPS}/{device.iommu_group}/devices does not list the device"
    return fault


def _own_vetoes(device: PCIDevice, evidence: HostEvidence) -> list[Veto]:
    found = []
    network = evidence.network
    for reason, needed in (
        (VetoReason.DEFAULT_ROUTE, network.default_route),
        (VetoReason.NETWORK_ADDRESS, network.addressed),
    ):
        for interface, texts in needed.items():
            if network.function_of.get(interface) == device.address:
                found.append(_veto(reason, f"network interface {interface} {' and '.join(texts)}"))
    disks = evidence.disks.functions.get(device.address, ())
    if disks:
        found.append(_veto(VetoReason.MOUNTED_DISK, "; ".join(disks)))
    if device.boot_vga is None:
        found.append(_veto(VetoReason.UNREADABLE, f"boot_vga cannot be read: {device.faults.get('boot_vga', '')}"))
    elif device.boot_vga:
        found.append(_veto(VetoReason.BOOT_DISPLAY, "it is the boot display (boot_vga is 1)"))
    return found


def _veto(reason: VetoReason, message: str) -> Veto:
    return Veto(reason=reason, message=message[:_TEXT])
