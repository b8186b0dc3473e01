"""What the publisher reports of ordered devices: NPUNodeState.status.publication. Pure.

Nothing in it moves by itself, so an unchanged node gives an equal report and no write.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from crds.models.conditions import Condition, condition, merge_conditions
from crds.models.modes import Mode
from crds.models.node_state import (
    MAX_DEVICES,
    DaemonReport,
    DesiredDevice,
    DeviceReport,
    DeviceState,
    Intent,
)
from crds.models.publication import PublicationConditionReason as Why
from crds.models.publication import PublicationConditionType as Type
from crds.models.publication import PublicationReason as Reason
from dra_publisher.handover.hand_over import Looked
from dra_publisher.handover.situation import functions_ordered
from dra_publisher.handover.stages import Stage
from dra_publisher.offers.offer import Offer, Taint
from dra_publisher.offers.prerequisites import BINDER, WRITER, recipe
from dra_publisher.offers.taints import GROUP_IN_USE

_SHOWN: Final = 8
_TEXT: Final = 1024
_MEDIATED: Final = "its vGPUs are mediated devices: KubeVirt's own plugin gives them to VMs, by their profile's name"
_WORST_FIRST: Final = (DeviceState.FAILED, DeviceState.BLOCKED, DeviceState.PENDING, DeviceState.READY)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look has seen besides its stages: why devices may not be published, and what each taint was given for."""

    barred: Mapping[str, str] = field(default_factory=dict)
    taints: Mapping[str, Mapping[Taint, str]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def device_reports(entries: Iterable[DesiredDevice], looked: Looked, seen: Seen) -> tuple[DeviceReport, ...]:
    """One of each order whose device goes, or went, to pods, by address."""
    reports = [_report(entry, looked, seen) for entry in entries]
    return tuple(sorted((one for one in reports if one is not None), key=lambda one: one.address))[:MAX_DEVICES]


def publication(
    devices: tuple[DeviceReport, ...],
    *,
    generation: int,
    boot_id: str,
    held: str | None,
    problem: str | None,
    kubelet: str | None,
    doubt: str | None,
    now: str,
    former: DaemonReport | None,
) -> DaemonReport:
    """The subtree. ``held``: why orders are not followed; ``problem``: why slices are not as they should be;
    ``kubelet``: why it cannot ask for devices; ``doubt``: why prepared claims may be missing in the checkpoint.
    """

    def of(type: Type, status: bool | None, reason: Why, message: str = "") -> Condition:
        return condition(type, status, reason, message, now=now, observed_generation=generation)

    conditions = (
        of(Type.READY, *_ready(devices, held, problem)),
        of(Type.REGISTERED, kubelet is None, Why.NOT_REGISTERED if kubelet else Why.REGISTERED, kubelet or ""),
        of(Type.CHECKPOINT_INTACT, doubt is None, Why.CHECKPOINT_LOST if doubt else Why.CHECKPOINT_READ, doubt or ""),
    )
    return DaemonReport(
        observed_generation=generation,
        boot_id=boot_id,
        devices=devices,
        conditions=merge_conditions(former.conditions if former else (), conditions),
    )


def _report(entry: DesiredDevice, looked: Looked, seen: Seen) -> DeviceReport | None:
    if entry.intent is Intent.RELEASE:
        return _released(entry, looked)
    if recipe(entry.mode) is None:
        return _leftover(entry, looked)
    if functions_ordered(entry) is None:
        return _part(entry.address, entry, looked, seen)
    if entry.mode is Mode.VGPU and looked.situation.is_mediated(entry.address):
        return _of(entry.address, DeviceState.READY, Reason.NOT_BY_CLAIMS, _MEDIATED)
    functions = looked.situation.functions(entry.address)
    if entry.mode is Mode.VGPU:
        functions = tuple(one for one in functions if _is_concerned(one, looked))
    parts = [_part(function, entry, looked, seen) for function in functions]
    if not parts:
        return _waits_for_binding(entry.address, entry, looked)
    # One function that waits for claims keeps the whole card: who evicts for it has to see that.
    worst = min(parts, key=lambda part: (_WORST_FIRST.index(part.state), part.reason != Reason.HAND_OVER))
    alike = sorted(part.address for part in parts if (part.state, part.reason) == (worst.state, worst.reason))
    if worst.state is DeviceState.READY:
        if not looked.situation.is_ready(entry):
            # Those that are there are published; the order is met when all of them are.
            return _waits_for_binding(entry.address, entry, looked)
        text = f"{len(parts)} virtual functions"
    else:
        text = f"{', '.join(alike[:_SHOWN])}{' and more' if len(alike) > _SHOWN else ''}: {worst.message}"
    return worst.model_copy(update={"address": entry.address, "message": text[:_TEXT]})


def _is_concerned(function: str, looked: Looked) -> bool:
    """Whether a function is a vGPU for pods, or was one: a card has more functions than its layout asks for."""
    there = looked.situation.wanted(function) is not None or function in looked.offers
    return there or _moving(function, looked) is not None


def _released(entry: DesiredDevice, looked: Looked) -> DeviceReport:
    parts = (entry.address, *looked.situation.functions(entry.address))
    left = [one for one in parts if _moving(one, looked) is not None]
    found = _moving(left[0], looked) if left else None
    return found.model_copy(update={"address": entry.address}) if found else _withdrawn(entry.address)


def _leftover(entry: DesiredDevice, looked: Looked) -> DeviceReport | None:
    """A mode of which nothing is published: what went to pods before is told of, and who waits for this publisher."""
    report = _moving(entry.address, looked)
    if report is not None and (looked.situation.listed(entry.address) or entry.address in looked.waits):
        return report
    if entry.mode is not Mode.HARD_VNPU:
        return None
    text = f"this version publishes no devices of mode {entry.mode}"
    return _of(entry.address, DeviceState.BLOCKED, Reason.MODE_NOT_PUBLISHED, text)


def _part(address: str, entry: DesiredDevice, looked: Looked, seen: Seen) -> DeviceReport:
    barred = seen.barred.get(address)
    if barred is not None:
        return _of(address, DeviceState.BLOCKED, Reason.OTHER_PLUGIN, barred)
    moving = _moving(address, looked)
    if moving is not None:
        return moving
    invalid = looked.invalid.get(address) or seen.refused.get(address)
    if invalid is not None:
        return _of(address, DeviceState.BLOCKED, Reason.INVALID_DEVICE, invalid)
    offer = looked.offers.get(address)
    if offer is None:
        return _waits_for_binding(address, entry, looked)
    return _offered(offer, entry, looked, seen)


def _moving(address: str, looked: Looked) -> DeviceReport | None:
    """A device on its way from one shape to the next."""
    verdict = looked.verdicts.get(address)
    if verdict is None or verdict.stage not in (Stage.HANDING_OVER, Stage.RENAMING, Stage.LEAVING):
        return None
    claims = looked.waits.get(address)
    if claims is not None:
        return _of(address, DeviceState.PENDING, Reason.HAND_OVER, f"withheld; waits for {_some(claims)}")
    if verdict.stage is Stage.LEAVING:
        return None
    if address in looked.handed_over:
        text = "left to the daemon that changes it"
        return _of(address, DeviceState.PENDING, Reason.HANDED_OVER, text)
    if verdict.stage is Stage.RENAMING and address in looked.offers and not looked.offers[address].taints:
        return None
    return _of(address, DeviceState.PENDING, Reason.HAND_OVER, "withheld")


def _offered(offer: Offer, entry: DesiredDevice, looked: Looked, seen: Seen) -> DeviceReport:
    told = seen.taints.get(offer.address, {})
    for taint in offer.taints:
        if taint.value == GROUP_IN_USE:
            continue
        if taint.value in (Reason.HAND_OVER, Reason.HANDED_OVER):
            return _of(offer.address, DeviceState.PENDING, Reason(taint.value), "withheld")
        text = told.get(taint) or _why(entry, looked)
        return _of(offer.address, DeviceState.BLOCKED, Reason(taint.value), text)
    notes = [text for taint, text in told.items() if taint.value == GROUP_IN_USE]
    return _of(offer.address, DeviceState.READY, Reason.PUBLISHED, f"its IOMMU group is {notes[0]}" if notes else "")


def _waits_for_binding(address: str, entry: DesiredDevice, looked: Looked) -> DeviceReport:
    return _of(address, DeviceState.PENDING, Reason.WAITS_FOR_BINDING, _why(entry, looked))


def _why(entry: DesiredDevice, looked: Looked) -> str:
    said = looked.situation.said.get(entry.address)
    # What the writer says is listened to once the binder is done.
    is_of_writer = entry.mode is Mode.VGPU and entry.address in looked.situation.answered
    daemon = WRITER if is_of_writer else BINDER
    if said is None:
        both = entry.mode is Mode.VGPU and not is_of_writer
        return f"{f'{BINDER} or {WRITER}' if both else daemon} has not answered the present orders yet"
    device = looked.situation.view.devices.get(entry.address)
    if said.state is DeviceState.READY:
        return f"{daemon} says that it is ready, and it is on {device.driver if device else 'no driver'}"
    return f"{daemon}: {said.reason}{f' ({said.message})' if said.message else ''}"


def _withdrawn(address: str) -> DeviceReport:
    return _of(address, DeviceState.RELEASED, Reason.WITHDRAWN, "")


def _of(address: str, state: DeviceState, reason: Reason, message: str) -> DeviceReport:
    return DeviceReport(address=address, state=state, reason=reason, message=message[:_TEXT])


def _ready(devices: tuple[DeviceReport, ...], held: str | None, problem: str | None) -> tuple[bool | None, Why, str]:
    if held is not None:
        return None, Why.ORDERS_HELD, held
    if problem is not None:
        return False, Why.NOT_PUBLISHED, problem
    for state, reason in (
        (DeviceState.FAILED, Why.DEVICES_BLOCKED),
        (DeviceState.BLOCKED, Why.DEVICES_BLOCKED),
        (DeviceState.PENDING, Why.DEVICES_PENDING),
    ):
        found = [
            f"{one.address}: {one.reason}{f' ({one.message})' if one.message else ''}"
            for one in devices
            if one.state is state
        ]
        if found:
            return False, reason, _some(found, "\n")
    if not devices:
        return True, Why.NOTHING_ORDERED, ""
    return True, Why.ALL_DEVICES_PUBLISHED, ""


def _line(report: DeviceReport) -> str:
    return f"{report.reason}{f' ({report.message})' if report.message else ''}"


def _some(texts: Iterable[str], separator: str = ", ") -> str:
    every = list(texts)
    more = f"{separator}and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return separator.join(every[:_SHOWN]) + more
