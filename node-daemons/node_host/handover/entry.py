"""What a token is for: one order, told by the hash of its entry; and what an order makes of a device. Pure."""

import hashlib
import json
from typing import Any, Final

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


def _digest(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
