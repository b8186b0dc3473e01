"""A binder on paper: obeys the orders of one node as the rules of behaviour say, and reports as the API says.

It knows nothing of the planner whose orders it gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.builders import objects

Object = dict[str, Any]
FORMER = "rebellions"


@dataclass
class Card:
    """One device of a machine. `bound`: npufleet has it on a VFIO driver. `functions`: how many virtual ones it has;
    `parent`: the card of one. `pods`: UIDs of pods whose processes use it. `published`: it is in a ResourceSlice, and
    the publisher has not handed it over.
    """

    product: str = "RBLN-CA25"
    vendor: str = "1eff"
    device: str = "1250"
    serial: str = ""
    numa_node: int | None = 0
    users: list[str] = field(default_factory=list)
    pods: list[str] = field(default_factory=list)
    published: bool = False
    vetoes: list[str] = field(default_factory=list)
    bound: bool = False
    fails: bool = False
    functions: int = 0
    parent: str = ""

    def inventory(self, address: str) -> Object:
        entry = objects.inventory_device(address, kind={"vendor": self.vendor, "device": self.device})
        entry |= {"product": self.product, "driver": "vfio-pci" if self.bound else FORMER}
        if self.serial:
            entry["serial"] = self.serial
        if self.numa_node is not None:
            entry["numaNode"] = self.numa_node
        entry["usedBy"] = [{"kind": "Process", "name": name} for name in self.users]
        entry["usedBy"] += [{"kind": "Process", "name": "train", "podUID": uid} for uid in self.pods]
        if self.functions:
            detail = f"{self.functions} are enabled"
            entry["usedBy"].append({"kind": "VirtualFunctions", "name": "virtual functions", "detail": detail})
        if self.parent:
            entry |= {"function": "Virtual", "physicalFunction": self.parent}
        entry["vetoes"] = [{"reason": "MountedDisk", "message": text} for text in self.vetoes]
        return entry


def address(number: int) -> str:
    """Addresses that sort as their numbers."""
    return f"0000:{0x20 + number:02x}:00.0"


def report_on(state: Object, cards: Mapping[str, Card], boot_id: str) -> Object:
    """Carry out the orders on the cards, and say how things stand: the subtrees `inventory` and `bindings`."""
    orders = {entry["address"]: entry for entry in state["spec"].get("devices", [])}
    reports = [_obey(cards, orders[place]) for place in sorted(orders)]
    for place, card in sorted(cards.items()):
        if card.bound and place not in orders:
            reports.append(objects.device_report(place, "Pending", "Orphaned", former_driver=FORMER))
    generation = state["metadata"]["generation"]
    found = [card.inventory(place) for place, card in sorted(cards.items())]
    return {
        "inventory": objects.report(found, generation=generation, boot_id=boot_id),
        "bindings": objects.report(reports, generation=generation, boot_id=boot_id),
    }


def _obey(cards: Mapping[str, Card], order: Object) -> Object:
    place, intent = order["address"], order["intent"]
    card = cards.get(place)
    if card is None:
        return objects.device_report(place, "Blocked", "DeviceMissing")
    wanted = order["mode"] == "Passthrough"
    kind = (card.vendor, card.device)
    if kind != (order["identity"]["vendor"], order["identity"]["device"]):
        return objects.device_report(place, "Blocked", "IdentityMismatch")
    if intent == "Hold":
        as_ordered = card.bound == wanted
        return _say(card, place, *(("Ready", "Bound") if as_ordered else ("Pending", "Held")))
    if intent == "Release":
        return _release(card, place, order)
    if card.bound == wanted:
        return _say(card, place, "Ready", "Bound" if wanted else "NativeDriver")
    if card.vetoes:
        return _say(card, place, "Blocked", "Vetoed", message=card.vetoes[0])
    if hindrance := _hindrance(card):
        return _say(card, place, "Blocked", hindrance[0], message=hindrance[1])
    if card.fails:
        return _say(card, place, "Failed", "BindFailed", message="EINVAL at drivers_probe")
    card.bound = wanted
    return _say(card, place, "Ready", "Bound" if wanted else "NativeDriver")


def _release(card: Card, place: str, order: Object) -> Object:
    if card.bound and order["onRelease"] == "Restore":
        if hindrance := _hindrance(card):
            return _say(card, place, "Blocked", hindrance[0], message=hindrance[1])
        card.bound = False
    return objects.device_report(place, "Released", "Restored")


def _hindrance(card: Card) -> tuple[str, str] | None:
    """Why it must not be changed now: the reason and words for people."""
    users = [*card.users, *(f"a process of pod {uid}" for uid in card.pods)]
    if users:
        return "InUse", f"in use by {users[0]}"
    return ("Published", "waits for npufleet-dra-publisher to hand it over") if card.published else None


def _say(card: Card, place: str, state: str, reason: str, **more: Any) -> Object:
    if card.bound:
        more["former_driver"] = FORMER
    return objects.device_report(place, state, reason, **more)
