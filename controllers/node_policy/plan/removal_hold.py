"""Absence is not an order: what vanishes in great number at once is held until somebody says that it is meant.

The reference is not memory but what the objects name: the policies in orders in force, the devices that npufleet
changed, the nodes that have orders. A list that failed, a restored backup, CRDs that were installed anew or a pruned
folder look the same from here; only a person can tell.
"""

import hashlib
from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from controllers.node_policy.plan.orders import ORPHANS
from controllers.node_policy.plan.view import StateView, World
from crds.models.node_state import Intent

LEAST_MISSING: Final = 3
ID_DIGITS: Final = 12
SETTINGS_NAME: Final = "npufleet-settings"
CONFIRM_ANNOTATION: Final = "npufleet.io/confirm-removal"
CONFIRM_ALL: Final = "all"


class Subject(Enum):
    """What is missing, as text: that it is, what is held therefore, and how to go on without confirming."""

    POLICIES = (
        "{count} policies that orders name do not exist ({names})",
        "their devices are held as they are. Bring the policies back",
    )
    ORDERS = (
        "{count} devices that npufleet changed are in no orders and in no policy, more than are in orders ({names})",
        "they are held as they are. Bring their policies back",
    )
    NODES = (
        "{count} nodes that have orders do not exist, more than half of all ({names})",
        "no NPUNodeState is deleted. Bring the Nodes back",
    )


@dataclass(frozen=True, slots=True)
class RemovalHold:
    """`held`: what is missing and therefore held; `id` names it for the confirmation, "" when nothing is held.

    `confirmed`: what is missing and confirmed to be meant; carry it over while the annotation stays the same, since
    the set that the id was made from shrinks as devices are given back.
    `message`: for conditions and Events: what is held, and how to go on.
    """

    held: frozenset[str] = frozenset()
    id: str = ""
    confirmed: frozenset[str] = frozenset()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Holds:
    """All that is held. Policies by name; devices without orders as `node/address`; nodes as `Node/name`."""

    policies: RemovalHold
    orders: RemovalHold
    nodes: RemovalHold

    @property
    def active(self) -> tuple[RemovalHold, ...]:
        return tuple(hold for hold in (self.policies, self.orders, self.nodes) if hold.id)

    @property
    def confirmed(self) -> frozenset[str]:
        """For `World.confirmed` of the next plan."""
        return self.policies.confirmed | self.orders.confirmed | self.nodes.confirmed


def policies_hold(world: World) -> RemovalHold:
    """Missing policies whose orders are kept."""
    reference = deciding_policies(world.states.values())
    return removal_hold(reference, world.policies.keys(), world.confirmation, world.confirmed | _remembered(world))


def _remembered(world: World) -> set[str]:
    """Policies of which the orders themselves say that their removal was confirmed.

    Written to all their nodes at once, without waiting for room, while the releases themselves may take days: whoever
    leads by then knows. The deletion of NPUNodeStates needs no room and is over within minutes; cut short, it is held
    again, with a new id.
    """
    return {limits.policy for state in world.states.values() for limits in state.orders.limits if limits.confirmed}


def confirmed_devices(evaluated: Iterable[tuple[str, StateView, Set[str]]]) -> set[str]:
    """Of devices without orders (by node), those on nodes whose orders remember that giving them back was confirmed."""
    return {
        device_key(name, address)
        for name, state, addresses in evaluated
        if addresses and any(limits.policy == ORPHANS and limits.confirmed for limits in state.orders.limits)
        for address in addresses
    }


def orders_hold(orphans: Set[str], ordered: Set[str], remembered: Set[str], world: World) -> RemovalHold:
    """Devices that npufleet changed, that are in no orders, and that are not given back; all as `node/address`.

    Orders that are gone with their objects cannot be told from orders that were withdrawn: at least 3 such devices
    in all, on whatever nodes, and more of them than there are devices in orders, are held. `remembered`: those of which
    the objects say that it was confirmed.
    """
    return removal_hold(orphans | ordered, ordered, world.confirmation, world.confirmed | remembered, Subject.ORDERS)


def nodes_hold(world: World) -> RemovalHold:
    """Nodes that have orders and do not exist, so that no NPUNodeState is deleted."""
    if world.states.keys() <= world.nodes.keys():
        return RemovalHold()
    reference = {node_key(name) for name, state in world.states.items() if state.orders.devices or state.error}
    existing = {node_key(name) for name in world.nodes}
    return removal_hold(reference, existing, world.confirmation, world.confirmed, Subject.NODES)


def node_key(name: str) -> str:
    """A node as it is named in a hold."""
    return f"Node/{name}"


def device_key(node: str, address: str) -> str:
    """A device of a node as it is named in a hold."""
    return f"{node}/{address}"


def deciding_policies(states: Iterable[StateView]) -> set[str]:
    """Policies that decided a device which is not being given back."""
    found = {order.policy for state in states for order in state.orders.devices if order.intent is not Intent.RELEASE}
    return found - {ORPHANS}


def removal_hold(
    reference: Set[str],
    existing: Set[str],
    confirmation: str,
    confirmed: Set[str] = frozenset(),
    subject: Subject = Subject.POLICIES,
) -> RemovalHold:
    """At least 3 of the reference, and more than half of it, do not exist: hold them, unless confirmed.

    `confirmation` is the annotation's value: an id, several separated by commas, or "all".
    """
    missing = frozenset(reference) - existing
    if not missing:
        return RemovalHold()
    answers = {part.strip() for part in confirmation.split(",")} - {""}
    if CONFIRM_ALL in answers:
        return RemovalHold(confirmed=missing)
    still = missing & confirmed
    questionable = missing - still
    total = len(frozenset(reference) - still)
    if len(questionable) < LEAST_MISSING or 2 * len(questionable) <= total:
        return RemovalHold(confirmed=still)
    identity = removal_id(questionable)
    if identity in answers:
        return RemovalHold(confirmed=missing)
    return RemovalHold(questionable, identity, still, _message(subject, questionable, identity))


def _message(subject: Subject, missing: Set[str], identity: str) -> str:
    what, held = subject.value
    names = ", ".join(sorted(missing)[:8]) + (", …" if len(missing) > 8 else "")
    return (
        f"{what.format(count=len(missing), names=names)}: {held}, or confirm the removal: kubectl -n npufleet-system "
        f"annotate --overwrite configmap {SETTINGS_NAME} {CONFIRM_ANNOTATION}={identity}"
    )


def removal_id(names: Iterable[str]) -> str:
    """Names a set of policies: 12 hex digits of the sha256 of their sorted names, one a line."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:ID_DIGITS]
