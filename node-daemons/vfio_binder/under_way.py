"""Whether a change that cannot be begun, because its group is locked, has been begun already by another binder. Pure.

A binder that ends while a write of it hangs leaves the lock to that write, and what it was about to the journal. Its
successor finds both: the device is not untouched, though nothing that this process did shows that.
"""

from collections.abc import Iterator
from dataclasses import replace

from crds.models.bindings import BindingReason as Reason
from node_host.acting.actions import Outcome, Result
from node_host.acting.journal import JournalEntry, JournalState
from node_host.pci.device import PCIDevice
from node_host.view import HostView
from vfio_binder.situation import Situation


def as_begun(outcome: Outcome, view: HostView, journal: JournalState, *, owner: str) -> Outcome:
    """The outcome as it is told; ``owner`` is the name that locks of binders show."""
    if outcome.reason is not Reason.GROUP_LOCKED:
        return outcome
    known = tuple(_moved_with(outcome.address, view, journal))
    if known and owner in outcome.message:
        text = f"{outcome.message}: a change that was begun has not come back"
        return replace(outcome, result=Result.FAILED, reason=Reason.WRITE_STUCK, message=text)
    if any(_is_half_way(view.devices.get(address), entry) for address, entry in known):
        return replace(outcome, result=Result.FAILED)
    return outcome


def _moved_with(address: str, view: HostView, journal: JournalState) -> Iterator[tuple[str, JournalEntry]]:
    """What the journal knows of the device in this boot, and of those that are bound for it."""
    situation = Situation(view, {}, journal)
    for other in journal.entries:
        entry = situation.remembered(other)
        if entry is not None and (other == address or address in entry.companion_of):
            yield other, entry


def _is_half_way(device: PCIDevice | None, entry: JournalEntry) -> bool:
    if device is None:
        return False
    if entry.functions is not None:
        return device.num_vfs != entry.functions.made
    return {device.driver, device.driver_override} != {entry.bound_driver}
