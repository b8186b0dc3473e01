"""What the binder counts."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry

from crds.models.node_state import BoundDevice
from node_host.device_metrics import DeviceMetrics

DAEMON: Final = "vfio-binder"


class BinderMetrics:
    """Metrics of one binder on a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._devices = DeviceMetrics(registry, DAEMON)
        self.count_write = self._devices.count_write

    def show(self, reports: Iterable[BoundDevice]) -> None:
        """The devices as they are now, with the virtual functions that npufleet made; others go away."""
        self._devices.show(one for report in reports for one in (report, *report.virtual_functions))
