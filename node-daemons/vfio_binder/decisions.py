"""What is decided of single devices: those that stay with the host, are held, or go back to it. Pure."""

from dataclasses import dataclass

from crds.models.bindings import BindingReason as Reason
from crds.models.modes import Mode, OnRelease
from crds.models.node_state import BoundDevice, DeviceState, Intent
from node_host.acting.actions import Action, Forget, JournalAction, Remember, Return
from node_host.acting.journal import JournalEntry
from node_host.pci.vfio_drivers import is_vfio_driver
from node_host.pci.vfio_nodes import missing_node
from node_host.pci.viability import STUB, obstacles
from vfio_binder.situation import Block, Situation, Want, blocked, returned_already


@dataclass(frozen=True, slots=True)
class Decision:
    """A device's report now, and what is done about it."""

    report: BoundDevice | None = None
    action: Action | None = None
    note: JournalAction | None = None


def decide(situation: Situation, address: str) -> Decision:
    """A device that is not ordered to VFIO: ordered otherwise, or only known from the journal."""
    if situation.is_part(address):
        return _part(situation, address)
    match situation.want(address):
        case Want.NATIVE:
            return _native(situation, address)
        case Want.HOLD:
            return Decision(_held(situation, address))
        case Want.RELEASE:
            return _release(situation, address)
        case _:
            return _unordered(situation, address)


def placed_report(situation: Situation, address: str) -> BoundDevice:
    """A device on the VFIO driver that it should be on, in a group that may go to a VM."""
    device = situation.view.devices[address]
    missing = missing_node(device, situation.passthrough(address).iommu, situation.view.vfio_nodes)
    if missing is not None:
        return situation.report(address, DeviceState.FAILED, Reason.VERIFY_FAILED, missing)
    if situation.ours(address) is not None:
        return situation.report(address, DeviceState.READY, Reason.BOUND)
    doubt = situation.doubt(address)
    text = "it was on this driver before npufleet came, and stays there on release" if doubt is None else doubt.message
    return situation.report(address, DeviceState.READY, Reason.ADOPTED, text)


def _native(situation: Situation, address: str) -> Decision:
    """Modes in which the binder's part is that the device is not on VFIO by us."""
    view = situation.view
    absent = view.absence(address)
    if absent is not None:
        note = forget_gone(situation, address)
        return Decision(situation.report_block(address, blocked(absent.reason, absent.message)), note=note)
    wrong = situation.identity_block(address)
    if wrong is not None:
        return Decision(situation.report_block(address, wrong))
    entry = situation.ours(address)
    if entry is not None and not returned_already(view.devices[address], entry):
        return give_back(situation, address, entry)
    note = None if entry is None else Forget(address, "it is on its own driver again")
    return Decision(_native_report(situation, address), note=note)


def _native_report(situation: Situation, address: str) -> BoundDevice:
    driver = situation.view.devices[address].driver
    if situation.entries[address].mode is Mode.UNMANAGED:
        return situation.report(address, DeviceState.READY, Reason.LEFT_ALONE)
    if driver is None:
        text = "it has no driver: load the vendor's, npufleet binds none that it did not take away"
        return situation.report_block(address, blocked(Reason.NO_DRIVER, text))
    doubt = situation.doubt(address)
    if doubt is not None:
        return situation.report_block(address, doubt)
    if is_vfio_driver(driver) or driver == STUB:
        text = f"it is on {driver}, and not by npufleet: give it to the vendor's driver by hand"
        return situation.report_block(address, blocked(Reason.BOUND_BY_OTHERS, text))
    return situation.report(address, DeviceState.READY, Reason.NATIVE_DRIVER)


def _held(situation: Situation, address: str) -> BoundDevice:
    """No write; Ready when the device happens to be as the order says."""
    view = situation.view
    absent = view.absence(address)
    if absent is not None:
        return situation.report(address, DeviceState.PENDING, Reason.HELD, absent.message)
    wrong = situation.identity_block(address)
    if wrong is not None:
        return situation.report(address, DeviceState.PENDING, Reason.HELD, wrong.message)
    text = f"held as it is, on {view.devices[address].driver or 'no driver'}"
    if situation.entries[address].mode is not Mode.PASSTHROUGH:
        report = _native_report(situation, address)
    elif situation.is_placed(address) and not obstacles(view.members(address), view.devices):
        report = placed_report(situation, address)
        text = f"{text}; {report.message}"
    else:
        return situation.report(address, DeviceState.PENDING, Reason.HELD, text)
    if report.state is DeviceState.READY:
        return report
    return situation.report(address, DeviceState.PENDING, Reason.HELD, text)


