"""Slices of somebody else on this node: in our driver's pool, or with the address of a device in them. Pure."""

from collections.abc import Collection, Iterable

from dra_publisher.offers.others import Others
from dra_publisher.slices.resource_slice import Slice, is_ours


def others_by_slices(slices: Iterable[Slice], node: str, drivers: Collection[str]) -> Others:
    """By the slices of the node. `drivers` are those in use."""
    foreign = sorted((one for one in slices if not is_ours(one, node)), key=lambda one: one.name)
    addresses: dict[str, str] = {}
    for one in foreign:
        text = f"DRA driver {one.driver} publishes it too: ResourceSlice {one.name}"
        for address in one.addresses:
            addresses.setdefault(address, text)
    return Others(foreign_pools(foreign, drivers, node), addresses)


def foreign_pools(foreign: Iterable[Slice], drivers: Collection[str], node: str) -> dict[str, str]:
    """Drivers in whose pool somebody else has slices, and who."""
    found: dict[str, list[str]] = {}
    for one in foreign:
        if one.driver in drivers and one.pool == node:
            found.setdefault(one.driver, []).append(one.name)
    return {
        driver: f"another plugin publishes under {driver} here: ResourceSlice {', '.join(sorted(names))}"
        for driver, names in found.items()
    }
