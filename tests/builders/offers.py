"""Offers for tests: made up one by one, or of all devices that a binder has brought into the ordered shape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from crds.catalogue import load_catalogue
from crds.device_names import NamedKind, device_name
from crds.models.node_state import DesiredDevice
from dra_publisher.offers.offer import Offer, Taint
from dra_publisher.offers.offering import offer_of
from node_host.observer import Observer
from node_host.view import HostView
from simulated_node.description import HostDescription
from tests.builders.binder import Bench, order
from tests.builders.inline import InlineCalls

REBELLIONS = "npu.rebellions.ai"
NPUFLEET = "npufleet.io"


def entry(address: str, *, driver_name: str = NPUFLEET, **fields: Any) -> DesiredDevice:
    """An order; further fields as `tests.builders.binder.order` takes them."""
    return DesiredDevice.model_validate({**order(address, **fields), "driverName": driver_name})


def offer(
    number: int = 0,
    *,
    driver: str = NPUFLEET,
    kind: NamedKind = NamedKind.VFIO,
    taints: Sequence[Taint] = (),
    **more: Any,
) -> Offer:
    """The device with a number, at an address of its own; `more` are fields of Offer."""
    address = f"{number // 2048:04x}:{number // 8 % 256:02x}:00.{number % 8}"
    fields = {
        "attributes": {"type": str(kind), "resource.kubernetes.io/pciBusID": address, "iommuGroup": number},
        "capacity": {},
        **more,
    }
    ordered = _ordered(address, driver)
    return Offer(address, kind, device_name(kind, address), driver, ordered, taints=tuple(taints), **fields)


@cache
def _ordered(address: str, driver: str) -> DesiredDevice:
    return entry(address, driver_name=driver)


async def view_of(bench: Bench) -> HostView:
    """The bench's host as a daemon sees it."""
    catalogue = load_catalogue()
    known = {(vendor, device) for vendor in catalogue.vendors for device in _ids(vendor)}
    observer = Observer(
        bench.host, InlineCalls(deadline_seconds=5), of_interest=lambda one: (one.vendor, one.device) in known
    )
    return await observer.view()


def _ids(vendor: str) -> set[str]:
    products = (one for one in load_catalogue().products.values() if one.vendor.id == vendor)
    return {device for one in products for device in (*one.physical, *one.virtual)}


async def bound_offers(
    root: Path, description: HostDescription, product: str, *, driver: str = REBELLIONS, **passthrough: Any
) -> list[Offer]:
    """Offers of all devices `vendor:device` of a described host, which a binder has given to VMs."""
    vendor, device = product.split(":")
    found = [one.address for one in description.devices if (one.vendor, one.device) == (vendor, device)]
    bench = Bench(root, description)
    try:
        orders = [
            {**order(address, vendor=vendor, device=device, **passthrough), "driverName": driver}
            for address in sorted(found)
        ]
        bench.order(*orders)
        await bench.run()
        view = await view_of(bench)
    finally:
        bench.close()
    offers = [offer_of(DesiredDevice.model_validate(one), one["address"], view, load_catalogue()) for one in orders]
    refused = [one for one in offers if isinstance(one, str)]
    assert not refused, refused
    return [one for one in offers if isinstance(one, Offer)]
