"""A settle time between commits and new orders: two objects of one commit arrive one after the other, and act as one.

Only what changes orders counts (an object that came, went, or has a new generation); a status never makes anybody wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from controllers.node_policy.plan import PolicyView


class SettledPolicies:
    """The policies as they were when they last stood still for `seconds`; at the latest after `longest` seconds."""

    def __init__(self, clock: Callable[[], float], *, seconds: float = 1.0, longest: float = 10.0) -> None:
        self._clock = clock
        self._seconds = seconds
        self._longest = longest
        self._settled: dict[str, PolicyView] | None = None
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

    def take(self, live: Mapping[str, PolicyView]) -> Mapping[str, PolicyView] | None:
        """The policies to plan with, each with its newest status; None while they have never stood still."""
        if self._first is not None and self.wait() == 0.0:
            self._settled = dict(live)
            self._first = None
        if self._settled is None:
            return None
        return {name: _with_status(policy, live.get(name)) for name, policy in self._settled.items()}


def _with_status(policy: PolicyView, live: PolicyView | None) -> PolicyView:
    if live is None or live.uid != policy.uid or live.status is policy.status:
        return policy
    return replace(policy, status=live.status)


def changes_orders(old: PolicyView | None, new: PolicyView | None) -> bool:
    """Whether a change of the object can change what anybody is ordered to do."""
    if old is None or new is None:
        return True
    return (old.uid, old.generation) != (new.uid, new.generation)
