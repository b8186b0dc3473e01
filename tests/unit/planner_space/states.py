"""Small hosts as values: what one device can be, and the planner's input that a host of such devices makes.

This is the only file here that knows the planner's signature. Everything is hashable, so that hosts can be told apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from crds.models.node_state import DesiredDevice, DeviceUser, NodeStateSpec, UseKind, Veto, VetoReason
from node_host.acting.actions import Outcome
from node_host.acting.journal import JournalEntry, JournalState
from node_host.evidence.publication import Published
from node_host.pci.device import PCIDevice
from node_host.pci.iommu import IOMMUGroups
from node_host.pci.vfio_drivers import is_vfio_driver
from node_host.view import HostView
from tests.builders.binder import NODE_UID, order
from vfio_binder import plan as planner

BOOT: Final = "boot-2"
OTHER_BOOT: Final = "boot-1"
IDENTITY: Final = "1eff:1250"
NATIVE: Final = "rebellions"
OTHER: Final = "other"
VFIO: Final = "vfio-pci"
VARIANT: Final = "rbln-vfio-pci"
STUB: Final = "pci-stub"
PORT: Final = "pcieport"

ADDRESSES: Final = tuple(f"0000:2{number}:00.0" for number in range(3, 6))
INDEX: Final = {address: number for number, address in enumerate(ADDRESSES)}

# Orders by name. Blocks that the binder does not read are left at one value each.
ORDERS: Final[dict[str, dict[str, Any]]] = {
    "refuse": {"companions": "Refuse"},
    "bind": {"companions": "Bind"},
    "container": {"mode": "Container"},
    "vgpu": {"mode": "VGPU"},
    "unmanaged": {"mode": "Unmanaged"},
    "restore": {"intent": "Release"},
    "leave": {"intent": "Release", "on_release": "Leave"},
    "restore-container": {"mode": "Container", "intent": "Release"},
    "hold": {"intent": "Hold", "companions": "Bind"},
    "hold-container": {"mode": "Container", "intent": "Hold"},
    "stranger": {"companions": "Bind", "device": "ffff"},
    "stranger-container": {"mode": "Container", "device": "ffff"},
    "named": {"driver": VFIO},
    "variant": {"driver": VARIANT},
    "no-vfio": {"driver": NATIVE},
}
PASSTHROUGH: Final = frozenset({"refuse", "bind", "named", "variant"})
RELEASE: Final = frozenset({"restore", "leave", "restore-container"})
HOLD: Final = frozenset({"hold", "hold-container"})
STAYS_NATIVE: Final = frozenset({"container", "vgpu", "unmanaged"})
STRANGE: Final = frozenset({"stranger", "stranger-container", "no-vfio"})

# What keeps hands off a device: a user, the host's own need, an offer to pods; it is not there; it cannot be read.
USED, VETOED, PUBLISHED, GONE, UNREADABLE = "used", "vetoed", "published", "gone", "unreadable"
# The same, as failures bring them about: opened while it was moved; a write to it has not come back.
OPENED, STUCK = "opened", "stuck"


class Device(NamedTuple):
    """One function: where it is, what the journal says of it, what is ordered, what keeps hands off it."""

    driver: str | None = NATIVE
    override: str | None = None
    entry: JournalEntry | None = None
    order: str | None = None
    flag: str | None = None
    bridge: bool = False

    @property
    def is_there(self) -> bool:
        return self.flag not in (GONE, UNREADABLE)

    @property
    def is_ours(self) -> bool:
        """npufleet moved it in this boot, or may have."""
        return self.entry is not None and self.entry.boot_id == BOOT

    @property
    def leaves_group_to_user(self) -> bool:
        """The kernel's rule for one member (drivers/iommu/iommu.c), said here once more on purpose."""
        ports = (None, STUB, PORT) if self.bridge else (None, STUB, VFIO, VARIANT)
        return self.is_there and self.driver in ports


