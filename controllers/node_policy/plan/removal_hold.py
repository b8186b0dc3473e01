"""Absence is not an order: what vanishes in great number at once is held until somebody says that it is meant.

The reference is not memory but what the objects name: the policies in orders in force, the devices that npufleet
changed, the nodes that have orders. A list that failed, a restored backup, CRDs that were installed anew or a pruned
folder look the same from here; only a person can tell.

Who is held stays so until it is back or its removal is confirmed, however few are missing by then: they come back one
at a time. The orders remember it (`spec.rollouts[].removal`), for whoever goes on after this process.
"""

import hashlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from controllers.node_policy.plan.orders import ORPHANS
from controllers.node_policy.plan.view import StateView, World
from crds.models.node_state import Intent, Removal

LEAST_MISSING: Final = 3
ID_DIGITS: Final = 12
SETTINGS_NAME: Final = "npufleet-settings"
CONFIRM_ANNOTATION: Final = "npufleet.io/confirm-removal"
CONFIRM_ALL: Final = "all"


class Subject(Enum):
    """What is missing, as text: that it is, what is held therefore, and how to go on without confirming."""

    POLICIES = (
        "policies that orders name do not exist ({count}: {names})",
        "their devices are held as they are. Bring the policies back",
    )
    ORDERS = (
        "devices that npufleet changed are in no orders and in no policy ({count}: {names})",
        "they are held as they are. Bring their policies back",
    )
    NODES = (
        "nodes that have orders do not exist, more than half of all ({count}: {names})",
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

    @property
    def held(self) -> frozenset[str]:
        """For `World.held` of the next plan."""
        return self.policies.held | self.orders.held | self.nodes.held


def policies_hold(world: World) -> tuple[RemovalHold, Mapping[str, Removal]]:
    """Missing policies whose orders are kept, and what orders have to remember of whom.

    What is confirmed is written to all their nodes at once, without waiting for room, while the releases themselves may
    take days: whoever leads by then knows.
    """
    marked: dict[Removal, set[str]] = {removal: set() for removal in Removal}
    for name, state in world.states.items():
        for limits in state.orders.limits:
            if limits.removal is None or limits.policy == ORPHANS:
                continue
            if (
                limits.removal is Removal.CONFIRMED or name in world.nodes
            ):  # nobody takes a mark off a Node that is gone
                marked[limits.removal].add(limits.policy)
    reference, confirmed = deciding_policies(world.states.values()), world.confirmed | marked[Removal.CONFIRMED]
    known = _known_held(marked[Removal.HELD], reference, world.held)
    hold = removal_hold(reference, world.policies.keys(), world.confirmation, confirmed, held=known)
    removals = dict.fromkeys(hold.held, Removal.HELD) | dict.fromkeys(hold.confirmed, Removal.CONFIRMED)
    back = marked[Removal.HELD] & world.policies.keys()
    if back and not _writable(world) & hold.held <= marked[Removal.HELD]:
        removals |= dict.fromkeys(back, Removal.HELD)
    return hold, removals


def _known_held(marked: Set[str], all_there_are: Set[str], last: frozenset[str] | None) -> Set[str]:
    """Who was held before, by what orders remember and by the last plan.

    A process that has made no plan yet cannot know whether the one before it came to mark all that it held: as long as
    anybody is marked, whoever is missing is counted in. Therefore no last mark is taken away (its policy is back, say)
    before all who are held are marked somewhere.
    """
    if last is not None:
        return marked | last
    return all_there_are if marked else marked


def _writable(world: World) -> set[str]:
    """Policies in orders that can be marked: their Node exists, and they can be read."""
    return deciding_policies(state for name, state in world.states.items() if name in world.nodes and not state.error)


def orders_hold(orphans: Mapping[str, Set[str]], ordered: Set[str], world: World) -> tuple[RemovalHold, frozenset[str]]:
    """Devices that npufleet changed, that are in no orders, and that are not given back; all as `node/address`.

    Orders that are gone with their objects cannot be told from orders that were withdrawn: at least 3 such devices
    in all, on whatever nodes, and more of them than there are devices in orders, are held. `orphans`: addresses by
    node. Also returns the nodes whose orders have to remember that some are held.
    """
    marked: dict[Removal, set[str]] = {removal: set() for removal in Removal}
    for name in orphans:
        for limits in world.states[name].orders.limits:
            if limits.removal is not None and limits.policy == ORPHANS:
                marked[limits.removal].add(name)
    keys = {name: {device_key(name, address) for address in found} for name, found in orphans.items()}
    every = set[str]().union(*keys.values())
    confirmed, held = (
        set[str]().union(*(keys[name] for name in marked[removal])) for removal in (Removal.CONFIRMED, Removal.HELD)
    )
    if marked[Removal.HELD] and world.held is None:
        held = every  # as with policies
    held |= world.held or set()
    hold = removal_hold(
        every | ordered, ordered, world.confirmation, world.confirmed | confirmed, Subject.ORDERS, held=held
    )
    holding = {name for name, found in keys.items() if found & hold.held}
    if {name for name in holding if not world.states[name].error} <= marked[Removal.HELD]:
        return hold, frozenset(holding)
    return hold, frozenset(holding | marked[Removal.HELD])


def nodes_hold(world: World) -> RemovalHold:
    """Nodes that have orders and do not exist, so that no NPUNodeState is deleted.

    Nobody has to remember it: each Node has its own time to come back before its object is deleted, and that gives no
    device back, on a machine that is not there. Its devices are found in no orders when it comes back, and are held or
    taken up as such. A deletion that was confirmed and is cut short is held again, with a new id.
    """
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
    *,
    held: Set[str] = frozenset(),
) -> RemovalHold:
    """At least 3 of the reference, and more than half of it, do not exist: hold them, unless confirmed.

    `held`: who was held before, and goes on to be, whatever the number. The others that are missing are held with them
    only when all together are that many. `confirmation` is the annotation's value: an id, several separated by commas,
    or "all". An id means exactly the set that it was made from: when one of it came back, somebody has to ask again.
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
        questionable &= held
    if not questionable:
        return RemovalHold(confirmed=still)
    identity = removal_id(questionable)
    if identity in answers:
        return RemovalHold(confirmed=still | questionable)
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
