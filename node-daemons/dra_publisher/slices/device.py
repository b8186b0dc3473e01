"""A device in the words of the API (resource.k8s.io/v1), and back: what a slice holds tells what was offered before."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from crds.device_names import NamedKind, address_of
from crds.models.node_state import DesiredDevice
from crds.models.quantity import parse_quantity
from dra_publisher.offers.offer import Attribute, Offer, Taint

EFFECT: Final = "NoSchedule"
_TYPED: Final = ("bool", "int", "string", "version")

Object = dict[str, Any]


def device_of(offer: Offer) -> Object:
    """The entry of a slice."""
    device: Object = {"name": offer.name}
    if offer.attributes:
        device["attributes"] = {name: _typed(value) for name, value in sorted(offer.attributes.items())}
    if offer.capacity:
        device["capacity"] = {name: {"value": value} for name, value in sorted(offer.capacity.items())}
    if offer.taints:
        device["taints"] = [
            {"key": taint.key, **({"value": taint.value} if taint.value else {}), "effect": EFFECT}
            for taint in sorted(offer.taints)
        ]
    return device


def offer_from_device(device: Mapping[str, Any], driver: str, entry: DesiredDevice) -> Offer | None:
    """The offer that a slice's entry was made from; None when npufleet makes no such entries."""
    name = str(device.get("name") or "")
    address = address_of(name)
    if address is None:
        return None
    attributes = _mapping(device.get("attributes"))
    capacity = _mapping(device.get("capacity"))
    return Offer(
        address=address,
        kind=NamedKind(name.partition("-")[0]),
        name=name,
        driver=driver,
        entry=entry,
        attributes={key: value for key, typed in attributes.items() if (value := _plain(typed)) is not None},
        capacity={key: str(_mapping(one).get("value")) for key, one in capacity.items()},
        taints=tuple(Taint(str(one.get("key")), str(one.get("value") or "")) for one in taints_of(device)),
    )


def taints_of(device: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The taints of an entry, as the API has them."""
    found = device.get("taints")
    return tuple(one for one in found if isinstance(one, Mapping)) if isinstance(found, Sequence) else ()


def essence(device: Mapping[str, Any]) -> Object:
    """What has to be the same for two entries to say the same.

    The server adds to a taint when it was set, and writes quantities in a form of its own.
    """
    found = {key: value for key, value in device.items() if value not in (None, {}, [])}
    if "taints" in found:
        found["taints"] = sorted(
            ({key: value for key, value in one.items() if key != "timeAdded"} for one in taints_of(device)),
            key=lambda one: str(one.get("key")),
        )
    if "capacity" in found:
        found["capacity"] = {name: _amounts(one) for name, one in _mapping(device.get("capacity")).items()}
    return found


def without_times(device: Mapping[str, Any]) -> Object:
    """The entry as the publisher makes it, without the times of its taints."""
    if "taints" not in device:
        return dict(device)
    return {**device, "taints": [{k: v for k, v in one.items() if k != "timeAdded"} for one in taints_of(device)]}


def as_before(device: Object, before: Mapping[str, Any]) -> Object:
    """The entry with the times of the taints that it had before."""
    times = {
        (one.get("key"), one.get("value", ""), one.get("effect")): one["timeAdded"]
        for one in taints_of(before)
        if "timeAdded" in one
    }
    if not times or "taints" not in device:
        return device
    taints = []
    for one in device["taints"]:
        time = times.get((one["key"], one.get("value", ""), one["effect"]))
        taints.append({**one, "timeAdded": time} if time is not None else one)
    return {**device, "taints": taints}


def _typed(value: Attribute) -> Object:
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


def _plain(typed: object) -> Attribute | None:
    found = _mapping(typed)
    value = next((found[kind] for kind in _TYPED if kind in found), None)
    return value if isinstance(value, bool | int | str) else None


def _amounts(capacity: object) -> object:
    if not isinstance(capacity, Mapping) or not isinstance(capacity.get("value"), str):
        return capacity
    try:
        return {**capacity, "value": parse_quantity(capacity["value"])}
    except ValueError:
        return capacity


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
