"""Nodes with vGPU cards as the API server keeps them: what is ordered, and what their profile writers report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.builders import objects

Object = dict[str, Any]
BOOT: Final = "boot-1"
L40S: Final = {"vendor": "10de", "device": "26b9"}


def card_order(address: str, layout: Mapping[str, int], *, mapped: str = "halves", intent: str = "Apply") -> Object:
    """An order that a card carries a layout."""
    vgpu = {
        "profileMapRef": {"name": mapped},
        "layout": [{"profile": profile, "count": count} for profile, count in layout.items()],
    }
    return objects.desired_device(address, identity=L40S, mode="VGPU", intent=intent, vgpu=vgpu)


def vgpu(
    address: str, profile: str, state: str = "Ready", reason: str = "Typed", *users: str, message: str = ""
) -> Object:
    """What a writer says of one vGPU."""
    found: Object = {"address": address, "profile": profile, "state": state, "reason": reason}
    return found | ({"users": list(users)} if users else {}) | ({"message": message} if message else {})


def card_report(address: str, vgpus: Sequence[Object], state: str = "Ready", reason: str = "Typed") -> Object:
    """What a writer says of one card."""
    return {"address": address, "state": state, "reason": reason, "vgpus": list(vgpus)}


def node_with(
    name: str,
    orders: Sequence[Object],
    cards: Sequence[Object] | None,
    *,
    boot_id: str = BOOT,
    generation: int = 1,
    answered: int | None = None,
) -> Object:
    """The NPUNodeState of a node; `cards` None: no writer has ever reported."""
    state = objects.node_state(name, devices=orders, meta={"generation": generation, "uid": f"state-{name}"})
    if cards is not None:
        said = generation if answered is None else answered
        state["status"] = {"profiles": objects.report(cards, generation=said, boot_id=boot_id)}
    return state
