"""Drains: what the planner asks of the drainer, and the marks on a Node that tell people and other drainers of it."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from controllers.node_policy.plan.orders import Orders
from controllers.node_policy.plan.view import NodeConditionType, NodeReason, NodeView
from crds.models.conditions import Condition, find_condition
from crds.models.node_state import NodeDrain, NodeRollout

CORDONED_BY: Final = "npufleet.io/cordoned-by"
DRAIN_REQUEST: Final = "npufleet.io/drain-request"
DRAIN_DONE: Final = "npufleet.io/drain-done"

# How a drain ends that did not reach its aim; the next one for the same change waits.
ABORTS: Final = frozenset({NodeReason.DRAIN_TIMED_OUT, NodeReason.UNCORDONED, NodeReason.CHANGE_FAILED})


def drain_condition(rollout: NodeRollout | None) -> Condition | None:
    """What `status.rollout` says of the drain of its node; its transition time is the start or the end of it."""
    return find_condition(rollout.conditions, NodeConditionType.DRAINING) if rollout is not None else None


def for_target(drain: NodeDrain, target: Orders) -> bool:
    """Whether the drain is for what its devices are to become now; what becomes of others is nothing to it."""
    return drain.target == target.purpose(drain.devices)


@dataclass(frozen=True, slots=True)
class DrainedDevice:
    """A device that has to become free.

    `addresses`: its own and those of its virtual functions. `pods`: UIDs of pods whose processes use it. `withheld`:
    nobody gets it any more.
    """

    address: str
    addresses: frozenset[str]
    pods: frozenset[str]
    withheld: bool


@dataclass(frozen=True, slots=True)
class DrainOrder:
    """One node to be emptied as far as `devices` need it, for orders of this `revision`.

    `policy`: the one that the drain is laid to. `cordoned`: the Node is unschedulable now.
    """

    node: str
    policy: str
    revision: str
    devices: tuple[DrainedDevice, ...]
    cordoned: bool


@dataclass(frozen=True, slots=True)
class NodeMarks:
    """What a Node should say, written in one piece and only to the Node of this UID.

    `unschedulable` None: as it is. `cordoned_by`, `drain_request`: "" means that the annotation is not there.
    `drain_done` None: as it is; "": removed.
    """

    node_uid: str
    unschedulable: bool | None
    cordoned_by: str
    drain_request: str
    drain_done: str | None


def without_marks(node: NodeView) -> NodeMarks | None:
    """The Node as it should be when nobody drains it; None where it is so. A cordon of somebody else stays."""
    if not (node.cordoned_by or node.drain_request or node.drain_done):
        return None
    ours = bool(node.cordoned_by) and node.unschedulable
    return NodeMarks(node.uid, False if ours else None, "", "", "" if node.drain_done else None)


class DrainTime(NamedTuple):
    """How long a drain took that has ended, and how: the reason of its condition `Draining` at the end."""

    node: str
    policy: str
    seconds: float
    outcome: str
