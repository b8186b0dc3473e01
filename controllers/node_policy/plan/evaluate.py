"""One node, judged: its target, what of it must wait for leave, and each policy's share in it.

This is the part of a plan that depends on one node alone, so it is computed anew only for nodes that changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controllers.node_policy.plan.compile import Changes, Compiled, changes_between, compile_node
from controllers.node_policy.plan.orders import Order, Orders, address_key
from controllers.node_policy.plan.progress import Progress, Verdict, verdict_on
from controllers.node_policy.plan.view import BlockerReason, NodeView, PolicyView, StateView
from crds.models.modes import Mode
from crds.models.node_policy import ConflictOutcome
from crds.models.node_state import Intent

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_WHOLE_NODE: Final = (Progress.DAEMON_MISSING, Progress.SILENT, Progress.REBOOTED)
_UNKNOWN: Final = frozenset({Progress.SILENT, Progress.REBOOTED})
_STUCK: Final = (Progress.BLOCKED, Progress.FAILED, Progress.DAEMON_MISSING)
# The reason for which a policy is not ready although no device of its own stands in the way.
_HOLDS_UP: Final = BlockerReason.REMOVAL_HELD


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What stands in the way of a policy on one node; `serious` ones are told first. `address` "": the whole node."""

    serious: bool
    address: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Share:
    """One policy's part of one node."""

    selected: bool
    devices: int
    ready: int
    releasing: int
    updated: bool
    pending_inventory: bool
    removal_held: bool
    unavailable: bool
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

    `orphans`: addresses of devices that npufleet changed and that neither orders nor policies name.
    """

    node: NodeView
    state: StateView
    problem: str
    target: Orders
    changes: Changes
    worst: Verdict
    shares: Mapping[str, Share]
    orphans: frozenset[str]

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
    released: frozenset[str] = frozenset(),
) -> Evaluation:
    """Judge one node; `policies` by precedence, all of them. The rest is as `compile_node` takes it."""
    compiled = compile_node(node, state, policies, held, silent, released=released, settling=settling)
    changes = changes_between(state.orders, compiled.target)
    verdicts = {order.address: verdict_on(order, node, state, silent) for order in state.orders.devices}
    away = (verdict for verdict in verdicts.values() if verdict.unavailable)
    worst = max(away, key=lambda verdict: verdict.progress, default=Verdict(Progress.READY))
    selecting = {p.name for p in policies if p.spec is not None and p.spec.node_selector.matches(node.labels)}
    concerned = selecting | {order.policy for order in (*state.orders.devices, *compiled.target.devices)}
    concerned |= {remark.policy for remark in compiled.decisions.remarks}
    for clash in compiled.decisions.clashes:
        concerned |= {clash.winner, clash.loser}
    shares = {name: _share(name, name in selecting, state, compiled, verdicts) for name in sorted(concerned)}
    return Evaluation(node, state, compiled.problem, compiled.target, changes, worst, shares, compiled.orphans)


def _share(policy: str, selected: bool, state: StateView, compiled: Compiled, verdicts: Mapping[str, Verdict]) -> Share:
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
    progress = frozenset(verdicts[order.address].progress for order in own)
    return Share(
        selected=selected,
        devices=len(mine) + len(left_alone),
        ready=ready,
        releasing=sum(1 for order in own if order.intent is Intent.RELEASE),
        updated=not compiled.problem and all(present.get(address) == target.get(address) for address in touched),
        pending_inventory=bool(compiled.problem) and selected and not progress & _UNKNOWN,
        removal_held=any(remark.reason is _HOLDS_UP for remark in remarks),
        unavailable=any(verdicts[order.address].unavailable for order in own),
        progress=progress,
        obstacles=_obstacles(
            compiled.problem if selected else "",
            bool(state.error),
            own,
            verdicts,
            [Obstacle(r.reason is _HOLDS_UP, r.address, r.reason, r.message) for r in remarks],
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
            found.add(Obstacle(True, "", verdict.reason, verdict.message))
        elif verdict.progress in (Progress.BLOCKED, Progress.FAILED):
            found.add(Obstacle(True, order.address, verdict.reason or str(verdict.progress.name), verdict.message))
    return tuple(sorted(found, key=_rank))


def _rank(obstacle: Obstacle) -> tuple[bool, tuple[int, str], str, str]:
    place = address_key(obstacle.address) if obstacle.address else (-1, "")
    return (not obstacle.serious, place, obstacle.reason, obstacle.message)
