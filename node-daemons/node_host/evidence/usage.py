"""Who uses a device. Evidence that cannot be read counts as use: a device is taken only when it is known to be free."""

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Final

from crds.models.node_state import DeviceUser, UseKind
from node_host.evidence.device_nodes import DeviceNodes
from node_host.evidence.open_handles import Handle, OpenHandles
from node_host.pci.device import PCIDevice
from node_host.pci.vfio_drivers import is_vfio_driver

MAX_USERS: Final = 16


def users_of(
    device: PCIDevice,
    nodes: DeviceNodes,
    handles: OpenHandles,
    *,
    taken_paths: Mapping[str, str],
) -> tuple[DeviceUser, ...]:
    """Everybody who uses the device, sorted, at most 16.

    ``taken_paths`` says which device a node belongs to, so that a pattern such as `/dev/nvidia[0-9]*` does not charge
    a device with the handles of a twin.
    """
    found = {
        *_processes(device, nodes, handles, taken_paths),
        *_virtual_functions(device),
        *_standing_on(device, nodes),
        *_unreadable(device, nodes, handles),
    }
    return tuple(sorted(found, key=lambda user: (user.kind, user.name, user.detail)))[:MAX_USERS]


def in_use_text(users: Iterable[DeviceUser]) -> str:
    """The users in one sentence part, for messages."""
    return "; ".join(f"{user.name} ({user.detail})" if user.detail else user.name for user in users)


def unreadable_use(what: str) -> DeviceUser:
    """The user that stands for evidence which cannot be read."""
    return DeviceUser(kind=UseKind.UNREADABLE, name="unknown", detail=what[:1024])


def _processes(
    device: PCIDevice, nodes: DeviceNodes, handles: OpenHandles, taken_paths: Mapping[str, str]
) -> Iterable[DeviceUser]:
    found: set[Handle] = set()
    paths = set(nodes.paths)
    if device.iommu_group is not None:
        paths |= {f"/dev/vfio/{device.iommu_group}", f"/dev/vfio/noiommu-{device.iommu_group}"}
    for path in paths:
        found.update(handles.by_path.get(path, ()))
    for number in nodes.numbers:
        found.update(handles.by_number.get(number, ()))
    for pattern in nodes.patterns:
        for path, openers in handles.by_path.items():
            if fnmatch.fnmatchcase(path, pattern) and taken_paths.get(path, device.address) == device.address:
                found.update(openers)
    found.update(handles.by_address.get(device.address, ()))
    for handle in found:
        pod = {"pod_uid": handle.pod_uid} if handle.pod_uid else {}
        detail = f"pid {handle.pid} has {handle.node} open"[:1024]
        yield DeviceUser(kind=UseKind.PROCESS, name=handle.comm[:253], detail=detail, **pod)


def _virtual_functions(device: PCIDevice) -> Iterable[DeviceUser]:
    if device.num_vfs is None:
        yield unreadable_use("the number of its virtual functions cannot be read (sriov_numvfs)")
    elif device.num_vfs > 0:
        yield DeviceUser(
            kind=UseKind.VIRTUAL_FUNCTIONS, name="virtual functions", detail=f"{device.num_vfs} are enabled"
        )


def _standing_on(device: PCIDevice, nodes: DeviceNodes) -> Iterable[DeviceUser]:
    for block, holder in nodes.holders:
        yield DeviceUser(kind=UseKind.HOLDER, name=holder[:253], detail=f"stands on {block}"[:1024])
    for interface in nodes.interfaces:
        if interface.master is not None:
            detail = f"network interface {interface.name} is a port of it"
            yield DeviceUser(kind=UseKind.HOLDER, name=interface.master[:253], detail=detail)
        elif interface.is_up:
            yield DeviceUser(kind=UseKind.HOLDER, name=interface.name[:253], detail="network interface is up")
    if nodes.hides_interfaces:
        yield unreadable_use("its network interface is in another network namespace, e.g. of a pod")


def _unreadable(device: PCIDevice, nodes: DeviceNodes, handles: OpenHandles) -> Iterable[DeviceUser]:
    if handles.unreadable is not None:
        yield unreadable_use(f"open handles cannot be read: {handles.unreadable}")
    if nodes.unreadable is not None:
        yield unreadable_use(f"its device nodes cannot be read: {nodes.unreadable}")
    if is_vfio_driver(device.driver):
        for handle in handles.unattributed:
            yield unreadable_use(f"{handle.comm} (pid {handle.pid}) holds a VFIO device; the kernel does not say which")
