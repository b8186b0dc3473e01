"""Orders in force that wait until the users of a device let go of it, by what the daemons say of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from controllers.node_policy.plan.orders import Order, RolloutLimits
from controllers.node_policy.plan.progress import OF_PUBLISHER, Verdict, publisher_waits
from controllers.node_policy.plan.users import Usage, Users
from controllers.node_policy.plan.view import NodeView, StateView
from crds.models.node_state import Intent
from crds.models.rollout import Drain

NO_LIMITS: Final = RolloutLimits("")


@dataclass(frozen=True, slots=True)
class Wait:
    """One order that waits for `users`, as far as they are seen.

    `limits` are those of its policy. `publisher`: the publisher has to hand the device over first. `message`: the words
    of the daemon that says so.
    """

    order: Order
    users: Users
    limits: RolloutLimits
    publisher: bool
    message: str

    @property
    def evicts(self) -> bool:
        """Its users are evicted."""
        return self.limits.drain is Drain.IF_IN_USE


def waits_of(
    node: NodeView, state: StateView, verdicts: Mapping[str, Verdict], usage: Usage, silent: frozenset[str]
) -> dict[str, Wait]:
    """By address, those that the binder blocks for a user, or that the publisher withholds and cannot hand over yet."""
    found: dict[str, Wait] = {}
    for order in state.orders.devices:
        verdict = verdicts[order.address]
        said = None if order.intent is Intent.HOLD else publisher_waits(order.address, node, state, silent)
        if not verdict.waits and said is None:
            continue
        users = usage.of(order.address, order.applied_shape)
        limits = next((limits for limits in state.orders.limits if limits.policy == order.policy), NO_LIMITS)
        publisher = said is not None or verdict.reason in OF_PUBLISHER
        found[order.address] = Wait(order, users, limits, publisher, said.message if said else verdict.message)
    return found
