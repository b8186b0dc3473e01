"""What the publisher counts."""

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Histogram

from crds.models.node_state import DeviceReport

# The kubelet gives a call 45 s; a bind that is waited for is no part of one.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 45.0)


class PublisherMetrics:
    """Metrics of one publisher on a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._states = Gauge(
            "npufleet_device_state",
            "1 for the state and reason in which a device is, by address.",
            ["address", "state", "reason"],
            registry=registry,
        )
        self._calls = {
            method: Histogram(
                f"npufleet_dra_{method}_seconds",
                f"Seconds that the kubelet waited for claims to be {done}, by result.",
                ["result"],
                buckets=_BUCKETS,
                registry=registry,
            )
            for method, done in (("prepare", "prepared"), ("unprepare", "taken back"))
        }
        self._published = Gauge(
            "npufleet_dra_published_devices", "Devices in the slices of this node.", ["driver"], registry=registry
        )
        self._active = Gauge(
            "npufleet_dra_publisher_active",
            "1 where this process writes the slices of its node, 0 where another one does.",
            registry=registry,
        )
        self._shown: set[tuple[str, str, str]] = set()
        self._drivers: set[str] = set()

    def on_call(self, method: str, driver: str, result: str, seconds: float) -> None:
        """A call of the kubelet was answered."""
        self._calls[method].labels(result).observe(seconds)

    def show(self, reports: Iterable[DeviceReport], published: Mapping[str, int], *, active: bool) -> None:
        """The devices as they are now; series of other states go away."""
        now = {(report.address, str(report.state), str(report.reason)) for report in reports}
        for labels in self._shown - now:
            self._states.remove(*labels)
        for labels in now:
            self._states.labels(*labels).set(1)
        for driver in self._drivers - published.keys():
            self._published.remove(driver)
        for driver, number in published.items():
            self._published.labels(driver).set(number)
        self._shown, self._drivers = now, set(published)
        self._active.set(int(active))
