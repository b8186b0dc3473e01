"""The whole plan: from the objects as they are to everything that has to be written, and when to look again.

Pure: the same objects and the same moment give the same plan. What must be remembered between plans stands in the
objects (spec, conditions with their transition times), so a restarted controller goes on where the last one stopped.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from controllers.node_policy.plan.admission import Admissions, Budget, Candidate, admit, budget_for
from controllers.node_policy.plan.drain_outcome import back_off_ends
from controllers.node_policy.plan.drain_steps import NO_STEP, DrainStep, drain_step
from controllers.node_policy.plan.drains import DrainOrder, DrainTime, NodeMarks, for_target, without_marks
from controllers.node_policy.plan.evaluate import Evaluation, Share
from controllers.node_policy.plan.events import PlanEvent, hold_events, policy_events
from controllers.node_policy.plan.faults import Faults
from controllers.node_policy.plan.judgements import Cache, judge
from controllers.node_policy.plan.moments import happened, in_future, later
from controllers.node_policy.plan.node_status import (
    Notes,
    created_anew_since,
    gone_since,
    held_on,
    rollout_of,
    rollout_without_node,
)
from controllers.node_policy.plan.orders import Orders, RolloutLimits
from controllers.node_policy.plan.progress import verdict_on
from controllers.node_policy.plan.removal_hold import (
    Holds,
    RemovalHold,
    node_key,
)
from controllers.node_policy.plan.rollup import roll_up
from controllers.node_policy.plan.spoiled import spoiled
from controllers.node_policy.plan.view import NodeView, StateView, World
from crds.models.conditions import same_status
from crds.models.node_policy import NodePolicyStatus
from crds.models.node_state import NodeRollout

# Between two looks whether the API server shows its NPUNodeStates again.
_STATES_SECONDS: Final = 30
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
    holds: Holds
    waiting: Mapping[str, tuple[str, ...]]
    """By node that has to wait: the policies that have no room for it."""
    targets: Mapping[str, Orders]
    """By node: the orders that it will have in the end."""
    blocked: Mapping[str, Counter[str]]
    """By policy: nodes that cannot go on, by reason."""
    drains: Mapping[str, DrainOrder] = field(default_factory=dict)
    """Nodes under drain whose `status.rollout` says so already: what the drainer does there."""
    marks: Mapping[str, NodeMarks] = field(default_factory=dict)
    """By Node: its marks and its cordon as they should be, where they differ."""
    retreats: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By node: devices whose orders are taken back by `specs`, since they were in use before they could change."""
    drain_seconds: tuple[DrainTime, ...] = ()
    """Drains that end with the rollouts of this plan; to be counted once the one of the node is written."""

    @property
    def empty(self) -> bool:
        """Nothing has to be written."""
        return not (
            any(self.specs.values())
            or self.creations
            or self.deletions
            or self.rollouts
            or self.policy_statuses
            or self.marks
        )


