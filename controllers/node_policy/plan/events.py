"""What is worth an Event: a condition of a policy that turned, a mass removal that is held. Never a mere loop."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controllers.node_policy.plan.removal_hold import SETTINGS_NAME, Holds
from controllers.node_policy.plan.view import PolicyView, StateView
from crds.models.conditions import Condition, Status, find_condition
from crds.models.node_policy import NodePolicyStatus, PolicyConditionType, PolicyReason

_GOOD: Final = {
    PolicyConditionType.READY: Status.TRUE,
    PolicyConditionType.ACCEPTED: Status.TRUE,
    PolicyConditionType.DEGRADED: Status.FALSE,
    PolicyConditionType.CONFLICTED: Status.FALSE,
}
# Reasons of a policy that is not ready which need patience and no person.
_PATIENCE: Final = frozenset({PolicyReason.ROLLING_OUT, PolicyReason.INVENTORY_PENDING, PolicyReason.PAUSED})


class About(StrEnum):
    """What kind of object an Event is about."""

    POLICY = "NPUNodePolicy"
    NODE = "Node"
    SETTINGS = "ConfigMap"


@dataclass(frozen=True, slots=True)
class PlanEvent:
    """An Event to post once the object that it is about was written; `node`: once the `rollout` of that node was."""

    about: About
    name: str
    warning: bool
    reason: str
    message: str
    node: str = ""


def policy_events(policy: PolicyView, status: NodePolicyStatus) -> list[PlanEvent]:
    """One Event for each condition that turned or has another reason now."""
    old = policy.status.conditions if policy.status is not None else ()
    events = []
    for kind, good in _GOOD.items():
        now, before = find_condition(status.conditions, kind), find_condition(old, kind)
        if now is None or not _turned(before, now, good):
            continue
        warning = now.status is not good and now.reason not in _PATIENCE
        text = now.message or f"{kind} is {now.status}"
        events.append(PlanEvent(About.POLICY, policy.name, warning, now.reason, text))
    return events


def hold_events(holds: Holds, states: Iterable[StateView]) -> list[PlanEvent]:
    """One Event for each mass removal that is held and that no NPUNodeState shows yet."""
    unseen = {hold.id: hold for hold in holds.active}
    for state in states if unseen else ():
        for shown in state.rollout.conditions if state.rollout else ():
            for identity in [identity for identity in unseen if identity in shown.message]:
                del unseen[identity]
    return [
        PlanEvent(About.SETTINGS, SETTINGS_NAME, True, PolicyReason.REMOVAL_HELD, hold.message)
        for hold in unseen.values()
    ]


def _turned(before: Condition | None, now: Condition, good: Status) -> bool:
    if before is None:
        return now.status is not good and now.reason not in _PATIENCE
    return (before.status, before.reason) != (now.status, now.reason)
