"""The metrics that every process has, on one registry that is passed around: no global state, so tests can run many.

Rooms with metrics of their own create them on `Metrics.registry`.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

_RECONCILE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
_READY_BUCKETS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Metrics:
    """Metrics of one process of `component`. Is itself the WriteCounter that `Api` wants."""

    def __init__(self, component: str, registry: CollectorRegistry | None = None) -> None:
        self.component = component
        self.registry = registry if registry is not None else CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.api_writes = Counter(
            "npufleet_api_writes_total",
            "Writes to the API server by outcome: ok, or the name of the error.",
            ["component", "kind", "result"],
            registry=self.registry,
        )
        self.feed_healthy = Gauge(
            "npufleet_feed_healthy",
            "1 while the local copy of this resource follows the API server, 0 while it cannot.",
            ["component", "resource"],
            registry=self.registry,
        )
        self.reconcile_total = Counter(
            "npufleet_reconcile_total",
            "Reconciles by outcome: success, requeue, error.",
            ["controller", "result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "npufleet_reconcile_seconds",
            "Time that one reconcile took.",
            ["controller"],
            buckets=_RECONCILE_BUCKETS,
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "npufleet_queue_depth",
            "Keys that are due and wait for a worker.",
            ["controller"],
            registry=self.registry,
        )
        self.generation_ready_seconds = Histogram(
            "npufleet_generation_ready_seconds",
            "Time from a new generation of an object to Ready=True for it.",
            ["kind"],
            buckets=_READY_BUCKETS,
            registry=self.registry,
        )

    def count_write(self, kind: str, result: str) -> None:
        self.api_writes.labels(self.component, kind, result).inc()

    def queue(self, controller: str) -> QueueMetrics:
        """The observer to give to a WorkQueue."""
        return QueueMetrics(self, controller)

    def feed(self, resource: str) -> Callable[[bool], None]:
        """What a feed of `resource` (its full name) calls when its health changes; starts at 0."""
        gauge = self.feed_healthy.labels(self.component, resource)
        gauge.set(0)
        return lambda healthy: gauge.set(1 if healthy else 0)


class QueueMetrics:
    """Numbers of one work queue."""

    def __init__(self, metrics: Metrics, controller: str) -> None:
        self._depth = metrics.queue_depth.labels(controller)
        self._total = metrics.reconcile_total
        self._seconds = metrics.reconcile_seconds.labels(controller)
        self._controller = controller

    def queue_depth(self, depth: int) -> None:
        self._depth.set(depth)

    def reconciled(self, result: str, seconds: float) -> None:
        self._total.labels(self._controller, result).inc()
        self._seconds.observe(seconds)
