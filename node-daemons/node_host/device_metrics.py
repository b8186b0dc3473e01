"""What a daemon that changes devices counts: where they stand, and its writes to the kernel."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from crds.models.node_state import DeviceReport


class DeviceMetrics:
    """Metrics of one daemon on a registry; ``daemon`` is its name without the project's."""

    def __init__(self, registry: CollectorRegistry, daemon: str) -> None:
        self._daemon = daemon
        self._states = Gauge(
            "npufleet_device_state",
            "1 for the state and reason in which a device is, by address.",
            ["address", "state", "reason"],
            registry=registry,
        )
        self._writes = Counter(
            "npufleet_sysfs_writes_total",
            "Writes to the kernel by outcome: ok, the name of the error, or Stuck.",
            ["daemon", "result"],
            registry=registry,
        )
        self._shown: set[tuple[str, str, str]] = set()

    def count_write(self, result: str) -> None:
        """One write to the kernel came back, or did not."""
        self._writes.labels(self._daemon, result).inc()

    def show(self, reports: Iterable[DeviceReport]) -> None:
        """The devices as they are now; series of other states go away."""
        now = {(report.address, str(report.state), str(report.reason)) for report in reports}
        for labels in self._shown - now:
            self._states.remove(*labels)
        for labels in now:
            self._states.labels(*labels).set(1)
        self._shown = now
