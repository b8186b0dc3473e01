"""What becomes of a drain: was the change made that it was for, and if not, when may it be tried again.

A drain after which the change was not made counts like one that was given up, whatever the reason: its users come back,
and must not be moved away in vain again and again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from controllers.node_policy.plan.drains import ABORTS, drain_condition, for_target
from controllers.node_policy.plan.evaluate import Evaluation
from controllers.node_policy.plan.moments import happened, later, one_more
from controllers.node_policy.plan.orders import RolloutLimits, address_key
from controllers.node_policy.plan.view import NodeReason, StateView
from controllers.node_policy.plan.waits import NO_LIMITS
from crds.models.conditions import Status, truncate_message
from crds.models.node_state import Intent, NodeDrain
from crds.models.rollout import Drain

LEAST_RETRY_SECONDS: Final = 60
LONGEST_RETRY_SECONDS: Final = 3600
_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True)
class DrainSaid:
    """What `status.rollout` is to say of a drain."""

    under_way: bool
    reason: str
    message: str
    drain: NodeDrain | None

    @property
    def aborted(self) -> bool:
        """It was given up, and what it was for is still to be done."""
        return not self.under_way and self.drain is not None


def back_off_ends(state: StateView, now: datetime) -> datetime | None:
    """Until when a drain that was given up is not tried again; None: there is no such drain."""
    drain = state.rollout.drain if state.rollout is not None else None
    if drain is None or drain.aborts is None:
        return None
    said = drain_condition(state.rollout)
    if said is None or said.status is Status.TRUE or said.reason not in ABORTS:
        return None
    return later(happened(said.last_transition_time, now), retry_seconds(state.orders.limits, drain.aborts))


def retry_seconds(limits: tuple[RolloutLimits, ...], aborts: int) -> int:
    """How long a drain that was in vain `aborts` times in a row is not tried again.

    As long as it may take, doubled from time to time: who is evicted for nothing is so ever more rarely.
    """
    first = max(LEAST_RETRY_SECONDS, min(limit.drain_timeout_seconds for limit in limits or (NO_LIMITS,)))
    doublings = min(max(aborts - 1, 0), LONGEST_RETRY_SECONDS.bit_length())
    return min(LONGEST_RETRY_SECONDS, first << doublings)


def in_vain(
    evaluation: Evaluation, drain: NodeDrain, reason: NodeReason, why: str, unseen: tuple[str, ...] = ()
) -> DrainSaid:
    """What the objects remember of a drain after which the change was not made: the next one waits longer."""
    purpose = evaluation.target.purpose(drain.devices)
    aborts = one_more((drain.aborts or 0) if drain.target == purpose else 0)
    seconds = retry_seconds(evaluation.state.orders.limits, aborts)
    retry = f"tried again after {seconds} s, after nodes where none was given up"
    message = truncate_message(why, _MESSAGE - len(retry) - 2) + f"; {retry}"
    record = NodeDrain(policy=drain.policy, target=purpose, aborts=aborts, devices=drain.devices, unseen=unseen)
    return DrainSaid(False, reason, message, record)


def failures_of(evaluation: Evaluation, drain: NodeDrain) -> list[str]:
    """Why devices of a drain are not as they should be although it is still wanted; nothing when all are, or it is not.

    One whose users may not be moved away any more is another thing: nobody wants its drain.
    """
    if not for_target(drain, evaluation.target):
        return []
    limits = {limit.policy: limit for limit in evaluation.target.limits}
    found = []
    for address in _concerned(evaluation, drain):
        why = evaluation.changes.deferred.get(address)
        verdict = evaluation.undone.get(address)
        if why is not None:
            if limits.get(why.policy, NO_LIMITS).drain is Drain.IF_IN_USE:
                found.append(f"{address}: {why.message}")
        elif verdict is not None:
            found.append(f"{address}: {verdict.reason}: {verdict.message}" if verdict.message else address)
    return found


def reached(evaluation: Evaluation, drain: NodeDrain) -> bool:
    """Every device of the drain is as it was to become. One that was given back is in no target any more."""
    concerned = _concerned(evaluation, drain)
    if any(address in evaluation.undone or address in evaluation.changes.deferred for address in concerned):
        return False
    if for_target(drain, evaluation.target):
        return True
    orders = evaluation.state.orders.by_address()
    return bool(concerned) and all(
        address in orders and orders[address].intent is Intent.RELEASE for address in concerned
    )


def _concerned(evaluation: Evaluation, drain: NodeDrain) -> list[str]:
    """The devices of a drain that are in orders; of one that names none, all that are."""
    orders = evaluation.state.orders.devices
    return [order.address for order in orders if not drain.devices or order.address in drain.devices]


def by_address(addresses: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(addresses, key=address_key))