class Host(NamedTuple):
    """Devices by the index of their address, the IOMMU group of each, failures and locks that are remembered."""

    groups: tuple[int | None, ...]
    devices: tuple[Device, ...]
    attempts: tuple[tuple[str, Outcome], ...] = ()
    stuck: tuple[str, ...] = ()

    def members(self, index: int) -> tuple[int, ...]:
        """Indices of the devices that share its group and are listed there, itself included."""
        group, devices = self.groups[index], self.devices
        if group is None or devices[index].flag == GONE:
            return (index,)
        return tuple([i for i, other in enumerate(self.groups) if other == group and devices[i].flag != GONE])

    def is_free(self, index: int) -> bool:
        """Whether it may be written to: nobody uses or needs it or, the group being one, a member of its group.

        A member that pods may have counts where it is on VFIO: a group goes to a VM as a whole.
        """
        device = self.devices[index]
        if device.flag is not None or device.bridge:
            return False
        mates = [self.devices[i] for i in self.members(index)]
        return not any(m.flag == VETOED or (m.flag == PUBLISHED and is_vfio_driver(m.driver)) for m in mates)


class Place(NamedTuple):
    """Driver and override."""

    driver: str | None
    override: str | None = None


# The places of a device: on no driver, its own, another native one, VFIO, a stub; and those that a move that was cut
# short leaves behind.
PLACES: Final = (
    Place(None),
    Place(NATIVE),
    Place(OTHER),
    Place(VFIO, VFIO),
    Place(VFIO),
    Place(STUB, STUB),
    Place(None, VFIO),
    Place(NATIVE, VFIO),
)
# What the journal can say of a device; a companion's entry names the rest of the group.
JOURNALS: Final = ("none", "ours", "ours-driverless", "companion", "companion-driverless", "other-boot")
# Rarer: it came from another native driver or a stub, had an override before us, or is between two VFIO drivers.
RARE_PLACES: Final = (Place(VARIANT, VARIANT), Place(NATIVE, NATIVE), Place(VFIO, NATIVE), Place(OTHER, VFIO))
RARE_JOURNALS: Final = ("ours-other", "ours-stub", "ours-overridden", "ours-variant")
_CUT_SHORT: Final = PLACES[-2:]


@cache
def journal_entry(kind: str, others: tuple[str, ...]) -> JournalEntry | None:
    """The entry of that kind for a device whose group's other members are ``others``."""
    if kind == "none":
        return None
    former = {"driverless": "", "other": OTHER, "stub": STUB}.get(kind.partition("-")[2], NATIVE)
    override = {"ours-stub": STUB, "ours-overridden": NATIVE}.get(kind)
    bound = VARIANT if kind == "ours-variant" else VFIO
    if kind == "other-boot":
        return JournalEntry(NATIVE, VFIO, OTHER_BOOT, IDENTITY)
    companion_of = others or (ADDRESSES[-1],) if kind.startswith("companion") else ()
    return JournalEntry(former, bound, BOOT, IDENTITY, override, companion_of)


class Letter(NamedTuple):
    """A device before it has an address."""

    place: Place
    journal: str
    order: str | None
    flag: str | None = None


def letters(
    places: Iterable[Place],
    journals: Iterable[str],
    orders: Iterable[str | None],
    flags: Iterable[str | None] = (None,),
) -> tuple[Letter, ...]:
    """All of them. An override of ours without an entry is left out: the journal is written first."""
    found = {
        # A device that is not there has no driver.
        Letter(Place(None) if flag == GONE else place, journal, order, flag): None
        for place, journal, order, flag in itertools.product(places, journals, orders, flags)
        if place not in _CUT_SHORT or journal not in ("none", "other-boot")
    }
    return tuple(found)


@cache
def _mates(groups: tuple[int | None, ...]) -> tuple[tuple[str, ...], ...]:
    """For each device the addresses of those that share its group."""
    return tuple(
        tuple(ADDRESSES[i] for i, group in enumerate(groups) if i != index and group == own and own is not None)
        for index, own in enumerate(groups)
    )


def host_of(groups: Sequence[int | None], chosen: Sequence[Letter]) -> Host:
    """The host with one device for each letter."""
    devices = []
    mates = _mates(tuple(groups))
    for index, letter in enumerate(chosen):
        entry = journal_entry(letter.journal, mates[index])
        devices.append(Device(letter.place.driver, letter.place.override, entry, letter.order, letter.flag))
    return Host(tuple(groups), tuple(devices))


def hosts(groups: Sequence[int | None], *alphabets: Sequence[Letter]) -> Iterator[Host]:
    """All hosts with a device of each alphabet, in these groups.

    Devices of one group that have the same alphabet are interchangeable: one order of them stands for all.
    """
    ranks = [{letter: rank for rank, letter in enumerate(alphabet)} for alphabet in alphabets]
    twins = [
        (i, i + 1)
        for i in range(len(groups) - 1)
        if groups[i] is not None and groups[i] == groups[i + 1] and alphabets[i] is alphabets[i + 1]
    ]
    for chosen in itertools.product(*alphabets):
        if all(ranks[i][chosen[i]] <= ranks[j][chosen[j]] for i, j in twins):
            yield host_of(groups, chosen)