def _release(situation: Situation, address: str) -> Decision:
    entry = situation.ours(address)
    released = situation.report(address, DeviceState.RELEASED, Reason.RELEASED)
    if situation.view.is_gone(address):
        return Decision(released, note=forget_gone(situation, address))
    absent = situation.view.absence(address)
    if absent is not None:
        return Decision(situation.report_block(address, blocked(absent.reason, absent.message)))
    if entry is None:
        doubt = situation.doubt(address)
        return Decision(released if doubt is None else situation.report_block(address, doubt))
    needers = situation.needers(address)
    # A companion was not bound for the order that says Leave, so it is not that order's to leave.
    is_needed_companion = bool(entry.companion_of and needers)
    if situation.entries[address].on_release is OnRelease.LEAVE and not is_needed_companion:
        return Decision(released, note=Forget(address, "left as it is on release"))
    if needers:
        note = None if entry.companion_of == needers else Remember(address, situation.new_entry(address, needers))
        text = f"released; stays on {entry.bound_driver} as companion of {', '.join(needers)}"
        return Decision(situation.report(address, DeviceState.RELEASED, Reason.COMPANION, text), note=note)
    return give_back(situation, address, entry)


def _part(situation: Situation, address: str) -> Decision:
    """A virtual function that npufleet made: it goes with its card's number, and is left when the card is."""
    card = situation.entries.get(situation.view.devices[address].physical_function or "")
    if card is None or situation.ours(address) is None:
        return Decision()
    if card.intent is Intent.RELEASE and card.on_release is OnRelease.LEAVE:
        return Decision(note=Forget(address, "left as it is on release"))
    if card.intent is not Intent.HOLD and situation.is_replaced(card.address):
        return Decision(note=Forget(address, "somebody else made it, in place of the one that npufleet bound"))
    return Decision()


def _unordered(situation: Situation, address: str) -> Decision:
    """Known from the journal alone."""
    entry = situation.ours(address)
    if entry is None:
        return Decision(note=_forget_stale(situation, address))
    if situation.view.is_gone(address):
        return Decision(note=Forget(address, "the device is gone"))
    if not entry.companion_of:
        text = f"no order speaks of it; held on {entry.bound_driver} until one does"
        return Decision(situation.report(address, DeviceState.PENDING, Reason.ORPHANED, text))
    needers = situation.needers(address)
    if needers:
        device = situation.view.devices.get(address)
        if device is None or not is_vfio_driver(device.driver):
            text = f"to be on {entry.bound_driver} for {', '.join(needers)}"
            return Decision(situation.report(address, DeviceState.PENDING, Reason.BINDING, text))
        text = f"on {device.driver} for {', '.join(needers)}"
        return Decision(situation.report(address, DeviceState.READY, Reason.COMPANION, text))
    return give_back(situation, address, entry)


def give_back(situation: Situation, address: str, entry: JournalEntry) -> Decision:
    """Back to the driver that it had; the entry alone goes when that is so already."""
    absent = situation.view.absence(address)
    if absent is not None:
        return Decision(situation.report_block(address, blocked(absent.reason, absent.message)))
    device = situation.view.devices[address]
    if returned_already(device, entry):
        is_ordered = situation.want(address) is Want.RELEASE
        report = situation.report(address, DeviceState.RELEASED, Reason.RELEASED) if is_ordered else None
        return Decision(report, note=Forget(address, "it is no longer where npufleet put it"))
    block: Block | None = situation.write_block(address)
    if block is not None:
        return Decision(situation.report_block(address, block))
    text = f"going back to {entry.former_driver or 'no driver'}"
    pending = situation.report(address, DeviceState.PENDING, Reason.RESTORING, text)
    return Decision(pending, action=Return(address, device.driver, entry))


def forget_gone(situation: Situation, address: str) -> Forget | None:
    is_known = address in situation.journal.entries
    return Forget(address, "the device is gone") if is_known and situation.view.is_gone(address) else None


def _forget_stale(situation: Situation, address: str) -> Forget | None:
    """An entry of another boot, or of a device that another one has replaced, says nothing any more.

    On a host that cannot be read nothing is forgotten.
    """
    entry = situation.journal.entries.get(address)
    if entry is None or situation.view.problem is not None:
        return None
    if entry.boot_id != situation.view.boot_id:
        return Forget(address, "the host was booted since: its drivers are the kernel's own choice again")
    return Forget(address, f"another device has come to the address of {entry.identity}")
