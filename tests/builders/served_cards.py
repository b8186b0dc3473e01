"""The accelerators of the node with a real kubelet as npufleet offers them, and pods that have one."""

from __future__ import annotations

from typing import Any

from tests.builders.real_node import Workloads
from tests.builders.served_node import DRIVER, ServedNode

Object = dict[str, Any]
VFIO_CLASS, NPU_CLASS = f"vfio-{DRIVER}", DRIVER
# Two cards for VMs, two for containers; a service of the host has the last one open.
FIRST, SECOND, THIRD, FOURTH = "0000:21:00.0", "0000:22:00.0", "0000:23:00.0", "0000:24:00.0"
NAMES = {FIRST: "vfio-0000-21-00-0", SECOND: "vfio-0000-22-00-0", THIRD: "npu-0000-23-00-0"}
BUSY = "npu-0000-24-00-0"
ALL = frozenset({*NAMES.values(), BUSY})
GROUP_NODES = {FIRST: "/dev/vfio/20", SECOND: "/dev/vfio/21"}


def select(address: str) -> list[str]:
    """A claim's selectors for one device."""
    return [f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"']


def claim_on(workloads: Workloads, name: str, address: str) -> Object:
    """A claim on one device, which nobody uses yet."""
    device_class = VFIO_CLASS if address in GROUP_NODES else NPU_CLASS
    made = workloads.claim(name, device_class, selectors=select(address))
    workloads.node.mirror_devices()
    return made


def start(workloads: Workloads, name: str, address: str, **given: Any) -> Object:
    """A pod with a claim of the same name on one device, running; the claim."""
    claim_on(workloads, name, address)
    workloads.pod(name, claims=[name], **given)
    workloads.runs(name)
    return workloads.get_claim(name)


def container(workloads: Workloads, name: str) -> Object:
    """The status of a pod's only container."""
    status: Object = workloads.get(name)["status"]["containerStatuses"][0]
    return status


def is_given_back(served: ServedNode, claim: Object) -> bool:
    """Whether nothing is left of a claim on its node."""
    return claim["metadata"]["name"] not in served.prepared() and not served.cdi_files(claim["metadata"]["uid"])


def all_are_offered(served: ServedNode) -> bool:
    """Whether pods may have each of them, but for the one that is in use."""
    return served.devices().keys() == ALL and not any(served.taints(name) for name in NAMES.values())