# --- The planner's input.


@cache
def pci_device(
    index: int, driver: str | None, override: str | None, group: int | None, *, bridge: bool = False
) -> PCIDevice:
    """The function as sysfs would show it."""
    vendor, _, device = IDENTITY.partition(":")
    return PCIDevice(
        ADDRESSES[index],
        vendor,
        device,
        "060400" if bridge else "120000",
        driver=driver,
        driver_override=override,
        iommu_group=group,
    )


@cache
def desired(index: int, name: str) -> DesiredDevice:
    """An entry of the orders."""
    return DesiredDevice.model_validate(order(ADDRESSES[index], **ORDERS[name]))


@cache
def orders(ordered: tuple[tuple[int, str], ...]) -> NodeStateSpec:
    """The orders for devices by index and name, in this order."""
    entries = tuple(desired(index, name) for index, name in ordered)
    return NodeStateSpec.model_construct(revision="5d0f4c1e9b7a", node_uid=NODE_UID, devices=entries, rollouts=())


_USERS: Final = (DeviceUser(kind=UseKind.PROCESS, name="vllm"),)
_OWN: Final = (Veto(reason=VetoReason.MOUNTED_DISK, message="nvme0n1p2 is mounted on /"),)


@cache
def _shared_veto(owner: int) -> tuple[Veto, ...]:
    text = f"{ADDRESSES[owner]} of its IOMMU group: {_OWN[0].message}"
    return (Veto(reason=VetoReason.GROUP_MEMBER, message=text),)


def view_of(host: Host, *, backwards: bool = False) -> HostView:
    """What an observation of the host would give."""
    devices: dict[str, PCIDevice] = {}
    unreadable: dict[str, str] = {}
    groups: dict[int, tuple[str, ...]] = {}
    vetoes: dict[str, tuple[Veto, ...]] = {}
    nodes = set()
    order_of_seeing = range(len(host.devices))
    for index in reversed(order_of_seeing) if backwards else order_of_seeing:
        device, group, address = host.devices[index], host.groups[index], ADDRESSES[index]
        if device.flag == GONE:
            continue
        if group is not None and group not in groups:
            groups[group] = tuple(ADDRESSES[i] for i in host.members(index))
        if device.flag == UNREADABLE:
            unreadable[address] = "vendor: EIO: Input/output error"
            continue
        devices[address] = pci_device(index, device.driver, device.override, group, bridge=device.bridge)
        if is_vfio_driver(device.driver) and group is not None:
            nodes.add(f"/dev/vfio/{group}")
        needed = [i for i in host.members(index) if host.devices[i].flag == VETOED]
        if needed:
            vetoes[address] = _OWN if index in needed else _shared_veto(needed[0])
    return HostView(
        boot_id=BOOT,
        devices=devices,
        unreadable=unreadable,
        groups=IOMMUGroups(groups),
        users={address: _USERS if host.devices[INDEX[address]].flag in (USED, OPENED) else () for address in devices},
        vetoes=vetoes,
        published=_published(tuple(i for i, device in enumerate(host.devices) if device.flag == PUBLISHED)),
        vfio_nodes=frozenset(nodes),
    )


@cache
def _published(indices: tuple[int, ...]) -> Published:
    return Published(frozenset(ADDRESSES[i] for i in indices))


def plan_of(host: Host, *, backwards: bool = False) -> planner.Plan:
    """The real planner's plan for the host; ``backwards`` hands it everything in the opposite order."""
    ordered = [(i, device.order) for i, device in enumerate(host.devices) if device.order is not None]
    known = [(ADDRESSES[i], device.entry) for i, device in enumerate(host.devices) if device.entry is not None]
    attempts = list(host.attempts)
    if backwards:
        ordered.reverse()
        known.reverse()
        attempts.reverse()
    return planner.plan(
        orders(tuple(ordered)),
        view_of(host, backwards=backwards),
        JournalState(dict(known)),
        attempts=dict(attempts),
        stuck=dict.fromkeys(host.stuck, "writing it has not come back"),
    )
