"""What is seen of a device that should keep new users away, whatever its orders: taints of what is offered. Pure."""

from collections.abc import Iterable
from typing import Final

from crds.models.node_state import DeviceUser, UseKind
from crds.models.publication import PublicationReason
from dra_publisher.offers.offer import Taint, TaintKey
from node_host.evidence.usage import in_use_text
from node_host.pci.vfio_drivers import is_vfio_driver
from node_host.view import HostView

GROUP_IN_USE: Final = "GroupInUse"
"""Value of the taint where somebody who may has another device of the same IOMMU group: a VM gets it as a whole."""


def taints_seen(address: str, view: HostView, *, is_vgpu: bool = False) -> dict[Taint, str]:
    """The taints that a device should have, each with what was seen."""
    found: dict[Taint, str] = {}
    if address in view.unreadable:
        text = f"it cannot be read: {view.unreadable[address]}"
        found[Taint(TaintKey.UNHEALTHY, PublicationReason.UNHEALTHY)] = text
    device = view.devices.get(address)
    vetoes = view.vetoes.get(address, ())
    # What containers get stays with the host, which may need it.
    if vetoes and device is not None and (is_vgpu or is_vfio_driver(device.driver)):
        text = f"the host needs it: {'; '.join(veto.message for veto in vetoes)}"
        found[Taint(TaintKey.VETOED, PublicationReason.VETOED)] = text
    outside = _outside(view.users.get(address, ()))
    if outside:
        mates = [mate for mate in view.members(address) if mate != address and _claimed(view.users.get(mate, ()))]
        value = GROUP_IN_USE if mates and all(user.pod_uid for user in outside) else PublicationReason.USED_OUTSIDE
        found[Taint(TaintKey.IN_USE, value)] = f"in use by {in_use_text(outside)}"
    return found


def unknown_users(doubt: str) -> dict[Taint, str]:
    """The taint while nobody knows who was prepared with what."""
    return {Taint(TaintKey.IN_USE, PublicationReason.USED_OUTSIDE): f"who has it is not known: {doubt}"}


def _claimed(users: Iterable[DeviceUser]) -> bool:
    return any(user.kind is UseKind.CLAIM for user in users)


def _outside(users: tuple[DeviceUser, ...]) -> tuple[DeviceUser, ...]:
    """Who uses a device without a claim on it. What cannot be read is no user: it keeps changes away, not pods."""
    claimed = _claimed(users)

    def has_claim(user: DeviceUser) -> bool:
        return claimed and (user.kind is UseKind.POD or user.pod_uid is not None)

    kinds = (UseKind.PROCESS, UseKind.POD)
    return tuple(user for user in users if user.kind is UseKind.HOLDER or (user.kind in kinds and not has_claim(user)))
