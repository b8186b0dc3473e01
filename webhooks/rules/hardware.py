"""Which products of the catalogue a match can mean, and whether it can mean anything else."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from crds.catalogue import Catalogue, Product
from crds.models.device_match import DeviceMatch, Function


@dataclass(frozen=True, slots=True)
class Meant:
    """Products that a match can mean. ``only``: whatever it matches is one of them.

    ``places`` are the indices in ``match.products`` of the products that are named there.
    """

    products: tuple[Product, ...]
    only: bool
    places: Mapping[str, int]


@lru_cache(maxsize=4096)
def meant(match: DeviceMatch, catalogue: Catalogue) -> Meant:
    """The products of the catalogue that the match can mean."""
    places = {name: index for index, name in enumerate(match.products)}
    possible = tuple(product for product in catalogue.products.values() if may_be(match, product))
    if match.products:
        return Meant(possible, all(name in catalogue.products for name in match.products), places)
    known = products_of_ids(match, catalogue)
    return Meant(possible, known is not None and bool(possible), places)


def may_be(match: DeviceMatch, product: Product) -> bool:
    """Whether the ids of a device of this product can be those that the match asks for.

    The class code is left out: devices are told apart by ids, the catalogue's class is only what is usual.
    """
    ids = device_ids(match, product)
    return (
        bool(ids)
        and (not match.products or product.name in match.products)
        and (not match.vendors or product.vendor.id in match.vendors)
        and (not match.devices or bool(ids & set(match.devices)))
        and (not match.subsystems or not product.subsystems or bool(set(product.subsystems) & set(match.subsystems)))
    )


def device_ids(match: DeviceMatch, product: Product) -> set[str]:
    """The device ids of the product's functions of the kind that the match means."""
    return {device for virtual in functions(match) for device in (product.virtual if virtual else product.physical)}


def functions(match: DeviceMatch) -> tuple[bool, ...]:
    """For each kind of function that the match means: whether it is virtual."""
    return {Function.PHYSICAL: (False,), Function.VIRTUAL: (True,), Function.ANY: (False, True)}[match.function]


@lru_cache(maxsize=4096)
def products_of_ids(match: DeviceMatch, catalogue: Catalogue) -> frozenset[str] | None:
    """Names of the products that devices with the match's ids are; None when one may be none of the catalogue's."""
    if not match.vendors or not match.devices:
        return None
    found = {
        name
        for vendor in match.vendors
        for device in match.devices
        for virtual in functions(match)
        for name in _outcomes(catalogue, vendor, device, match.subsystems, virtual)
    }
    return None if None in found else frozenset(name for name in found if name is not None)


def _outcomes(
    catalogue: Catalogue, vendor: str, device: str, subsystems: tuple[str, ...], virtual: bool
) -> Iterator[str | None]:
    """What the catalogue may call a device with these ids, whatever its subsystem where none is asked for."""
    told: set[str | None] = set(subsystems)
    if not subsystems:
        told = {None} | {
            subsystem
            for product in catalogue.products.values()
            if product.vendor.id == vendor and device in (product.virtual if virtual else product.physical)
            for subsystem in product.subsystems
        }
    for subsystem in told:
        product = catalogue.product(vendor, device, subsystem, virtual=virtual)
        yield product.name if product is not None else None
