"""The metrics of the admission server."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class ServerMetrics:
    """On the process's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.review_seconds = Histogram(
            "npufleet_webhook_review_seconds",
            "Time from a review's last byte to its answer, by kind and verdict.",
            ["kind", "verdict"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.rejections = Counter(
            "npufleet_webhook_rejections_total",
            "Objects that were refused, by each rule that refused them.",
            ["rule"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "npufleet_webhook_reviews_in_flight",
            "Reviews that were begun and not yet answered.",
            registry=registry,
        )
        self.cert_expiry = Gauge(
            "npufleet_webhook_cert_expiry_timestamp_seconds",
            "When the certificate that is served ends; 0 while there is none.",
            registry=registry,
        )

    def reviewed(self, kind: str, verdict: str, seconds: float, broken: tuple[str, ...] = ()) -> None:
        self.review_seconds.labels(kind, verdict).observe(seconds)
        for rule in broken:
            self.rejections.labels(rule).inc()

    def follow_expiry(self, ends: Callable[[], float]) -> None:
        """Ask `ends` (seconds since the epoch) whenever the metrics are read."""
        self.cert_expiry.set_function(ends)
