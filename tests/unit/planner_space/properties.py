"""What must hold for every plan, and for every host for which nothing more is planned.

The rules are those of the API's documentation, said here without the planner's words, so that both must agree.
"""

from __future__ import annotations

from typing import Final

from crds.models.bindings import BindingReason as Reason
from crds.models.node_state import BoundDevice, DeviceState
from node_host.acting.actions import Action, Bind, Forget, JournalAction, Remember, Return
from node_host.pci.vfio_drivers import is_vfio_driver
from tests.unit.planner_space.states import (
    ADDRESSES,
    GONE,
    HOLD,
    INDEX,
    OPENED,
    PASSTHROUGH,
    PUBLISHED,
    RELEASE,
    STAYS_NATIVE,
    STRANGE,
    STUB,
    UNREADABLE,
    USED,
    VARIANT,
    VFIO,
    Device,
    Host,
    plan_of,
)
from vfio_binder.plan import Plan

_USERS: Final = frozenset({Reason.IN_USE, Reason.COMPANION_IN_USE, Reason.PUBLISHED})
_LET_GO: Final = frozenset({USED, OPENED, PUBLISHED})
_NOT_WELL: Final = frozenset({DeviceState.PENDING, DeviceState.BLOCKED, DeviceState.FAILED})


class ViolationError(AssertionError):
    """A property does not hold for a host."""


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise ViolationError(what)


# --- Every plan.


def check_plan(host: Host, plan: Plan) -> None:
    """What is planned may be done, and each ordered device has its one report."""
    _check_reports(host, plan)
    _check_users(host, plan)
    touched = [action.address for action in plan.actions] + [note.address for note in plan.notes]
    _must(len(touched) == len(set(touched)), "more than one thing is done about a device")
    keys = [group.key for group in plan.groups]
    _must(len(keys) == len(set(keys)), "a group is planned in two parts")
    for group in plan.groups:
        members = {ADDRESSES[i] for action in group.actions for i in host.members(INDEX[action.address])}
        _must(set(group.members) == members, "actions of another group")
        _must(bool(group.locks) and bool(group.actions), "a group without locks or without actions")
    for action in plan.actions:
        _check_action(host, action)
    for note in plan.notes:
        _check_note(host, note)


def _check_reports(host: Host, plan: Plan) -> None:
    said = [report.address for report in plan.reports]
    moved = {action.address for action in plan.actions}
    _must(said == sorted(set(said)), "reports are not one for each address, in order")
    for index, device in enumerate(host.devices):
        known = device.order is not None or device.is_ours or ADDRESSES[index] in moved
        _must(device.order is None or ADDRESSES[index] in said, "an ordered device has no report")
        _must(known or ADDRESSES[index] not in said, "a device that is neither ordered nor ours has a report")
    for report in plan.reports:
        _must(report.state not in _NOT_WELL or bool(report.message), "a device is not well, and no message says why")
        entry = host.devices[INDEX[report.address]].entry if host.devices[INDEX[report.address]].is_ours else None
        former = None if entry is None else entry.former_driver
        _must(report.former_driver == former, "a report names another former driver than the journal")


def _check_users(host: Host, plan: Plan) -> None:
    """Users are asked to go only where that helps."""
    waiting = {report.address for report in plan.reports if report.reason in _USERS}
    if not waiting:
        return
    devices = tuple(device._replace(flag=None) if device.flag in _LET_GO else device for device in host.devices)
    left = plan_of(host._replace(devices=devices))
    for report in left.reports:
        if report.address in waiting:
            _must(
                report.state not in (DeviceState.BLOCKED, DeviceState.FAILED),
                f"waits for users, and without them for {report.reason}",
            )


def _check_action(host: Host, action: Action) -> None:
    assert isinstance(action, Bind | Return)
    index = INDEX[action.address]
    device = host.devices[index]
    _must(host.is_free(index), "an action on a device that is used, needed, offered, a bridge, or not there")
    _must(device.order not in HOLD, "an action on a device that is held")
    _must(action.seen_driver == device.driver, "an action for another driver than the device is on")
    _must(all(address != action.address for address, _ in host.attempts), "an action on a device that has to wait")
    _must(not host.stuck or f"group-{host.groups[index]}" not in host.stuck, "an action under a lock that is stuck")
    if isinstance(action, Bind):
        _check_bind(host, index, action)
    else:
        _check_return(host, index, action)


