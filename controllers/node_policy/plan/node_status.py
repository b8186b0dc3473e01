"""The subtree `rollout` in the status of an NPUNodeState: where the node stands, for people and for this controller.

Its transition times are also memory that outlives the process: when a Node was first missing, when a node last moved.
"""

from datetime import datetime
from typing import Final

from controllers.node_policy.plan.evaluate import Evaluation
from controllers.node_policy.plan.observe import Progress
from controllers.node_policy.plan.removal_hold import RemovalHold
from controllers.node_policy.plan.rollup import timestamp
from controllers.node_policy.plan.view import NodeConditionType, NodeReason, StateView
from crds.models.conditions import Condition, condition, find_condition, merge_conditions, truncate_message
from crds.models.node_state import Admission, Intent, NodeRollout

_MESSAGE: Final = 1024
_UNAVAILABLE: Final = {
    Progress.PENDING: (False, NodeReason.CHANGING),
    Progress.BLOCKED: (False, NodeReason.CHANGING),
    Progress.FAILED: (False, NodeReason.DEVICES_FAILED),
    Progress.DAEMON_MISSING: (False, NodeReason.DAEMON_MISSING),
    Progress.SILENT: (None, NodeReason.DAEMON_SILENT),
    Progress.REBOOTED: (None, NodeReason.REBOOTED),
}


def rollout_of(
    evaluation: Evaluation, waiting_for: tuple[str, ...], hold: RemovalHold, now: datetime
) -> NodeRollout | None:
    """What `rollout` should say of a node that exists; None when there is nothing to say and nothing was ever said.

    `waiting_for`: the policies that have no room for this node now.
    """
    state = evaluation.state
    if state.rollout is None and not state.orders.devices and not evaluation.target.devices:
        return None
    conditions = [_available(evaluation, now), _updated(evaluation, waiting_for, now)]
    held = {order.policy for order in state.orders.devices if order.intent is not Intent.RELEASE} & hold.held
    if held:
        conditions.append(_removal_held(state, hold, now))
    admitted = Admission.WAITING if waiting_for else Admission.ADMITTED
    return _rollout(state, admitted, conditions)


def rollout_without_node(state: StateView, grace_seconds: int, now: datetime) -> NodeRollout:
    """What `rollout` should say when the Node is gone; the transition time of NodePresent starts the grace."""
    gone = condition(
        NodeConditionType.NODE_PRESENT,
        False,
        NodeReason.NODE_GONE,
        f"the Node does not exist; this object is deleted when that has lasted for {grace_seconds} s",
        now=timestamp(now),
        observed_generation=state.generation,
    )
    admitted = state.rollout.admitted if state.rollout is not None else Admission.ADMITTED
    kept = [c for c in state.rollout.conditions if c.type != gone.type] if state.rollout is not None else []
    return _rollout(state, admitted, [*kept, gone])


def gone_since(state: StateView) -> str | None:
    """When the Node was first found missing, as the condition tells it; None: it was not so far."""
    found = find_condition(state.rollout.conditions, NodeConditionType.NODE_PRESENT) if state.rollout else None
    return found.last_transition_time if found is not None else None


def _rollout(state: StateView, admitted: Admission, conditions: list[Condition]) -> NodeRollout:
    old = state.rollout.conditions if state.rollout is not None else ()
    return NodeRollout(
        observed_generation=state.generation,
        admitted=admitted,
        cordoned_by=state.rollout.cordoned_by if state.rollout is not None else "",
        conditions=merge_conditions(old, conditions),
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


def _updated(evaluation: Evaluation, waiting_for: tuple[str, ...], now: datetime) -> Condition:
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
    return condition(
        NodeConditionType.UPDATED,
        status,
        reason,
        truncate_message(message, _MESSAGE),
        now=timestamp(now),
        observed_generation=evaluation.state.generation,
    )


def _removal_held(state: StateView, hold: RemovalHold, now: datetime) -> Condition:
    return condition(
        NodeConditionType.REMOVAL_HELD,
        True,
        NodeReason.REMOVAL_HELD,
        truncate_message(hold.message(), _MESSAGE),
        now=timestamp(now),
        observed_generation=state.generation,
    )
