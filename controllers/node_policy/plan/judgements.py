"""All nodes of a world, judged; what is known of a node that did not change is taken over from the last plan.

Judging is the part of a plan that costs time: a plan for thousands of nodes of which few changed must not repeat it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from controllers.node_policy.plan.evaluate import Evaluation, evaluate
from controllers.node_policy.plan.faults import Faults
from controllers.node_policy.plan.node_status import Notes
from controllers.node_policy.plan.orders import ORPHANS
from controllers.node_policy.plan.removal_hold import (
    Holds,
    RemovalHold,
    device_key,
    nodes_hold,
    orders_hold,
    policies_hold,
)
from controllers.node_policy.plan.spoiled import spoiled
from controllers.node_policy.plan.view import NodeView, PolicyView, StateView, World
from crds.models.node_state import Intent, Removal

_NOBODY: Final[frozenset[str]] = frozenset()
_UNSETTLED: Final = "the labels of the Node have not stood still since this controller first saw it"


class _About(NamedTuple):
    """What is known of a node beside its objects, and bears on the judgement of it."""

    silent: frozenset[str]
    settling: bool
    backing_off: bool
    resting: frozenset[str]
    problem: str


@dataclass(slots=True)
class Cache:
    """Judgements on nodes that did not change since the last plan: they make a plan faster, never another one.

    `faults`: what could not be judged in the last plan, which has been logged.
    """

    key: tuple[Any, ...] = ()
    evaluations: dict[str, tuple[_About, Evaluation]] = field(default_factory=dict)
    orphaned: dict[str, tuple[Evaluation, tuple[frozenset[str], Removal | None], Evaluation]] = field(
        default_factory=dict
    )
    settled: dict[str, tuple[Evaluation, Notes]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


def judge(
    world: World, settling: frozenset[str], backing_off: frozenset[str], cache: Cache, faults: Faults
) -> tuple[list[Evaluation], Holds]:
    """The judgements on all nodes that exist and have an NPUNodeState, by name, and what is held.

    `settling`: nodes whose Node was created anew a short time ago. `backing_off`: nodes where a drain was given up too
    short a time ago to be tried again. `faults` takes in what cannot be judged; such nodes stay as they are.
    """
    policies = sorted(world.policies.values(), key=lambda policy: policy.precedence)
    missing, removals = policies_hold(world)
    maps = None if world.maps is None else {name: (known.spec, known.error) for name, known in world.maps.items()}
    key = ([(policy.name, policy.spec) for policy in policies], missing.held, removals, maps)
    if cache.key != key:
        cache.evaluations.clear()
        cache.orphaned.clear()
        cache.settled.clear()
        cache.key = key
    names = sorted(world.nodes.keys() & world.states.keys())
    for gone in cache.evaluations.keys() - set(names):
        del cache.evaluations[gone]
        cache.orphaned.pop(gone, None)
        cache.settled.pop(gone, None)
    judging = _Judge(world, policies, missing.held, removals, settling, backing_off, cache, faults)
    evaluations = [judging.cached(name) for name in names]
    orphaned, holding = _orders_hold(evaluations, world)
    return [
        judging.with_orphans(evaluation, orphaned, held=evaluation.node.name in holding)
        if evaluation.orphans or evaluation.node.name in holding
        else evaluation
        for evaluation in evaluations
    ], (Holds(missing, orphaned, nodes_hold(world)))


@dataclass(slots=True)
class _Judge:
    """Judges the nodes of one world, and keeps what it found for the next one."""

    world: World
    policies: Sequence[PolicyView]
    held: frozenset[str]
    removals: Mapping[str, Removal]
    settling: frozenset[str]
    backing_off: frozenset[str]
    cache: Cache
    faults: Faults

    def cached(self, name: str) -> Evaluation:
        node, state = self.world.nodes[name], self.world.states[name]
        about = self._about(name)
        known = self.cache.evaluations.get(name)
        if known is not None and known[0] == about:
            evaluation = known[1]
            if _alike(evaluation.node, node) and _alike(evaluation.state, state):
                return evaluation
        evaluation = self._evaluate(node, state, about, self.removals, _NOBODY)
        if name not in self.faults.found:
            self.cache.evaluations[name] = (about, evaluation)
        return evaluation

    def with_orphans(self, evaluation: Evaluation, orphaned: RemovalHold, *, held: bool) -> Evaluation:
        """The node judged again, with those of its orphans given back that nothing holds. `held`: its orders have to
        remember that some are.

        With no policy left at all, an order that nobody gave says nothing about what anybody wants: only what was
        confirmed is given back.
        """
        name = evaluation.node.name
        keys = {device_key(name, address): address for address in evaluation.orphans}
        free = keys.keys() - orphaned.held
        if not self.policies:
            free &= orphaned.confirmed
        released = frozenset(keys[key] for key in free)
        if not released and not held:
            return evaluation
        noted = Removal.HELD if held else Removal.CONFIRMED if free & orphaned.confirmed else None
        known = self.cache.orphaned.get(name)
        if known is not None and known[0] is evaluation and known[1] == (released, noted):
            return known[2]
        removals = self.removals if noted is None else {**self.removals, ORPHANS: noted}
        again = self._evaluate(evaluation.node, evaluation.state, self._about(name), removals, released)
        if name in self.faults.found:
            return again
        self.cache.orphaned[name] = (evaluation, (released, noted), again)
        return again

    def _about(self, name: str) -> _About:
        problem = _UNSETTLED if name in self.world.unsettled else ""
        silent = self.world.silent.get(name, _NOBODY)
        resting = self.world.resting.get(name, _NOBODY)
        return _About(silent, name in self.settling, name in self.backing_off, resting, problem)

    def _evaluate(
        self,
        node: NodeView,
        state: StateView,
        about: _About,
        removals: Mapping[str, Removal],
        released: frozenset[str],
    ) -> Evaluation:
        if node.name not in self.faults.found:
            with self.faults.of(node.name):
                return evaluate(
                    node,
                    state,
                    self.policies,
                    self.held,
                    about.silent,
                    settling=about.settling,
                    backing_off=about.backing_off,
                    resting=about.resting,
                    removals=removals,
                    released=released,
                    maps=self.world.maps,
                    problem=about.problem,
                )
        return spoiled(node, state, self.policies, self.faults.found[node.name])


def _orders_hold(evaluations: Sequence[Evaluation], world: World) -> tuple[RemovalHold, frozenset[str]]:
    orphans = {e.node.name: e.orphans for e in evaluations}
    if not any(orphans.values()):
        return RemovalHold(), _NOBODY
    ordered = {
        device_key(e.node.name, order.address)
        for e in evaluations
        for order in e.state.orders.devices
        if order.intent is not Intent.RELEASE
    }
    return orders_hold(orphans, ordered, world)


def _alike(known: object, given: object) -> bool:
    """Identity first: comparing whole records is for those that a list has brought again."""
    return known is given or known == given
