"""One step of a drain: does it begin, go on, end, or is it given up, and what do the objects have to say of it.

A drain is under way from the moment that `status.rollout` says so until it says otherwise; that condition's transition
time is its start. Nothing of it is kept anywhere else, so whoever leads next goes on where the last one stopped.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from controllers.node_policy.plan.drain_outcome import DrainSaid, by_address, failures_of, in_vain, reached
from controllers.node_policy.plan.drains import (
    DrainedDevice,
    DrainOrder,
    DrainTime,
    NodeMarks,
    drain_condition,
    for_target,
)
from controllers.node_policy.plan.evaluate import Evaluation
from controllers.node_policy.plan.events import About, PlanEvent
from controllers.node_policy.plan.moments import happened, lasted, later
from controllers.node_policy.plan.orders import ORPHANS, address_key
from controllers.node_policy.plan.progress import PASSES, Progress, withheld
from controllers.node_policy.plan.view import DrainFacts, NodeReason
from controllers.node_policy.plan.waits import NO_LIMITS, Wait
from crds.models.conditions import Condition, Status, truncate_message
from crds.models.node_state import NodeDrain
from crds.models.rollout import Drain

_MESSAGE: Final = 1024
_UNKNOWN: Final = frozenset({Progress.SILENT, Progress.REBOOTED, Progress.DAEMON_MISSING})


@dataclass(frozen=True, slots=True)
class DrainStep:
    """`said` None: nothing is to be said of any drain. `ends`: it has to be written before anything else is done.

    The rest is for the drainer, the Node and people. `check_at`: when time alone would lead to another step.
    """

    said: DrainSaid | None = None
    ends: bool = False
    order: DrainOrder | None = None
    marks: NodeMarks | None = None
    events: tuple[PlanEvent, ...] = ()
    seconds: DrainTime | None = None
    check_at: datetime | None = None


NO_STEP: Final = DrainStep()


def drain_step(evaluation: Evaluation, facts: DrainFacts | None, external: bool, now: datetime) -> DrainStep:
    """The step for one node at `now`; `facts` is what the drainer saw there, if it has looked."""
    node, rollout = evaluation.node, evaluation.state.rollout
    drain = rollout.drain if rollout is not None else None
    marked = node.cordoned_by or node.drain_request or node.drain_done
    if not evaluation.waits and drain is None and not marked:
        return NO_STEP
    said = drain_condition(rollout)
    under_way = said is not None and said.status is Status.TRUE
    revision = evaluation.state.orders.revision()
    if facts is not None and facts.revision != revision:
        facts = None
    marks = _marks(evaluation, under_way, revision, facts, external)
    if said is not None and under_way:
        drain = drain or NodeDrain(policy=_laid_to(evaluation), target="")
        return _go_on(evaluation, drain, said, revision, facts, external, marks, now)
    if evaluation.waits:
        return _begin(evaluation, drain, revision, facts, external, marks, now)
    return DrainStep(said=_afterwards(evaluation, drain, said), marks=marks)


def _begin(
    evaluation: Evaluation,
    former: NodeDrain | None,
    revision: str,
    facts: DrainFacts | None,
    external: bool,
    marks: NodeMarks | None,
    now: datetime,
) -> DrainStep:
    devices, aborts = set(evaluation.waits), None
    if former is not None and for_target(former, evaluation.target):
        # Those for which it was in vain stay with it until they have changed: that must not be forgotten over others.
        devices |= evaluation.undone.keys() & former.devices
        aborts = former.aborts
    drain = NodeDrain(
        policy=_laid_to(evaluation),
        target=evaluation.target.purpose(devices),
        aborts=aborts,
        devices=by_address(devices),
    )
    reason, message = _stands(evaluation, revision, facts, external)
    said = DrainSaid(True, reason, message, drain)
    text = f"drain of node {evaluation.node.name} started: {message}"
    evicts = any(wait.evicts for wait in evaluation.waits.values())
    return DrainStep(
        said=said,
        marks=marks,
        events=_events(evaluation, drain.policy, False, "DrainStarted", text) if evicts else (),
        check_at=later(now, _timeout(evaluation, drain.policy)),
    )


def _go_on(
    evaluation: Evaluation,
    drain: NodeDrain,
    said: Condition,
    revision: str,
    facts: DrainFacts | None,
    external: bool,
    marks: NodeMarks | None,
    now: datetime,
) -> DrainStep:
    since = happened(said.last_transition_time, now)
    timeout = _timeout(evaluation, drain.policy)
    deadline = later(since, timeout)
    waits = evaluation.waits
    devices = by_address({*drain.devices, *waits})
    if devices != drain.devices:
        target = evaluation.target.purpose(devices) if for_target(drain, evaluation.target) else drain.target
        drain = drain.model_copy(update={"devices": devices, "target": target})
    unknown = bool(evaluation.problem) or evaluation.worst.progress in _UNKNOWN
    if _uncordoned(evaluation) and waits:
        by_hand = "somebody made the node schedulable again"
        return _give_up(evaluation, drain, NodeReason.UNCORDONED, by_hand, facts, marks, now, since)
    if now >= deadline and (waits or unknown):
        return _give_up(
            evaluation, drain, NodeReason.DRAIN_TIMED_OUT, f"given up after {timeout} s", facts, marks, now, since
        )
    passing = (evaluation.undone[address].reason in PASSES for address in devices if address in evaluation.undone)
    moving = evaluation.moving or any(passing)
    if not waits and (not moving or now >= deadline):
        return _end(evaluation, drain, marks, now, since)
    reason, message = _stands(evaluation, revision, facts, external)
    order = _order(evaluation, drain, revision, external)
    going_on = DrainSaid(True, reason, message, drain)
    return DrainStep(said=going_on, order=order, marks=marks, check_at=deadline)


def _give_up(
    evaluation: Evaluation,
    drain: NodeDrain,
    reason: NodeReason,
    why: str,
    facts: DrainFacts | None,
    marks: NodeMarks | None,
    now: datetime,
    since: datetime,
) -> DrainStep:
    """The next plan takes back the orders and the marks, since the objects then say that it was given up."""
    blockers = "; ".join(_blockers(evaluation, facts)) or evaluation.problem or evaluation.worst.message
    unseen = by_address(address for address, wait in evaluation.waits.items() if not wait.users)
    said = in_vain(evaluation, drain, reason, f"{why}: {blockers}", unseen)
    text = f"drain of node {evaluation.node.name} was given up: {reason}: {said.message}"
    return DrainStep(
        said=said,
        ends=True,
        marks=marks,
        events=_events(evaluation, drain.policy, True, "DrainAborted", text),
        seconds=DrainTime(evaluation.node.name, drain.policy, lasted(since, now), reason),
    )


def _end(
    evaluation: Evaluation, drain: NodeDrain, marks: NodeMarks | None, now: datetime, since: datetime
) -> DrainStep:
    limits = next((limits for limits in evaluation.state.orders.limits if limits.policy == drain.policy), NO_LIMITS)
    # Else it is a hand-over that took its time: nobody was moved away, and nothing is in vain.
    moved_away = limits.drain is Drain.IF_IN_USE or bool(evaluation.node.drain_request)
    failures = failures_of(evaluation, drain)
    if failures and moved_away:
        return _change_failed(evaluation, drain, failures, marks, now, since)
    done = reached(evaluation, drain)
    reason = NodeReason.DRAINED if done else NodeReason.WITHDRAWN
    message = "" if done else "no change needs it any more"
    if failures:
        reason, message = NodeReason.CHANGE_FAILED, truncate_message("; ".join(failures), _MESSAGE)
    name = "Drained" if done else "DrainWithdrawn"
    said = DrainSaid(False, reason, message, None)
    if not moved_away:
        return DrainStep(said=said, ends=True, marks=marks)
    text = f"drain of node {evaluation.node.name} ended after {lasted(since, now):.0f} s"
    return DrainStep(
        said=said,
        ends=True,
        marks=marks,
        events=_events(evaluation, drain.policy, False, name, f"{text}: {message}" if message else text),
        seconds=DrainTime(evaluation.node.name, drain.policy, lasted(since, now), reason),
    )


def _change_failed(
    evaluation: Evaluation,
    drain: NodeDrain,
    failures: list[str],
    marks: NodeMarks | None,
    now: datetime,
    since: datetime,
) -> DrainStep:
    """The users went and the change was not made: they come back, and must not be moved away again and again."""
    reason = NodeReason.CHANGE_FAILED
    said = in_vain(evaluation, drain, reason, f"the devices were not changed after it: {'; '.join(failures)}")
    text = f"drain of node {evaluation.node.name} was in vain: {said.message}"
    return DrainStep(
        said=said,
        ends=True,
        marks=marks,
        events=_events(evaluation, drain.policy, True, reason, text),
        seconds=DrainTime(evaluation.node.name, drain.policy, lasted(since, now), reason),
    )


def _afterwards(evaluation: Evaluation, drain: NodeDrain | None, said: Condition | None) -> DrainSaid | None:
    """A drain that was given up is remembered while what it was for is still to be done."""
    if said is None:
        return None
    changes = evaluation.changes
    open_still = {*changes.deferred, *changes.disrupted, *evaluation.undone}
    if drain is not None and (open_still.isdisjoint(drain.devices) or not for_target(drain, evaluation.target)):
        drain = None
    return DrainSaid(False, said.reason, said.message, drain)


def _stands(evaluation: Evaluation, revision: str, facts: DrainFacts | None, external: bool) -> tuple[str, str]:
    waits = evaluation.waits.values()
    message = truncate_message("; ".join(_blockers(evaluation, facts)), _MESSAGE)
    evicting = [wait for wait in waits if wait.evicts]
    if external and evicting and evaluation.node.drain_done != revision:
        return NodeReason.WAITING_FOR_DRAINER, message
    if any(wait.users for wait in evicting) or (facts is not None and evicting and (facts.blockers or facts.claims)):
        return NodeReason.EVICTING, message
    if any(wait.publisher for wait in waits):
        return NodeReason.WAITING_FOR_PUBLISHER, message
    return NodeReason.WAITING_FOR_CHANGE, message


def _blockers(evaluation: Evaluation, facts: DrainFacts | None) -> list[str]:
    """Who stands in the way: in the drainer's words where it has looked, else as the host says."""
    told = list(facts.blockers) if facts is not None else []
    for address, wait in evaluation.waits.items():
        if facts is not None and facts.blockers and wait.evicts:
            continue
        if wait.users:
            told.append(f"{address}: {wait.users.describe()}")
        elif wait.message:
            told.append(f"{address}: {wait.message}")
    return told