def plan(world: World, now: datetime, cache: Cache | None = None) -> Plan:
    """Make the plan for `world` at `now` (aware). Give the same cache to successive plans of one fleet."""
    cache = Cache() if cache is None else cache
    faults = Faults(cache.faults)
    checks: list[datetime] = []
    settling = _settling(world, now, checks)
    evaluations, holds = judge(world, settling, _backing_off(world, now, checks, faults), cache, faults)
    steps = _drain_steps(world, evaluations, now, faults)
    by_policy = _by_policy(evaluations)
    admissions = _admit(world, evaluations, by_policy)
    specs: dict[str, SpecChange | None] = dict.fromkeys(sorted(world.states))
    rollouts: dict[str, NodeRollout] = {}
    told: list[DrainStep] = []
    for place, evaluation in enumerate(evaluations):
        name = evaluation.node.name
        if name in world.in_flight or name in faults.found:
            continue
        step = steps[name]
        with faults.of(name):
            # That a drain has ended is said before its node gets other orders: whoever comes next must know it.
            change = None if step.ends else _spec_change(evaluation, admissions)
            rollout: NodeRollout | None = None
            if change is None:  # it speaks of the orders that stand, so it follows them
                anew = name in settling or not _arrival_noted(evaluation)
                notes = Notes(
                    admissions.waiting.get(name, ()),
                    held_on(evaluation, holds),
                    world.grace_seconds if anew else 0,
                    step.said,
                )
                rollout = _rollout_change(evaluation, notes, now, cache)
            specs[name] = change
            if rollout is not None:
                rollouts[name] = rollout
                told.append(step)
        if name in faults.found:
            evaluations[place] = spoiled(evaluation.node, evaluation.state, world.policies.values(), faults.found[name])
            steps[name] = NO_STEP
            by_policy = {}
    by_policy = by_policy or _by_policy(evaluations)
    checks += (step.check_at for step in steps.values() if step.check_at is not None)
    deletions = _without_node(world, holds.nodes, now, rollouts, checks)
    statuses: dict[str, NodePolicyStatus] = {}
    events: list[PlanEvent] = []
    blocked: dict[str, Counter[str]] = {}
    stateless = [node for name, node in world.nodes.items() if name not in world.states]
    for name, policy in sorted(world.policies.items()):
        with faults.of(f"NPUNodePolicy {name}"):
            selected = sum(policy.spec is not None and policy.spec.node_selector.matches(n.labels) for n in stateless)
            rollup = roll_up(
                policy,
                by_policy.get(name, ()),
                now,
                stateless=selected,
                waiting=admissions.waiting,
                device_classes=world.device_classes,
            )
            if rollup.check_at is not None:
                checks.append(rollup.check_at)
            if rollup.blocked:
                blocked[name] = rollup.blocked
            if not _same(policy.status, rollup.status):
                statuses[name] = rollup.status
                events += policy_events(policy, rollup.status)
    marks = _stray_marks(world, now, checks)
    marks |= {name: step.marks for name, step in steps.items() if step.marks is not None}
    events += hold_events(holds, world.states.values())
    events += (event for step in told for event in step.events)
    cache.faults = faults.found
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
        holds=holds,
        waiting=admissions.waiting,
        targets={evaluation.node.name: evaluation.target for evaluation in evaluations},
        blocked=blocked,
        drains={name: step.order for name, step in steps.items() if step.order is not None},
        marks=marks,
        retreats={
            evaluation.node.name: evaluation.changes.retreats
            for evaluation in evaluations
            if evaluation.changes.retreats and specs[evaluation.node.name] is not None
        },
        drain_seconds=tuple(step.seconds for step in told if step.seconds is not None),
    )


def _settling(world: World, now: datetime, checks: list[datetime]) -> frozenset[str]:
    """Nodes whose Node object was created anew less than the grace ago."""
    found = set()
    for name in world.nodes.keys() & world.states.keys():
        since = created_anew_since(world.nodes[name], world.states[name])
        if since is not None:
            end = later(min(since, now), world.grace_seconds)
            if now < end:
                found.add(name)
                checks.append(end)
    return frozenset(found)


def _backing_off(world: World, now: datetime, checks: list[datetime], faults: Faults) -> frozenset[str]:
    """Nodes where a drain was given up too short a time ago to try it again."""
    found = set()
    for name, state in world.states.items():
        with faults.of(name):
            end = back_off_ends(state, now)
            if end is not None and now < end:
                found.add(name)
                checks.append(end)
    return frozenset(found)


def _drain_steps(world: World, evaluations: list[Evaluation], now: datetime, faults: Faults) -> dict[str, DrainStep]:
    """By node; a judgement for which no step can be made is replaced."""
    steps = {}
    for place, evaluation in enumerate(evaluations):
        name = evaluation.node.name
        steps[name] = NO_STEP
        if name in faults.found:
            continue
        with faults.of(name):
            steps[name] = drain_step(evaluation, world.drains.get(name), world.external_drainer, now)
        if name in faults.found:
            evaluations[place] = spoiled(evaluation.node, evaluation.state, world.policies.values(), faults.found[name])
    return steps


def _arrival_noted(evaluation: Evaluation) -> bool:
    """Orders follow a Node's new UID only once the object tells since when: the grace must outlive this process."""
    node, state = evaluation.node, evaluation.state
    if node.uid == state.node_uid or not state.orders.devices:
        return True
    return created_anew_since(node, state) is not None


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
            aborts=_aborts(evaluation),
        )
        for evaluation in evaluations
        if evaluation.changes.disrupted and evaluation.node.name not in world.in_flight
    ]
    former: dict[str, set[int | str]] = {}
    charged = frozenset().union(*(candidate.charged for candidate in candidates))
    if charged - {name for name, policy in world.policies.items() if policy.spec is not None}:
        for evaluation in evaluations:
            for limits in evaluation.state.orders.limits:
                former.setdefault(limits.policy, set()).add(limits.max_unavailable)
    return admit(candidates, {name: _budget(name, world, by_policy.get(name, ()), former) for name in sorted(charged)})


