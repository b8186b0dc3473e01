"""What a kubelet writes about its node and its pods, as plain objects. Pure: clocks and identities come in."""

import hashlib
import ipaddress
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
_VERSION = "v1.37.2"
_NODE_NETWORK = ipaddress.IPv4Network("10.64.0.0/10")
_POD_NETWORK = ipaddress.IPv4Network("10.128.0.0/9")
_RESOURCES = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "900Gi"}
_PRESSURES = {
    "MemoryPressure": "KubeletHasSufficientMemory",
    "DiskPressure": "KubeletHasNoDiskPressure",
    "PIDPressure": "KubeletHasSufficientPID",
}


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the kubelet knows of its machine. ``booted`` and all times are RFC 3339 in UTC."""

    name: str
    labels: dict[str, str]
    kernel_version: str
    boot_id: str
    booted: str


def node(facts: NodeFacts) -> Object:
    labels = {
        "kubernetes.io/hostname": facts.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **facts.labels,
    }
    return {"metadata": {"name": facts.name, "labels": labels}}


def node_status(facts: NodeFacts, *, uid: str, now: str) -> Object:
    """For server-side apply on nodes/status; the UID makes sure that it is about the Node that was registered."""
    machine = hashlib.sha256(facts.name.encode()).hexdigest()[:32]
    conditions = [_condition("Ready", "True", "KubeletReady", facts.booted, now)]
    conditions += [_condition(kind, "False", reason, facts.booted, now) for kind, reason in _PRESSURES.items()]
    return {
        "metadata": {"name": facts.name, "uid": uid},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": _address(_NODE_NETWORK, facts.name)},
                {"type": "Hostname", "address": facts.name},
            ],
            "capacity": _RESOURCES,
            "allocatable": _RESOURCES,
            "conditions": conditions,
            "nodeInfo": {
                "machineID": machine,
                "systemUUID": machine,
                "bootID": facts.boot_id,
                "kernelVersion": facts.kernel_version,
                "osImage": "Simulated Linux",
                "containerRuntimeVersion": "simulated://0",
                "kubeletVersion": _VERSION,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


def node_lease(facts: NodeFacts, *, uid: str, now: str) -> Object:
    return {
        "metadata": {
            "name": facts.name,
            "namespace": LEASE_NAMESPACE,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": facts.name, "uid": uid}],
        },
        "spec": {"holderIdentity": facts.name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now},
    }


def _condition(kind: str, status: str, reason: str, since: str, now: str) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "simulated",
        "lastHeartbeatTime": now,
        "lastTransitionTime": since,
    }


def running_status(pod: Object, *, now: str, started: bool = True) -> Object:
    """For server-side apply on pods/status: every container runs and is ready, init containers are done.

    Not ``started``: the machine came up again, and containers are still to be made.
    """
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    host = _address(_NODE_NETWORK, str(spec["nodeName"]))
    address = host if spec.get("hostNetwork") else _address(_POD_NETWORK, str(metadata["uid"]))
    conditions = [
        {"type": kind, "status": str(started or kind == "Initialized"), "lastTransitionTime": now}
        for kind in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    ]
    state = {"running": {"startedAt": now}} if started else {"waiting": {"reason": "ContainerCreating"}}
    done = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    status: Object = {
        "phase": "Running",
        "startTime": now,
        "hostIP": host,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": conditions,
        "containerStatuses": [_container(metadata, container, state) for container in spec.get("containers", [])],
    }
    if spec.get("initContainers"):
        status["initContainerStatuses"] = [
            # One that restarts always is a sidecar: it goes on beside the containers.
            _container(
                metadata,
                container,
                state if container.get("restartPolicy") == "Always" else {"terminated": done},
            )
            for container in spec["initContainers"]
        ]
    return {
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
        "status": status,
    }


def _container(metadata: Object, container: Object, state: Object) -> Object:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "containerID": f"simulated://{metadata['uid']}/{container['name']}",
        "ready": "waiting" not in state,
        "started": "running" in state,
        "restartCount": 0,
        "state": state,
    }


def _address(network: ipaddress.IPv4Network, name: str) -> str:
    """An address that is the same at every start; in a fleet of some hundred, twins are rare and harm nobody."""
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    return str(network[1 + digest % (network.num_addresses - 2)])
