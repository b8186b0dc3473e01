"""The host at one moment, as far as a daemon has to know it, and what plans and executors ask of it (pure)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from crds.models.bindings import BindingReason as Reason
from crds.models.node_state import DeviceUser, UseKind, Veto, VetoReason
from node_host.acting.locks import lock_names
from node_host.evidence.prepared import Prepared
from node_host.evidence.publication import Published
from node_host.evidence.usage import in_use_text
from node_host.handover.tokens import WAITS, Tokens
from node_host.pci.device import PCIDevice
from node_host.pci.iommu import IOMMUGroups
from node_host.pci.vfio_drivers import VFIOAliases, is_vfio_driver

_NOT_LOOKED_AT: Final = "who uses it was not looked at"
_WAITS_SINCE_BOOT: Final = (
    "pods could have it before the last boot, in another shape; waits for npufleet-dra-publisher to hand it over"
)


class ForOrders(Protocol):
    """The orders that a device may be changed for."""

    def entries_of(self, address: str) -> Collection[str]:
        """The digests of their entries, for which a token may be."""
        ...

    def shapes_of(self, address: str) -> Collection[str]:
        """The digests of the shapes that they give it; none when they take one away."""
        ...


class Obstacle(NamedTuple):
    """Why a device may not be touched."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class HostView:
    """What one observation saw. ``users`` has an entry for every device that was looked at closely."""

    boot_id: str
    devices: Mapping[str, PCIDevice] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    groups: IOMMUGroups = field(default_factory=IOMMUGroups)
    drivers: frozenset[str] = frozenset()
    users: Mapping[str, tuple[DeviceUser, ...]] = field(default_factory=dict)
    vetoes: Mapping[str, tuple[Veto, ...]] = field(default_factory=dict)
    published: Published = field(default_factory=Published)
    tokens: Tokens = field(default_factory=Tokens)
    prepared: Prepared = field(default_factory=Prepared)
    # Resources of device plugins under which devices are, or may be, given to pods, by address; asked on request.
    plugin_resources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    plugins_unreadable: str | None = None
    aliases: VFIOAliases = field(default_factory=VFIOAliases)
    vfio_nodes: frozenset[str] = frozenset()
    # Why the picture is not whole (the bus cannot be listed), or None: then what is missing may be there.
    problem: str | None = None

    def members(self, address: str) -> tuple[str, ...]:
        """Addresses of the device's IOMMU group, itself included; itself alone without a group."""
        device = self.devices.get(address)
        if device is None:
            return (address,)
        members = self.groups.of(device.iommu_group)
        return members if address in members else tuple(sorted((address, *members)))

    def locks(self, address: str) -> tuple[str, ...]:
        """Names of the locks under which the device is changed."""
        device = self.devices.get(address)
        if device is None:
            return lock_names(address, group=None)
        return lock_names(
            address,
            group=device.iommu_group,
            physical_function=device.physical_function,
            is_physical=device.total_vfs is not None or device.num_vfs != 0,
        )

    def is_virtual(self, address: str) -> bool:
        """Whether the device is known to be a virtual function."""
        device = self.devices.get(address)
        return device is not None and device.physical_function is not None

    def is_gone(self, address: str) -> bool:
        """Whether there certainly is no device at the address."""
        return self.problem is None and address not in self.devices and address not in self.unreadable

    def absence(self, address: str) -> Obstacle | None:
        """Why nothing is known of the device, or None."""
        if address in self.devices:
            return None
        if address in self.unreadable:
            return Obstacle(Reason.DEVICE_UNREADABLE, f"the device cannot be read: {self.unreadable[address]}")
        if self.problem is not None:
            return Obstacle(Reason.DEVICE_UNREADABLE, self.problem)
        return Obstacle(Reason.DEVICE_MISSING, f"there is no PCI device at {address}")

    def untouchable(self, address: str) -> Obstacle | None:
        """Why the device may not be changed now; None when it is known, free and not needed by the host."""
        obstacle = self._needed(address)
        if obstacle is not None:
            return obstacle
        used = self.in_use(address)
        return None if used is None else Obstacle(Reason.IN_USE, used)

    def card_untouchable(self, address: str) -> Obstacle | None:
        """Why the number of a card's virtual functions may not be changed now; None when it and all of them are free.

        Virtual functions that nobody uses do not count as use of the card.
        """
        obstacle = self._needed(address)
        if obstacle is not None:
            return obstacle
        for function in self.devices[address].virtual_functions:
            obstacle = self._needed(function)
            if obstacle is not None:
                return Obstacle(obstacle.reason, f"{function}: {obstacle.message}")
        used = self.card_in_use(address)
        return None if used is None else Obstacle(Reason.IN_USE, used)

    def card_in_use(self, address: str) -> str | None:
        """`in use by …` of a card or one of its virtual functions, or None."""
        device = self.devices.get(address)
        if device is None or address not in self.users:
            return self.in_use(address)
        others = tuple(user for user in self.users[address] if user.kind is not UseKind.VIRTUAL_FUNCTIONS)
        if others:
            return f"in use by {in_use_text(others)}"
        for function in device.virtual_functions:
            used = self.in_use(function)
            if used is not None:
                return f"{used}, through its virtual function {function}"
        return None

    def going_along(self, address: str) -> tuple[str, ...]:
        """What pods lose when the device, or the number of its virtual functions, is changed: itself first, its virtual
        functions, and what is on VFIO in the group of one, for a group goes to a VM as a whole.
        """
        device = self.devices.get(address)
        own = (address, *(device.virtual_functions if device else ()))
        mates = {
            mate
            for one in own
            for mate in self.members(one)
            if mate in self.devices and is_vfio_driver(self.devices[mate].driver)
        }
        return (*own, *sorted(mates - set(own)))

    def around(self, address: str) -> frozenset[str]:
        """What is looked at when the device is to be changed: its group, its virtual functions, and their groups."""
        device = self.devices.get(address)
        own = (address, *(device.virtual_functions if device else ()))
        return frozenset(member for one in own for member in self.members(one))

    def needs_token(self, address: str, shapes: Collection[str]) -> bool:
        """Whether the device is changed into one of these shapes (none: given back) only once it was handed over.

        What pods can have now always is; what they could have before the last boot, unless it gets that shape again.
        """
        return address in self.published.addresses or self.prepared.was_offered_otherwise(address, shapes)

    def not_handed_over(self, address: str, orders: ForOrders) -> Obstacle | None:
        """Why the device may not be changed for pods that may come to it, or to what goes along; None when it may."""
        if self.published.doubt is not None:
            return Obstacle(Reason.PUBLISHED, self.published.doubt)
        # Digests of orders cost more than the rest of a plan: they are asked for only where pods come into it.
        named = self.published.addresses | self.prepared.addresses
        if not named:
            return None
        along = [one for one in self.going_along(address) if one in named]
        for one in (*along, *sorted(self.former_functions(address))):
            text = self.prepared.awaited(one, self.boot_id, orders.shapes_of(one))
            if text is not None:
                return Obstacle(Reason.IN_USE, _of_one(one, address, text))
        for one in along:
            if self.needs_token(one, orders.shapes_of(one)):
                text = self.tokens.obstacle(one, self.boot_id, orders.entries_of(one))
                if text == WAITS and one not in self.published.addresses:
                    text = _WAITS_SINCE_BOOT
                if text is not None:
                    return Obstacle(Reason.PUBLISHED, _of_one(one, address, text))
        return None

    def former_functions(self, address: str) -> frozenset[str]:
        """Virtual functions of a card that the checkpoint names and that are not there, as after a boot."""
        device = self.devices.get(address)
        absent = self.prepared.addresses - self.devices.keys()
        return absent & device.possible_functions if device is not None and absent else frozenset()

    def card_of(self, address: str) -> str | None:
        """The card of a virtual function, also of one that the checkpoint names and that is not there; or None."""
        device = self.devices.get(address)
        if device is not None:
            return device.physical_function
        if address not in self.prepared.addresses:
            return None
        return next((card for card, one in self.devices.items() if address in one.possible_functions), None)

    def _needed(self, address: str) -> Obstacle | None:
        absent = self.absence(address)
        if absent is not None:
            return absent
        if self.devices[address].is_bridge:
            return Obstacle(Reason.BRIDGE, "it is a bridge: bridges stay with the host")
        vetoes = self.vetoes.get(address, ())
        if vetoes:
            return Obstacle(_veto_reason(vetoes), f"the host needs it: {'; '.join(veto.message for veto in vetoes)}")
        return None

    def in_use(self, address: str) -> str | None:
        """`in use by …`, or None. A device that is not there is used by nobody, one that was not looked at may be."""
        if address not in self.users:
            return None if self.is_gone(address) else _NOT_LOOKED_AT
        users = self.users[address]
        return f"in use by {in_use_text(users)}" if users else None


def _of_one(one: str, address: str, text: str) -> str:
    return text if one == address else f"{one}, which goes along: {text}"


def _veto_reason(vetoes: tuple[Veto, ...]) -> Reason:
    """A device that the host needs only for its group is told apart: another device is the one to look at."""
    only_group = all(veto.reason is VetoReason.GROUP_MEMBER for veto in vetoes)
    return Reason.COMPANION_VETOED if only_group else Reason.VETOED
