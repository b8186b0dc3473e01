"""The page of metrics names what the processes really export: every metric, with its type and labels."""

import asyncio
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from controllers.node_policy.controller import COMPONENT as CONTROLLER
from controllers.node_policy.controller import NodePolicyController
from dra_publisher.metrics import PublisherMetrics
from dra_publisher.slices.resource_slice import COMPONENT as PUBLISHER
from node_host.device_metrics import DeviceMetrics
from profile_writer.daemon import DAEMON
from profile_writer.executing import COMPONENT as WRITER
from runtime.metrics import Metrics
from tests.builders.fake_api import FakeApi
from vfio_binder.binder import COMPONENT as BINDER
from vfio_binder.metrics import BinderMetrics
from webhooks.server.metrics import ServerMetrics
from webhooks.server.options import COMPONENT as WEBHOOK

PAGE = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
EVERY_PROCESS = "Every process"
# What a metric's type adds to its name in queries.
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


class Shape(NamedTuple):
    type: str
    labels: frozenset[str]


def on_page(section: str) -> dict[str, Shape]:
    """The metrics in the table of a section."""
    (text,) = re.findall(rf"^## `?{section}`?\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", text, re.MULTILINE)
    return {name: Shape(kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def exported(registry: CollectorRegistry) -> dict[str, Shape]:
    """What a registry offers, with or without series so far."""
    labels = {
        collector._name: frozenset(collector._labelnames)
        for collector in registry._collector_to_names
        if isinstance(collector, MetricWrapperBase)
    }
    return {
        family.name + ("_total" if family.type == "counter" else ""): Shape(
            family.type, labels.get(family.name, frozenset())
        )
        for family in registry.collect()
    }


def registry_of(component: str) -> CollectorRegistry:
    """The registry of a process of this component, wired as the process does it."""
    metrics = Metrics(component)
    if component == BINDER:
        BinderMetrics(metrics.registry)
        return metrics.registry
    if component == WRITER:
        DeviceMetrics(metrics.registry, DAEMON)
        return metrics.registry
    if component == PUBLISHER:
        PublisherMetrics(metrics.registry)
        return metrics.registry
    if component == WEBHOOK:
        ServerMetrics(metrics.registry)
        return metrics.registry

    async def wire() -> None:
        async with FakeApi() as server, server.client() as api:
            NodePolicyController(api, metrics, identity="one")

    asyncio.run(wire())
    return metrics.registry


@pytest.mark.parametrize("component", [CONTROLLER, BINDER, WRITER, PUBLISHER, WEBHOOK])
def test_the_page_names_every_metric_of_a_process_with_its_type_and_labels(component: str) -> None:
    documented = on_page(EVERY_PROCESS) | on_page(component)
    assert exported(registry_of(component)) == documented


def test_alerts_ask_for_metrics_and_labels_that_there_are() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    rules: list[dict[str, Any]] = [rule for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]
    known = {
        name + suffix: shape.labels
        for section in (EVERY_PROCESS, CONTROLLER, BINDER, PUBLISHER, WEBHOOK)
        for name, shape in on_page(section).items()
        for suffix in SUFFIXES[shape.type]
    }
    assert len(rules) >= 3
    for rule in rules:
        asked = re.findall(r"\b(npufleet_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert asked, rule
        for name, matchers in asked:
            assert name in known, rule["expr"]
            assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= known[name], rule["expr"]
        told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) - {"instance"}
        assert told <= frozenset().union(*(known[name] for name, _ in asked)), rule
