"""The whole plan: from the objects as they are to everything that has to be written, and when to look again.

Pure: the same objects and the same moment give the same plan. What must be remembered between plans stands in the
objects (spec, conditions with their transition times), so a restarted controller goes on where the last one stopped.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from controllers.node_policy.plan.admission import Admissions, Budget, Candidate, admit, budget_for
from controllers.node_policy.plan.compile import ORPHANS
from controllers.node_policy.plan.evaluate import Evaluation, Share, evaluate
from controllers.node_policy.plan.events import PlanEvent, hold_events, policy_events
from controllers.node_policy.plan.node_status import gone_since, rollout_of, rollout_without_node
from controllers.node_policy.plan.orders import Limits, Orders
from controllers.node_policy.plan.removal_hold import CONFIRM_ALL, RemovalHold, deciding_policies, removal_hold
from controllers.node_policy.plan.rollup import parse_timestamp, roll_up
from controllers.node_policy.plan.view import NodeView, PolicyView, StateView, World
from crds.models.base import Model
from crds.models.node_policy import NodePolicyStatus
from crds.models.node_state import NodeRollout

_NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class SpecChange:
    """New orders for one node. `charged`: policies whose limits the change uses, until its outcome is known."""

    state: StateView
    orders: Orders
    node_uid: str
    charged: frozenset[str]

    def spec(self) -> dict[str, Any]:
        """The whole spec to write."""
        return self.orders.spec(self.node_uid)


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be written; an empty plan means that everything stands as it should."""

    specs: Mapping[str, SpecChange | None]
    """For each node with an NPUNodeState: its new orders, None when they stay as they are."""
    creations: Mapping[str, dict[str, Any]]
    """NPUNodeStates to create, by node: their spec."""
    deletions: Mapping[str, StateView]
    """NPUNodeStates to delete: their Node is gone and the grace is over."""
    rollouts: Mapping[str, NodeRollout]
    """By node: `status.rollout`, where it differs from what stands."""
    policy_statuses: Mapping[str, NodePolicyStatus]
    """By policy: the status, where it differs from what stands."""
    events: tuple[PlanEvent, ...]
    """What to tell once the write of the object that each is about has succeeded."""
    next_check: datetime | None
    """When time alone would change the plan."""
    hold: RemovalHold
    waiting: Mapping[str, tuple[str, ...]]
    """By node that has to wait: the policies that have no room for it."""
    targets: Mapping[str, Orders]
    """By node: the orders that it will have in the end."""
    blocked: Mapping[str, Counter[str]]
    """By policy: nodes that cannot go on, by reason."""

    @property
    def empty(self) -> bool:
        """Nothing has to be written."""
        return not (
            any(self.specs.values()) or self.creations or self.deletions or self.rollouts or self.policy_statuses
        )


@dataclass(slots=True)
class Cache:
    """Judgements on nodes that did not change since the last plan: they make a plan faster, never another one."""

    key: tuple[Any, ...] = ()
    evaluations: dict[str, tuple[frozenset[str], Evaluation]] = field(default_factory=dict)
    settled: dict[str, tuple[Evaluation, tuple[str, ...], RemovalHold]] = field(default_factory=dict)


def plan(world: World, now: datetime, cache: Cache | None = None) -> Plan:
    """Make the plan for `world` at `now` (aware). Give the same cache to successive plans of one fleet."""
    cache = Cache() if cache is None else cache
    hold = removal_hold(
        deciding_policies(world.states.values()), world.policies.keys(), world.confirmation, world.confirmed
    )
    evaluations = _evaluate_all(world, hold, cache)
    by_policy = _by_policy(evaluations)
    admissions = _admit(world, evaluations, by_policy)
    specs = dict.fromkeys(sorted(world.states)) | {
        evaluation.node.name: _spec_change(evaluation, admissions)
        for evaluation in evaluations
        if evaluation.node.name not in world.in_flight
    }
    rollouts: dict[str, NodeRollout] = {}
    checks: list[datetime] = []
    for evaluation in evaluations:
        if evaluation.node.name in world.in_flight or specs[evaluation.node.name] is not None:
            continue  # it speaks of the orders that stand, so it follows them
        rollout = _rollout_change(evaluation, admissions, hold, now, cache)
        if rollout is not None:
            rollouts[evaluation.node.name] = rollout
    deletions = _without_node(world, now, rollouts, checks)
    statuses: dict[str, NodePolicyStatus] = {}
    events: list[PlanEvent] = []
    blocked: dict[str, Counter[str]] = {}
    for name, policy in sorted(world.policies.items()):
        rollup = roll_up(policy, by_policy.get(name, ()), now)
        if rollup.check_at is not None:
            checks.append(rollup.check_at)
        if rollup.blocked:
            blocked[name] = rollup.blocked
        if not _same(policy.status, rollup.status):
            statuses[name] = rollup.status
            events += policy_events(policy, rollup.status)
    events += hold_events(hold, world.states.values())
    return Plan(
        specs=specs,
        creations={
            name: Orders().spec(node.uid) for name, node in sorted(world.nodes.items()) if name not in world.states
        },
        deletions=deletions,
        rollouts=rollouts,
        policy_statuses=statuses,
        events=tuple(events),
        next_check=min(checks, default=None),
        hold=hold,
        waiting=admissions.waiting,
        targets={evaluation.node.name: evaluation.target for evaluation in evaluations},
        blocked=blocked,
    )


