"""Pods and ResourceClaims that use devices, as the dicts of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Object = dict[str, Any]
NAMESPACE = "team"
VM_LABELS = {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "db"}


def pod(
    name: str,
    *,
    node: str = "node-0",
    namespace: str = NAMESPACE,
    owner: str = "ReplicaSet/web",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    grace: int = 30,
    claims: Iterable[str] = (),
    phase: str = "Running",
    terminating: bool = False,
) -> Object:
    """A pod on a node; `owner` is kind/name of its controller, "" for none; `claims` are names of ResourceClaims."""
    metadata: Object = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if owner:
        kind, _, owner_name = owner.partition("/")
        # Of a group that no server knows: for one that it knows, the garbage collector would ask after the owner.
        reference = {
            "apiVersion": "workloads.example.io/v1",
            "kind": kind,
            "name": owner_name,
            "uid": f"uid-{owner_name}",
        }
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    if terminating:
        metadata |= {"deletionTimestamp": "2026-11-30T12:00:00Z", "deletionGracePeriodSeconds": grace}
        metadata["finalizers"] = ["example.io/wait"]
    spec: Object = {
        "nodeName": node,
        "terminationGracePeriodSeconds": grace,
        "containers": [{"name": "main", "image": "none"}],
    }
    if claims:
        spec["resourceClaims"] = [{"name": f"claim-{n}", "resourceClaimName": one} for n, one in enumerate(claims)]
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def claim(name: str, *, namespace: str = NAMESPACE) -> Object:
    """A claim for one device of class npufleet.io, with the finalizer that the scheduler gives it.

    Only with that the controller manager takes the allocation back when no pod needs it any more.
    """
    request = {"name": "npu", "exactly": {"deviceClassName": "npufleet.io"}}
    finalizers = ["resource.kubernetes.io/delete-protection"]
    metadata = {"name": name, "namespace": namespace, "finalizers": finalizers}
    return {"metadata": metadata, "spec": {"devices": {"requests": [request]}}}


def allocation(
    devices: Iterable[str],
    pods: Iterable[Object] = (),
    *,
    pool: str = "node-0",
    driver: str = "npufleet.io",
    others: Iterable[Object] = (),
) -> Object:
    """The status of a claim: these devices are allocated to it, and it is reserved for these pods (as created)."""
    results = [{"request": "npu", "driver": driver, "pool": pool, "device": device} for device in devices]
    reserved = [{"resource": "pods", "name": p["metadata"]["name"], "uid": p["metadata"]["uid"]} for p in pods]
    status: Object = {"allocation": {"devices": {"results": results}}}
    if reserved or others:
        status["reservedFor"] = [*reserved, *others]
    return status
