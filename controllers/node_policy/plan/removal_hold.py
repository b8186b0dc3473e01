"""Absence is not an order: when many policies vanish at once, their devices are held until somebody says so.

The reference is not memory but the policies that the orders in force name. A list that failed, a restored backup or a
pruned folder looks the same from here; only a person can tell.
"""

import hashlib
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Final

from controllers.node_policy.plan.view import StateView
from crds.models.node_state import Intent

LEAST_MISSING: Final = 3
ID_DIGITS: Final = 12
CONFIRM_ANNOTATION: Final = "npufleet.io/confirm-removal"
CONFIRM_ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class RemovalHold:
    """`held`: the missing policies whose orders are kept; `id` names them for the confirmation, "" when none is held.

    `confirmed`: missing policies whose removal is confirmed; carry it over while the annotation stays the same, since
    the set that the id was made from shrinks as their devices are given back.
    """

    held: frozenset[str] = frozenset()
    id: str = ""
    confirmed: frozenset[str] = frozenset()

    def message(self) -> str:
        """For conditions and Events: what is held, and how to go on."""
        names = ", ".join(sorted(self.held)[:8]) + (", …" if len(self.held) > 8 else "")
        return (
            f"{len(self.held)} policies that orders name do not exist ({names}): their devices are held as they are. "
            "Bring the policies back, or confirm the removal: kubectl -n npufleet-system annotate --overwrite "
            f"configmap npufleet-settings {CONFIRM_ANNOTATION}={self.id}"
        )


def deciding_policies(states: Iterable[StateView]) -> set[str]:
    """Policies that decided a device which is not being given back."""
    return {order.policy for state in states for order in state.orders.devices if order.intent is not Intent.RELEASE}


def removal_hold(
    reference: Set[str], existing: Set[str], confirmation: str, confirmed: Set[str] = frozenset()
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
    return RemovalHold(questionable, identity, still)


def removal_id(names: Iterable[str]) -> str:
    """Names a set of policies: 12 hex digits of the sha256 of their sorted names, one a line."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:ID_DIGITS]
