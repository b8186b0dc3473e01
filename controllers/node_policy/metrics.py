"""Metrics of the node-policy controller beyond those that every process has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from prometheus_client import Gauge

from runtime.metrics import Metrics, QueueMetrics

KIND = "NPUNodePolicy"


class Figures:
    """Blocked nodes by policy and reason, held removals, and how long a generation took to become Ready."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ready_seconds = metrics.generation_ready_seconds.labels(KIND)
        self._blocked = Gauge(
            "npufleet_blocked_nodes",
            "Nodes that cannot go on, by policy and reason.",
            ["policy", "reason"],
            registry=metrics.registry,
        )
        self._held = Gauge(
            "npufleet_removal_held",
            "Policies, orders or nodes that are missing all at once and are held, by the id that confirms the removal.",
            ["id"],
            registry=metrics.registry,
        )
        self._shown_blocked: set[tuple[str, str]] = set()
        self._shown_held: set[str] = set()
        self._since: dict[str, tuple[int, float]] = {}

    def show_blocked(self, blocked: Mapping[str, Counter[str]]) -> None:
        """Show these numbers and no others."""
        shown = {(policy, reason) for policy, counts in blocked.items() for reason in counts}
        for labels in self._shown_blocked - shown:
            self._blocked.remove(*labels)
        for policy, counts in blocked.items():
            for reason, count in counts.items():
                self._blocked.labels(policy, reason).set(count)
        self._shown_blocked = shown

    def show_held(self, held: Mapping[str, int]) -> None:
        """Show these held removals and no others: how much each holds, by id."""
        for identity in self._shown_held - held.keys():
            self._held.remove(identity)
        for identity, count in held.items():
            self._held.labels(identity).set(count)
        self._shown_held = set(held)

    def generation_seen(self, uid: str, generation: int) -> None:
        """A new generation has come into sight."""
        self._since[uid] = (generation, self._clock())

    def generation_ready(self, uid: str, generation: int) -> None:
        """It is Ready; counted once."""
        since = self._since.get(uid)
        if since is not None and since[0] == generation:
            self._ready_seconds.observe(self._clock() - since[1])
            del self._since[uid]

    def forget(self, uid: str) -> None:
        """The policy is gone."""
        self._since.pop(uid, None)


class SharedQueueMetrics:
    """Observers for several queues of one controller: their depths add up in one gauge."""

    def __init__(self, target: QueueMetrics) -> None:
        self._target = target
        self._depths: dict[str, int] = {}

    def observer(self, name: str) -> _OneQueue:
        return _OneQueue(self, name)

    def depth(self, name: str, depth: int) -> None:
        self._depths[name] = depth
        self._target.queue_depth(sum(self._depths.values()))

    def reconciled(self, result: str, seconds: float) -> None:
        self._target.reconciled(result, seconds)


class _OneQueue:
    def __init__(self, shared: SharedQueueMetrics, name: str) -> None:
        self._shared = shared
        self._name = name

    def queue_depth(self, depth: int) -> None:
        self._shared.depth(self._name, depth)

    def reconciled(self, result: str, seconds: float) -> None:
        self._shared.reconciled(result, seconds)
