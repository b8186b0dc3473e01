"""Orders, host and journal side by side, and what can be said of one device from them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, NamedTuple

from crds.models.bindings import WAITS_FOR_USERS
from crds.models.bindings import BindingReason as Reason
from crds.models.modes import Companions, Mode, Passthrough
from crds.models.node_state import BoundDevice, DesiredDevice, DeviceState, Intent
from node_host.acting.actions import Outcome
from node_host.acting.journal import JournalEntry, JournalState
from node_host.handover.entry import entry_digest, shapes_of
from node_host.pci.device import PCIDevice, identity_of, same_identity
from node_host.pci.vfio_drivers import VFIO_PCI, driver_directory, is_vfio_driver, module_of
from node_host.view import HostView, Obstacle

AUTO: Final = "Auto"
_TEXT: Final = 1024
# Failures that no look shows, only another attempt, for which the users would have to go.
_TOLD_WHILE_USED: Final = frozenset(
    {
        Reason.BIND_FAILED,
        Reason.FUNCTIONS_FAILED,
        Reason.NO_SRIOV,
        Reason.RESTORE_FAILED,
        Reason.VERIFY_FAILED,
        Reason.INTERNAL_ERROR,
        Reason.MODULE_MISSING,
        Reason.DRIVER_MISSING,
        Reason.JOURNAL_UNREADABLE,
    }
)


class Want(Enum):
    """What the orders say of a device."""

    VFIO = auto()
    # Itself with the host; virtual functions that it is to have, or has from npufleet and is not to have.
    FUNCTIONS = auto()
    NATIVE = auto()
    HOLD = auto()
    RELEASE = auto()
    NOTHING = auto()


class Block(NamedTuple):
    """Why a device does not get where it should be, as its report says it."""

    state: DeviceState
    reason: Reason
    message: str

    def for_group(self, address: str) -> "Block":
        """The same, said of another device of the group that ``address`` is in the way of."""
        reason = {Reason.IN_USE: Reason.COMPANION_IN_USE, Reason.VETOED: Reason.COMPANION_VETOED}.get(
            self.reason, self.reason
        )
        if self.message.startswith(address):
            return Block(self.state, reason, self.message)
        return Block(self.state, reason, f"{address} of its IOMMU group: {self.message}")


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a plan is made from.

    ``attempts`` are outcomes that are not to be tried again yet, ``failures`` those that are told
    of a device which is used again. ``drifting`` are devices that somebody else moves again
    and again (with a message), ``stuck`` locks that a write without an end holds (with a message). ``implied`` are
    virtual functions whose entry comes from their card's order.
    """

    view: HostView
    entries: Mapping[str, DesiredDevice]
    journal: JournalState
    attempts: Mapping[str, Outcome] = field(default_factory=dict)
    failures: Mapping[str, Outcome] = field(default_factory=dict)
    drifting: Mapping[str, str] = field(default_factory=dict)
    stuck: Mapping[str, str] = field(default_factory=dict)
    implied: frozenset[str] = frozenset()
    _remembered: Mapping[str, JournalEntry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Once: a plan asks for it a dozen times for each device.
        found = {address: entry for address, entry in self.journal.entries.items() if self._speaks(entry, address)}
        object.__setattr__(self, "_remembered", found)

    def want(self, address: str) -> Want:
        """What the orders say."""
        entry = self.entries.get(address)
        if entry is None:
            return Want.NOTHING
        if entry.intent is Intent.HOLD:
            return Want.HOLD
        if entry.intent is Intent.RELEASE:
            return Want.RELEASE
        if wanted_functions(entry) is not None or self.card(address) is not None:
            return Want.FUNCTIONS
        return Want.VFIO if entry.mode is Mode.PASSTHROUGH else Want.NATIVE

    def passthrough(self, address: str) -> Passthrough:
        """The settings of a passthrough order, with what holds when it has none."""
        return self.entries[address].passthrough or Passthrough()

    def binds_companions(self, address: str) -> bool:
        """Whether the order takes the rest of the group along."""
        return self.passthrough(address).companions is Companions.BIND

    def ours(self, address: str) -> JournalEntry | None:
        """The journal's entry of a device that npufleet moved itself, in this boot."""
        entry = self.remembered(address)
        return None if entry is None or entry.functions is not None else entry

    def card(self, address: str) -> JournalEntry | None:
        """The journal's entry of a card whose virtual functions npufleet made, in this boot."""
        entry = self.remembered(address)
        return None if entry is None or entry.functions is None else entry

    def is_replaced(self, address: str) -> bool:
        """Whether somebody else has made virtual functions of a card in place of those that npufleet made.

        While npufleet is at it, and when it died at it, there may be any number that the driver likes.
        """
        record, device = self.card(address), self.view.devices.get(address)
        number = None if device is None else device.num_vfs
        if number is None or record is None or record.functions is None or record.functions.made is None:
            return False
        return number not in (0, record.functions.former_number, record.functions.made)

    def is_part(self, address: str) -> bool:
        """Whether it is a virtual function that npufleet made and that no order speaks of."""
        device = self.view.devices.get(address)
        owner = device.physical_function if device else None
        return owner is not None and address not in self.entries and self.card(owner) is not None

    def remembered(self, address: str) -> JournalEntry | None:
        """The journal's entry when it speaks of this boot and of this very device."""
        return self._remembered.get(address)

    def _speaks(self, entry: JournalEntry, address: str) -> bool:
        if entry.boot_id != self.view.boot_id:
            return False
        device = self.view.devices.get(address)
        return device is None or same_identity(device.identity, entry.identity)

    def doubt(self, address: str) -> Block | None:
        """A device on, or pinned to, a VFIO driver, or with virtual functions, that a journal with a problem does not
        name: it is not known who did that, nor what it had before."""
        device = self.view.devices.get(address)
        if self.journal.problem is None or device is None or self.remembered(address) is not None:
            return None
        if is_vfio_driver(device.driver):
            what = f"it is on {device.driver}, and whether npufleet put it there"
        elif is_vfio_driver(device.driver_override):
            what = f"it has driver_override {device.driver_override}, and whether npufleet set it"
        elif device.num_vfs:
            what = f"it has {device.num_vfs} virtual functions, and whether npufleet made them"
        else:
            return None
        return blocked(Reason.JOURNAL_UNREADABLE, f"{what} is not known: {self.journal.problem}")

    def is_orphan(self, address: str) -> bool:
        """Ours for its own sake, and no order speaks of it: held, because absence is not an order."""
        entry = self.ours(address)
        return entry is not None and address not in self.entries and not entry.companion_of

    def needers(self, address: str) -> tuple[str, ...]:
        """Devices of its group that go, or may have gone, to a VM together with it."""
        entry = self.ours(address)
        around = {*self.view.members(address), *(entry.companion_of if entry else ())} - {address}
        return tuple(
            sorted(
                other
                for other in around
                if self.is_orphan(other)
                or self.want(other) is Want.VFIO
                or (self.want(other) is Want.HOLD and self.entries[other].mode is Mode.PASSTHROUGH)
            )
        )

    def is_placed(self, address: str) -> bool:
        """Whether the device is on a VFIO driver that a passthrough order accepts."""
        driver = self.view.devices[address].driver
        wanted = self.passthrough(address).driver
        return is_vfio_driver(driver) and (wanted == AUTO or module_of(wanted) == module_of(driver or ""))

    def module(self, address: str) -> str:
        """The module whose driver an order wants."""
        wanted = self.passthrough(address).driver
        if wanted != AUTO:
            return module_of(wanted)
        return self.view.aliases.module_for(self.view.devices[address].modalias) or module_of(VFIO_PCI)

    def identity_block(self, address: str) -> Block | None:
        """Whether the device is another than the one that the order means."""
        wanted, device = self.entries[address].identity, self.view.devices[address]
        if same_identity(device.identity, identity_of(wanted.vendor, wanted.device, wanted.serial)):
            return None
        if (device.vendor, device.device) != (wanted.vendor, wanted.device):
            text = f"ordered for {wanted.vendor}:{wanted.device}, but the device is {device.vendor}:{device.device}"
        else:
            text = f"ordered for serial {wanted.serial}, but the device tells {device.serial}"
        return blocked(Reason.IDENTITY_MISMATCH, text)

    def write_block(self, address: str) -> Block | None:
        """Why nothing may be written to the device now."""
        return gravest(self._write_blocks(address, self.view.untouchable(address)))

    def card_write_block(self, address: str) -> Block | None:
        """Why the number of its virtual functions may not be changed now."""
        return gravest(self._write_blocks(address, self.view.card_untouchable(address)))

    def _write_blocks(self, address: str, untouchable: Obstacle | None) -> Iterable[Block | None]:
        yield self._stuck(address)
        seen = (_of(untouchable), _of(self.view.not_handed_over(address, self)))
        yield from seen
        yield self._failed(address)
        if any(waits_for_users(block) for block in seen):
            yield self._failed_before(address)

    def entries_of(self, address: str) -> frozenset[str]:
        """The digests of the orders that a hand-over of a device may be for."""
        return frozenset(entry_digest(entry) for entry in self._responsible(address))

    def shapes_of(self, address: str) -> frozenset[str]:
        """The digests of the shapes that orders give a device; none when it is given back."""
        ordered = (entry for entry in self._responsible(address) if entry.intent is not Intent.RELEASE)
        return frozenset(shape for entry in ordered for shape in shapes_of(entry, address))

    def _responsible(self, address: str) -> list[DesiredDevice]:
        """The orders that a device is changed for.

        Its own entry; else that of its card; else those that it is bound for as a companion, or was.
        """
        named = self.entries.keys() - self.implied
        card = self.view.card_of(address)
        if address in named:
            found = {address}
        elif card is not None and card in named:
            found = {card}
        else:
            entry = self.ours(address)
            found = {other for other in self.view.members(address) if self.want(other) is Want.VFIO}
            found |= set(entry.companion_of) if entry is not None else set()
        return [self.entries[other] for other in sorted(found & named)]

    def retry_block(self, address: str) -> Block | None:
        """Whether a write to it hangs, or the last attempt failed a short time ago."""
        return self._stuck(address) or self._failed(address)

    def _stuck(self, address: str) -> Block | None:
        device = self.view.devices.get(address)
        for one in (address, *(device.virtual_functions if device else ())):
            for lock in self.view.locks(one):
                if lock in self.stuck:
                    return self._moved(address, Reason.WRITE_STUCK, self.stuck[lock])
        return None

    def _failed(self, address: str) -> Block | None:
        attempt = self.attempts.get(address)
        return None if attempt is None else Block(attempt.state, attempt.reason, attempt.message)

    def _failed_before(self, address: str) -> Block | None:
        """A change of a used device that has failed before is not asked for again at the cost of its users."""
        failure = self.failures.get(address)
        if failure is None or failure.reason not in _TOLD_WHILE_USED:
            return None
        text = f"{failure.message}; it is in use again: tried when it is free or ordered anew, or later"
        return Block(failure.state, failure.reason, text)

    def bind_block(self, address: str) -> Block | None:
        """Why the device may not be given to a VFIO driver now."""
        return gravest((*self._change_blocks(address, self.write_block(address)), self._module_block(address)))

    def card_block(self, address: str) -> Block | None:
        """Why virtual functions may not be made for VMs now."""
        return gravest(self._change_blocks(address, self.card_write_block(address)))

    def _change_blocks(self, address: str, write_block: Block | None) -> Iterable[Block | None]:
        return self._change_block(address), self.doubt(address), write_block, self._drift(address)

    def _module_block(self, address: str) -> Block | None:
        """Loading tells it as well, but only once nobody uses the device any more."""
        if address not in self.view.devices:
            return None
        module = self.module(address) if self.want(address) is Want.VFIO else module_of(VFIO_PCI)
        if driver_directory(module, self.view.drivers) is not None or not self.view.aliases.lacks(module):
            return None
        return blocked(Reason.MODULE_MISSING, f"the kernel has no module {module}; install the package that has it")

    def _drift(self, address: str) -> Block | None:
        text = self.drifting.get(address)
        return None if text is None else Block(DeviceState.FAILED, Reason.DRIFT_LOOP, text)

    def _change_block(self, address: str) -> Block | None:
        absent = self.absent(address)
        if absent is not None:
            return absent
        device = self.view.devices[address]
        if device.iommu_group is None and not device.is_bridge:
            text = "it has no IOMMU group: switch the IOMMU on (firmware, and intel_iommu=on for Intel)"
            return blocked(Reason.NO_IOMMU, text)
        fault = self.view.groups.fault(device.iommu_group)
        if fault is not None:
            return blocked(Reason.DEVICE_UNREADABLE, f"its IOMMU group cannot be read: {fault}")
        if not self.journal.writable:
            return blocked(Reason.JOURNAL_UNREADABLE, f"nothing is changed without a journal: {self.journal.problem}")
        return None

    def absent(self, address: str) -> Block | None:
        """Why nothing is known of the device, or None. One that was bound and is gone has failed."""
        obstacle = self.view.absence(address)
        if obstacle is None:
            return None
        if obstacle.reason is Reason.DEVICE_MISSING:
            return self._moved(address, obstacle.reason, obstacle.message)
        return _of(obstacle)

    def _moved(self, address: str, reason: Reason, message: str) -> Block:
        """Failed where the device was written to, which the journal knows; Blocked where it was not."""
        return Block(DeviceState.BLOCKED if self.remembered(address) is None else DeviceState.FAILED, reason, message)

    def new_entry(self, address: str, companion_of: tuple[str, ...] = ()) -> JournalEntry:
        """What to remember of a device before it is bound; what is remembered already stays."""
        known = self.ours(address)
        if known is not None:
            return replace(known, companion_of=companion_of)
        device = self.view.devices[address]
        return JournalEntry(
            former_driver=device.driver or "",
            bound_driver="",
            boot_id=self.view.boot_id,
            identity=device.identity,
            former_override=device.driver_override,
            companion_of=companion_of,
        )

    def report(self, address: str, state: DeviceState, reason: Reason, message: str = "") -> BoundDevice:
        """The report of a device, with the driver that it had before npufleet changed it."""
        fields = {"message": message[:_TEXT]} if message else {}
        known = self.remembered(address)
        if known is not None:
            return BoundDevice(address=address, state=state, reason=reason, former_driver=known.former_driver, **fields)
        return BoundDevice(address=address, state=state, reason=reason, **fields)

    def report_block(self, address: str, block: Block) -> BoundDevice:
        """The report of a device that is not where it should be."""
        return self.report(address, block.state, block.reason, block.message)


def wanted_functions(entry: DesiredDevice | None) -> int | None:
    """How many virtual functions an order wants of its device, None when it wants the device itself."""
    if entry is None or entry.mode is not Mode.PASSTHROUGH or entry.passthrough is None:
        return None
    return entry.passthrough.virtual_functions


def waits_for_users(block: Block | None) -> bool:
    """Whether all that is in the way is somebody who has the device."""
    return block is not None and block.reason in WAITS_FOR_USERS


def gravest(blocks: Iterable[Block | None]) -> Block | None:
    """The first that no user's end would remove, else the first."""
    found = [block for block in blocks if block is not None]
    return next((block for block in found if not waits_for_users(block)), found[0] if found else None)


def blocked(reason: Reason, message: str) -> Block:
    """A block of a device that was not touched."""
    return Block(DeviceState.BLOCKED, reason, message)


def returned_already(device: PCIDevice, entry: JournalEntry) -> bool:
    """Whether nothing that we wrote is left on the device, or somebody else has made something of it since.

    What is on VFIO before npufleet comes is never bound, so no VFIO driver is one to give back to; one that is not the
    entry's is where a move from one to another was cut short.
    """
    override_is_ours = device.driver_override == entry.bound_driver and entry.former_override != entry.bound_driver
    if is_vfio_driver(device.driver):
        return False
    if device.driver is None:
        return not entry.former_driver and not override_is_ours
    return not override_is_ours


def _of(obstacle: Obstacle | None) -> Block | None:
    return None if obstacle is None else blocked(obstacle.reason, obstacle.message)
