"""What the binder counts."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from crds.models.node_state import BoundDevice

DAEMON: Final = "vfio-binder"


class BinderMetrics:
    """Metrics of one binder on a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
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
        self._writes.labels(DAEMON, result).inc()

    def show(self, reports: Iterable[BoundDevice]) -> None:
        """The devices as they are now; series of other states go away."""
        every = (one for report in reports for one in (report, *report.virtual_functions))
        now = {(report.address, str(report.state), report.reason) for report in every}
        for labels in self._shown - now:
            self._states.remove(*labels)
        for labels in now:
            self._states.labels(*labels).set(1)
        self._shown = now
