"""ResourceSlices, ResourceClaims and policies, read for showing: only what is shown of them is kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cli.devices.rows import Allocation, Offer, PodName, Why
from controllers.reading import items, mapping
from crds.device_names import address_of

BUS_ID: Final = "resource.kubernetes.io/pciBusID"
_CALM: Final = "None"


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """The devices of a slice that are at a PCI address, of whatever driver."""

    node: str
    driver: str
    pool: str
    generation: int
    devices: tuple[tuple[str, Offer], ...]


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """A claim with an allocation: its results as driver, pool and device, and who has reserved it."""

    namespace: str
    name: str
    results: tuple[tuple[str, str, str], ...]
    pods: tuple[tuple[str, PodName], ...]

    def allocation(self, driver: str, device: str, vms: Mapping[str, str]) -> Allocation:
        """What is told of one of its devices; `vms`: by pod UID, the VM in it."""
        pods = (PodName(p.namespace, p.name, vms.get(uid, ""), p.other) for uid, p in self.pods)
        return Allocation(driver, device, self.namespace, self.name, tuple(pods))


def read_slice(obj: Mapping[str, Any]) -> SliceFacts:
    """Devices without an address that can be told are left out."""
    spec = mapping(obj.get("spec"))
    pool = mapping(spec.get("pool"))
    driver = str(spec.get("driver") or "")
    found = []
    for device in items(spec.get("devices")):
        name = str(device.get("name") or "")
        told = mapping(mapping(device.get("attributes")).get(BUS_ID)).get("string")
        address = str(told).lower() if told else address_of(name)
        if address is not None:
            found.append((address, Offer(driver, name, tuple(_taints(device)))))
    generation = pool.get("generation")
    return SliceFacts(
        str(spec.get("nodeName") or ""),
        driver,
        str(pool.get("name") or ""),
        generation if isinstance(generation, int) else 0,
        tuple(found),
    )


def _taints(device: Mapping[str, Any]) -> list[str]:
    taints = [taint for taint in items(device.get("taints")) if taint.get("effect") != _CALM]
    return [f"{taint.get('key')}={taint['value']}" if taint.get("value") else str(taint.get("key")) for taint in taints]


def read_claim(obj: Mapping[str, Any]) -> ClaimFacts | None:
    """None: nothing is allocated to it."""
    status, metadata = mapping(obj.get("status")), mapping(obj.get("metadata"))
    results = items(mapping(mapping(status.get("allocation")).get("devices")).get("results"))
    if not results:
        return None
    namespace = str(metadata.get("namespace") or "")
    return ClaimFacts(
        namespace,
        str(metadata.get("name") or ""),
        tuple((str(one.get("driver")), str(one.get("pool")), str(one.get("device"))) for one in results),
        tuple((str(one.get("uid") or ""), _consumer(namespace, one)) for one in items(status.get("reservedFor"))),
    )


def _consumer(namespace: str, reserved: Mapping[str, Any]) -> PodName:
    name, resource = str(reserved.get("name") or ""), str(reserved.get("resource") or "")
    is_pod = resource == "pods" and not reserved.get("apiGroup")
    return PodName(namespace, name, other="" if is_pod else resource or "unknown")


def read_blockers(obj: Mapping[str, Any]) -> dict[tuple[str, str, str], Why]:
    """What stands in the way of a policy, by policy, node and address; the address is "" where the node waits."""
    policy = str(mapping(obj.get("metadata")).get("name") or "")
    return {
        (policy, str(one.get("node") or ""), str(one.get("device") or "")): Why(
            str(one.get("reason")), str(one.get("message") or "")
        )
        for one in items(mapping(obj.get("status")).get("blockers"))
    }