def _budget(name: str, world: World, evaluations: Iterable[Evaluation], former: Mapping[str, set[int | str]]) -> Budget:
    """The policy's own limit, or the narrowest that the orders remember of one that cannot be asked any more."""
    shares: dict[str, Share] = {evaluation.node.name: evaluation.shares[name] for evaluation in evaluations}
    nodes = sum(bool(share.selected or share.progress or share.devices) for share in shares.values())
    away = {node for node, share in shares.items() if share.unavailable}
    away |= {node for node, policies in world.in_flight.items() if name in policies}
    away |= {state.name for state in _nodeless(world) if _left_in_change(state, name)}
    policy = world.policies.get(name)
    limits = {policy.spec.rollout.max_unavailable} if policy is not None and policy.spec is not None else None
    surely = (node for node, share in shares.items() if share.surely)
    return budget_for(limits or former.get(name) or {RolloutLimits(name).max_unavailable}, nodes, away, surely)


def _nodeless(world: World) -> Iterable[StateView]:
    return (world.states[node] for node in world.states.keys() - world.nodes.keys())


def _left_in_change(state: StateView, policy: str) -> bool:
    """Its Node vanished before the orders of the policy were carried out: it may come back as it went.

    Counted by its own last reports until the object is deleted, or the next node would be ordered in its place.
    """
    boot_id = state.inventory.boot_id if state.inventory is not None else ""
    node = NodeView(state.name, state.node_uid, {}, boot_id)
    own = (order for order in state.orders.devices if order.policy == policy)
    return any(verdict_on(order, node, state, _NOBODY).unavailable for order in own)


def _aborts(evaluation: Evaluation) -> int:
    """How often in a row a drain was given up that was for what is wanted now."""
    drain = evaluation.state.rollout.drain if evaluation.state.rollout is not None else None
    if drain is None or drain.aborts is None or not for_target(drain, evaluation.target):
        return 0
    return drain.aborts


def _spec_change(evaluation: Evaluation, admissions: Admissions) -> SpecChange | None:
    state, node = evaluation.state, evaluation.node
    if state.error or not _arrival_noted(evaluation):
        return None
    admitted = node.name in admissions.admitted
    orders = evaluation.changes.goal if admitted else evaluation.changes.steady
    if orders == state.orders and node.uid == state.node_uid:
        return None
    return SpecChange(state, orders, node.uid, evaluation.changes.charged if admitted else _NOBODY)


def _rollout_change(evaluation: Evaluation, notes: Notes, now: datetime, cache: Cache) -> NodeRollout | None:
    name = evaluation.node.name
    known = cache.settled.get(name)
    if known is not None and known[0] is evaluation and known[1] == notes and not _has_future(evaluation.state, now):
        return None
    wanted = rollout_of(evaluation, notes, now)
    if wanted is None or _same(evaluation.state.rollout, wanted):
        cache.settled[name] = (evaluation, notes)
        return None
    return wanted


def _stray_marks(world: World, now: datetime, checks: list[datetime]) -> dict[str, NodeMarks]:
    """Marks of ours on Nodes without an NPUNodeState: what they tell of is over, for its memory is gone.

    Only where it is known that there is none; what the API server does not show may well be there.
    """
    found = {
        name: marks for name in world.nodes.keys() - world.states.keys() if (marks := without_marks(world.nodes[name]))
    }
    if found and not world.states_known:
        checks.append(later(now, _STATES_SECONDS))
        return {}
    return dict(sorted(found.items()))


def _has_future(state: StateView, now: datetime) -> bool:
    """A time of its conditions cannot be, since a clock was wrong: it starts anew."""
    conditions = state.rollout.conditions if state.rollout is not None else ()
    return any(in_future(found.last_transition_time, now) for found in conditions)


def _without_node(
    world: World, hold: RemovalHold, now: datetime, rollouts: dict[str, NodeRollout], checks: list[datetime]
) -> dict[str, StateView]:
    """States whose Node is gone: mark them, and delete them once the grace is over, unless too many are gone."""
    deletions: dict[str, StateView] = {}
    for name in sorted(world.states.keys() - world.nodes.keys()):
        state = world.states[name]
        held = hold.message if hold.id and node_key(name) not in hold.confirmed else ""
        told = gone_since(state)
        if told is not None:
            end = later(happened(told, now), world.grace_seconds)
            if now < end:
                checks.append(end)
            elif not held:
                deletions[name] = state
                continue
        wanted = rollout_without_node(state, world.grace_seconds, held, now)
        if not _same(state.rollout, wanted):
            rollouts[name] = wanted
    return deletions


def _same(stands: NodePolicyStatus | NodeRollout | None, wanted: NodePolicyStatus | NodeRollout) -> bool:
    return stands is not None and (stands == wanted or same_status(stands.model_dump(), wanted.model_dump()))
