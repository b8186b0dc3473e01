"""What a plan wants written, kept until it is: one piece of work for each object, replaced by every newer plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from controllers.node_policy.plan import SpecChange, StateView
from controllers.node_policy.plan.drains import DrainTime
from controllers.node_policy.plan.events import PlanEvent
from crds.models.node_policy import NodePolicyStatus
from crds.models.node_state import NodeRollout
from runtime.backoff import Backoff


@dataclass(slots=True)
class Pause:
    """For the orders of a node whose answers were lost in a row: none is sent before `until`."""

    backoff: Backoff
    until: float = 0.0


@dataclass(slots=True)
class NodeWork:
    """For one NPUNodeState: of what is set, the first is written, and a new plan says what comes next."""

    creation: dict[str, Any] | None = None
    deletion: StateView | None = None
    change: SpecChange | None = None
    rollout: RolloutWork | None = None

    def content(self) -> tuple[object, ...]:
        """What would be written: of two works with equal content the one fails where the other failed."""
        return (
            self.creation,
            self.deletion.uid if self.deletion is not None else None,
            (self.change.orders, self.change.node_uid) if self.change is not None else None,
            self.rollout.rollout if self.rollout is not None else None,
        )


@dataclass(frozen=True, slots=True)
class RolloutWork:
    """`events` and `drains` (that end with it) are told once it is written."""

    state: StateView
    rollout: NodeRollout
    events: tuple[PlanEvent, ...]
    drains: tuple[DrainTime, ...]


@dataclass(frozen=True, slots=True)
class PolicyWork:
    """For one NPUNodePolicy; `events` are told once its status is written."""

    uid: str
    status: NodePolicyStatus
    events: tuple[PlanEvent, ...]


@dataclass(frozen=True, slots=True)
class Posted:
    """Whose objects have to be written now, by name. What failed as it is now waits for its own next attempt."""

    nodes: list[str] = field(default_factory=list)
    policies: list[str] = field(default_factory=list)
