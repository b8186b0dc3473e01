"""From ResourceClaims to users of devices: which claims are allocated to devices that have to become free, and to whom.

What counts is the allocation, prepared or not: a pod that was promised a device comes to use it a moment later.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controllers.node_policy.plan.drains import DrainedDevice, DrainOrder
from controllers.reading import items, mapping
from crds.device_names import address_of


@dataclass(frozen=True, slots=True)
class Consumer:
    """A pod for which a claim is reserved; it is in the claim's namespace."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Place:
    """A device as an allocation names it; `pool` is the node.

    The driver says nothing: the name under which a device was published when it was allocated need not be one that any
    orders still know. A pool of this node and a name that carries the address of the device leave no doubt.
    """

    pool: str
    address: str


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """A ResourceClaim with devices of npufleet. `others`: texts of what it is reserved for that is no pod."""

    namespace: str
    name: str
    places: frozenset[Place]
    pods: tuple[Consumer, ...]
    others: tuple[str, ...]

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A claim that holds `devices` of a drain."""

    claim: AllocatedClaim
    devices: tuple[DrainedDevice, ...]

    @property
    def withheld(self) -> bool:
        """Nobody gets any of these devices any more: who is evicted does not come back to them."""
        return all(device.withheld for device in self.devices)

    @property
    def addresses(self) -> str:
        return ", ".join(device.address for device in self.devices)


def claims_on(pools: frozenset[str]) -> Callable[[Mapping[str, Any]], AllocatedClaim | None]:
    """Reads a ResourceClaim of the API; None when nothing of these nodes is allocated to it."""

    def read(claim: Mapping[str, Any]) -> AllocatedClaim | None:
        status = mapping(claim.get("status"))
        results = items(mapping(mapping(status.get("allocation")).get("devices")).get("results"))
        places = frozenset(place for result in results if (place := _place(result)).pool in pools and place.address)
        if not places:
            return None
        metadata = mapping(claim.get("metadata"))
        namespace = str(metadata.get("namespace") or "")
        reserved = items(status.get("reservedFor"))
        pods = [
            Consumer(namespace, str(one.get("name") or ""), str(one.get("uid") or ""))
            for one in reserved
            if _is_pod(one)
        ]
        others = [f"{one.get('resource')} {namespace}/{one.get('name')}" for one in reserved if not _is_pod(one)]
        return AllocatedClaim(namespace, str(metadata.get("name") or ""), places, tuple(pods), tuple(sorted(others)))

    return read


def uses_of(order: DrainOrder, claims: Iterable[AllocatedClaim]) -> list[ClaimUse]:
    """The claims that hold devices of this drain, by name."""
    found = []
    for claim in claims:
        places = {place.address for place in claim.places if place.pool == order.node}
        devices = tuple(device for device in order.devices if not places.isdisjoint(device.addresses))
        if devices:
            found.append(ClaimUse(claim, devices))
    return sorted(found, key=lambda use: use.claim.full_name)


def _place(result: Mapping[str, Any]) -> Place:
    address = address_of(str(result.get("device") or "")) or ""
    return Place(sys.intern(str(result.get("pool") or "")), address)


def _is_pod(reserved: Mapping[str, Any]) -> bool:
    return reserved.get("resource") == "pods" and not reserved.get("apiGroup")
