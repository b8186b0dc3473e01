"""What is known of maps, cards and nodes: compact records, and how they are read. Raises nothing for what is inside."""

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from controllers.reading import mapping
from crds.models.base import describe_faults
from crds.models.modes import Mode
from crds.models.node_state import Intent, NodeStateSpec, Profiles
from crds.models.profile_map import ProfileMapSpec, ProfileMapStatus
from crds.models.vgpu_state import ProfiledCard


@dataclass(frozen=True, slots=True)
class MapRecord:
    """A VGPUProfileMap. `error`: what of its spec cannot be understood; `layouts`: what its entries ask for, each as
    counts by profile; `observed`: for writing its status.
    """

    name: str
    uid: str
    generation: int
    error: str
    layouts: frozenset[tuple[tuple[str, int], ...]]
    status: ProfileMapStatus | None
    observed: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CardOrder:
    """A card that a map has a layout for: counts by profile."""

    address: str
    map: str
    layout: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class NodeCards:
    """The vGPU cards of one node, as ordered and as reported. `boot_id` and `generation` are the report's."""

    node: str
    generation: int = 0
    orders: tuple[CardOrder, ...] = ()
    reports: Mapping[str, ProfiledCard] | None = None
    boot_id: str = ""
    answered: int = 0
    error: str = ""

    @property
    def maps(self) -> frozenset[str]:
        return frozenset(order.map for order in self.orders)


def read_map(obj: Mapping[str, Any]) -> MapRecord:
    """The record of a VGPUProfileMap."""
    metadata = mapping(obj.get("metadata"))
    error, layouts = "", frozenset[tuple[tuple[str, int], ...]]()
    try:
        spec = ProfileMapSpec.model_validate(obj.get("spec"))
        layouts = frozenset(_layout(card.layout) for card in spec.gpus)
    except ValidationError as fault:
        error = describe_faults(fault, "spec")
    try:
        status = ProfileMapStatus.model_validate(obj["status"]) if isinstance(obj.get("status"), Mapping) else None
    except ValidationError:
        status = None  # written anew from scratch
    generation = metadata.get("generation")
    kept = {key: metadata[key] for key in ("name", "uid", "resourceVersion") if key in metadata}
    return MapRecord(
        sys.intern(str(metadata["name"])),
        str(metadata["uid"]),
        generation if isinstance(generation, int) else 0,
        error,
        layouts,
        status,
        {"metadata": kept, "status": mapping(obj.get("status"))},
    )


def read_cards(obj: Mapping[str, Any]) -> NodeCards:
    """The record of an NPUNodeState."""
    metadata = mapping(obj.get("metadata"))
    name = sys.intern(str(metadata["name"]))
    generation = metadata.get("generation")
    number = generation if isinstance(generation, int) else 0
    try:
        spec = NodeStateSpec.model_validate(obj.get("spec"))
    except ValidationError as fault:
        return NodeCards(name, number, error=describe_faults(fault, "spec"))
    orders = tuple(
        CardOrder(sys.intern(device.address), sys.intern(device.vgpu.profile_map_ref.name), _layout(device.vgpu.layout))
        for device in spec.devices
        if device.mode is Mode.VGPU and device.vgpu is not None and device.intent is not Intent.RELEASE
    )
    if not orders:
        return NodeCards(name, number)
    report = mapping(obj.get("status")).get("profiles")
    if not isinstance(report, Mapping):
        return NodeCards(name, number, orders)
    try:
        found = Profiles.model_validate(report)
    except ValidationError as fault:
        return NodeCards(name, number, orders, error=describe_faults(fault, "status.profiles"))
    cards = {card.address: card for card in found.devices}
    return NodeCards(name, number, orders, cards, found.boot_id or "", found.observed_generation or 0)


def read_boot(obj: Mapping[str, Any]) -> str:
    """The boot id of a Node, "" until its kubelet has told one."""
    return str(mapping(mapping(obj.get("status")).get("nodeInfo")).get("bootID") or "")


def _layout(entries: Any) -> tuple[tuple[str, int], ...]:
    counts: Counter[str] = Counter()
    for entry in entries:
        counts[sys.intern(entry.profile)] += entry.count
    return tuple(sorted(counts.items()))
