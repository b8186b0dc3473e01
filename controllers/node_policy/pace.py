"""What need not be written at once: a change that is over within seconds is told once, and counts move every 2 s.

A fleet of thousands that changes would otherwise cost one write more for each node, and one of the policy for each
plan. Nothing is kept back that a person or another process waits for: a condition that turned, a drain, a failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from controllers.node_policy.pending import PolicyWork, RolloutWork
from controllers.node_policy.plan.view import NodeConditionType, NodeReason
from crds.models.conditions import Condition, Status, find_condition
from crds.models.node_policy import NodePolicyStatus
from crds.models.node_state import Admission

BEGUN_SECONDS: Final = 10.0
"""For so long after its orders were written a node may be at work on them without a word in `status.rollout`."""
COUNTS_SECONDS: Final = 2.0
"""Between two writes of a policy's status in which no condition turned."""

_PLAIN: Final = frozenset({NodeConditionType.AVAILABLE, NodeConditionType.UPDATED})


def has_only_begun(work: RolloutWork) -> bool:
    """The rollout says no more than that the devices of an available node have begun to change."""
    wanted, stands = work.rollout, work.state.rollout
    if work.events or work.drains or wanted.admitted is not Admission.ADMITTED or wanted.drain is not None:
        return False
    if not {found.type for found in wanted.conditions} <= _PLAIN:
        return False
    available = find_condition(wanted.conditions, NodeConditionType.AVAILABLE)
    if available is None or available.reason != NodeReason.CHANGING:
        return False
    if stands is None:
        return True
    if stands.drain is not None or not {found.type for found in stands.conditions} <= _PLAIN:
        return False
    before = find_condition(stands.conditions, NodeConditionType.AVAILABLE)
    return before is None or before.status is Status.TRUE


def only_counts(stands: NodePolicyStatus | None, work: PolicyWork) -> bool:
    """The policy's status differs from what stands in counts, lists and texts alone."""
    if stands is None or work.events or stands.observed_generation != work.status.observed_generation:
        return False
    return _verdicts(stands.conditions) == _verdicts(work.status.conditions)


def _verdicts(conditions: Iterable[Condition]) -> set[tuple[str, Status, str]]:
    return {(found.type, found.status, found.reason) for found in conditions}
