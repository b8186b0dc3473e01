"""Metrics of the node-policy controller beyond those that every process has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from prometheus_client import Gauge, Histogram

from controllers.node_policy.plan.drains import ABORTS
from controllers.node_policy.plan.view import NodeReason
from runtime.metrics import Metrics, QueueMetrics

KIND = "NPUNodePolicy"
_DRAIN_BUCKETS = (5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)


class Figures:
    """How rollouts go: nodes by policy, what blocks them, held removals, drains, and the time to become Ready."""

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
        self._nodes = Gauge(
            "npufleet_policy_nodes",
            "Nodes of a policy: matched, updated, ready, blocked, and draining for it.",
            ["policy", "state"],
            registry=metrics.registry,
        )
        self._drains = Histogram(
            "npufleet_drain_seconds",
            "Time that a drain of a node took, by how it ended.",
            ["outcome"],
            buckets=_DRAIN_BUCKETS,
            registry=metrics.registry,
        )
        for outcome in (NodeReason.DRAINED, NodeReason.WITHDRAWN, *ABORTS):
            self._drains.labels(outcome)  # there from the start, so that the first one shows as an increase
        self._shown_blocked: set[tuple[str, ...]] = set()
        self._shown_held: set[tuple[str, ...]] = set()
        self._shown_nodes: set[tuple[str, ...]] = set()
        self._since: dict[str, tuple[int, float]] = {}

    def show_blocked(self, blocked: Mapping[str, Counter[str]]) -> None:
        """Show these numbers and no others."""
        self._shown_blocked = _show(self._blocked, _flat(blocked), self._shown_blocked)

    def show_held(self, held: Mapping[str, int]) -> None:
        """Show these held removals and no others: how much each holds, by id."""
        values: dict[tuple[str, ...], int] = {(identity,): count for identity, count in held.items()}
        self._shown_held = _show(self._held, values, self._shown_held)

    def show_nodes(self, nodes: Mapping[str, Mapping[str, int]]) -> None:
        """Show these policies and no others: how many nodes each has, by state."""
        self._shown_nodes = _show(self._nodes, _flat(nodes), self._shown_nodes)

    def drain_ended(self, outcome: str, seconds: float) -> None:
        """A drain is over, and the API server knows it."""
        self._drains.labels(outcome).observe(seconds)

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


def _flat(values: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, ...], int]:
    return {(first, second): count for first, inner in values.items() for second, count in inner.items()}


def _show(gauge: Gauge, values: Mapping[tuple[str, ...], int], shown: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Set these values, take away the rest of `shown`; returns what is shown now."""
    for labels in shown - values.keys():
        gauge.remove(*labels)
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
    return set(values)


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
