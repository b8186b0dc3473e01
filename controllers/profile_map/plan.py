"""The status of one map, from what is ordered of its cards and what their nodes report. Pure.

A vGPU counts as ready when it was reported so in the present boot by a writer that answers the present orders: what
was reported before a reboot, or by a daemon that has fallen silent, says nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from controllers.profile_map.view import CardOrder, MapRecord, NodeCards
from crds.models.conditions import Condition, condition, merge_conditions, truncate_message
from crds.models.node_state import DeviceState
from crds.models.profile_map import (
    MOST_PROBLEMS,
    MOST_PROFILES,
    MapConditionType,
    MapProblem,
    MapReason,
    ProfileCounts,
    ProfileMapStatus,
    VGPUTotals,
)
from crds.models.vgpu_state import ProfiledCard, VGPUInstance

WRITER: Final = "npufleet-profile-writer"
_MESSAGE: Final = 1024
_STATES: Final = {
    DeviceState.FAILED: MapReason.CARDS_FAILED,
    DeviceState.BLOCKED: MapReason.CARDS_BLOCKED,
    DeviceState.PENDING: MapReason.CARDS_PENDING,
}
# What needs a person comes before what needs patience, and both before what nobody knows.
_WORST_FIRST: Final = (
    MapReason.CARDS_FAILED,
    MapReason.DAEMON_MISSING,
    MapReason.CARDS_BLOCKED,
    MapReason.CARDS_PENDING,
    MapReason.DAEMON_SILENT,
    MapReason.REBOOTED,
    MapReason.NODES_UNREADABLE,
)
_UNKNOWN: Final = frozenset({MapReason.DAEMON_SILENT, MapReason.REBOOTED, MapReason.NODES_UNREADABLE})


@dataclass(slots=True)
class _Tally:
    desired: Counter[str] = field(default_factory=Counter)
    ready: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    in_use: Counter[str] = field(default_factory=Counter)
    cards: int = 0
    problems: list[tuple[MapReason, MapProblem]] = field(default_factory=list)
    unreadable: list[MapProblem] = field(default_factory=list)


def status_of(
    record: MapRecord,
    nodes: Iterable[NodeCards],
    boots: Mapping[str, str],
    silent: Mapping[str, frozenset[str]],
    now: str,
) -> ProfileMapStatus:
    """The status as it should be. `boots`: boot ids by node; `silent`: by node the daemons without a Lease."""
    tally = _Tally()
    for node in sorted(nodes, key=lambda one: one.node):
        if node.error and not node.orders:  # nobody knows which maps its cards carry
            message = f"its NPUNodeState cannot be understood: {node.error}"
            tally.unreadable.append(_problem(node.node, None, None, str(MapReason.NODES_UNREADABLE), message))
        why = _unknown(node, boots.get(node.node, ""), silent.get(node.node, frozenset()))
        for order in node.orders:
            if order.map == record.name:
                _count(tally, node, order, why or _behind(record, order))
    names = sorted(tally.desired)[:MOST_PROFILES]
    tally.problems += ((MapReason.NODES_UNREADABLE, problem) for problem in tally.unreadable)
    ranked = sorted(tally.problems, key=lambda one: (_WORST_FIRST.index(one[0]), one[1].node, one[1].device or ""))
    former = record.status.conditions if record.status is not None else ()
    fresh = [
        _condition(MapConditionType.READY, *_readiness(record, tally, ranked), record, now),
        _condition(
            MapConditionType.ACCEPTED,
            not record.error,
            MapReason.INVALID if record.error else MapReason.VALID,
            record.error,
            record,
            now,
        ),
    ]
    return ProfileMapStatus(
        observed_generation=record.generation,
        conditions=merge_conditions(former, fresh),
        totals=VGPUTotals(
            desired=tally.desired.total(),
            ready=tally.ready.total(),
            failed=tally.failed.total(),
            in_use=tally.in_use.total(),
        ),
        profiles=tuple(
            ProfileCounts(
                profile=name,
                desired=tally.desired[name],
                ready=tally.ready[name],
                failed=tally.failed[name],
                in_use=tally.in_use[name],
            )
            for name in names
        ),
        problems=tuple(problem for _, problem in ranked[:MOST_PROBLEMS]),
    )


def _unknown(node: NodeCards, boot_id: str, silent: frozenset[str]) -> tuple[MapReason, str] | None:
    """Why nothing is known of the cards of a node, or None."""
    if node.error:
        return MapReason.CARDS_FAILED, f"the NPUNodeState cannot be understood: {node.error}"
    if node.reports is None:
        return MapReason.DAEMON_MISSING, f"no {WRITER} reports on this node"
    if WRITER in silent:
        return MapReason.DAEMON_SILENT, f"{WRITER} has not renewed its Lease for more than 15 minutes"
    if not boot_id or node.boot_id != boot_id:
        return MapReason.REBOOTED, f"the node was rebooted and {WRITER} has not reported since"
    if node.answered != node.generation:
        return MapReason.CARDS_PENDING, f"{WRITER} has not answered the present orders yet"
    return None


def _behind(record: MapRecord, order: CardOrder) -> tuple[MapReason, str] | None:
    """Whether the card has orders of an earlier map: it waits for its turn, or for its users."""
    if record.error or order.layout in record.layouts:
        return None
    return MapReason.CARDS_PENDING, "its orders are still those of the map as it was: the policy that decides says why"


def _count(tally: _Tally, node: NodeCards, order: CardOrder, why: tuple[MapReason, str] | None) -> None:
    tally.cards += 1
    for profile, count in order.layout:
        tally.desired[profile] += count
    card = (node.reports or {}).get(order.address)
    if why is None and card is None:
        why = MapReason.CARDS_PENDING, f"{WRITER} does not report the card yet"
    if why is not None or card is None:
        reason, message = why or (MapReason.CARDS_PENDING, "")
        tally.problems.append((reason, _problem(node.node, order.address, None, str(reason), message)))
        return
    wanted = dict(order.layout)
    for profile, count in _carried(card).items():
        tally.ready[profile] += min(count, wanted.get(profile, 0))
    for vgpu in card.vgpus:
        if vgpu.profile in wanted:
            tally.failed[vgpu.profile] += vgpu.state is DeviceState.FAILED
            tally.in_use[vgpu.profile] += vgpu.state is DeviceState.READY and bool(vgpu.users)
    problems = list(_problems(node.node, card))
    fewer = [profile for profile, count in wanted.items() if _carried(card)[profile] < count]
    if fewer and not problems:
        message = f"the card is called ready without all of its {', '.join(fewer)}"
        problems.append((MapReason.CARDS_PENDING, _problem(node.node, order.address, None, card.reason, message)))
    tally.problems += problems


def _carried(card: ProfiledCard) -> Counter[str]:
    return Counter(vgpu.profile for vgpu in card.vgpus if vgpu.profile and vgpu.state is DeviceState.READY)


def _problems(node: str, card: ProfiledCard) -> Iterator[tuple[MapReason, MapProblem]]:
    if card.state not in _STATES:
        return
    found = [vgpu for vgpu in card.vgpus if vgpu.state in _STATES]
    if card.reason not in {vgpu.reason for vgpu in found}:
        yield _STATES[card.state], _problem(node, card.address, None, card.reason, card.message)
    for vgpu in found:
        yield _STATES[vgpu.state], _of_vgpu(node, vgpu)


def _of_vgpu(node: str, vgpu: VGPUInstance) -> MapProblem:
    return _problem(node, vgpu.address, vgpu.profile, vgpu.reason, vgpu.message)


def _problem(node: str, device: str | None, profile: str | None, reason: str, message: str) -> MapProblem:
    facts = {name: value for name, value in (("device", device), ("profile", profile)) if value is not None}
    text = truncate_message(message, _MESSAGE)
    return MapProblem.model_validate({"node": node, "reason": reason, "message": text} | facts)


def _readiness(
    record: MapRecord, tally: _Tally, ranked: list[tuple[MapReason, MapProblem]]
) -> tuple[bool | None, MapReason, str]:
    summary = f"{tally.ready.total()} of {tally.desired.total()} vGPUs on {tally.cards} cards are there"
    if record.error:
        return False, MapReason.INVALID, record.error
    if not tally.cards and not ranked:
        return True, MapReason.NOT_USED, "no card is ordered to carry it: no policy refers to it, or none matches"
    if not ranked:
        return True, MapReason.ALL_TYPED, summary
    reason, first = ranked[0]
    place = f"{first.node} {first.device or ''}".rstrip()
    text = f"{summary}; {place}: {first.reason}: {first.message}"
    return (None if reason in _UNKNOWN else False), reason, truncate_message(text, _MESSAGE)


def _condition(
    kind: MapConditionType, status: bool | None, reason: MapReason, message: str, record: MapRecord, now: str
) -> Condition:
    text = truncate_message(message, _MESSAGE)
    return condition(kind, status, reason, text, now=now, observed_generation=record.generation)
