"""What a plan orders, and what became of it: planners make actions, the executor turns them into outcomes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from crds.models.bindings import BindingReason as Reason
from crds.models.modes import IOMMUBackend
from crds.models.node_state import DeviceState
from node_host.acting.journal import JournalEntry


@dataclass(frozen=True, slots=True)
class Bind:
    """Give a device to a VFIO driver. ``seen_driver`` and ``entry.identity`` are what the plan was made for."""

    address: str
    module: str
    seen_driver: str | None
    entry: JournalEntry
    backend: IOMMUBackend = IOMMUBackend.AUTO


@dataclass(frozen=True, slots=True)
class Return:
    """Give a device back to the driver that it had."""

    address: str
    seen_driver: str | None
    entry: JournalEntry


@dataclass(frozen=True, slots=True)
class MakeFunctions:
    """Give a card ``number`` virtual functions.

    ``seen_number`` and ``entry.identity`` are what the plan was made for, ``functions`` those that there were then.
    """

    address: str
    number: int
    seen_number: int
    entry: JournalEntry
    functions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveFunctions:
    """Take from a card the virtual functions that npufleet made, ``functions`` being those that there are."""

    address: str
    seen_number: int
    entry: JournalEntry
    functions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OfferFunctions:
    """Have virtual functions that somebody makes offered to drivers again, or not, as it was before npufleet came."""

    address: str
    seen_number: int
    entry: JournalEntry
    functions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop a journal entry; the device itself is as it should be."""

    address: str
    why: str


@dataclass(frozen=True, slots=True)
class Remember:
    """Change a journal entry; the device itself is as it should be."""

    address: str
    entry: JournalEntry


CardAction: TypeAlias = MakeFunctions | RemoveFunctions | OfferFunctions
Action: TypeAlias = Bind | Return | CardAction
JournalAction: TypeAlias = Forget | Remember


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Actions on the devices of one IOMMU group, or on one card, in order, under its locks.

    Binds stand or fall together, because the group goes to a VM as a whole; all others do not depend on each other.
    ``entries`` are the devices that pods may have, each with the digests of the orders that it may be handed over for;
    ``shapes`` those that they could ever have, each with the digests of the shapes that it may get.
    """

    key: str
    locks: tuple[str, ...]
    members: tuple[str, ...]
    actions: tuple[Action, ...]
    entries: tuple[tuple[str, frozenset[str]], ...] = ()
    shapes: tuple[tuple[str, frozenset[str]], ...] = ()

    def entries_of(self, address: str) -> frozenset[str]:
        """The digests of the orders that a token of the device may be for."""
        return dict(self.entries).get(address, frozenset())

    def shapes_of(self, address: str) -> frozenset[str]:
        """The digests of the shapes that the device may get; none when it is given back."""
        return dict(self.shapes).get(address, frozenset())


class Result(StrEnum):
    """Whether an action was done."""

    DONE = "Done"
    BLOCKED = "Blocked"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one device. Blocked: nothing was written to it, so it is as it was; else it is Failed."""

    address: str
    result: Result
    reason: Reason
    message: str = ""

    @property
    def is_done(self) -> bool:
        """Whether it is as it was to be."""
        return self.result is Result.DONE

    @property
    def state(self) -> DeviceState:
        """How it shows in a report."""
        return {
            Result.DONE: DeviceState.READY,
            Result.BLOCKED: DeviceState.BLOCKED,
            Result.FAILED: DeviceState.FAILED,
        }[self.result]


def describe(action: Action | JournalAction) -> str:
    """One line for people."""
    match action:
        case Bind(address, module, seen, entry):
            what = f"bind {address} to the driver of module {module} (now on {seen or 'no driver'})"
            return what + (f", for {', '.join(entry.companion_of)}" if entry.companion_of else "")
        case Return(address, seen, entry):
            return f"give {address} back to {entry.former_driver or 'no driver'} (now on {seen or 'no driver'})"
        case MakeFunctions(address, number, seen):
            return f"make {number} virtual functions of {address} (now {seen})"
        case RemoveFunctions(address, seen, entry):
            before = entry.functions.former_number if entry.functions else 0
            return f"remove the virtual functions of {address} (now {seen}, before npufleet {before})"
        case OfferFunctions(address):
            return f"set sriov_drivers_autoprobe of {address} back"
        case Forget(address, why):
            return f"forget {address}: {why}"
        case Remember(address, entry) if entry.functions is not None:
            return f"remember that {address} has its {entry.functions.made} virtual functions"
        case Remember(address, entry):
            return f"remember {address} as {', '.join(entry.companion_of) or 'nobody'}'s companion"
