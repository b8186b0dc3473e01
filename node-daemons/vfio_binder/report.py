"""The binder's two subtrees of NPUNodeState.status: what the host has, and how far the orders are met. Pure.

Nothing in them moves by itself, so an unchanged host gives an equal status and no write.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from crds.catalogue import Catalogue
from crds.models.conditions import Condition, condition, merge_conditions
from crds.models.device_match import Function
from crds.models.node_state import (
    MAX_DEVICES,
    Bindings,
    BoundDevice,
    DeviceState,
    Inventory,
    InventoryDevice,
)
from node_host.acting.journal import JournalState
from node_host.evidence.usage import unreadable_use
from node_host.pci.device import PCIDevice
from node_host.pci.viability import group_viability
from node_host.selection import is_accelerator, product_of
from node_host.view import HostView
from vfio_binder.plan import Plan

_SHOWN: Final = 8


class ConditionType(StrEnum):
    """Conditions of the binder's subtrees."""

    READY = "Ready"
    DEVICES_READABLE = "DevicesReadable"
    JOURNAL_INTACT = "JournalIntact"


class ConditionReason(StrEnum):
    """Stable reasons in them."""

    INVENTORY_READ = "InventoryRead"
    BUS_UNREADABLE = "BusUnreadable"
    TOO_MANY_DEVICES = "TooManyDevices"
    ALL_READABLE = "AllReadable"
    DEVICES_UNREADABLE = "DevicesUnreadable"
    ALL_DEVICES_BOUND = "AllDevicesBound"
    NOTHING_ORDERED = "NothingOrdered"
    DEVICES_FAILED = "DevicesFailed"
    DEVICES_BLOCKED = "DevicesBlocked"
    DEVICES_PENDING = "DevicesPending"
    ORDERS_HELD = "OrdersHeld"
    JOURNAL_READ = "JournalRead"
    JOURNAL_UNREADABLE = "JournalUnreadable"


def inventory(
    view: HostView,
    catalogue: Catalogue,
    *,
    named: Iterable[str],
    generation: int,
    now: str,
    former: Inventory | None,
) -> Inventory:
    """The accelerators, and devices that orders name. A device that cannot be read now keeps its last record."""
    before = former if former is not None and former.boot_id == view.boot_id else None
    known = {device.address: device for device in before.devices} if before else {}
    if view.problem is not None:
        devices = list(known.values())
    else:
        judge, wanted = is_accelerator(catalogue), set(named)
        devices = [
            _device(view, catalogue, device, known.get(address))
            for address, device in view.devices.items()
            if address in wanted or judge(device)
        ]
        for address, why in view.unreadable.items():
            if address in known:
                unreadable = (unreadable_use(f"the device cannot be read: {why}"),)
                devices.append(known[address].model_copy(update={"used_by": unreadable}))
    # Where not all can be listed, virtual functions hide no card.
    devices.sort(key=lambda device: (device.function is Function.VIRTUAL, device.address))
    count = len(devices)
    devices = sorted(devices[:MAX_DEVICES], key=lambda device: device.address)
    conditions = (_inventory_ready(view, count, generation, now), _readable(view, generation, now))
    return Inventory(
        observed_generation=generation,
        boot_id=view.boot_id,
        devices=tuple(devices),
        conditions=merge_conditions(former.conditions if former else (), conditions),
    )


def bindings(
    plan: Plan, view: HostView, journal: JournalState, *, generation: int, now: str, former: Bindings | None
) -> Bindings:
    """How far the orders are met."""
    conditions = (_bindings_ready(plan, generation, now), _journal_intact(journal, generation, now))
    return Bindings(
        observed_generation=generation,
        boot_id=view.boot_id,
        devices=plan.reports,
        conditions=merge_conditions(former.conditions if former else (), conditions),
    )


