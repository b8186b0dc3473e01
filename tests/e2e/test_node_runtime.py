"""The node runtime itself: a real kubelet runs pods in the sandbox, and Kubernetes' own DRA driver serves them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from cli.cluster.access.identities import node_kubeconfig
from cli.cluster.programs.binaries import ensure_binaries
from cli.cluster.run.control_plane import ControlPlane
from tests.builders.real_node import CLASSES, SLICES, RealMachine, Workloads
from tests.builders.waiting import eventually
from tests.node_runtime.configuration import CDI_DIRECTORY

DRIVER = "test-driver.cdi.k8s.io"


@pytest.fixture(scope="module")
def driver(control_plane: ControlPlane, machine: RealMachine) -> Iterator[None]:
    """Kubernetes' test driver with two devices, and a class for them."""
    api = control_plane.api()
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    api.call("POST", CLASSES, {"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}})
    kubeconfig = node_kubeconfig(control_plane, machine.name, machine.directory / "driver.kubeconfig")
    program = ensure_binaries(["dra-test-driver"])["dra-test-driver"]
    (machine.root / f"var/lib/kubelet/plugins/{DRIVER}").mkdir(parents=True)  # it makes the one above only
    options = {"node-name": machine.name, "num-devices": 2, "cdi-dir": CDI_DIRECTORY, "drivername": DRIVER}
    command = [str(program), "kubelet-plugin", *(f"--{key}={value}" for key, value in options.items())]
    environment = {"KUBECONFIG": str(kubeconfig), "PATH": os.environ["PATH"]}
    running = machine.node.start_program("dra-test-driver", command, environment=environment)
    try:
        running.await_ready(lambda: _devices(machine) == ["device-00", "device-01"], seconds=30)
        yield
    finally:
        running.stop()
        api.call("DELETE", f"{CLASSES}/{DRIVER}")
        for one in _slices(machine):  # the kubelet would do it, half a minute later
            api.call("DELETE", f"{SLICES}/{one['metadata']['name']}")


def _slices(machine: RealMachine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = machine.api.call("GET", f"{SLICES}?fieldSelector=spec.driver={DRIVER}")["items"]
    return found


def _devices(machine: RealMachine) -> list[str]:
    return [device["name"] for one in _slices(machine) for device in one["spec"].get("devices", [])]


def test_a_pod_runs_and_says_what_it_sees(machine: RealMachine, workloads: Workloads) -> None:
    workloads.pod("plain", command="hostname; ls /dev; echo done")
    workloads.runs("plain")
    eventually(lambda: machine.node.pod_log("default", "plain").endswith("done\n"), what="the pod's output")
    said = machine.node.pod_log("default", "plain").split()
    assert said[0] == "plain"
    assert "null" in said
    assert "vfio" not in said
    assert machine.node.exec("default", "plain", ["cat", "/etc/hostname"]).strip() == "plain"
    workloads.ends("plain")


def test_the_node_is_the_simulated_machine_to_the_cluster(machine: RealMachine) -> None:
    node = machine.api.call("GET", f"/api/v1/nodes/{machine.name}")
    assert node["status"]["nodeInfo"]["bootID"] == machine.control.boot_id
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.37.2"
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"] == "containerd://2.4.2"


def test_a_claim_of_another_driver_is_prepared_and_given_back(
    driver: None, machine: RealMachine, workloads: Workloads
) -> None:
    del driver
    workloads.claim("first", DRIVER)
    workloads.pod("with-claim", claims=["first"])
    workloads.runs("with-claim")
    seen = machine.node.exec("default", "with-claim", ["env"]).split()
    assert "claim_first_npu=true" in seen
    cdi = machine.root / CDI_DIRECTORY[1:]
    uid = workloads.get_claim("first")["metadata"]["uid"]
    assert [path.name for path in cdi.iterdir() if uid in path.name] != []
    workloads.ends("with-claim")
    eventually(lambda: not any(uid in path.name for path in cdi.iterdir()), what="the claim is given back")


def test_two_claims_get_two_devices_and_a_third_waits(driver: None, machine: RealMachine, workloads: Workloads) -> None:
    del driver, machine
    for name in ("one", "two", "three"):
        workloads.claim(name, DRIVER)
        workloads.pod(f"pod-{name}", claims=[name])
        if name != "three":
            workloads.runs(f"pod-{name}")
    workloads.until(
        lambda: any("cannot allocate all claims" in text for _, text in workloads.events("pod-three")),
        "the scheduler says that there is no device left",
    )
    workloads.ends("pod-one")
    workloads.runs("pod-three")
