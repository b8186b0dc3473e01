"""The fleet of the bench on paper: its Nodes, its policies, and what the Lease of a daemon looks like."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from runtime.lease import daemon_lease_name
from tests.builders import objects
from tests.builders.paper_binder import Card, address

Object = dict[str, Any]
POLICY = "fleet"
EXCEPTION = "one-node"
BINDER = "npufleet-vfio-binder"
_ZONES = 3
_NAME_LABEL = "kubernetes.io/hostname"


def node_name(number: int) -> str:
    return f"node-{number:05d}"


def boot_id(name: str) -> str:
    return f"boot-of-{name}"


def node(name: str, number: int) -> Object:
    """A Node as its kubelet registers it, status included."""
    labels = {
        _NAME_LABEL: name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "npu-16",
        "topology.kubernetes.io/region": "region-a",
        "topology.kubernetes.io/zone": f"zone-{number % _ZONES}",
    }
    info = {
        "architecture": "amd64",
        "bootID": boot_id(name),
        "containerRuntimeVersion": "containerd://2.1.0",
        "kernelVersion": "6.12.0",
        "kubeProxyVersion": "",
        "kubeletVersion": "v1.37.2",
        "machineID": f"machine-{number}",
        "operatingSystem": "linux",
        "osImage": "Linux",
        "systemUUID": f"system-{number}",
    }
    return {"metadata": {"name": name, "labels": labels}, "status": {"nodeInfo": info}}


def cards(devices: int) -> dict[str, Card]:
    """The devices of one machine, by address."""
    return {address(number): Card(serial=f"SN{number:08d}", numa_node=number % 2) for number in range(devices)}


def lease(name: str) -> Object:
    """The binder's Lease of a node, renewed now."""
    spec = {
        "holderIdentity": name,
        "leaseDurationSeconds": 900,
        "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    return {"metadata": {"name": daemon_lease_name(BINDER, name), "namespace": "npufleet-system"}, "spec": spec}


def fleet_policy(mode: str, max_unavailable: int | str) -> Object:
    """The policy that selects every node."""
    return _spoken(
        objects.node_policy(POLICY, mode=mode, rollout={"maxUnavailable": max_unavailable, "drain": "Never"})
    )


def exception_policy(name: str, mode: str) -> Object:
    """A policy that goes before it on one node."""
    return _spoken(
        objects.node_policy(
            EXCEPTION, mode=mode, priority=200, nodes={_NAME_LABEL: name}, rollout={"maxUnavailable": 1}
        )
    )


def _spoken(policy: Object) -> Object:
    """As an author writes it: without what the API server fills in."""
    return {**policy, "metadata": {"name": policy["metadata"]["name"]}}
