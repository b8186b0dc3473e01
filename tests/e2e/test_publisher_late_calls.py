"""T18: what a real kubelet asks too late, or has forgotten to ask, leaves no device with a claim that is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli.cluster.errors import ApiCallError
from tests.builders.real_node import CLAIMS, PODS, RealMachine, Workloads
from tests.builders.served_cards import (
    FIRST,
    NAMES,
    SECOND,
    VFIO_CLASS,
    all_are_offered,
    claim_on,
    is_given_back,
    select,
    start,
)
from tests.builders.served_node import ServedNode
from tests.builders.waiting import eventually

Object = dict[str, Any]


def claims_of_the_kubelet(machine: RealMachine) -> Path:
    """The kubelet's own record; it is written before a driver is asked to prepare a claim."""
    return machine.root / "var/lib/kubelet/dra_manager_state"


def is_asked_for(machine: RealMachine, claim: Object) -> bool:
    """Whether the kubelet has read the claim and goes on to have it prepared, if it has not asked yet."""
    return claim["metadata"]["uid"] in claims_of_the_kubelet(machine).read_text()


def delete_at_once(workloads: Workloads, path: str) -> None:
    """As somebody does who does not wait for those who protect an object."""
    found = workloads.find(path)
    while found is not None and found["metadata"].get("finalizers"):
        found["metadata"]["finalizers"] = []
        try:
            found = workloads.api.call("PUT", path, found)
        except ApiCallError as error:
            if error.status != 409:
                raise
            found = workloads.find(path)
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    workloads.api.call("DELETE", path, options)
    workloads.until(lambda: workloads.find(path) is None, f"{path} is gone")


def test_a_call_for_a_claim_that_was_made_anew_meanwhile_is_refused(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    former = claim_on(workloads, "late", FIRST)
    with served.publisher.frozen():
        workloads.pod("late", claims=["late"])
        workloads.until(lambda: is_asked_for(machine, former), "the kubelet asks")
        delete_at_once(workloads, f"{CLAIMS}/late")
        anew = workloads.claim("late", VFIO_CLASS, selectors=select(FIRST))
    told = f"its UID is '{anew['metadata']['uid']}' now"
    workloads.until(
        lambda: any(
            reason == "FailedPrepareDynamicResources" and told in text for reason, text in workloads.events("late")
        ),
        "the kubelet tells why",
    )
    assert served.prepared() == set()
    assert is_given_back(served, former)
    # Nothing is left of it: whoever has the name now gets the device.
    workloads.ends("late")
    workloads.pod("late", claims=["late"])
    workloads.runs("late")
    assert served.prepared() == {"late"}
    workloads.ends("late")
    assert is_given_back(served, anew)


def test_a_call_that_the_kubelet_has_given_up_leaves_nothing_of_a_pod_that_is_gone(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    """After 45 s it asks to take back what may come of it: both calls lie there when the publisher goes on."""
    claim = claim_on(workloads, "brief", FIRST)
    with served.publisher.frozen():
        workloads.pod("brief", claims=["brief"])
        workloads.until(lambda: is_asked_for(machine, claim), "the kubelet asks")
        workloads.api.call("DELETE", f"{PODS}/brief")
        workloads.until(
            lambda: any("DeadlineExceeded" in text for _, text in workloads.events("brief")), "the kubelet gives up"
        )
    workloads.until(lambda: workloads.find(f"{PODS}/brief") is None, "the pod is gone")
    assert served.prepared() == set()
    assert is_given_back(served, claim)
    start(workloads, "next", FIRST)
    assert served.prepared() == {"next"}


def test_what_the_kubelet_has_forgotten_is_found_and_dropped_after_a_reboot(
    served: ServedNode, machine: RealMachine, workloads: Workloads
) -> None:
    """Its state is lost with a disk, its pods are deleted from afar: nobody asks to take the claim back."""
    forgotten = start(workloads, "forgotten", FIRST)
    kept = start(workloads, "kept", SECOND)
    served.binder.kill()
    served.publisher.kill()

    def meanwhile() -> None:
        claims_of_the_kubelet(machine).unlink()
        delete_at_once(workloads, f"{PODS}/forgotten")
        delete_at_once(workloads, f"{CLAIMS}/forgotten")
        machine.control.reboot()

    machine.node.reboot(meanwhile)
    assert {"forgotten", "kept"} <= served.prepared()
    served.publisher.start()
    eventually(lambda: is_given_back(served, forgotten), what="what nobody asks for is dropped")
    assert "kept" in served.prepared(), "whose pod is there still has it"
    served.binder.start()

    def runs_again() -> bool:
        machine.node.mirror_devices()
        return workloads.is_running("kept")

    workloads.until(runs_again, "the pod that stayed runs again", seconds=90)
    eventually(lambda: all_are_offered(served), what="all devices are offered again")
    start(workloads, "next", FIRST)
    assert served.prepared() == {"kept", "next"}
    workloads.ends("kept")
    assert is_given_back(served, kept)
    assert NAMES[FIRST] in served.devices()