def _device(view: HostView, catalogue: Catalogue, device: PCIDevice, before: InventoryDevice | None) -> InventoryDevice:
    product = product_of(catalogue, device)
    is_same = before is not None and (before.vendor, before.device) == (device.vendor, device.device)
    # A serial number that cannot be read now would else change orders that name it.
    serial = before.serial if before is not None and is_same and device.serial_unknown else device.serial
    facts = {
        "subsystem": device.subsystem,
        "product": product.name if product else None,
        "serial": serial,
        "driver": device.driver,
        "iommu_group": device.iommu_group,
        "numa_node": device.numa_node,
        "pcie_root": device.pcie_root,
        "physical_function": device.physical_function,
    }
    users = view.users.get(device.address, ())
    if view.published.unreadable is not None:
        users = (unreadable_use(str(view.published.doubt)), *users)
    return InventoryDevice.model_validate(
        {
            "address": device.address,
            "vendor": device.vendor,
            "device": device.device,
            "class_code": device.class_code,
            "group_viability": group_viability(device.iommu_group, view.members(device.address), view.devices),
            "function": Function.VIRTUAL if device.is_virtual else Function.PHYSICAL,
            "used_by": users,
            "vetoes": view.vetoes.get(device.address, ()),
        }
        | {name: value for name, value in facts.items() if value is not None}
    )


def _inventory_ready(view: HostView, count: int, generation: int, now: str) -> Condition:
    status, reason, message = True, ConditionReason.INVENTORY_READ, ""
    if view.problem is not None:
        status, reason, message = False, ConditionReason.BUS_UNREADABLE, view.problem
    elif count > MAX_DEVICES:
        reason = ConditionReason.TOO_MANY_DEVICES
        message = f"{count} accelerators are there; the first {MAX_DEVICES} are listed"
    return condition(ConditionType.READY, status, reason, message, now=now, observed_generation=generation)


def _readable(view: HostView, generation: int, now: str) -> Condition:
    faulty = {address: f"cannot be read: {why}" for address, why in view.unreadable.items()} | {
        address: "; ".join(f"{name}: {why}" for name, why in sorted(device.faults.items()))
        for address, device in view.devices.items()
        if device.faults
    }
    reason = ConditionReason.DEVICES_UNREADABLE if faulty else ConditionReason.ALL_READABLE
    return condition(
        ConditionType.DEVICES_READABLE, not faulty, reason, _some(faulty), now=now, observed_generation=generation
    )


def _bindings_ready(plan: Plan, generation: int, now: str) -> Condition:
    def ready(status: bool | None, reason: ConditionReason, message: str = "") -> Condition:
        return condition(ConditionType.READY, status, reason, message, now=now, observed_generation=generation)

    if plan.held is not None:
        return ready(None, ConditionReason.ORDERS_HELD, plan.held)
    for state, reason in (
        (DeviceState.FAILED, ConditionReason.DEVICES_FAILED),
        (DeviceState.BLOCKED, ConditionReason.DEVICES_BLOCKED),
        (DeviceState.PENDING, ConditionReason.DEVICES_PENDING),
    ):
        found = {report.address: _line(report) for report in plan.reports if report.state is state}
        if found:
            return ready(False, reason, _some(found))
    if not plan.reports:
        return ready(True, ConditionReason.NOTHING_ORDERED)
    return ready(True, ConditionReason.ALL_DEVICES_BOUND)


def _journal_intact(journal: JournalState, generation: int, now: str) -> Condition:
    reason = ConditionReason.JOURNAL_READ if journal.problem is None else ConditionReason.JOURNAL_UNREADABLE
    return condition(
        ConditionType.JOURNAL_INTACT,
        journal.problem is None,
        reason,
        journal.problem or "",
        now=now,
        observed_generation=generation,
    )


def _line(report: BoundDevice) -> str:
    return f"{report.reason}{f' ({report.message})' if report.message else ''}"


def _some(texts: Mapping[str, str]) -> str:
    lines = [f"{address}: {texts[address]}" for address in sorted(texts)]
    more = f"\nand {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "\n".join(lines[:_SHOWN]) + more
