"""Which devices of this node claims are allocated to, asked of the API server itself: no cache may say that nobody has
a device.
"""

from collections.abc import Mapping
from typing import Any

from crds.device_names import address_of
from dra_publisher.claims.api import ClaimsApi
from dra_publisher.handover.ports import Allocation, PublishError
from runtime.errors import ApiError
from runtime.resources import RESOURCE_CLAIMS


async def read_allocations(api: ClaimsApi, pool: str) -> dict[str, tuple[Allocation, ...]]:
    """By address, of all claims of the cluster, in one list read with quorum. Raises PublishError.

    Whatever the driver: the name under which a device was allocated need not be one that any order still knows.
    """
    try:
        listing = await api.list(RESOURCE_CLAIMS, convert=lambda claim: _allocations(claim, pool))
    except ApiError as error:
        raise PublishError(f"claims cannot be listed: {error}") from error
    found: dict[str, list[Allocation]] = {}
    for pairs in listing.items:
        for address, allocation in pairs:
            found.setdefault(address, []).append(allocation)
    return {address: tuple(allocations) for address, allocations in found.items()}


def _allocations(claim: Mapping[str, Any], pool: str) -> tuple[tuple[str, Allocation], ...]:
    metadata, status = _mapping(claim.get("metadata")), _mapping(claim.get("status"))
    results = _mapping(_mapping(status.get("allocation")).get("devices")).get("results")
    title = f"claim {metadata.get('namespace')}/{metadata.get('name')}"
    found = []
    for result in results if isinstance(results, list) else ():
        device = str(_mapping(result).get("device") or "")
        address = address_of(device)
        if address is not None and _mapping(result).get("pool") == pool:
            found.append((address, Allocation(str(_mapping(result).get("driver")), device, title)))
    return tuple(found)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
