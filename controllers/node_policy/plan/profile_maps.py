"""What a rule of mode VGPU makes of a card: its profile map, resolved for that card. Pure.

Daemons read no map: the layout of each card stands in its order, so that a map's change is rolled out like a policy's.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from controllers.node_policy.plan.match import matches
from controllers.node_policy.plan.orders import Shape, shape_of
from controllers.node_policy.plan.view import BlockerReason, DeviceView, MapView
from crds.models.modes import Mode, ProfileMapReference
from crds.models.profile_map import CardLayout
from crds.models.vgpu_state import ProfileCount, VGPUOrder


@dataclass(frozen=True, slots=True)
class MapFault:
    """Why nothing is known of what the card is to carry."""

    reason: BlockerReason
    message: str


def resolved(shape: Shape, device: DeviceView, maps: Mapping[str, MapView]) -> Shape | MapFault:
    """The shape of a rule of mode VGPU with the layout that its map has for the card."""
    name = map_of(shape)
    known = maps.get(name)
    if known is None:
        text = f"VGPUProfileMap {name} does not exist: the card keeps what it carries; commit the map, or another rule"
        return MapFault(BlockerReason.PROFILE_MAP_MISSING, text)
    if known.spec is None:
        text = f"VGPUProfileMap {name} cannot be understood, so the card keeps what it carries: {known.error}"
        return MapFault(BlockerReason.PROFILE_MAP_MISSING, text)
    card = next((card for card in known.spec.gpus if matches(card.match, device)), None)
    if card is None:
        kind = device.product or f"{device.vendor}:{device.device}"
        text = f"no entry of gpus in VGPUProfileMap {name} matches this card ({kind}): it keeps what it carries"
        return MapFault(BlockerReason.NO_LAYOUT_FOR_CARD, text)
    return _carrying(shape.driver_name, name, card)


def map_of(shape: Shape) -> str:
    """The name of the map that a shape of mode VGPU is of."""
    return str(json.loads(shape.block)["profileMapRef"]["name"])


def same_wish(one: Shape, other: Shape) -> bool:
    """Whether two rules, or a rule and an order, want the same of a card: a rule names its map, an order its layout."""
    if one.mode is not Mode.VGPU or other.mode is not Mode.VGPU:
        return one == other
    return one.driver_name == other.driver_name and map_of(one) == map_of(other)


# A fleet has few different ones.
@lru_cache(maxsize=1024)
def _carrying(driver_name: str, name: str, card: CardLayout) -> Shape:
    counts: Counter[str] = Counter()
    for entry in card.layout:
        counts[entry.profile] += entry.count
    order = VGPUOrder(
        profile_map_ref=ProfileMapReference(name=name),
        framework=card.framework,
        mixed_sizes=card.mixed_sizes,
        unassigned=card.unassigned,
        layout=tuple(ProfileCount(profile=profile, count=count) for profile, count in counts.items()),
    )
    return shape_of(Mode.VGPU, driver_name, order)
