"""What is ordered of each device, what the host shows of it, and whether something is about to change it. Pure.

A device is judged with what it takes along: the functions of its card, and what is on VFIO in its IOMMU group.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from crds.device_names import NamedKind, device_name
from crds.models.bindings import WAITS_FOR_USERS
from crds.models.modes import Mode
from crds.models.node_state import DesiredDevice, DeviceReport, DeviceState, Intent
from crds.models.profiling import ProfileReason
from crds.models.vgpu_state import VGPUInstance
from dra_publisher.offers.prerequisites import recipe
from node_host.handover.entry import shapes_of, vgpu_shape
from node_host.pci.vfio_drivers import is_vfio_driver
from node_host.pci.viability import obstacles
from node_host.view import HostView

_WAITS: Final = frozenset(str(reason) for reason in WAITS_FOR_USERS)


@dataclass(frozen=True, slots=True)
class Offered:
    """A device in the slices. ``withheld``: nobody who has it not gets it, because it changes or is not ready."""

    kind: NamedKind
    driver: str
    withheld: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """One moment.

    ``said`` is what the daemons that prepare devices say of ordered ones, for the present orders and in this boot;
    ``offered`` what the slices hold; ``remembered`` as what shape pods could have a device last, in whatever boot
    (digests); ``unordered`` are devices that no order has spoken of for so long that it is meant. ``profiles`` are the
    vGPU profiles that virtual functions have on the host now, ``given`` those that the profile writer calls theirs, in
    this boot, for a layout: others may lie on a card that no layout asks for. ``mediated`` are cards whose vGPUs are
    mediated devices. ``answered`` is what the writer says of the functions of cards, for the present orders.
    """

    entries: Mapping[str, DesiredDevice]
    view: HostView
    offered: Mapping[str, Offered] = field(default_factory=dict)
    said: Mapping[str, DeviceReport] = field(default_factory=dict)
    remembered: Mapping[str, str] = field(default_factory=dict)
    unordered: Collection[str] = frozenset()
    profiles: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    mediated: Collection[str] = frozenset()
    answered: Mapping[str, Mapping[str, VGPUInstance]] = field(default_factory=dict)

    def known(self) -> frozenset[str]:
        """All devices that there is anything to say of."""
        functions = {function for address in self.entries for function in self.functions(address)}
        return frozenset({*self.entries, *self.offered, *self.view.published.addresses, *self.remembered, *functions})

    # What is ordered.

    def responsible(self, address: str) -> DesiredDevice | None:
        """The order that a device follows: its own; its card's, for a function; for a companion, that of the device
        which it goes to a VM with.
        """
        if address in self.entries:
            return self.entries[address]
        device = self.view.devices.get(address)
        if device is not None and device.physical_function is not None:
            return self.entries.get(device.physical_function)
        wanting = [mate for mate in self.view.members(address) if self._goes_whole_to_a_vm(mate)]
        return self.entries[min(wanting)] if wanting else None

    def wanted(self, address: str) -> NamedKind | None:
        """As what its order wants pods to have it; None where the order gives nothing of it to pods."""
        entry = self.responsible(address)
        found = recipe(entry.mode) if entry is not None else None
        if entry is None or found is None or entry.intent is Intent.RELEASE:
            return None
        number = functions_ordered(entry)
        if entry.address == address:
            return found.kind if number is None else None
        device = self.view.devices.get(address)
        is_function = device is not None and device.physical_function == entry.address
        if number is None or not is_function:
            return None
        return found.kind if found.kind is not NamedKind.VGPU or self._is_of_layout(address, entry) else None

    def _is_of_layout(self, address: str, entry: DesiredDevice) -> bool:
        """Whether a function carries what its writer gave it, and the layout asks for that."""
        profile = self.profiles.get(address)
        asked = {one.profile for one in entry.vgpu.layout} if entry.vgpu is not None else set()
        return profile is not None and profile in asked and self.given.get(address) == profile

    # What is there.

    def actual(self, address: str) -> NamedKind | None:
        """As what the host has it; None when it has no driver, or is not there."""
        device = self.view.devices.get(address)
        if device is None or device.driver is None:
            return None
        if address in self.profiles:
            return NamedKind.VGPU
        return NamedKind.VFIO if is_vfio_driver(device.driver) else NamedKind.NPU

    def functions(self, address: str) -> tuple[str, ...]:
        """The virtual functions of a card."""
        device = self.view.devices.get(address)
        return device.virtual_functions if device is not None else ()

    def refused(self, address: str) -> bool:
        """Whether a token, or something that may be one, keeps pods from being prepared with the device."""
        tokens = self.view.tokens
        return tokens.unreadable is not None or any(
            address in of for of in (tokens.offered, tokens.taken, tokens.faults)
        )

    def listed(self, address: str) -> bool:
        """Whether whoever changes devices knows that pods may have it in this boot."""
        return address in self.view.published.addresses

    def in_trust(self, address: str) -> bool:
        """Whether it may be changed only once it was handed over: pods may have it, or could before the reboot, in
        another shape than it is to get.
        """
        if self.listed(address):
            return True
        before, entry = self.remembered.get(address), self.responsible(address)
        if before is None:
            return False
        if entry is None or entry.intent is Intent.RELEASE or before not in shapes_of(entry, address):
            return True
        if self._is_function_of_vgpus(address, entry):
            return self._is_asked_for(address, entry)
        return self.wanted(address) is None

    def has_other_name(self, address: str, kind: NamedKind, driver: str) -> bool:
        """Whether a claim was prepared with it under another name than what it is as this kind under this driver."""
        own = (driver, device_name(kind, address))
        claims = self.view.prepared.checkpoint.claims_of(address)
        return any(
            one.address == address and (one.driver, one.device) != own for claim in claims for one in claim.devices
        )

    def is_mediated(self, address: str) -> bool:
        """Whether the vGPUs of a card are mediated devices, which no claim gives."""
        return address in self.mediated

    # What moves.

    def is_stuck(self, entry: DesiredDevice) -> bool:
        """Whether the daemons say that they cannot do what is ordered, for another reason than somebody who has it."""
        said = self.said.get(entry.address)
        if said is None:
            return False
        return said.state is DeviceState.FAILED or (said.state is DeviceState.BLOCKED and said.reason not in _WAITS)

    def is_ready(self, entry: DesiredDevice) -> bool:
        """Whether they say that it is done."""
        said = self.said.get(entry.address)
        return said is not None and said.state is DeviceState.READY

    def is_done(self, address: str, entry: DesiredDevice) -> bool:
        """The same of one device of the entry: a vGPU is as it is to be also while others of its card are not."""
        return self.is_ready(entry) or (entry.address in self.answered and self.stays(address))

    def stays(self, address: str) -> bool:
        """Whether a vGPU is kept as it is by an order that changes others of its card.

        Until the writer has answered the order: where the layout asks for no fewer of its profile than there are.
        """
        entry = self.responsible(address)
        if entry is None or entry.intent is not Intent.APPLY or not self._is_function_of_vgpus(address, entry):
            return False
        if not self._is_of_layout(address, entry):
            return False
        answered = self.answered.get(entry.address)
        if answered is not None:
            said = answered.get(address)
            return said is not None and said.is_of_layout
        profile = self.profiles[address]
        carried = [one for one in self.functions(entry.address) if self.profiles.get(one) == profile]
        return len(carried) <= layout_of(entry)[profile]

    def _is_asked_for(self, address: str, entry: DesiredDevice) -> bool:
        """Whether the writer waits for it to be handed over."""
        said = self.answered.get(entry.address, {}).get(address)
        return said is not None and said.state is DeviceState.BLOCKED and said.reason == ProfileReason.PUBLISHED

    def _is_function_of_vgpus(self, address: str, entry: DesiredDevice) -> bool:
        return entry.mode is Mode.VGPU and address != entry.address and recipe(entry.mode) is not None

    def moves(self, entry: DesiredDevice) -> bool:
        """Whether somebody is about to change the entry's device, as far as can be seen or was said."""
        said = self.said.get(entry.address)
        if entry.intent is Intent.HOLD or self.is_stuck(entry):
            return False
        if entry.intent is Intent.RELEASE:
            return said is None or said.state is not DeviceState.RELEASED
        if not self._looks_done(entry):
            return True
        return said is not None and said.state in (DeviceState.PENDING, DeviceState.BLOCKED)

    def is_disturbed(self, address: str) -> bool:
        """Whether the device, or something that takes it along, is about to change."""
        entry = self.responsible(address)
        return (entry is not None and self._is_to_change(address, entry)) or self.mates_move(address)

    def _is_to_change(self, address: str, entry: DesiredDevice) -> bool:
        if self.stays(address):
            return False
        if self.moves(entry):
            return True
        # More of its profile are there than the new layout asks for: the writer has yet to say which of them go.
        is_apply = entry.intent is Intent.APPLY and entry.address not in self.said
        return is_apply and self._is_function_of_vgpus(address, entry) and self._is_of_layout(address, entry)

    def shape_now(self, address: str, entry: DesiredDevice) -> frozenset[str]:
        """The shape of a device that is as its order says."""
        if self._is_function_of_vgpus(address, entry):
            return frozenset({vgpu_shape(self.profiles[address])} if address in self.profiles else ())
        return shapes_of(entry, address)

    def mates_move(self, address: str) -> bool:
        """Whether a device of its IOMMU group moves: a VM gets the group as a whole."""
        if self.actual(address) is not NamedKind.VFIO:
            return False
        mates = {mate: self.responsible(mate) for mate in self.view.members(address) if mate != address}
        return any(entry is not None and self.moves(entry) for entry in mates.values())

    def _looks_done(self, entry: DesiredDevice) -> bool:
        address, ready = entry.address, self.is_ready(entry)
        found, number = recipe(entry.mode), functions_ordered(entry)
        if entry.mode is Mode.VGPU and found is not None:
            if self.is_mediated(address):
                return ready
            carried = Counter(self.profiles[one] for one in self.functions(address) if one in self.profiles)
            return ready or not layout_of(entry) - carried
        if number is not None:
            functions = self.functions(address)
            return len(functions) == number and all(self.actual(one) is NamedKind.VFIO for one in functions)
        if found is None:
            # Another daemon makes it what it is to be, and says when it is.
            return ready
        if self.actual(address) is not found.kind:
            return False
        if found.kind is NamedKind.VFIO:
            return ready or not obstacles(self.view.members(address), self.view.devices)
        return ready or not any(self.listed(function) for function in self.functions(address))

    def _goes_whole_to_a_vm(self, address: str) -> bool:
        entry = self.entries.get(address)
        return (
            entry is not None
            and entry.intent is Intent.APPLY
            and entry.mode is Mode.PASSTHROUGH
            and functions_ordered(entry) is None
        )

    def around(self, address: str) -> Iterator[str]:
        """What its judgement rests on."""
        card = self.view.devices[address].physical_function if address in self.view.devices else None
        entry = self.responsible(address)
        for one in (address, card, entry.address if entry is not None else None):
            if one is not None:
                yield from self.view.around(one)


def layout_of(entry: DesiredDevice) -> Counter[str]:
    """The vGPUs that a card is ordered to carry, by profile."""
    counts: Counter[str] = Counter()
    for one in entry.vgpu.layout if entry.vgpu is not None else ():
        counts[one.profile] += one.count
    return counts


def functions_ordered(entry: DesiredDevice) -> int | None:
    """How many virtual functions VMs get instead of the card; None where they get it whole."""
    if entry.mode is Mode.VGPU:
        return layout_of(entry).total()
    return entry.passthrough.virtual_functions if entry.passthrough is not None else None
