"""What is counted, and the health that pods show."""

from prometheus_client import CollectorRegistry, generate_latest

from crds.models.node_state import DeviceReport, DeviceState
from dra_publisher.kubelet.offered_health import OfferedHealth
from dra_publisher.metrics import PublisherMetrics
from dra_publisher.offers.offer import Taint, TaintKey
from tests.builders.binder import NPU
from tests.builders.offers import NPUFLEET, offer


def lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_devices_calls_and_who_is_active_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = PublisherMetrics(registry)
    ready = DeviceReport(address=NPU, state=DeviceState.READY, reason="Published")
    metrics.show([ready], {NPUFLEET: 1}, active=True)
    metrics.on_call("prepare", NPUFLEET, "ok", 0.02)
    metrics.on_call("unprepare", NPUFLEET, "error", 0.02)
    found = lines(registry)
    assert f'npufleet_device_state{{address="{NPU}",reason="Published",state="Ready"}} 1.0' in found
    assert 'npufleet_dra_prepare_seconds_count{result="ok"} 1.0' in found
    assert 'npufleet_dra_unprepare_seconds_count{result="error"} 1.0' in found
    assert f'npufleet_dra_published_devices{{driver="{NPUFLEET}"}} 1.0' in found
    assert "npufleet_dra_publisher_active 1.0" in found
    metrics.show([], {}, active=False)
    found = lines(registry)
    assert not [line for line in found if line.startswith(("npufleet_device_state", "npufleet_dra_published"))]
    assert "npufleet_dra_publisher_active 0.0" in found


def test_a_device_is_sick_when_it_is_not_what_its_pod_was_given() -> None:
    health, calls = OfferedHealth("bench"), []
    health.subscribe(lambda: calls.append(1))
    well = offer()
    health.show([well])
    health.show([well])
    assert calls == [1]
    assert [one.healthy for one in health.devices(NPUFLEET)] == [True]
    for key, healthy in (
        (TaintKey.HANDOVER, True),
        (TaintKey.IN_USE, True),
        (TaintKey.DRIVER_CHANGED, False),
        (TaintKey.UNHEALTHY, False),
    ):
        health.show([offer(taints=(Taint(key, "Because"),))])
        assert [one.healthy for one in health.devices(NPUFLEET)] == [healthy], key
    assert health.devices("another.example.com") == ()
