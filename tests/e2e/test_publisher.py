"""Pods get devices of npufleet from a real kubelet and containerd, through restarts and reboots of everything."""

from __future__ import annotations

import json

import pytest

from node_host.evidence.checkpoint import CHECKPOINT
from node_host.host import open_host
from tests.builders.real_node import CLAIMS, PODS, SLICES, RealMachine, Workloads, claim_spec, pod
from tests.builders.served_cards import (
    ALL,
    BUSY,
    FIRST,
    GROUP_NODES,
    NAMES,
    SECOND,
    THIRD,
    VFIO_CLASS,
    container,
    is_given_back,
    start,
)
from tests.builders.served_node import DRIVER, NODES, ServedNode
from tests.builders.waiting import eventually


def test_a_pod_has_the_nodes_the_address_and_the_metadata_of_its_device(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    claim = start(workloads, "whole", FIRST)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["device"]) == (DRIVER, machine.name, NAMES[FIRST])
    assert served.prepared() == {"whole"}

    def run(command: str) -> str:
        return machine.node.exec("default", "whole", ["/bin/sh", "-c", command])

    assert "NPUFLEET_DEVICE_VFIO_0000_21_00_0=0000:21:00.0" in run("env").splitlines()
    assert sorted(run("ls /dev/vfio").split()) == ["20", "vfio"]
    assert run(f"test -c {GROUP_NODES[FIRST]} && exec 3<>{GROUP_NODES[FIRST]} && echo opened") == "opened\n"
    path = f"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/whole/npu/{DRIVER}-metadata.json"
    described = json.loads(run(f"cat {path}").splitlines()[0])
    (device,) = described["requests"][0]["devices"]
    assert device["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": FIRST}

    workloads.ends("whole")
    assert is_given_back(served, claim)
    assert not list((machine.root / f"var/lib/kubelet/plugins/{DRIVER}/dra-device-metadata").glob("*_whole*"))