def _order(evaluation: Evaluation, drain: NodeDrain, revision: str, external: bool) -> DrainOrder | None:
    node = evaluation.node
    evicting = [wait for wait in evaluation.waits.values() if wait.evicts]
    if not evicting and not (node.drain_request and not evaluation.waits):
        return None
    devices = () if external else tuple(_device(evaluation, wait) for wait in evicting)
    return DrainOrder(node.name, drain.policy, revision, devices, node.unschedulable)


def _device(evaluation: Evaluation, wait: Wait) -> DrainedDevice:
    addresses = evaluation.usage.addresses(wait.order.address, wait.order.applied_shape)
    free = withheld(addresses, evaluation.node, evaluation.state)
    return DrainedDevice(wait.order.address, addresses, wait.users.pods, free)


def _marks(
    evaluation: Evaluation, under_way: bool, revision: str, facts: DrainFacts | None, external: bool
) -> NodeMarks | None:
    """What the Node should say, where it says something else.

    A cordon of ours stays as long as the drain does. One of somebody else is as good, and is never touched.
    """
    node = evaluation.node
    waits = evaluation.waits.values()
    drains = under_way and (any(wait.evicts for wait in waits) or (not waits and bool(node.drain_request)))
    request = revision if drains else ""
    cordoned_by, unschedulable = node.cordoned_by, None
    if drains and not external:
        if facts is not None and facts.needs_cordon and not node.unschedulable and not node.cordoned_by:
            cordoned_by, unschedulable = _laid_to(evaluation), True
    elif node.cordoned_by:
        cordoned_by, unschedulable = "", False if node.unschedulable else None
    done = "" if node.drain_done and not under_way else None
    if (cordoned_by, request, unschedulable, done) == (node.cordoned_by, node.drain_request, None, None):
        return None
    return NodeMarks(node.uid, unschedulable, cordoned_by, request, done)