def _evaluate_all(world: World, hold: RemovalHold, cache: Cache) -> list[Evaluation]:
    policies = sorted(world.policies.values(), key=lambda policy: policy.precedence)
    # With no policy left at all, an order that nobody gave says nothing about what anybody wants.
    release_orphans = bool(policies) or world.confirmation.strip() == CONFIRM_ALL
    key = ([(policy.name, policy.spec) for policy in policies], hold.held, release_orphans)
    if cache.key != key:
        cache.evaluations.clear()
        cache.settled.clear()
        cache.key = key
    for name in cache.evaluations.keys() - (world.nodes.keys() & world.states.keys()):
        del cache.evaluations[name]
        cache.settled.pop(name, None)
    return [
        _cached(world.nodes[name], world.states[name], policies, hold.held, world, release_orphans, cache)
        for name in sorted(world.nodes.keys() & world.states.keys())
    ]


def _cached(
    node: NodeView,
    state: StateView,
    policies: Sequence[PolicyView],
    held: frozenset[str],
    world: World,
    release_orphans: bool,
    cache: Cache,
) -> Evaluation:
    silent = world.silent.get(node.name, _NOBODY)
    known = cache.evaluations.get(node.name)
    if known is not None:
        heard, evaluation = known
        if heard == silent and _alike(evaluation.node, node) and _alike(evaluation.state, state):
            return evaluation
    evaluation = evaluate(node, state, policies, held, silent, release_orphans=release_orphans)
    cache.evaluations[node.name] = (silent, evaluation)
    return evaluation


def _alike(known: object, given: object) -> bool:
    """Identity first: comparing whole records is for those that a list has brought again."""
    return known is given or known == given


def _by_policy(evaluations: Iterable[Evaluation]) -> dict[str, list[Evaluation]]:
    found: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        for name in evaluation.shares:
            found.setdefault(name, []).append(evaluation)
    return found


def _admit(world: World, evaluations: Iterable[Evaluation], by_policy: Mapping[str, list[Evaluation]]) -> Admissions:
    candidates = [
        Candidate(
            evaluation.node.name,
            evaluation.zone,
            evaluation.changes.charged,
            refused=evaluation.node.name in world.refused,
        )
        for evaluation in evaluations
        if evaluation.changes.disrupted and evaluation.node.name not in world.in_flight
    ]
    former: dict[str, Limits] = {}
    charged = frozenset().union(*(candidate.charged for candidate in candidates))
    if charged - world.policies.keys():
        for evaluation in evaluations:
            for limits in evaluation.state.orders.limits:
                former.setdefault(limits.policy, limits)
    return admit(candidates, {name: _budget(name, world, by_policy.get(name, ()), former) for name in sorted(charged)})


def _budget(name: str, world: World, evaluations: Iterable[Evaluation], former: Mapping[str, Limits]) -> Budget:
    shares: dict[str, Share] = {evaluation.node.name: evaluation.shares[name] for evaluation in evaluations}
    nodes = [node for node, share in shares.items() if share.selected or share.progress or share.devices]
    away = {node for node, share in shares.items() if share.unavailable}
    away |= {node for node, policies in world.in_flight.items() if name in policies}
    policy = world.policies.get(name)
    if policy is not None and policy.spec is not None:
        limit: int | str = policy.spec.rollout.max_unavailable
    else:
        limit = former.get(name, Limits(ORPHANS)).max_unavailable
    return budget_for(limit, len(nodes), away)


def _spec_change(evaluation: Evaluation, admissions: Admissions) -> SpecChange | None:
    state, node = evaluation.state, evaluation.node
    if state.error:
        return None
    admitted = node.name in admissions.admitted
    orders = evaluation.target if admitted else evaluation.changes.steady
    if orders == state.orders and node.uid == state.node_uid:
        return None
    return SpecChange(state, orders, node.uid, evaluation.changes.charged if admitted else _NOBODY)


def _rollout_change(
    evaluation: Evaluation, admissions: Admissions, hold: RemovalHold, now: datetime, cache: Cache
) -> NodeRollout | None:
    name = evaluation.node.name
    waiting_for = admissions.waiting.get(name, ())
    judged = (evaluation, waiting_for, hold)
    known = cache.settled.get(name)
    if known is not None and known[0] is evaluation and known[1:] == judged[1:]:
        return None
    wanted = rollout_of(evaluation, waiting_for, hold, now)
    if wanted is None or _same(evaluation.state.rollout, wanted):
        cache.settled[name] = judged
        return None
    return wanted


def _without_node(
    world: World, now: datetime, rollouts: dict[str, NodeRollout], checks: list[datetime]
) -> dict[str, StateView]:
    """States whose Node is gone: mark them, and delete them once the grace is over."""
    deletions: dict[str, StateView] = {}
    for name in sorted(world.states.keys() - world.nodes.keys()):
        state = world.states[name]
        told = gone_since(state)
        since = parse_timestamp(told) if told is not None else None
        if since is not None:
            end = since + timedelta(seconds=world.grace_seconds)
            if now >= end:
                deletions[name] = state
                continue
            checks.append(end)
        wanted = rollout_without_node(state, world.grace_seconds, now)
        if not _same(state.rollout, wanted):
            rollouts[name] = wanted
    return deletions


def _same(stands: NodePolicyStatus | NodeRollout | None, wanted: NodePolicyStatus | NodeRollout) -> bool:
    """Equality as the API sees it: conditions are a map by type, whatever their order."""
    return stands is not None and _content(stands) == _content(wanted)


def _content(value: Model) -> dict[str, Any]:
    content = value.model_dump(exclude_none=True)
    content["conditions"] = {condition["type"]: condition for condition in content.get("conditions", ())}
    return content
