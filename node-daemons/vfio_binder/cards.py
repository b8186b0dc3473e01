"""Cards whose plain virtual functions go to VMs: the orders of the functions, and what is decided of the card. Pure.

The order names the card. Each virtual function that is there stands under the same order, as if it were named too; the
card stays on its own driver, and is where it should be when all of them are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from crds.models.bindings import WAITS_FOR_USERS
from crds.models.bindings import BindingReason as Reason
from crds.models.modes import Mode, OnRelease, Passthrough
from crds.models.node_state import BoundDevice, DesiredDevice, DeviceIdentity, DeviceReport, DeviceState, Intent
from node_host.acting.actions import Forget, MakeFunctions, OfferFunctions, Remember, RemoveFunctions
from node_host.acting.journal import FormerFunctions, JournalEntry
from node_host.pci.device import PCIDevice
from node_host.pci.vfio_drivers import is_vfio_driver
from vfio_binder.decisions import Decision, decide, forget_gone, give_back
from vfio_binder.situation import Block, Situation, Want, blocked, wanted_functions

_WORST_FIRST: Final = (DeviceState.FAILED, DeviceState.BLOCKED, DeviceState.PENDING)
_SETTLED: Final = frozenset({DeviceState.READY, DeviceState.RELEASED})


def orders_of_functions(situation: Situation) -> dict[str, DesiredDevice]:
    """The orders under which virtual functions stand that none names, by address."""
    found = {}
    for address, device in situation.view.devices.items():
        card = device.physical_function
        if card is None or address in situation.entries or card not in situation.entries:
            continue
        intent = _intent(situation, situation.entries[card], address)
        if intent is not None:
            found[address] = _order(situation.entries[card], device, intent)
    return found


def _intent(situation: Situation, order: DesiredDevice, function: str) -> Intent | None:
    """None: it is not bound or given back for itself: it comes and goes with the number, or is not ours."""
    wanted = wanted_functions(order)
    card = situation.view.devices.get(order.address)
    is_in_number = card is not None and wanted is not None and card.num_vfs == wanted
    if order.intent is Intent.HOLD or (order.intent is Intent.APPLY and wanted is not None):
        is_known = is_in_number or situation.ours(function) is not None
        if not is_known:
            return None
        if order.intent is Intent.APPLY and situation.is_replaced(order.address):
            return None
        return order.intent if is_in_number else Intent.HOLD
    is_part = situation.card(order.address) is not None
    return Intent.RELEASE if not is_part and situation.ours(function) is not None else None


def _order(card: DesiredDevice, function: PCIDevice, intent: Intent) -> DesiredDevice:
    settings = (card.passthrough or Passthrough()).model_copy(update={"virtual_functions": None})
    identity = DeviceIdentity(vendor=function.vendor, device=function.device)
    update = {"address": function.address, "identity": identity, "intent": intent, "passthrough": settings}
    return card.model_copy(update={**update, "mode": Mode.PASSTHROUGH})


def is_card(situation: Situation, address: str) -> bool:
    """Whether a device is decided here: it has functions of ours, or is ordered for its functions."""
    return situation.card(address) is not None or wanted_functions(situation.entries.get(address)) is not None


def decide_card(situation: Situation, address: str, parts: Mapping[str, Decision]) -> Decision:
    """``parts`` are the decisions on its virtual functions, by address."""
    record = situation.card(address)
    match situation.want(address):
        case Want.FUNCTIONS:
            wanted = wanted_functions(situation.entries[address])
            if wanted is not None:
                decision = _numbered(situation, address, wanted, parts)
            else:
                decision = _removal(situation, address, record) if record else Decision()
            if decision.report is None:
                text = "it is as it was before npufleet; goes on when that is noted"
                return replace(decision, report=situation.report(address, DeviceState.PENDING, Reason.RESTORING, text))
            return decision
        case Want.RELEASE:
            return _release(situation, address, record)
        case Want.HOLD:
            return Decision(_held(situation, address, parts))
        case _:
            return _orphan(situation, address)


def with_parts(report: BoundDevice, parts: Iterable[DeviceReport]) -> BoundDevice:
    """A card's report with those of its virtual functions; it is not further than the one that is least far.

    Of several that are equally far it tells the one that no user's end would help.
    """
    reports = tuple(sorted(parts, key=lambda part: part.address))
    fields = {"address", "state", "reason", "message"}
    shown = tuple(DeviceReport.model_validate(part.model_dump(include=fields, exclude_unset=True)) for part in reports)
    for state in _WORST_FIRST:
        alike = (part for part in shown if part.state is state)
        worst = min(alike, key=lambda part: part.reason in WAITS_FOR_USERS, default=None)
        is_graver = worst is not None and worst.reason not in WAITS_FOR_USERS and report.reason in WAITS_FOR_USERS
        if report.state is state and not is_graver:
            break
        if worst is not None:
            text = f"virtual function {worst.address}: {worst.message or worst.reason}"[:1024]
            report = report.model_copy(update={"state": state, "reason": worst.reason, "message": text})
            break
    return report.model_copy(update={"virtual_functions": shown})


def _numbered(situation: Situation, address: str, wanted: int, parts: Mapping[str, Decision]) -> Decision:
    block = _order_block(situation, address, wanted)
    if block is not None:
        return Decision(situation.report_block(address, block))
    entry = situation.ours(address)
    if entry is not None:
        return give_back(situation, address, entry)
    device = situation.view.devices[address]
    record = situation.card(address)
    if device.driver is None:
        return _blocked(situation, address, Reason.NO_DRIVER, "it has no driver that could make virtual functions")
    if is_vfio_driver(device.driver):
        text = f"it is on {device.driver}, and not by npufleet: give it to the vendor's driver by hand"
        return _blocked(situation, address, Reason.BOUND_BY_OTHERS, text)
    is_replaced = record is not None and situation.is_replaced(address)
    if device.num_vfs != wanted and device.num_vfs and (record is None or is_replaced):
        text = (
            f"it has {device.num_vfs} virtual functions that npufleet did not make, the order wants {wanted}: remove "
            "them, or order as many"
        )
        note = _given_up(situation, address, record).note if record is not None else None
        return replace(_blocked(situation, address, Reason.FUNCTIONS_OF_OTHERS, text), note=note)
    if record is not None and is_replaced:
        return _given_up(situation, address, record)
    if device.num_vfs == wanted:
        return _in_place(situation, address, record, parts)
    return _change(situation, address, wanted, device, record)


def _order_block(situation: Situation, address: str, wanted: int) -> Block | None:
    """Why the order cannot be met whatever is written."""
    absent = situation.absent(address)
    if absent is not None:
        return absent
    wrong = situation.identity_block(address)
    if wrong is not None:
        return wrong
    device = situation.view.devices[address]
    unreadable = _unreadable(device, "sriov_totalvfs", "sriov_numvfs", "sriov_drivers_autoprobe")
    if unreadable is not None:
        return unreadable
    if not device.total_vfs or device.num_vfs is None:
        return blocked(Reason.NO_SRIOV, "it has no SR-IOV: leave passthrough.virtualFunctions out")
    if wanted > device.total_vfs:
        text = f"{wanted} virtual functions are ordered, it can have {device.total_vfs} (sriov_totalvfs)"
        return blocked(Reason.TOO_MANY_FUNCTIONS, text)
    return None


def _unreadable(device: PCIDevice, *names: str) -> Block | None:
    for name in names:
        if name in device.faults:
            return blocked(Reason.DEVICE_UNREADABLE, f"{name} cannot be read: {device.faults[name]}")
    return None


def _change(
    situation: Situation, address: str, wanted: int, device: PCIDevice, record: JournalEntry | None
) -> Decision:
    block = _kept_by_orders(situation, device, frozenset({Want.NOTHING})) or situation.card_block(address)
    if block is not None:
        return Decision(situation.report_block(address, block))
    entry = record or JournalEntry(
        former_driver=device.driver or "",
        bound_driver=device.driver or "",
        boot_id=situation.view.boot_id,
        identity=device.identity,
        former_override=device.driver_override,
        functions=FormerFunctions(0, device.autoprobe),
    )
    text = f"going from {device.num_vfs} to {wanted} virtual functions"
    report = situation.report(address, DeviceState.PENDING, Reason.BINDING, text)
    number = device.num_vfs or 0
    return Decision(report, action=MakeFunctions(address, wanted, number, entry, device.virtual_functions))


def _in_place(
    situation: Situation, address: str, record: JournalEntry | None, parts: Mapping[str, Decision]
) -> Decision:
    """The number is right: the functions decide, and afterwards new ones are offered to drivers as before."""
    view, device = situation.view, situation.view.devices[address]
    unknown = [function for function in device.virtual_functions if function not in view.devices]
    if unknown or len(device.virtual_functions) != device.num_vfs:
        found = len(device.virtual_functions) - len(unknown)
        text = f"of its {device.num_vfs} virtual functions {found} can be read"
        return _blocked(situation, address, Reason.DEVICE_UNREADABLE, text)
    otherwise = _ordered_otherwise(situation, device.virtual_functions)
    if otherwise is not None:
        return Decision(situation.report_block(address, otherwise))
    text = f"{device.num_vfs} virtual functions"
    if record is None:
        text += ", which were there before npufleet came and stay on release"
    report = situation.report(address, DeviceState.READY, Reason.FUNCTIONS_BOUND, text)
    if record is None or record.functions is None:
        return Decision(report)
    if record.functions.made != device.num_vfs:
        return Decision(report, note=Remember(address, _made(record, device.num_vfs or 0)))
    former = record.functions.former_autoprobe
    is_settled = all(part.action is None for part in parts.values())
    if is_settled and former is not None and device.autoprobe != former:
        block = situation.retry_block(address)
        if block is not None:
            return Decision(situation.report_block(address, block))
        text = "its virtual functions are bound; sriov_drivers_autoprobe is set back"
        pending = situation.report(address, DeviceState.PENDING, Reason.BINDING, text)
        return Decision(pending, action=OfferFunctions(address, device.num_vfs or 0, record))
    return Decision(report)


def _given_up(situation: Situation, address: str, record: JournalEntry) -> Decision:
    """Functions that somebody has replaced: the switch as it was, then their entries go, and the card's own last.

    Without the card's, a death in between would leave functions of others that look like ones that npufleet bound.
    """
    device = situation.view.devices[address]
    text = f"somebody else made its {device.num_vfs} virtual functions, in place of those that npufleet made"
    pending = situation.report(address, DeviceState.PENDING, Reason.RESTORING, text)
    former = None if record.functions is None else record.functions.former_autoprobe
    if former is not None and device.autoprobe != former:
        block = situation.retry_block(address)
        if block is not None:
            return Decision(situation.report_block(address, block))
        return Decision(pending, action=OfferFunctions(address, device.num_vfs or 0, record))
    is_known = any(situation.is_part(one) and situation.ours(one) is not None for one in device.virtual_functions)
    return Decision(pending) if is_known else Decision(note=Forget(address, text))


def _kept_by_orders(situation: Situation, device: PCIDevice, goes: frozenset[Want]) -> Block | None:
    """A virtual function that is not to go with the number, because an order of its own does not want it to."""
    own = (function for function in device.virtual_functions if function not in situation.implied)
    return _ordered_otherwise(situation, own, goes)


def _ordered_otherwise(
    situation: Situation, functions: Iterable[str], fits: frozenset[Want] = frozenset({Want.VFIO, Want.NOTHING})
) -> Block | None:
    """A virtual function that an order of its own wants elsewhere."""
    for function in functions:
        if situation.want(function) not in fits:
            entry = situation.entries[function]
            by = f"by policy {entry.decided_by.policy}, rule {entry.decided_by.rule}"
            text = f"its virtual function {function} is ordered {entry.mode}, intent {entry.intent}, {by}"
            return blocked(Reason.COMPANION_MANAGED, text)
    return None


def _made(record: JournalEntry, number: int) -> JournalEntry:
    return replace(record, functions=replace(record.functions or FormerFunctions(0, None), made=number))


def _release(situation: Situation, address: str, record: JournalEntry | None) -> Decision:
    released = situation.report(address, DeviceState.RELEASED, Reason.RELEASED)
    if situation.view.is_gone(address):
        return Decision(released, note=forget_gone(situation, address))
    entry = situation.ours(address)
    if entry is not None:  # a device that was bound itself, when its functions were not ordered yet
        return decide(situation, address)
    if record is None:
        doubt = situation.doubt(address)
        return Decision(released if doubt is None else situation.report_block(address, doubt))
    if situation.entries[address].on_release is OnRelease.LEAVE:
        return Decision(released, note=Forget(address, "left as it is on release"))
    decision = _removal(situation, address, record)
    return decision if decision.report is not None else Decision(released, note=decision.note)


def _removal(situation: Situation, address: str, record: JournalEntry) -> Decision:
    """The functions that npufleet made go; no report when there is nothing to do on the host."""
    absent = situation.absent(address)
    if absent is not None:
        return Decision(situation.report_block(address, absent), note=forget_gone(situation, address))
    device, former = situation.view.devices[address], record.functions or FormerFunctions(0, None)
    unreadable = _unreadable(device, "sriov_numvfs", "sriov_drivers_autoprobe")
    if unreadable is not None:
        return Decision(situation.report_block(address, unreadable))
    number = device.num_vfs
    if number is None:
        return Decision(note=Forget(address, "it can have no virtual functions any more"))
    if situation.is_replaced(address):
        return _given_up(situation, address, record)
    is_as_before = former.former_autoprobe is None or device.autoprobe == former.former_autoprobe
    if number == former.former_number and is_as_before:
        return Decision(note=Forget(address, "its virtual functions are gone"))
    goes = frozenset({Want.NOTHING, Want.RELEASE})
    block = _kept_by_orders(situation, device, goes) or situation.card_write_block(address)
    if block is not None:
        return Decision(situation.report_block(address, block))
    text = f"going from {number} to {former.former_number} virtual functions"
    pending = situation.report(address, DeviceState.PENDING, Reason.RESTORING, text)
    return Decision(pending, action=RemoveFunctions(address, number, record, device.virtual_functions))


def _held(situation: Situation, address: str, parts: Mapping[str, Decision]) -> BoundDevice:
    absent = situation.view.absence(address)
    wrong = None if absent is not None else situation.identity_block(address)
    if absent is not None or wrong is not None:
        text = absent.message if absent is not None else wrong.message if wrong is not None else ""
        return situation.report(address, DeviceState.PENDING, Reason.HELD, text)
    device = situation.view.devices[address]
    is_in_number = wanted_functions(situation.entries[address]) == device.num_vfs == len(parts)
    if is_in_number and all(part.report is not None and part.report.state in _SETTLED for part in parts.values()):
        text = f"{device.num_vfs} virtual functions"
        return situation.report(address, DeviceState.READY, Reason.FUNCTIONS_BOUND, text)
    text = f"held as it is, with {device.num_vfs} virtual functions"
    return situation.report(address, DeviceState.PENDING, Reason.HELD, text)


def _orphan(situation: Situation, address: str) -> Decision:
    """Known from the journal alone."""
    if situation.view.is_gone(address):
        return Decision(note=Forget(address, "the device is gone"))
    device = situation.view.devices.get(address)
    number = device.num_vfs if device else "its"
    text = f"no order speaks of it; {number} virtual functions that npufleet made are held until one does"
    return Decision(situation.report(address, DeviceState.PENDING, Reason.ORPHANED, text))


def _blocked(situation: Situation, address: str, reason: Reason, text: str) -> Decision:
    return Decision(situation.report_block(address, blocked(reason, text)))
