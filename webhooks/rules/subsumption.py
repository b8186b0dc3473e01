"""Whether one match takes every device that another means, and whether two can mean one device at all.

Both answers are sound for whatever devices there are: where they say yes, no device shows otherwise. Where one match
names products and the other ids, the catalogue tells how they go together, as it told the binder that took the
inventory.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from crds.catalogue import Catalogue, Product
from crds.models.device_match import DeviceMatch, Function
from webhooks.rules.hardware import device_ids, may_be, products_of_ids

_LISTS: Final = ("products", "vendors", "devices", "subsystems", "classes", "addresses", "serials", "numa_nodes")


def physical_only(match: DeviceMatch) -> DeviceMatch:
    """The match without virtual functions: what a rule means that gives virtual functions to VMs."""
    return match.model_copy(update={"function": Function.PHYSICAL}) if match.function is Function.ANY else match


def covers(general: DeviceMatch, special: DeviceMatch, catalogue: Catalogue) -> bool:
    """Whether every device that ``special`` matches is matched by ``general`` as well."""
    if general.function not in (Function.ANY, special.function):
        return False
    # Without products on one side nothing but the lists themselves can tell: the commonest case, and the cheapest.
    if not special.products and not _within(general.devices, special.devices):
        return False
    named = _known_products(special, catalogue)
    return (
        _within(general.addresses, special.addresses)
        and _within(general.serials, special.serials)
        and _within(general.numa_nodes, special.numa_nodes)
        and _classes_within(general.classes, special.classes)
        and (_within(general.vendors, special.vendors) or _vendors_within(general, named))
        and (_within(general.devices, special.devices) or _devices_within(general, special, named))
        and (_within(general.subsystems, special.subsystems) or _subsystems_within(general, named))
        and (_within(general.products, special.products) or _products_within(general, special, catalogue))
    )


def taken_by(generals: Sequence[DeviceMatch], special: DeviceMatch, catalogue: Catalogue) -> tuple[int, ...]:
    """Indices of those that together match every device that ``special`` matches; empty when they do not."""
    alone = _first(generals, special, catalogue)
    if alone is not None:
        return (alone,)
    # One device of each criterion's first value shows most of the time that the whole cannot be taken.
    if _first(generals, _witness(special), catalogue) is None:
        return ()
    for parts in _splits(special):
        found = set()
        for part in parts:
            index = _first(generals, part, catalogue)
            if index is None:
                break
            found.add(index)
        else:
            return tuple(sorted(found))
    return ()


def apart(one: DeviceMatch, other: DeviceMatch, catalogue: Catalogue) -> bool:
    """Whether no device can match both."""
    if Function.ANY not in (one.function, other.function) and one.function is not other.function:
        return True
    if any(_no_common(getattr(one, name), getattr(other, name)) for name in _LISTS if name != "classes"):
        return True
    if one.classes and other.classes and not any(_related(a, b) for a in one.classes for b in other.classes):
        return True
    for match, ids in ((one, other), (other, one)):
        named = _known_products(match, catalogue)
        if named and not any(may_be(ids.model_copy(update={"products": ()}), product) for product in named):
            return True
    return False


def _known_products(match: DeviceMatch, catalogue: Catalogue) -> tuple[Product, ...]:
    """The products that the match names; none when the catalogue does not know one of them."""
    found = tuple(catalogue.products[name] for name in match.products if name in catalogue.products)
    return found if len(found) == len(match.products) else ()


def _within(wide: tuple[Any, ...], narrow: tuple[Any, ...]) -> bool:
    return not wide or (bool(narrow) and set(narrow) <= set(wide))


def _classes_within(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    return not wide or (bool(narrow) and all(code.startswith(wide) for code in narrow))


def _vendors_within(general: DeviceMatch, named: tuple[Product, ...]) -> bool:
    return bool(named) and all(product.vendor.id in general.vendors for product in named)


def _devices_within(general: DeviceMatch, special: DeviceMatch, named: tuple[Product, ...]) -> bool:
    return bool(named) and all(device_ids(special, product) <= set(general.devices) for product in named)


def _subsystems_within(general: DeviceMatch, named: tuple[Product, ...]) -> bool:
    return bool(named) and all(
        product.subsystems and set(product.subsystems) <= set(general.subsystems) for product in named
    )


def _products_within(general: DeviceMatch, special: DeviceMatch, catalogue: Catalogue) -> bool:
    found = products_of_ids(special, catalogue)
    if found is not None and special.products:
        found &= set(special.products)
    return found is not None and found <= set(general.products)


def _first(generals: Sequence[DeviceMatch], special: DeviceMatch, catalogue: Catalogue) -> int | None:
    return next((index for index, general in enumerate(generals) if covers(general, special, catalogue)), None)


def _splits(match: DeviceMatch) -> Iterator[list[DeviceMatch]]:
    """Ways to take the match apart so that every device that it matches is matched by a part."""
    if match.function is Function.ANY:
        yield [match.model_copy(update={"function": kind}) for kind in (Function.PHYSICAL, Function.VIRTUAL)]
    for name in _LISTS:
        values = getattr(match, name)
        if len(values) > 1:
            yield [match.model_copy(update={name: (value,)}) for value in values]


def _witness(match: DeviceMatch) -> DeviceMatch:
    first: dict[str, Any] = {name: getattr(match, name)[:1] for name in _LISTS}
    if match.function is Function.ANY:
        first["function"] = Function.PHYSICAL
    return match.model_copy(update=first)


def _no_common(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return bool(one) and bool(other) and not set(one) & set(other)


def _related(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
