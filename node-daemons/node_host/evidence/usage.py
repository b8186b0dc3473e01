"""Who uses a device. Evidence that cannot be read counts as use: a device is taken only when it is known to be free."""

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from crds.models.node_state import DeviceUser, UseKind
from node_host.evidence.device_nodes import DeviceNodes
from node_host.evidence.open_handles import Handle, OpenHandles
from node_host.pci.device import PCIDevice
from node_host.pci.vfio_drivers import is_vfio_driver

# One less than a record has room for: what cannot be read may be added to it.
MAX_USERS: Final = 15
_PROCESSES: Final = re.compile(r"^(pid [0-9]+ has|pid [0-9]+ and [0-9]+ more have|[0-9]+ more)")


def users_of(
    device: PCIDevice,
    nodes: DeviceNodes,
    handles: OpenHandles,
    *,
    taken_paths: Mapping[str, str],
    told: Iterable[DeviceUser] = (),
) -> tuple[DeviceUser, ...]:
    """Everybody who uses the device, at most 15; those that no eviction moves first.

    Of more the last one says how many are left out, and is of a pod where all of these are, so that what looks like a
    device used by pods alone is one. Each pod is named once before any is named twice.

    ``taken_paths`` says which device a node belongs to, so that a pattern such as `/dev/nvidia[0-9]*` does not charge
    a device with the handles of a twin. ``told`` are users that others than the kernel tell of.
    """
    found = {
        *_processes(device, nodes, handles, taken_paths),
        *_virtual_functions(device),
        *_standing_on(device, nodes),
        *_unreadable(device, nodes, handles),
        *told,
    }
    named: dict[str | None, int] = defaultdict(int)
    ranked = []
    for user in sorted(found, key=_place):
        turn = named[user.pod_uid] if user.pod_uid else -1
        named[user.pod_uid] += 1
        ranked.append((turn, user))
    users = tuple(user for _, user in sorted(ranked, key=lambda item: item[0]))
    return users if len(users) <= MAX_USERS else (*users[: MAX_USERS - 1], _left_out(users[MAX_USERS - 1 :]))


def as_told_before(users: Iterable[DeviceUser], before: Iterable[DeviceUser]) -> tuple[DeviceUser, ...]:
    """The users in the words of an earlier look, where only processes of a pod have changed places within it.

    Which of them has a device open changes all the time, and nobody does anything else for it.
    """
    known = {_essence(user): user for user in before}
    return tuple(known.get(_essence(user), user) for user in users)


def _essence(user: DeviceUser) -> tuple[str, ...]:
    detail = _PROCESSES.sub("", user.detail) if user.pod_uid else user.detail
    return user.kind, user.name, user.pod_uid or "", detail


def _place(user: DeviceUser) -> tuple[object, ...]:
    """Those of no pod first, of these the virtual functions, of which there is one entry."""
    return user.pod_uid is not None, user.kind is not UseKind.VIRTUAL_FUNCTIONS, *_essence(user)


def _left_out(users: tuple[DeviceUser, ...]) -> DeviceUser:
    first = users[0]
    pod = {"pod_uid": first.pod_uid} if first.pod_uid else {}
    return DeviceUser(kind=first.kind, name="more users", detail=f"{len(users)} more are not listed", **pod)


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
    # A pod may have a hundred processes of one name; one of the host is told by its number, for somebody to end it.
    alike: dict[tuple[str, str, str, int], list[int]] = defaultdict(list)
    for handle in found:
        own = 0 if handle.pod_uid else handle.pid
        alike[handle.pod_uid, handle.comm, handle.node, own].append(handle.pid)
    for (pod_uid, comm, node, _), pids in alike.items():
        pod = {"pod_uid": pod_uid} if pod_uid else {}
        whose = f"pid {min(pids)} has" if len(pids) == 1 else f"pid {min(pids)} and {len(pids) - 1} more have"
        yield DeviceUser(kind=UseKind.PROCESS, name=comm[:253], detail=f"{whose} {node} open"[:1024], **pod)


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
