"""Who else gives the same devices to pods of a real kubelet is named, and left alone with them until it goes."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from cli.cluster.access.identities import node_kubeconfig
from cli.cluster.errors import ApiCallError
from cli.cluster.programs.binaries import ensure_binaries
from cli.cluster.run.control_plane import ControlPlane
from tests.builders.audit import writes_of_npufleet
from tests.builders.device_plugin import device_plugin
from tests.builders.dra_plugin import PlayedPlugin
from tests.builders.real_node import SLICES, RealMachine, Workloads
from tests.builders.served_cards import ALL, BUSY, FIRST, FOURTH, NAMES, SECOND, THIRD, all_are_offered, start
from tests.builders.served_node import DRIVER, NODES, ServedNode
from tests.builders.waiting import eventually
from tests.node_runtime.configuration import CDI_DIRECTORY

RESOURCE = "rebellions.ai/ATOM"
QUIET_SECONDS = 3.0
SECONDS = 15.0
"""The kubelet tells the API server every 5 s here; the sockets of others are looked for as often."""


@contextmanager
def same_driver(machine: RealMachine) -> Iterator[PlayedPlugin]:
    """A plugin of the same driver name, as a process of its own would have it."""
    plugin = PlayedPlugin(machine.root, DRIVER, instance="other")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="another plugin")
    thread.start()

    def run(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(20)

    try:
        run(plugin.__aenter__())
        try:
            yield plugin
        finally:
            run(plugin.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def is_left_to(served: ServedNode, address: str, name: str) -> bool:
    """Whether the device is not offered, and the report names who has it."""
    state, reason, message = served.report(address)
    return (state, reason) == ("Blocked", "OtherPlugin") and name in message


def test_a_plugin_of_the_same_driver_name_has_the_pool_until_it_goes(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    eventually(lambda: all_are_offered(served), what="all are offered")
    with same_driver(machine) as other:
        eventually(lambda: other.told == [(True, "")], what="the kubelet has taken it on")
        eventually(
            lambda: not served.devices() and all(is_left_to(served, one, "other-reg.sock") for one in NAMES),
            seconds=SECONDS,
            what="its devices are withdrawn, and it is named",
        )
    eventually(lambda: all_are_offered(served), seconds=SECONDS, what="they are back")
    start(workloads, "ours", FIRST)
    assert not other.prepared


@contextmanager
def same_pool(plane: ControlPlane, machine: RealMachine) -> Iterator[None]:
    """Kubernetes' own test driver under the same name; it deletes what others have in its pool."""
    program = ensure_binaries(["dra-test-driver"])["dra-test-driver"]
    kubeconfig = node_kubeconfig(plane, machine.name, machine.directory / "other.kubeconfig")
    options = {"node-name": machine.name, "num-devices": 2, "cdi-dir": CDI_DIRECTORY, "drivername": DRIVER}
    command = [str(program), "kubelet-plugin", *(f"--{key}={value}" for key, value in options.items())]
    environment = {"KUBECONFIG": str(kubeconfig), "PATH": os.environ["PATH"]}
    running = machine.node.start_program("other-driver", command, environment=environment)
    try:
        yield
    finally:
        running.stop()
        for one in machine.api.call("GET", f"{SLICES}?fieldSelector=spec.driver={DRIVER}")["items"]:
            if {device["name"] for device in one["spec"].get("devices") or []} == {"device-00", "device-01"}:
                machine.api.call("DELETE", f"{SLICES}/{one['metadata']['name']}")


def test_a_driver_that_publishes_in_the_same_pool_has_it_until_it_goes(
    served: ServedNode, machine: RealMachine, workloads: Workloads, control_plane: ControlPlane
) -> None:
    """And the two do not go on writing against each other meanwhile."""
    eventually(lambda: all_are_offered(served), what="all are offered")
    with same_pool(control_plane, machine):
        eventually(
            lambda: (
                served.devices().keys() == {"device-00", "device-01"}
                and all(served.report(one)[:2] == ("Blocked", "OtherPlugin") for one in NAMES)
            ),
            seconds=SECONDS,
            what="the pool is the other's",
        )
        assert any(DRIVER in served.report(one)[2] for one in NAMES)
        log, began = control_plane.audit_log, time.monotonic()
        assert log is not None
        mark = log.stat().st_size
        eventually(lambda: time.monotonic() - began > QUIET_SECONDS, what="a while goes by")
        assert not [write for write in writes_of_npufleet(log, since=mark) if "resourceslices" in write]
    eventually(lambda: all_are_offered(served), seconds=SECONDS, what="all are back")
    start(workloads, "ours", FIRST)
    assert served.prepared() == {"ours"}


@contextmanager
def as_the_node_says(machine: RealMachine) -> Iterator[None]:
    """An extended resource that only the Node tells of: the kubelet does not know the plugin, or is an older one."""
    _advertise(machine, "2")
    try:
        yield
    finally:
        _advertise(machine, None)


def _advertise(machine: RealMachine, amount: str | None) -> None:
    path = f"{NODES}/{machine.name}"
    while True:
        node = machine.api.call("GET", path)
        for told in ("capacity", "allocatable"):
            node["status"][told].pop(RESOURCE, None)
            if amount is not None:
                node["status"][told][RESOURCE] = amount
        try:
            machine.api.call("PUT", f"{path}/status", node)
        except ApiCallError as error:
            if error.status != 409:
                raise
        else:
            return


def as_the_kubelet_says(machine: RealMachine) -> AbstractContextManager[None]:
    """A device plugin that names its devices in a way that nobody else knows: it may mean any of the vendor's."""
    return device_plugin(machine.root, RESOURCE, ["card-a", "card-b"])


@pytest.mark.parametrize("advertised", [as_the_kubelet_says, as_the_node_says])
def test_what_a_device_plugin_may_mean_is_left_to_it_until_it_goes(
    served: ServedNode, machine: RealMachine, advertised: Any
) -> None:
    eventually(lambda: all_are_offered(served), what="all are offered")
    with advertised(machine):
        eventually(
            lambda: (
                all(is_left_to(served, one, RESOURCE) for one in (THIRD, FOURTH))
                and served.devices().keys() == {NAMES[FIRST], NAMES[SECOND]}
            ),
            seconds=SECONDS,
            what="those for containers are withdrawn, and it is named",
        )
    eventually(lambda: all_are_offered(served), seconds=SECONDS, what="they are back")


def test_what_a_device_plugin_names_by_address_is_all_that_is_left_to_it(
    served: ServedNode, machine: RealMachine
) -> None:
    eventually(lambda: all_are_offered(served), what="all are offered")
    with device_plugin(machine.root, RESOURCE, [THIRD]):
        eventually(
            lambda: is_left_to(served, THIRD, RESOURCE) and served.devices().keys() == ALL - {NAMES[THIRD]},
            seconds=SECONDS,
            what="it is withdrawn",
        )
        assert BUSY in served.devices()
    eventually(lambda: all_are_offered(served), seconds=SECONDS, what="it is back")
