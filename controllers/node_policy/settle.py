"""A settle time between what people change and new orders: two objects of one commit act as one, labels may flap.

Only what changes orders counts (an object that came, went, or has a new generation); a status never makes anybody wait.
A label of a Node counts once it has stood still: one that flaps must not give devices back and take them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from controllers.node_policy.plan import NodeView, PolicyView
from runtime.store import Change

T = TypeVar("T")


class Settled(Generic[T]):
    """Objects as they were when they last stood still for `seconds`; at the latest after `longest` seconds."""

    def __init__(self, clock: Callable[[], float], *, seconds: float = 1.0, longest: float = 10.0) -> None:
        self._clock = clock
        self._seconds = seconds
        self._longest = longest
        self._settled: dict[str, T] | None = None
        self._first: float | None = None
        self._last = 0.0

    def changed(self) -> None:
        """Orders may change: the time starts anew."""
        self._last = self._clock()
        if self._first is None:
            self._first = self._last

    def wait(self) -> float | None:
        """Seconds until what has changed counts; None when nothing has."""
        if self._first is None:
            return None
        return max(0.0, min(self._last + self._seconds, self._first + self._longest) - self._clock())

    def take(self, live: Mapping[str, T]) -> Mapping[str, T] | None:
        """The objects to plan with; None while they have never stood still."""
        if self._first is not None and self.wait() == 0.0:
            self._settled = dict(live)
            self._first = None
        return self._settled


class SettledPolicies(Settled[PolicyView]):
    """The policies."""

    def take(self, live: Mapping[str, PolicyView]) -> Mapping[str, PolicyView] | None:
        """Each with what its newest status and its managed fields say."""
        settled = super().take(live)
        if settled is None:
            return None
        return {name: _with_status(policy, live.get(name)) for name, policy in settled.items()}


def _with_status(policy: PolicyView, live: PolicyView | None) -> PolicyView:
    if live is None or live.uid != policy.uid:
        return policy
    if live.status is policy.status and live.by_hand == policy.by_hand:
        return policy
    return replace(policy, status=live.status, by_hand=live.by_hand)


class _Versioned(Protocol):
    @property
    def uid(self) -> str: ...
    @property
    def generation(self) -> int: ...


def changes_orders(old: _Versioned | None, new: _Versioned | None) -> bool:
    """Whether a change of the object can change what anybody is ordered to do."""
    if old is None or new is None:
        return True
    return (old.uid, old.generation) != (new.uid, new.generation)


@dataclass(slots=True)
class _Moving:
    """A label that changed at `since`, and what it was before (None: absent); `known` False: nobody knows that."""

    since: float
    before: str | None
    known: bool


@dataclass(slots=True)
class _Seen:
    uid: str
    since: float
    moving: dict[str, _Moving] = field(default_factory=dict)


class SettledNodes:
    """The Nodes with their labels as these were when each last stood still for `seconds`.

    Label by label, and without an end: one that flaps for ever keeps the value that it had before, and holds up no
    other. Of labels that were never seen to stand still (the process or the Node is new) nothing is known.
    """

    def __init__(self, clock: Callable[[], float], *, seconds: float = 1.0) -> None:
        self._clock = clock
        self._seconds = seconds
        self._seen: dict[str, _Seen] = {}
        self._next: float | None = None

    def changed(self, changes: Sequence[Change[NodeView]]) -> None:
        """Nodes changed; to be told of every batch, in their order."""
        now = self._clock()
        for change in changes:
            old, new = change.old, change.new
            if new is None:
                self._seen.pop(change.key.name, None)
            elif old is None or old.uid != new.uid:
                self._seen[new.name] = _Seen(new.uid, now)
            elif old.labels != new.labels:
                self._note(self._seen.setdefault(new.name, _Seen(new.uid, now)), old.labels, new.labels, now)

    def take(self, live: Mapping[str, NodeView], keys: Set[str]) -> tuple[Mapping[str, NodeView], frozenset[str]]:
        """The Nodes to plan with, and the names of those whose labels among `keys` nothing is known of."""
        now = self._clock()
        found = dict(live)
        unsettled = set()
        ends: list[float] = []
        for name, node in live.items():
            seen = self._seen.get(name)
            if seen is None or seen.uid != node.uid:
                seen = self._seen[name] = _Seen(node.uid, now)
            if keys and now < seen.since + self._seconds:
                unsettled.add(name)
                ends.append(seen.since + self._seconds)
            if seen.moving:
                found[name], known = self._as_before(node, seen, keys, now, ends)
                if not known:
                    unsettled.add(name)
        self._next = min(ends, default=None)
        return found, frozenset(unsettled)

    def wait(self) -> float | None:
        """Seconds until another label counts, as of the last `take`; None when nothing is on its way."""
        return None if self._next is None else max(0.0, self._next - self._clock())

    def _note(self, seen: _Seen, old: Mapping[str, str], new: Mapping[str, str], now: float) -> None:
        for key in old.keys() | new.keys():
            if old.get(key) == new.get(key):
                continue
            moving = seen.moving.get(key)
            if moving is not None and now < moving.since + self._seconds:
                moving.since = now
            else:
                seen.moving[key] = _Moving(now, old.get(key), known=now >= seen.since + self._seconds)

    def _as_before(
        self, node: NodeView, seen: _Seen, keys: Set[str], now: float, ends: list[float]
    ) -> tuple[NodeView, bool]:
        known = True
        labels: dict[str, str] | None = None
        for key, moving in list(seen.moving.items()):
            end = moving.since + self._seconds
            if now >= end:
                del seen.moving[key]
            elif key in keys:
                ends.append(end)
                known = known and moving.known
                labels = labels if labels is not None else dict(node.labels)
                if moving.before is None:
                    labels.pop(key, None)
                else:
                    labels[key] = moving.before
        return (node if labels is None else replace(node, labels=labels)), known


def selector_keys(policies: Iterable[PolicyView]) -> frozenset[str]:
    """The labels that any of these policies asks for."""
    found: set[str] = set()
    for policy in policies:
        if policy.spec is not None:
            found |= policy.spec.node_selector.match_labels.keys()
            found |= {requirement.key for requirement in policy.spec.node_selector.match_expressions}
    return frozenset(found)
