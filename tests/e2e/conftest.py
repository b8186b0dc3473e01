"""One node with a real kubelet and containerd for the whole run, on a simulated machine, in a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from _pytest.capture import CaptureManager

from cli.cluster.run.control_plane import ControlPlane
from tests.builders.objects import device_rule, node_policy
from tests.builders.real_node import RealMachine, Workloads
from tests.builders.served_cards import ALL
from tests.builders.served_node import ServedNode
from tests.builders.waiting import eventually
from tests.cluster.conftest import control_plane, installed, kubectl
from tests.node_runtime.programs import NodePrograms, ensure_node_programs

__all__ = ["control_plane", "installed", "kubectl"]

NODE = "node-mixed"
LABELS = {"npufleet.io/pool": "e2e"}


@pytest.fixture(scope="session")
def node_programs(request: pytest.FixtureRequest) -> NodePrograms:
    capture = cast(CaptureManager, request.config.pluginmanager.getplugin("capturemanager"))
    with capture.global_and_fixture_disabled():  # a first build takes minutes: show that it goes on
        return ensure_node_programs()


@pytest.fixture(scope="session")
def machine(
    control_plane: ControlPlane, node_programs: NodePrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealMachine]:
    """The node and what is behind it: two RBLN-CA25, two RBLN-CA22 and others."""
    made = RealMachine(control_plane, node_programs, name=NODE, description=NODE, labels=LABELS)
    yield made
    made.stop(logs=tmp_path_factory.mktemp("machine") / "logs")


@pytest.fixture(scope="session")
def served(installed: None, control_plane: ControlPlane, machine: RealMachine) -> Iterator[ServedNode]:
    """The machine with npufleet's daemons: two cards are offered to VMs, two to containers."""
    del installed
    made = ServedNode(control_plane, machine, pod_uid="0b5c6f3e-64a1-4b8e-9d6f-0d3c2f1a7e01")
    try:
        made.start()
        rules = [
            device_rule("whole", products=("RBLN-CA25",)),
            device_rule("containers", products=("RBLN-CA22",), mode="Container"),
        ]
        made.apply(node_policy("e2e", rules=rules, nodes=LABELS))
        eventually(lambda: made.devices().keys() == ALL, seconds=60, what="all devices are offered")
        yield made
    finally:
        made.stop()


@pytest.fixture
def workloads(request: pytest.FixtureRequest, machine: RealMachine) -> Iterator[Workloads]:
    made = Workloads(machine.node)
    if "served" in request.fixturenames:
        made.also = request.getfixturevalue("served").describe
    yield made
    made.clear()
