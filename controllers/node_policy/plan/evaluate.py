"""One node, judged: its target, what of it must wait for leave, and each policy's share in it.

This is the part of a plan that depends on one node alone, so it is computed anew only for nodes that changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controllers.node_policy.plan.changes import Changes, GivenUp, Standing, changes_between
from controllers.node_policy.plan.compile import NO_MAPS, NO_REMOVALS, Compiled, compile_node
from controllers.node_policy.plan.drains import ABORTS, drain_condition, for_target
from controllers.node_policy.plan.orders import Order, Orders, address_key
from controllers.node_policy.plan.progress import Progress, Verdict, verdict_on, with_publication
from controllers.node_policy.plan.users import Usage
from controllers.node_policy.plan.view import (
    BlockerReason,
    DeviceReportView,
    MapView,
    NodeView,
    PolicyView,
    ReportView,
    StateView,
    Subtree,
)
from controllers.node_policy.plan.waits import Wait, waits_of
from crds.models.conditions import Status
from crds.models.modes import Mode
from crds.models.node_policy import ConflictOutcome
from crds.models.node_state import DeviceState, Intent, Removal
from crds.models.publication import NEVER_OFFERED

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_WHOLE_NODE: Final = (Progress.DAEMON_MISSING, Progress.SILENT, Progress.REBOOTED)
_UNKNOWN: Final = frozenset({Progress.SILENT, Progress.REBOOTED})
_MOVING: Final = frozenset({Progress.PENDING, Progress.SILENT, Progress.REBOOTED, Progress.DAEMON_MISSING})
_NONE: Final[frozenset[str]] = frozenset()
_STUCK: Final = (Progress.BLOCKED, Progress.FAILED, Progress.DAEMON_MISSING)
# The reasons for which a policy is not ready although no device of its own stands in the way.
MAP_FAULTS: Final = frozenset({BlockerReason.PROFILE_MAP_MISSING, BlockerReason.NO_LAYOUT_FOR_CARD})
_HOLDS_UP: Final = MAP_FAULTS | {BlockerReason.REMOVAL_HELD}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What stands in the way of a policy on one node; `serious` ones are told first. `address` "": the whole node.

    `progress`: how far the device is, or all of the node, where that is what stands in the way.
    """

    serious: bool
    address: str
    reason: str
    message: str
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """One policy's part of one node. `unavailable`: it counts against the limits, `surely`: and that for certain."""

    selected: bool
    devices: int
    ready: int
    releasing: int
    updated: bool
    pending_inventory: bool
    removal_held: bool
    map_faults: frozenset[BlockerReason]
    unavailable: bool
    surely: bool
    progress: frozenset[Progress]
    obstacles: tuple[Obstacle, ...]
    clashes: frozenset[tuple[str, str, ConflictOutcome]]

    @property
    def complete(self) -> bool:
        """Every device of the policy on this node is as it asks, and every one that it lost is given back."""
        return (
            self.updated
            and self.ready == self.devices
            and not self.releasing
            and not self.pending_inventory
            and not self.removal_held
            and not self.map_faults
        )

    @property
    def rolling(self) -> bool:
        """Not complete, and the node is there to go on: neither silent, nor just rebooted, nor without inventory."""
        return not self.complete and not self.pending_inventory and not self.progress & _UNKNOWN

    @property
    def stuck(self) -> bool:
        return any(progress in self.progress for progress in _STUCK)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One node, judged. `worst` is the verdict on the device that makes the node unavailable most clearly, if any.

    `orphans`: addresses of devices that npufleet changed and that neither orders nor policies name. `waits`: orders in
    force that may go on as soon as the users of their devices let go. `undone`: the judgements on orders in force that
    are not carried out, by address. `moving`: an order is on its way, or nobody knows how far it is.
    """

    node: NodeView
    state: StateView
    problem: str
    target: Orders
    changes: Changes
    worst: Verdict
    shares: Mapping[str, Share]
    orphans: frozenset[str]
    usage: Usage
    waits: Mapping[str, Wait]
    undone: Mapping[str, Verdict]
    moving: bool

    @property
    def zone(self) -> str:
        return self.node.labels.get(ZONE_LABEL, "")


def evaluate(
    node: NodeView,
    state: StateView,
    policies: Sequence[PolicyView],
    held: frozenset[str],
    silent: frozenset[str],
    *,
    settling: bool,
    backing_off: bool = False,
    resting: frozenset[str] = frozenset(),
    removals: Mapping[str, Removal] = NO_REMOVALS,
    released: frozenset[str] = frozenset(),
    maps: Mapping[str, MapView] | None = NO_MAPS,
    problem: str = "",
) -> Evaluation:
    """Judge one node; `policies` by precedence, all of them. The rest is as `compile_node` takes it.

    `backing_off`: a drain of the node was given up less than the time ago after which it is tried again. `resting`:
    devices that were taken into use a short time ago, just as they were ordered to change.
    """
    compiled = compile_node(
        node,
        state,
        policies,
        held,
        silent,
        released=released,
        settling=settling,
        removals=removals,
        maps=maps,
        problem=problem,
    )
    bindings = state.reports.get(Subtree.BINDINGS)
    reports = _in_this_boot(bindings, node)
    carved = {order.address: order.shape for order in state.orders.devices if order.shape.mode is Mode.VGPU}
    typed = _in_this_boot(state.reports.get(Subtree.PROFILES), node)
    usage = Usage(state.inventory.devices if state.inventory is not None else (), reports, carved, typed)
    verdicts = {order.address: verdict_on(order, node, state, silent) for order in state.orders.devices}
    waits = {} if compiled.problem else waits_of(node, state, verdicts, usage, silent)
    # What may change is a matter of the host alone; how far it is, of the publisher too.
    undone = {address: verdict for address, verdict in verdicts.items() if not verdict.done}
    told = _told(verdicts, node, state, silent)
    standing = Standing(
        usage,
        frozenset(address for address, verdict in verdicts.items() if verdict.done),
        frozenset(address for address, verdict in verdicts.items() if verdict.surely_not_done or address in waits),
        frozenset(address for address, verdict in told.items() if verdict.unavailable),
        _untouched(state, bindings, reports),
        {address: wait.users for address, wait in waits.items()},
        _given_up(state, compiled.target) if backing_off else None,
        resting,
    )
    changes = changes_between(state.orders, compiled.target, standing)
    waits = {address: wait for address, wait in waits.items() if address not in changes.deferred}
    moving = any(
        told[order.address].progress in _MOVING for order in state.orders.devices if order.intent is not Intent.HOLD
    )
    away = [verdict for verdict in told.values() if verdict.unavailable]
    worst = max(away, key=lambda verdict: verdict.progress, default=Verdict(Progress.READY))
    away_for = {order.policy for order in state.orders.devices if told[order.address].unavailable}
    surely_for = {order.policy for order in state.orders.devices if _surely_away(told[order.address])}
    surely_for |= {wait.order.policy for wait in waits.values()} | _emptied_for(node, state)
    away_for |= surely_for
    target = compiled.target.by_address()
    # Nobody is moved away for an order that is about to be taken back, even where that has to wait for room.
    waits = {address: wait for address, wait in waits.items() if _still_meant(wait.order, target.get(address))}
    _tell_of_drains(told, waits, state)
    selecting = {p.name for p in policies if p.spec is not None and p.spec.node_selector.matches(node.labels)}
    concerned = selecting | {order.policy for order in (*state.orders.devices, *compiled.target.devices)} | away_for
    concerned |= {remark.policy for remark in compiled.decisions.remarks}
    for clash in compiled.decisions.clashes:
        concerned |= {clash.winner, clash.loser}
    judged = _Judged(state, compiled, changes, told, away_for, surely_for)
    shares = {name: _share(name, name in selecting, judged) for name in sorted(concerned)}
    return Evaluation(
        node,
        state,
        compiled.problem,
        compiled.target,
        changes,
        worst,
        shares,
        compiled.orphans,
        usage,
        waits,
        undone,
        moving or bool(compiled.problem),
    )


def _told(
    verdicts: Mapping[str, Verdict], node: NodeView, state: StateView, silent: frozenset[str]
) -> dict[str, Verdict]:
    """The verdicts as people get them: what is prepared is done once pods can have it."""
    if Subtree.PUBLICATION not in state.reports:
        return dict(verdicts)
    return {
        order.address: with_publication(order, verdicts[order.address], node, state, silent)
        for order in state.orders.devices
    }


def _still_meant(order: Order, wanted: Order | None) -> bool:
    return wanted is not None and (wanted.intent, wanted.shape) == (order.intent, order.shape)


def _surely_away(verdict: Verdict) -> bool:
    return verdict.unavailable and verdict.surely_not_done


def _in_this_boot(report: ReportView | None, node: NodeView) -> Mapping[str, DeviceReportView]:
    return report.devices if report is not None and report.boot_id == node.boot_id else {}


def _untouched(
    state: StateView, bindings: ReportView | None, reports: Mapping[str, DeviceReportView]
) -> frozenset[str]:
    """Devices that are ordered, as npufleet found them, and in no other daemon's hands: there is nothing to give back.

    One that is on its way may be touched at any moment; one that is Blocked, held or adopted is not. A daemon that
    makes something of a device on its own driver (publishes it, cuts it up) lists it in its report, with a reason that
    says so.
    """
    if bindings is None or bindings.generation != state.generation or not reports:
        return _NONE
    others = [report for subtree, report in state.reports.items() if subtree is not Subtree.BINDINGS]
    if any(report.error for report in others):
        return _NONE
    taken = {
        address for report in others for address, said in report.devices.items() if said.reason not in NEVER_OFFERED
    }
    found = []
    for order in state.orders.devices:
        said = reports.get(order.address)
        if said is None or said.former_driver is not None or order.address in taken:
            continue
        resting = said.state in (DeviceState.BLOCKED, DeviceState.READY)
        if resting or (said.state is DeviceState.PENDING and order.intent is Intent.HOLD):
            found.append(order.address)
    return frozenset(found)


def _given_up(state: StateView, target: Orders) -> GivenUp | None:
    """The drain that was given up, if it was for what is wanted now."""
    drain, said = state.rollout.drain if state.rollout is not None else None, drain_condition(state.rollout)
    if drain is None or said is None or said.status is Status.TRUE or said.reason not in ABORTS:
        return None
    if not for_target(drain, target):
        return None
    return GivenUp(BlockerReason(said.reason), said.message, frozenset(drain.unseen))


def _emptied_for(node: NodeView, state: StateView) -> set[str]:
    """For whom the node is cordoned, or for whom a drain is under way."""
    found = {node.cordoned_by} if node.cordoned_by else set()
    drain, said = state.rollout.drain if state.rollout is not None else None, drain_condition(state.rollout)
    if drain is not None and said is not None and said.status is Status.TRUE:
        found.add(drain.policy)
    return found


def _tell_of_drains(verdicts: dict[str, Verdict], waits: Mapping[str, Wait], state: StateView) -> None:
    """What is being emptied, or handed over by the publisher, is on its way: that is not to be called blocked."""
    said = drain_condition(state.rollout)
    told = said.message if said is not None and said.status is Status.TRUE else ""
    for address, wait in waits.items():
        verdict = verdicts[address]
        if verdict.done or not (wait.evicts or wait.publisher):
            continue
        if wait.evicts:
            message = told or wait.message or wait.users.describe()
            verdict = replace(verdict, reason=BlockerReason.DRAINING, message=message)
        verdicts[address] = replace(verdict, progress=Progress.PENDING)


@dataclass(frozen=True, slots=True)
class _Judged:
    state: StateView
    compiled: Compiled
    changes: Changes
    verdicts: Mapping[str, Verdict]
    away_for: set[str]
    surely_for: set[str]


def _share(policy: str, selected: bool, judged: _Judged) -> Share:
    state, compiled, verdicts = judged.state, judged.compiled, judged.verdicts
    deferred = {address: why for address, why in judged.changes.deferred.items() if why.policy == policy}
    # Why the change of a device is put off says more than how its present order stands, unless that one failed.
    put_off = {a for a in judged.changes.deferred if a not in verdicts or verdicts[a].progress is not Progress.FAILED}
    present, target = state.orders.by_address(), compiled.target.by_address()
    left_alone = [
        address
        for address, decision in compiled.decisions.decided.items()
        if decision.policy == policy and decision.shape.mode is Mode.UNMANAGED
    ]
    mine = [order for order in compiled.target.devices if order.policy == policy and order.intent is not Intent.RELEASE]
    ready = sum(1 for order in mine if present.get(order.address) == order and verdicts[order.address].done)
    ready += sum(1 for address in left_alone if address not in present)
    own = [order for order in state.orders.devices if order.policy == policy]
    touched = {order.address for order in (*own, *mine)} | set(left_alone)
    remarks = [remark for remark in compiled.decisions.remarks if remark.policy == policy]
    progress = frozenset(verdicts[order.address].progress for order in own if order.address not in put_off)
    map_faults = frozenset(remark.reason for remark in remarks) & MAP_FAULTS
    if deferred or map_faults:
        progress |= {Progress.BLOCKED}
    return Share(
        selected=selected,
        devices=len(mine) + len(left_alone),
        ready=ready,
        releasing=sum(1 for order in own if order.intent is Intent.RELEASE),
        updated=not compiled.problem and all(present.get(address) == target.get(address) for address in touched),
        pending_inventory=bool(compiled.problem) and selected and not progress & _UNKNOWN,
        removal_held=any(remark.reason is BlockerReason.REMOVAL_HELD for remark in remarks),
        map_faults=map_faults,
        unavailable=policy in judged.away_for,
        surely=policy in judged.surely_for,
        progress=progress,
        obstacles=_obstacles(
            compiled.problem if selected else "",
            bool(state.error),
            [order for order in own if order.address not in put_off],
            verdicts,
            [
                *(Obstacle(r.reason in _HOLDS_UP, r.address, r.reason, r.message) for r in remarks),
                *(
                    Obstacle(True, address, why.reason, why.message, Progress.BLOCKED)
                    for address, why in deferred.items()
                ),
            ],
        ),
        clashes=frozenset(
            (clash.loser, clash.loser_rule, ConflictOutcome.WON)
            if clash.winner == policy
            else (clash.winner, clash.winner_rule, ConflictOutcome.LOST)
            for clash in compiled.decisions.clashes
            if policy in (clash.winner, clash.loser)
        ),
    )


def _obstacles(
    problem: str,
    unreadable: bool,
    orders: Iterable[Order],
    verdicts: Mapping[str, Verdict],
    remarks: Iterable[Obstacle],
) -> tuple[Obstacle, ...]:
    found: set[Obstacle] = set(remarks)
    if problem:
        reason = BlockerReason.STATE_UNREADABLE if unreadable else BlockerReason.INVENTORY_PENDING
        found.add(Obstacle(True, "", reason, problem))
    for order in orders:
        verdict = verdicts[order.address]
        if verdict.progress in _WHOLE_NODE:
            found.add(Obstacle(True, "", verdict.reason, verdict.message, verdict.progress))
        elif verdict.progress in (Progress.BLOCKED, Progress.FAILED):
            word = verdict.reason or str(verdict.progress.name)
            found.add(Obstacle(True, order.address, word, verdict.message, verdict.progress))
        elif verdict.reason == BlockerReason.DRAINING:
            found.add(Obstacle(True, order.address, verdict.reason, verdict.message))
    return tuple(sorted(found, key=_rank))


def _rank(obstacle: Obstacle) -> tuple[bool, tuple[int, str], str, str]:
    place = address_key(obstacle.address) if obstacle.address else (-1, "")
    return (not obstacle.serious, place, obstacle.reason, obstacle.message)