def _uncordoned(evaluation: Evaluation) -> bool:
    """A person made the node schedulable that was cordoned for the drain."""
    node, rollout = evaluation.node, evaluation.state.rollout
    ours = node.cordoned_by or (rollout.cordoned_by if rollout is not None else "")
    return bool(ours) and not node.unschedulable


def _laid_to(evaluation: Evaluation) -> str:
    """The policy of the lowest address that waits; the one of a drain under way stays."""
    rollout, said = evaluation.state.rollout, drain_condition(evaluation.state.rollout)
    if rollout is not None and rollout.drain is not None and said is not None and said.status is Status.TRUE:
        return rollout.drain.policy
    lowest = min(evaluation.waits, key=address_key, default=None)
    if lowest is not None:
        return evaluation.waits[lowest].order.policy
    return next((order.policy for order in evaluation.state.orders.devices), ORPHANS)


def _timeout(evaluation: Evaluation, policy: str) -> int:
    """The shortest among the policies whose orders wait, in seconds."""
    concerned = [wait.limits for wait in evaluation.waits.values()]
    concerned = concerned or [limits for limits in evaluation.state.orders.limits if limits.policy == policy]
    return min((limits.drain_timeout_seconds for limits in concerned), default=NO_LIMITS.drain_timeout_seconds)


def _events(evaluation: Evaluation, policy: str, warning: bool, reason: str, text: str) -> tuple[PlanEvent, ...]:
    name = evaluation.node.name
    return (
        PlanEvent(About.POLICY, policy, warning, reason, text, node=name),
        PlanEvent(About.NODE, name, warning, reason, text, node=name),
    )
