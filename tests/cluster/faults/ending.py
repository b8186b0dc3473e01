"""What a run ends in, in a form in which two runs can be compared: without UIDs, times, versions and generations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from runtime.api import Api, ApiError
from runtime.resources import NODES, NPU_NODE_POLICIES, NPU_NODE_STATES, Resource
from tests.cluster.faults.fleet import Fleet

Object = dict[str, Any]
_UID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_MARKS = ("npufleet.io/cordoned-by", "npufleet.io/drain-request", "npufleet.io/drain-done")


async def look(fleet: Fleet) -> Object:
    """The state of everything that the run is about: objects, and the cards themselves."""
    nodes = {item["metadata"]["name"]: item for item in await _all(fleet.api, NODES)}
    policies = await _all(fleet.api, NPU_NODE_POLICIES)
    states = await _all(fleet.api, NPU_NODE_STATES)
    cards = {
        f"{node}/{place}": card.bound for node, cards in sorted(fleet.cards.items()) for place, card in cards.items()
    }
    return {
        "policies": {item["metadata"]["name"]: policy(item) for item in policies},
        "states": {
            item["metadata"]["name"]: state(item, nodes.get(item["metadata"]["name"]))
            for item in states
            if item["metadata"]["name"] in fleet.cards
        },
        "nodes": {name: node(nodes[name]) for name in sorted(fleet.cards) if name in nodes},
        "cards": cards,
    }


def policy(item: Object) -> Object:
    found = item.get("status") or {}
    current = found.get("observedGeneration") == item["metadata"]["generation"]
    return {"spec": item["spec"], "current": current, "status": plain(found)}


def state(item: Object, its_node: Object | None) -> Object:
    spec, status = item["spec"], item.get("status") or {}
    generation = item["metadata"]["generation"]
    rollout = status.get("rollout") or {}
    return {
        "current UID": its_node is not None and spec["nodeUID"] == its_node["metadata"]["uid"],
        "revision": spec["revision"],
        "devices": spec.get("devices") or [],
        "rollouts": spec.get("rollouts") or [],
        "rollout is current": rollout.get("observedGeneration") == generation,
        "bindings are current": (status.get("bindings") or {}).get("observedGeneration") == generation,
        "rollout": plain(rollout),
        "bindings": plain((status.get("bindings") or {}).get("devices") or []),
    }


def node(item: Object) -> Object:
    """What npufleet may write on a Node; taints and labels are of others."""
    marks = {key: value for key, value in (item["metadata"].get("annotations") or {}).items() if key in _MARKS}
    return {"marks": marks, "unschedulable": item["spec"].get("unschedulable", False)}


def plain(value: Any) -> Any:
    """Without times and generations, at every depth; conditions sorted by type."""
    if isinstance(value, Mapping):
        return {
            key: plain(each)
            for key, each in sorted(value.items())
            if key not in {"lastTransitionTime", "observedGeneration"}
        }
    if isinstance(value, list):
        found = [plain(each) for each in value]
        if found and all(isinstance(each, dict) and "type" in each for each in found):
            found.sort(key=lambda each: str(each["type"]))
        return found
    return _UID.sub("UID", value) if isinstance(value, str) else value


def differences(wanted: Any, found: Any, path: str = "") -> list[str]:
    """Where two endings differ, one line each; empty when they are equal."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        lines: list[str] = []
        for key in sorted({*wanted, *found}):
            lines += differences(wanted.get(key), found.get(key), f"{path}/{key}")
        return lines
    if wanted == found:
        return []
    return [f"{path}: wanted {_short(wanted)}, found {_short(found)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 400 else f"{text[:400]}..."


async def _all(api: Api, resource: Resource) -> Iterable[Object]:
    try:
        return (await api.list(resource)).items
    except ApiError as error:
        if error.status == 404:  # not served just now
            return []
        raise
