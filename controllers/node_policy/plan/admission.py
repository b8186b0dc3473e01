"""Which nodes may change now: every policy whose devices change on a node must have room in its limits, all at once.

No hold-and-wait: a node that gets room from one policy and not from another takes nothing, so two policies can never
block each other's nodes half-way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from crds.models.int_or_percent import scaled


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node with changes that disrupt: `charged` are the policies whose limits they need.

    `refused`: the API server would not take its last orders. `aborts`: how often in a row a drain for these changes was
    given up.
    """

    node: str
    zone: str
    charged: frozenset[str]
    refused: bool = False
    aborts: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """One policy's limit: at most `limit` nodes unavailable, these are so already.

    `surely`: those of them that are so for certain; of the others nobody knows.
    """

    limit: int
    unavailable: frozenset[str]
    surely: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Admissions:
    """`admitted` nodes may change now; `waiting` says for each other one which policies have no room."""

    admitted: frozenset[str]
    waiting: Mapping[str, tuple[str, ...]]


def budget_for(
    max_unavailable: Iterable[int | str], nodes: int, unavailable: Iterable[str], surely: Iterable[str]
) -> Budget:
    """The budget of a policy that concerns `nodes` nodes: the narrowest of these limits."""
    limit = min(scaled(limit, nodes) for limit in max_unavailable)
    return Budget(limit, frozenset(unavailable), frozenset(surely))


def admit(candidates: Iterable[Candidate], budgets: Mapping[str, Budget]) -> Admissions:
    """Admit as many candidates as fit: those already disrupted first, then by zone, then by name.

    One whose orders were refused comes after all others, so that it does not keep them waiting for ever; before it
    those whose drain was given up, the least often first.
    A node that is surely unavailable for a policy already costs that policy nothing more; one of which nobody knows
    costs as much as any other. Zone by zone, so that at most one zone is touched while the limits allow it.
    """
    taken = {name: set(budget.unavailable) for name, budget in budgets.items()}
    admitted: set[str] = set()
    waiting: dict[str, tuple[str, ...]] = {}

    def rank(candidate: Candidate) -> tuple[bool, int, bool, str, str]:
        disrupted = any(candidate.node in budgets[name].surely for name in candidate.charged)
        return (candidate.refused, candidate.aborts, not disrupted, candidate.zone, candidate.node)

    for candidate in sorted(candidates, key=rank):
        full = tuple(
            name
            for name in sorted(candidate.charged)
            if candidate.node not in budgets[name].surely
            and len(taken[name]) - (candidate.node in taken[name]) >= budgets[name].limit
        )
        if full:
            waiting[candidate.node] = full
            continue
        admitted.add(candidate.node)
        for name in candidate.charged:
            taken[name].add(candidate.node)
    return Admissions(frozenset(admitted), waiting)
