"""What the VFIO binder does on its host: a pure function of orders, host and journal.

No I/O, no clock, no memory: the same input gives the same plan, and the plan after a plan that succeeded is empty. A
device that is in use, needed by the host, another one than ordered, or in no order and not ours has no action.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from crds.models.bindings import BindingReason as Reason
from crds.models.node_state import MAX_DEVICES, BoundDevice, DeviceReport, DeviceState, NodeStateSpec
from node_host.acting.actions import Action, Bind, CardAction, Forget, GroupPlan, JournalAction, Outcome, Return
from node_host.acting.journal import JournalState
from node_host.view import HostView
from vfio_binder.cards import decide_card, is_card, orders_of_functions, with_parts
from vfio_binder.decisions import Decision, decide
from vfio_binder.group_plan import decide_group
from vfio_binder.situation import Situation, Want

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_NO_ATTEMPTS: Final[Mapping[str, Outcome]] = MappingProxyType({})

_ByAddress: TypeAlias = tuple[tuple[str, frozenset[str]], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions by group, changes of the journal alone, and a report for each device that is ordered or ours.

    ``held`` says why nothing at all is ordered here, or None.
    """

    groups: tuple[GroupPlan, ...] = ()
    notes: tuple[JournalAction, ...] = ()
    reports: tuple[BoundDevice, ...] = ()
    held: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.groups and not self.notes

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions on devices."""
        return tuple(action for group in self.groups for action in group.actions)

    @property
    def steps(self) -> frozenset[Action | JournalAction]:
        """Everything that there is to do."""
        return frozenset((*self.actions, *self.notes))

    @property
    def every_report(self) -> Iterator[DeviceReport]:
        """The reports, and those of virtual functions that stand in them."""
        for report in self.reports:
            yield report
            yield from report.virtual_functions


def plan(
    desired: NodeStateSpec | None,
    view: HostView,
    journal: JournalState,
    *,
    held: str | None = None,
    attempts: Mapping[str, Outcome] = _NO_ATTEMPTS,
    failures: Mapping[str, Outcome] = _NO_ATTEMPTS,
    drifting: Mapping[str, str] = _NONE,
    stuck: Mapping[str, str] = _NONE,
) -> Plan:
    """The plan. ``held`` says why the orders are not followed: then nothing is done, and each device is told so."""
    if desired is None:
        return Plan(held=held)
    entries = {entry.address: entry for entry in desired.devices}
    situation = Situation(view, entries, journal, attempts, failures, drifting, stuck)
    if held is not None:
        reports = (situation.report(address, DeviceState.PENDING, Reason.HELD, held) for address in sorted(entries))
        return Plan(reports=tuple(reports), held=held)
    implied = orders_of_functions(situation)
    if implied:
        situation = replace(situation, entries={**entries, **implied}, implied=frozenset(implied))
    return _assembled(situation, _decisions(situation), entries.keys())


def _decisions(situation: Situation) -> dict[str, Decision]:
    decisions: dict[str, Decision] = {}
    known = sorted({*situation.entries, *situation.journal.entries})
    for address in known:
        if situation.want(address) is Want.VFIO and address not in decisions:
            decisions |= decide_group(situation, situation.view.members(address))
    cards = [address for address in known if is_card(situation, address)]
    for address in known:
        if address not in decisions and address not in cards:
            decisions[address] = decide(situation, address)
    # A virtual function that is itself ordered so is decided before its card, which asks what became of it.
    for address in sorted(cards, key=situation.view.is_virtual, reverse=True):
        decisions[address] = decide_card(situation, address, _parts(situation, decisions, address))
    return decisions


def _parts(situation: Situation, decisions: Mapping[str, Decision], card: str) -> dict[str, Decision]:
    """The decisions on the virtual functions of a card that stand under orders."""
    device = situation.view.devices.get(card)
    functions = device.virtual_functions if device else ()
    return {function: decisions[function] for function in functions if function in situation.entries}


def _assembled(situation: Situation, decisions: Mapping[str, Decision], named: Collection[str]) -> Plan:
    """``named`` are the devices that orders name; virtual functions without are told of with their card."""
    view = situation.view
    by_group: dict[tuple[str, ...], list[Action]] = defaultdict(list)
    cards, notes = [], []
    for address in sorted(decisions):
        decision = decisions[address]
        if decision.action is not None and not isinstance(decision.action, Bind | Return):
            cards.append(_card(situation, decision.action))
        elif decision.action is not None:
            by_group[view.members(address)].append(decision.action)
        if decision.note is not None:
            notes.append(decision.note)
        elif decision.action is None and _is_stale(situation, address):
            notes.append(Forget(address, "its entry is of another boot or of another device"))
    told = {address: _told(situation, decisions, address) for address in sorted(decisions)}
    ordered = [told[address] for address in told if address in named]
    others = [told[address] for address in told if address not in situation.entries]
    reports = [report for report in (*ordered, *others) if report is not None][:MAX_DEVICES]
    return Plan(
        groups=(*(_group(situation, members, actions) for members, actions in by_group.items()), *cards),
        notes=tuple(notes),
        reports=tuple(sorted(reports, key=lambda report: report.address)),
    )


def _is_stale(situation: Situation, address: str) -> bool:
    """Whether the journal's entry says nothing about the device that is there now."""
    is_known = address in situation.view.devices or situation.view.is_gone(address)
    return is_known and address in situation.journal.entries and situation.remembered(address) is None


def _group(situation: Situation, members: tuple[str, ...], actions: list[Action]) -> GroupPlan:
    """Returns first, then companions, then the devices that they are for."""
    view = situation.view
    locks = tuple(sorted({lock for action in actions for lock in view.locks(action.address)}))
    ordered = sorted(actions, key=lambda action: (_rank(action), action.address))
    group = view.devices[actions[0].address].iommu_group
    key = locks[0] if group is None else f"group-{group}"
    return GroupPlan(key, locks, members, tuple(ordered), *_orders(situation, members))


def _card(situation: Situation, action: CardAction) -> GroupPlan:
    """A card with its virtual functions: they come and go in IOMMU groups of their own."""
    view = situation.view
    ours = (action.address, *action.functions)
    locks = tuple(sorted({lock for address in ours for lock in view.locks(address)}))
    members = tuple(sorted({member for address in ours for member in view.members(address)}))
    return GroupPlan(f"pf-{action.address}", locks, members, (action,), *_orders(situation, members))


def _orders(situation: Situation, members: tuple[str, ...]) -> tuple[_ByAddress, _ByAddress]:
    """Those of the members that pods may have, with the orders that they may be handed over for; and with the shapes
    that they may get."""
    ever = situation.view.published.addresses | situation.view.prepared.addresses
    former = {function for address in members for function in situation.view.former_functions(address)}
    named = [address for address in (*members, *sorted(former)) if address in ever]
    return (
        tuple((address, situation.entries_of(address)) for address in named),
        tuple((address, situation.shapes_of(address)) for address in named),
    )


def _told(situation: Situation, decisions: Mapping[str, Decision], address: str) -> BoundDevice | None:
    report = decisions[address].report
    if report is None:
        return None
    parts = _parts(situation, decisions, address).values()
    reports = [part.report for part in parts if part.report is not None]
    return with_parts(report, reports) if reports else report


def _rank(action: Action) -> int:
    if not isinstance(action, Bind):
        return 0
    return 1 if action.entry.companion_of else 2