def _check_bind(host: Host, index: int, action: Bind) -> None:
    device = host.devices[index]
    _must(host.groups[index] is not None, "a bind without an IOMMU group")
    _must(device.order not in STRANGE, "a bind of another device than ordered")
    if is_vfio_driver(device.driver):
        _must(device.is_ours and device.order in PASSTHROUGH, "a device that was on VFIO before us is taken from it")
        _must(action.module != (device.driver or "").replace("-", "_"), "a bind of a device that is in its place")
    if device.is_ours and device.entry is not None:
        kept = (device.entry.former_driver, device.entry.former_override)
    else:
        kept = (device.driver or "", device.override)
    _must(kept == (action.entry.former_driver, action.entry.former_override), "what the device had before us is lost")
    others = {ADDRESSES[i] for i in host.members(index) if i != index}
    if device.order in PASSTHROUGH:
        _must(not action.entry.companion_of, "an ordered device is bound as a companion")
        return
    _must(device.order is None or device.order in RELEASE, "a companion is bound that is ordered otherwise")
    wanters = {
        i for i in host.members(index) if i != index and host.devices[i].order == "bind" and host.devices[i].is_there
    }
    _must(bool(wanters), "a companion is bound although no order of its group takes companions along")
    _must(bool(action.entry.companion_of), "a companion is bound and its entry does not say for whom")
    _must(set(action.entry.companion_of) <= others, "a companion of devices of another group")


def _check_return(host: Host, index: int, action: Return) -> None:
    device = host.devices[index]
    _must(device.is_ours, "a return of a device that is not ours")
    _must(action.entry == device.entry, "a return to something else than the journal says")
    _must(device.order not in PASSTHROUGH and device.order != "leave", "a return that the orders do not want")
    _must(device.order not in STRANGE, "a return of another device than ordered")
    if device.order is None:
        _must(bool(action.entry.companion_of), "a return that nobody ordered")
    if device.order is None or device.order in RELEASE:
        _must(not needers(host, index), "a companion is taken away from those that need it")


def _check_note(host: Host, note: JournalAction) -> None:
    index = INDEX[note.address]
    device = host.devices[index]
    entry = device.entry
    _must(entry is not None, "a note about a device that the journal does not know")
    assert entry is not None
    if isinstance(note, Remember):
        former = (entry.former_driver, entry.former_override, entry.bound_driver, entry.boot_id)
        kept = (note.entry.former_driver, note.entry.former_override, note.entry.bound_driver, note.entry.boot_id)
        _must(former == kept and device.is_ours, "a note changes what the device had before us")
        _must(note.entry != entry, "a note that changes nothing")
        return
    assert isinstance(note, Forget)
    _must(device.flag != UNREADABLE or not device.is_ours, "a device that cannot be read now is forgotten")
    on_ours = device.is_there and is_vfio_driver(device.driver)
    left = device.order == "leave" and not (entry.companion_of and needers(host, index))
    _must(not device.is_ours or left or not on_ours, "a device on the driver that we gave it is forgotten")
    if device.is_ours and device.is_there and device.order != "leave" and device.override == entry.bound_driver:
        _must(on_ours or entry.former_override == entry.bound_driver, "an override of ours is left behind")


# --- Hosts for which nothing more is planned.


def needers(host: Host, index: int) -> list[str]:
    """Addresses that a companion stays for: ordered, held, or left without orders, to go to a VM."""
    entry = host.devices[index].entry
    around = {ADDRESSES[i] for i in host.members(index)} | set(entry.companion_of if entry and entry.boot_id else ())
    found = []
    for address in sorted(around - {ADDRESSES[index]}):
        if INDEX[address] >= len(host.devices):
            continue
        other = host.devices[INDEX[address]]
        orphan = other.order is None and other.is_ours and other.entry is not None and not other.entry.companion_of
        if orphan or other.order in PASSTHROUGH | {"hold", "stranger", "no-vfio"}:
            found.append(address)
    return found


def is_placed(device: Device) -> bool:
    """Whether it is on a VFIO driver that its order accepts."""
    wanted = {"named": (VFIO,), "variant": (VARIANT,)}.get(device.order or "", (VFIO, VARIANT))
    return device.is_there and device.driver in wanted


def is_in_the_way(host: Host, index: int) -> bool:
    """Whether this member keeps its group from a VM, now and whatever may be done."""
    device = host.devices[index]
    if device.leaves_group_to_user:
        return False
    if any(goes_back(host, i) for i in host.members(index)):
        return True
    if device.order in PASSTHROUGH:
        return not host.is_free(index)
    follows = device.order is None or device.order in RELEASE
    binders = [i for i in host.members(index) if host.devices[i].order == "bind" and host.devices[i].is_there]
    return not (follows and binders and host.is_free(index))


def can_be_given(host: Host, index: int) -> bool:
    """Whether a device that is ordered to a VM can get there, by the rules alone."""
    device = host.devices[index]
    if not device.is_there or device.bridge or host.groups[index] is None or device.order not in PASSTHROUGH:
        return False
    if is_vfio_driver(device.driver) and not is_placed(device) and not device.is_ours:
        return False
    members = host.members(index)
    if any(is_in_the_way(host, i) for i in members):
        return False
    return is_placed(device) or (host.is_free(index) and not any(goes_back(host, i) for i in members))


def goes_back(host: Host, index: int) -> bool:
    """Whether it waits to go back to a driver of the host: nothing is bound beside it meanwhile."""
    device = host.devices[index]
    if device.entry is None or not device.is_ours or not device.is_there:
        return False
    return device.order in STAYS_NATIVE and device.entry.former_driver not in ("", STUB)


