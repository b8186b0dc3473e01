"""The subtree `rollout` in the status of an NPUNodeState: where the node stands, for people and for this controller.

Its transition times are also memory that outlives the process: when a Node was first missing or was created anew, when
a node last moved.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from controllers.node_policy.plan.drain_outcome import DrainSaid
from controllers.node_policy.plan.drains import drain_condition
from controllers.node_policy.plan.evaluate import Evaluation
from controllers.node_policy.plan.moments import in_future
from controllers.node_policy.plan.orders import address_key
from controllers.node_policy.plan.progress import Progress
from controllers.node_policy.plan.removal_hold import Holds, device_key
from controllers.node_policy.plan.view import NodeConditionType, NodeReason, NodeView, StateView
from crds.models.conditions import (
    Condition,
    Status,
    condition,
    find_condition,
    merge_conditions,
    parse_timestamp,
    timestamp,
    truncate_message,
)
from crds.models.node_state import Admission, Intent, NodeRollout

_MESSAGE: Final = 1024
_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_POLICY_NAME: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_UNAVAILABLE: Final = {
    Progress.PENDING: (False, NodeReason.CHANGING),
    Progress.BLOCKED: (False, NodeReason.CHANGING),
    Progress.FAILED: (False, NodeReason.DEVICES_FAILED),
    Progress.DAEMON_MISSING: (False, NodeReason.DAEMON_MISSING),
    Progress.SILENT: (None, NodeReason.DAEMON_SILENT),
    Progress.REBOOTED: (None, NodeReason.REBOOTED),
}


@dataclass(frozen=True, slots=True)
class Notes:
    """What is to be said of a node that its evaluation does not tell.

    `waiting_for`: the policies that have no room for it now. `held`: why devices of it are held. `settling`: the Node
    was created anew, and its labels may be on their way for so many seconds; 0: not so. `drain`: what there is to say
    of a drain.
    """

    waiting_for: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    settling: int = 0
    drain: DrainSaid | None = None


def rollout_of(evaluation: Evaluation, notes: Notes, now: datetime) -> NodeRollout | None:
    """What `rollout` should say of a node that exists; None when there is nothing to say and nothing was ever said."""
    state = evaluation.state
    if state.rollout is None and not state.orders.devices and not evaluation.target.devices and not notes.held:
        return None
    conditions = [_available(evaluation, now), _updated(evaluation, notes, now)]
    drained = _draining(state, notes.drain, now)
    if drained is not None:
        conditions.append(drained)
    if notes.held:
        conditions.append(_removal_held(state, notes.held, now))
    if notes.settling:
        conditions.append(_created_anew(evaluation.node, state, notes.settling, now))
    return _rollout(state, _admission(notes), conditions, now, evaluation.node, notes.drain)


def _admission(notes: Notes) -> Admission:
    if notes.drain is not None and notes.drain.under_way:
        return Admission.DRAINING
    if notes.drain is not None and notes.drain.aborted:
        return Admission.ABORTED
    return Admission.WAITING if notes.waiting_for else Admission.ADMITTED


def held_on(evaluation: Evaluation, holds: Holds) -> tuple[str, ...]:
    """Why devices of this node are held, one text for each hold that holds some."""
    texts = []
    orders = evaluation.state.orders.devices
    if any(order.policy in holds.policies.held and order.intent is not Intent.RELEASE for order in orders):
        texts.append(holds.policies.message)
    if any(device_key(evaluation.node.name, address) in holds.orders.held for address in evaluation.orphans):
        texts.append(holds.orders.message)
    return tuple(texts)


def created_anew_since(node: NodeView, state: StateView) -> datetime | None:
    """When this Node was first found in the place of an earlier one of its name; None: not noted so far."""
    found = find_condition(state.rollout.conditions, NodeConditionType.NODE_RENEWED) if state.rollout else None
    return parse_timestamp(found.last_transition_time) if found is not None and node.uid in found.message else None


def rollout_without_node(state: StateView, grace_seconds: int, held: str, now: datetime) -> NodeRollout:
    """What `rollout` should say when the Node is gone; the transition time of NodePresent starts the grace.

    `held`: why the object is not deleted even then, "" when it is.
    """
    text = f"the Node does not exist; this object is deleted when that has lasted for {grace_seconds} s"
    message = truncate_message(f"the Node does not exist; {held}" if held else text, _MESSAGE)
    # Nothing else of what was said last: how far the node had come by then is nobody's knowledge now.
    told = ((NodeConditionType.AVAILABLE, None, ""), (NodeConditionType.NODE_PRESENT, False, message))
    conditions = [
        condition(kind, status, NodeReason.NODE_GONE, words, now=timestamp(now), observed_generation=state.generation)
        for kind, status, words in told
    ]
    return _rollout(state, Admission.ADMITTED, conditions, now)


def gone_since(state: StateView) -> str | None:
    """When the Node was first found missing, as the condition tells it; None: it was not so far."""
    found = find_condition(state.rollout.conditions, NodeConditionType.NODE_PRESENT) if state.rollout else None
    return found.last_transition_time if found is not None else None


def _rollout(
    state: StateView,
    admitted: Admission,
    conditions: list[Condition],
    now: datetime,
    node: NodeView | None = None,
    drain: DrainSaid | None = None,
) -> NodeRollout:
    old = [c for c in state.rollout.conditions if not in_future(c.last_transition_time, now)] if state.rollout else []
    if state.rollout is not None and state.rollout.observed_generation != state.generation:
        # Of other orders: the node was not available in between, whether or not anybody was told.
        old = [c for c in old if (c.type, c.status) != (NodeConditionType.AVAILABLE, Status.TRUE)]
    if node is not None and created_anew_since(node, state) is None:
        old = [c for c in old if c.type != NodeConditionType.NODE_RENEWED]  # of yet another Node: the time starts anew
    return NodeRollout(
        observed_generation=state.generation,
        admitted=admitted,
        cordoned_by=_cordoned_by(node) if node is not None else "",
        drain=drain.drain if drain is not None else None,
        conditions=merge_conditions(old, conditions),
    )


def _cordoned_by(node: NodeView) -> str:
    """As the Node says, unless somebody wrote there what cannot be a policy's name."""
    return node.cordoned_by if _POLICY_NAME.fullmatch(node.cordoned_by) else ""


