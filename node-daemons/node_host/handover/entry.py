"""What a token is for: one order, told by the hash of its entry; and what an order makes of a device. Pure."""

import hashlib
import json
from typing import Any, Final

from crds.models.modes import Mode
from crds.models.node_state import DesiredDevice

_SHAPE: Final = ("mode", "passthrough", "vgpu", "softVNPU", "hardVNPU")


def entry_digest(entry: DesiredDevice) -> str:
    """SHA-256 (64 hex digits) of the canonical JSON (sorted keys, no blanks) of an entry of spec.devices as the API has
    it: fields that are not set are left out, so a new version's new fields change nothing until they are used.
    """
    return _digest(entry.to_object())


def shape_digest(entry: DesiredDevice) -> str:
    """The same of what the order makes of its device: the mode and its settings.

    Who decided it, under which name it is published, and whether it is held or given back change nothing of the shape.
    """
    value = entry.to_object()
    shape: dict[str, Any] = {name: value[name] for name in _SHAPE if name in value}
    if "vgpu" in shape:
        # Which map the layout came from changes nothing on the card.
        shape["vgpu"] = {name: part for name, part in shape["vgpu"].items() if name != "profileMapRef"}
    return _digest(shape)


def vgpu_shape(profile: str) -> str:
    """The same of a virtual function that is a vGPU: what the other ones of its card are is nothing to it."""
    return _digest({"mode": str(Mode.VGPU), "profile": profile})


def shapes_of(entry: DesiredDevice, address: str) -> frozenset[str]:
    """The shapes that an order may make of a device, which is its own or a virtual function of that: of a card that is
    to carry vGPUs, each function may get any profile of the layout.
    """
    if entry.mode is not Mode.VGPU or address == entry.address:
        return frozenset({shape_digest(entry)})
    return frozenset(vgpu_shape(one.profile) for one in (entry.vgpu.layout if entry.vgpu is not None else ()))


def _digest(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