def test_a_container_without_the_claim_gets_nothing_of_it(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    del served
    workloads.template("whole", VFIO_CLASS)
    machine.node.mirror_devices()
    body = pod("pair", machine.name, templates=["whole"])
    (first,) = body["spec"]["containers"]
    second = {**first, "name": "bare", "resources": {}}
    body["spec"]["containers"].append(second)
    workloads.create(PODS, body)
    workloads.runs("pair")
    assert "vfio" in machine.node.exec("default", "pair", ["ls", "/dev"], container="main").split()
    assert "vfio" not in machine.node.exec("default", "pair", ["ls", "/dev"], container="bare").split()
    # Nor by making the node itself: the kernel's device cgroup lets nobody open it who was not given it.
    script = "mknod /tmp/device c 10 229; (exec 3<>/tmp/device) 2>&1 || echo refused"
    assert "refused" in machine.node.exec("default", "pair", ["/bin/sh", "-c", script], container="bare")


def test_a_device_of_containers_comes_with_the_nodes_of_its_driver(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    start(workloads, "native", THIRD)
    seen = machine.node.exec("default", "native", ["/bin/sh", "-c", "env; ls /dev"]).split()
    assert "NPUFLEET_DEVICE_NPU_0000_23_00_0=0000:23:00.0" in seen
    there = {name for name in seen if name.startswith("rbln")}
    assert len(there) == 1
    assert there < {path.name for path in (machine.root / "dev").iterdir()}
    assert "npufleet.io/in-use" in served.taints(BUSY)


def test_extended_resource_of_a_class_is_a_claim_like_any_other(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    machine.node.mirror_devices()
    body = pod("extended", machine.name)
    amount = {f"deviceclass.resource.kubernetes.io/{VFIO_CLASS}": "1"}
    body["spec"]["containers"][0]["resources"] = {"requests": amount, "limits": amount}
    workloads.create(PODS, body)
    workloads.runs("extended")
    assert "vfio" in machine.node.exec("default", "extended", ["ls", "/dev"]).split()
    assert len(served.prepared()) == 1
    workloads.ends("extended")
    eventually(lambda: not served.prepared(), what="the implicit claim is given back")


def test_restart_of_the_kubelet_costs_the_slices_for_seconds_and_no_pod_anything(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    claim = start(workloads, "kept", FIRST)
    before, running = served.slices(), container(workloads, "kept")
    machine.node.restart_kubelet()
    wiped = {one["metadata"]["uid"] for one in before}

    def are_back() -> bool:
        now = served.slices()
        return bool(served.devices().keys() == ALL) and not any(one["metadata"]["uid"] in wiped for one in now)

    eventually(are_back, seconds=10, what="the kubelet wiped the slices, and they are back")
    workloads.runs("kept")
    assert container(workloads, "kept")["containerID"] == running["containerID"]
    assert container(workloads, "kept")["restartCount"] == 0
    assert served.prepared() == {"kept"}
    workloads.ends("kept")
    assert is_given_back(served, claim)


def test_slices_deleted_by_others_are_back_within_seconds(served: ServedNode) -> None:
    before = {name: {**device, "taints": served.taints(name)} for name, device in served.devices().items()}
    for one in served.slices():
        served.api.call("DELETE", f"{SLICES}/{one['metadata']['name']}")

    def are_back() -> bool:
        now = {name: {**device, "taints": served.taints(name)} for name, device in served.devices().items()}
        return now == before

    eventually(are_back, seconds=10, what="the slices are back")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restart_of_the_publisher_is_invisible(
    served: ServedNode, workloads: Workloads, machine: RealMachine, how: str
) -> None:
    name = f"through-{how}"
    claim = start(workloads, name, FIRST)
    before = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in served.slices()}
    running = container(workloads, name)["containerID"]
    getattr(served.publisher, how)()
    # What was lost with /run of a restarted container runtime, say: the kubelet does not ask again within one boot.
    for path in (machine.root / "run/cdi").iterdir():
        path.unlink()
    served.publisher.start()
    assert {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in served.slices()} == before
    assert served.cdi_files(claim["metadata"]["uid"])
    assert container(workloads, name)["containerID"] == running
    # A container that is started again finds its device by the same names.
    end = "(sleep 0.2; kill -TERM 1) >/dev/null 2>&1 &"  # later: it would take this command along
    machine.node.exec("default", name, ["/bin/sh", "-c", end])
    workloads.until(lambda: container(workloads, name)["restartCount"] == 1, "the container is started again")
    workloads.runs(name)
    assert "20" in machine.node.exec("default", name, ["ls", "/dev/vfio"]).split()
    workloads.ends(name)
    assert is_given_back(served, claim)


def test_rolling_update_of_the_publisher_is_invisible(served: ServedNode, workloads: Workloads) -> None:
    kept = start(workloads, "before", FIRST)
    before = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in served.slices()}
    old, served.publisher = served.publisher, served.new_publisher("0b5c6f3e-64a1-4b8e-9d6f-0d3c2f1a7e02")
    served.publisher.start()
    start(workloads, "between", SECOND)  # while both are there
    old.stop()
    assert {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in served.slices()} == before
    for one in served.slices():
        served.api.call("DELETE", f"{SLICES}/{one['metadata']['name']}")
    eventually(lambda: served.devices().keys() == ALL, seconds=10, what="the new one publishes")
    start(workloads, "after", THIRD)
    assert served.prepared() == {"before", "between", "after"}
    workloads.ends("before")
    assert is_given_back(served, kept)


def test_a_pod_that_is_deleted_while_the_publisher_is_away_waits_for_it(
    served: ServedNode, workloads: Workloads
) -> None:
    claim = start(workloads, "waits", FIRST)
    served.publisher.stop()
    workloads.api.call("DELETE", f"{PODS}/waits")
    workloads.until(
        lambda: "terminated" in container(workloads, "waits")["state"], "the container has ended, the pod has not"
    )
    assert served.prepared() == {"waits"}
    served.publisher.start()
    workloads.until(lambda: workloads.find(f"{PODS}/waits") is None, "the pod is gone")
    assert is_given_back(served, claim)


def test_the_last_line_against_a_device_in_two_claims_is_the_publisher(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    first = start(workloads, "owner", FIRST)
    second = workloads.create(CLAIMS, {"metadata": {"name": "thief"}, "spec": claim_spec(VFIO_CLASS)})
    body = pod("thief", machine.name, claims=["thief"])
    body["spec"]["nodeName"] = machine.name
    thief = workloads.create(PODS, body)
    # As a scheduler would that has gone wrong.
    second["status"] = {
        "allocation": first["status"]["allocation"],
        "reservedFor": [{"resource": "pods", "name": "thief", "uid": thief["metadata"]["uid"]}],
    }
    served.api.call("PUT", f"{CLAIMS}/thief/status", second)
    workloads.until(
        lambda: any(
            reason == "FailedPrepareDynamicResources" and "default/owner" in text and NAMES[FIRST] in text
            for reason, text in workloads.events("thief")
        ),
        "the kubelet tells whose the device is",
    )
    assert served.prepared() == {"owner"}
    workloads.runs("owner")
    workloads.ends("owner")
    workloads.runs("thief")
    assert served.prepared() == {"thief"}


def test_health_of_a_device_is_told_in_the_status_of_its_pod(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    start(workloads, "watched", FIRST)

    def health() -> list[str]:
        resources = container(workloads, "watched").get("allocatedResourcesStatus") or []
        return [one["health"] for entry in resources for one in entry.get("resources") or []]

    workloads.until(lambda: health() == ["Healthy"], "the device is healthy")
    # Somebody else takes it off its driver, and gives it back.
    host = open_host(machine.root)
    host.write("/sys/bus/pci/drivers/vfio-pci/unbind", FIRST.encode())
    workloads.until(lambda: health() == ["Unhealthy"], "the device is sick", seconds=30)
    assert "npufleet.io/driver-changed" in served.taints(NAMES[FIRST])
    host.write("/sys/bus/pci/drivers_probe", FIRST.encode())
    workloads.until(lambda: health() == ["Healthy"], "the device is healthy again", seconds=30)
    eventually(lambda: not served.taints(NAMES[FIRST]), seconds=10, what="new pods may have it again")


def test_a_corrupt_checkpoint_is_set_aside_and_told_and_the_publisher_stays(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    claim = start(workloads, "lost", FIRST)
    served.publisher.stop()
    file = machine.root / CHECKPOINT[1:]
    file.write_bytes(b'{"version": 1, "checksum": "no"')
    served.publisher.start()
    assert [path.name for path in file.parent.iterdir() if ".corrupt-" in path.name]
    told = served.api.call("GET", "/apis/events.k8s.io/v1/events")["items"]
    assert [one for one in told if one["regarding"]["name"] == machine.name and "heckpoint" in one["reason"]]
    workloads.runs("lost")
    eventually(lambda: "lost" in served.prepared(), what="what pods have is found out again")
    workloads.ends("lost")
    assert is_given_back(served, claim)


def test_after_a_reboot_a_pod_waits_for_the_binder_and_gets_its_device_back(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    start(workloads, "reborn", FIRST)
    before = workloads.api.call("GET", f"{NODES}/{machine.name}")["status"]["nodeInfo"]["bootID"]
    served.binder.kill()
    served.publisher.kill()
    boot = machine.reboot()
    assert boot != before
    served.publisher.start()
    workloads.until(
        lambda: any(
            reason == "FailedPrepareDynamicResources" and "npufleet-vfio-binder" in text
            for reason, text in workloads.events("reborn")
        ),
        "the kubelet tells what the claim waits for",
    )
    served.binder.start()

    def runs_again() -> bool:
        machine.node.mirror_devices()
        return container(workloads, "reborn")["restartCount"] > 0 and workloads.is_running("reborn")

    workloads.until(runs_again, "the pod runs again, on this boot", seconds=90)
    assert "20" in machine.node.exec("default", "reborn", ["ls", "/dev/vfio"]).split()
    eventually(lambda: served.devices().keys() == ALL, what="all devices are offered again")
    assert served.prepared() == {"reborn"}