def _draining(state: StateView, said: DrainSaid | None, now: datetime) -> Condition | None:
    """The condition of the drain; how the last one ended stays to be seen."""
    stands = drain_condition(state.rollout)
    if said is None:
        if stands is None or stands.status is not Status.FALSE:
            return None
        said = DrainSaid(False, stands.reason, stands.message, None)
    return condition(
        NodeConditionType.DRAINING,
        said.under_way,
        said.reason,
        truncate_message(said.message, _MESSAGE),
        now=timestamp(now),
        observed_generation=state.generation,
    )


def _available(evaluation: Evaluation, now: datetime) -> Condition:
    verdict = evaluation.worst
    status: bool | None = True
    reason, message = NodeReason.NO_DISRUPTION, ""
    if verdict.unavailable:
        status, reason = _UNAVAILABLE[verdict.progress]
        message = f"{verdict.reason}: {verdict.message}" if verdict.message else verdict.reason
    return condition(
        NodeConditionType.AVAILABLE,
        status,
        reason,
        truncate_message(message, _MESSAGE),
        now=timestamp(now),
        observed_generation=evaluation.state.generation,
    )


def _updated(evaluation: Evaluation, notes: Notes, now: datetime) -> Condition:
    waiting_for, deferred = notes.waiting_for, evaluation.changes.deferred
    status: bool | None = True
    reason, message = NodeReason.CURRENT, ""
    if evaluation.state.error:
        status, reason, message = None, NodeReason.STATE_UNREADABLE, evaluation.problem
    elif evaluation.problem:
        status, reason, message = None, NodeReason.INVENTORY_PENDING, evaluation.problem
    elif waiting_for:
        status, reason = False, NodeReason.WAITING_FOR_BUDGET
        # No names of the nodes in the way and no counts: they change with each step of the rollout, on every node.
        message = (
            f"{len(evaluation.changes.disrupted)} devices wait for room in maxUnavailable of {', '.join(waiting_for)}"
        )
    elif deferred:
        address, first = min(deferred.items(), key=lambda item: address_key(item[0]))
        reason = NodeReason(first.reason)
        status, message = False, f"{len(deferred)} devices cannot change yet; {address}: {first.message}"
    return condition(
        NodeConditionType.UPDATED,
        status,
        reason,
        truncate_message(message, _MESSAGE),
        now=timestamp(now),
        observed_generation=evaluation.state.generation,
    )


def _created_anew(node: NodeView, state: StateView, seconds: int, now: datetime) -> Condition:
    return condition(
        NodeConditionType.NODE_RENEWED,
        True,
        NodeReason.NODE_CREATED_ANEW,
        f"the Node was created anew, with UID {node.uid}: for {seconds} s devices that no policy decides any more are "
        "held, since its labels may be on their way",
        now=timestamp(now),
        observed_generation=state.generation,
    )


def _removal_held(state: StateView, held: tuple[str, ...], now: datetime) -> Condition:
    return condition(
        NodeConditionType.REMOVAL_HELD,
        True,
        NodeReason.REMOVAL_HELD,
        truncate_message("; ".join(held), _MESSAGE),
        now=timestamp(now),
        observed_generation=state.generation,
    )