def check_quiescent(host: Host, plan: Plan) -> None:
    """Nothing is planned: each ordered device is as ordered, or says why it cannot be."""
    _must(plan.is_empty, "something is planned still")
    waits = bool(host.attempts or host.stuck)
    reports = {report.address: report for report in plan.reports}
    for index, device in enumerate(host.devices):
        report = reports.get(ADDRESSES[index])
        if device.order is None:
            _check_unordered(host, index, report, waits=waits)
            continue
        assert report is not None
        if device.order in PASSTHROUGH:
            _check_given(host, index, report, waits=waits)
        elif device.order in STRANGE:
            _must(report.state in _NOT_WELL, "orders for another device are not refused")
        elif device.order in STAYS_NATIVE:
            _check_native(host, index, report, waits=waits)
        elif device.order in RELEASE:
            _check_released(host, index, report, waits=waits)
        else:
            _check_held(host, index, report)
    _check_groups(host, reports)


def _check_given(host: Host, index: int, report: BoundDevice, *, waits: bool) -> None:
    device = host.devices[index]
    if report.state is DeviceState.READY:
        _must(is_placed(device), "Ready, and on no VFIO driver that is wanted")
        whole = all(host.devices[i].leaves_group_to_user for i in host.members(index))
        _must(whole, "Ready, and the kernel would not give the group to a VM")
        if device.is_ours and device.entry is not None:
            _must(not device.entry.companion_of, "ordered for its own sake, and remembered as a companion")
            _must(report.reason == Reason.BOUND, "ours, and not reported so")
        else:
            _must(report.reason == Reason.ADOPTED, "not ours, and reported so")
    else:
        _must(report.state in _NOT_WELL, "ordered to a VM, and neither Ready nor blocked")
        _must(waits or not can_be_given(host, index), "nothing keeps the device from its place, and it is not there")
    if not waits:
        _must((report.state is DeviceState.READY) == can_be_given(host, index), "Ready against the rules")


def _check_native(host: Host, index: int, report: BoundDevice, *, waits: bool) -> None:
    device = host.devices[index]
    if not device.is_there:
        _must(report.state in _NOT_WELL, "a device that is not there is well")
        return
    if device.is_ours:
        _must(waits or not host.is_free(index), "ours still, and nothing keeps it from its own driver")
        _must(report.state in _NOT_WELL, "ours still, and no reason is said")
        return
    if device.order == "unmanaged":
        _must(report.state is DeviceState.READY, "left alone, and not Ready")
        return
    works = device.driver not in (None, STUB) and not is_vfio_driver(device.driver)
    _must((report.state is DeviceState.READY) == works, "Ready on no driver of its own, or not Ready on one")


def _check_released(host: Host, index: int, report: BoundDevice, *, waits: bool) -> None:
    device = host.devices[index]
    if report.state is not DeviceState.RELEASED:
        _must(report.state in _NOT_WELL, "neither released nor blocked")
        _must(waits or not host.is_free(index), "nothing keeps the device from being released")
        return
    if device.is_ours and device.entry is not None:
        _must(bool(device.entry.companion_of), "released, and ours for its own sake")
        _must(bool(needers(host, index)), "released, and ours as a companion of nobody")


def _check_held(host: Host, index: int, report: BoundDevice) -> None:
    device = host.devices[index]
    if report.state is not DeviceState.READY:
        _must(report.state is DeviceState.PENDING, "held, and neither Ready nor Pending")
        return
    _must(device.is_there, "held and Ready, and not there")
    if device.order == "hold":
        whole = all(host.devices[i].leaves_group_to_user for i in host.members(index))
        _must(is_placed(device) and whole, "held for a VM, Ready, and not in a place for one")
    else:
        _must(device.driver is not None and not is_vfio_driver(device.driver), "held and Ready on no native driver")


def _check_unordered(host: Host, index: int, report: BoundDevice | None, *, waits: bool) -> None:
    device = host.devices[index]
    if device.entry is None:
        return
    _must(device.is_ours, "an entry of another boot is kept")
    _must(device.flag != GONE, "a device that is gone is remembered")
    _must(report is not None, "a device that is ours has no report")
    assert report is not None
    if not device.entry.companion_of:
        _must(report.reason == Reason.ORPHANED, "ours, in no order, and not said so")
    elif needers(host, index):
        right = device.is_there and is_vfio_driver(device.driver)
        _must((report.state is DeviceState.READY) == right, "a companion does not say where it is")
    else:
        _must(waits or not host.is_free(index), "a companion of nobody is not given back")
        _must(report.state in _NOT_WELL, "a companion of nobody says no reason")


def _check_groups(host: Host, reports: dict[str, BoundDevice]) -> None:
    """A group of which we have a part on VFIO and that no VM could get has a member that says why."""
    for index, device in enumerate(host.devices):
        if not (device.is_ours and is_vfio_driver(device.driver)):
            continue
        members = host.members(index)
        if all(host.devices[i].leaves_group_to_user for i in members):
            continue
        concerned = {*(ADDRESSES[i] for i in members), *needers(host, index)}
        said = [reports[address] for address in concerned if address in reports]
        _must(any(report.state in _NOT_WELL for report in said), "a group is left mixed, and nobody says why")
