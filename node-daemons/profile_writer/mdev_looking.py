"""The mediated devices of a card as they are now, and who has one. What cannot be read counts as use."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from crds.models.profiling import ProfileReason as Reason
from node_host.evidence.open_handles import Handle, OpenHandles, read_open_handles
from node_host.host import Host
from node_host.vgpu.mdev import Mdev, read_mdevs, read_parent
from profile_writer.card import MdevParentSeen, MdevSeen, Obstacle

_USERS: Final = 4


@dataclass(frozen=True, slots=True)
class MdevsOfCard:
    """Functions of the card that make mediated devices, and the devices that there are."""

    parents: tuple[MdevParentSeen, ...] = ()
    mdevs: tuple[MdevSeen, ...] = ()


def look_at_mdevs(host: Host, card: str, functions: Sequence[str]) -> MdevsOfCard:
    """Look at the card and its virtual functions. Raises OSError; may hang as any read of a host may."""
    found = [parent for address in (card, *functions) if (parent := read_parent(host, address)) is not None]
    if not found:
        return MdevsOfCard()
    parents = tuple(
        MdevParentSeen(
            parent.address,
            {kind.profile: kind.directory for kind in parent.types},
            {kind.profile: kind.available for kind in parent.types},
        )
        for parent in found
    )
    addresses = {parent.address for parent in parents}
    devices = [mdev for mdev in read_mdevs(host) if mdev.parent in addresses]
    # After the devices: one that was made since has no entry, and is not removed.
    handles = read_open_handles(host) if devices else OpenHandles()
    openers = {mdev.uuid: _of_group(host, mdev, handles) for mdev in devices}
    return MdevsOfCard(parents, tuple(_seen(mdev, devices, openers, handles) for mdev in devices))


def _of_group(host: Host, mdev: Mdev, handles: OpenHandles) -> frozenset[Handle]:
    """Who has the VFIO group of the device open, by its node's path or number."""
    if mdev.group is None:
        return frozenset()
    path = f"/dev/vfio/{mdev.group}"
    found = set(handles.by_path.get(path, ()))
    try:
        number = host.stat(path).st_rdev
    except FileNotFoundError:
        return frozenset(found)
    return frozenset(found.union(handles.by_number.get((False, os.major(number), os.minor(number)), ())))


def _seen(mdev: Mdev, devices: Iterable[Mdev], openers: dict[str, frozenset[Handle]], handles: OpenHandles) -> MdevSeen:
    why = _unknown_use(mdev, devices, openers, handles)
    own = sorted({f"{handle.comm} (pid {handle.pid})" for handle in openers[mdev.uuid]})
    if own:
        why = f"in use by {'; '.join(own)}"
    obstacle = None if why is None else Obstacle(Reason.IN_USE, why)
    return MdevSeen(mdev.uuid, mdev.parent, mdev.profile, obstacle, tuple(own[:_USERS]))


def _unknown_use(
    mdev: Mdev, devices: Iterable[Mdev], openers: dict[str, frozenset[Handle]], handles: OpenHandles
) -> str | None:
    """Why it may be in use though nobody is known to have its group open."""
    if handles.unreadable is not None:
        return f"who has it open cannot be read: {handles.unreadable}"
    if mdev.group is None:
        return "its IOMMU group cannot be read, so nothing tells who has it open"
    # The kernel tells the parent of an open device, not which of its devices it is.
    known = {handle.pid for one in devices if one.parent == mdev.parent for handle in openers[one.uuid]}
    for handle in (*handles.by_address.get(mdev.parent, ()), *handles.unattributed):
        if handle.pid not in known:
            return f"{handle.comm} (pid {handle.pid}) holds a VFIO device that may be this one"
    return None
