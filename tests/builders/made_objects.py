"""Makes objects by a kind's schema, mostly valid ones, out of choices that somebody else makes.

Choice 0 is always the simplest one, so that a failing example shrinks to little.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.builders.examples import Digits

Pick = Callable[[Sequence[Any]], Any]

_BYTES = 160

# Strings by a word of their pattern that no other pattern has: what fits, the longest included.
FITTING: dict[str, list[Any]] = {
    r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01]": ["0000:23:00.0", "0000:a3:1f.7", "10000000:00:00.0"],
    r"^[0-9a-f]{4}:[0-9a-f]{4}$": ["0200:0100", "ffff:0000"],
    r"^[0-9a-f]{4}([0-9a-f]{2})?$": ["1200", "120000"],
    r"^[0-9a-f]{4}$": ["1eff", "10de", "0000"],
    r"^[0-9a-f]*$": ["", "5d0f4c1e9b7a", "0" * 64],
    r"^[!-~]+$": ["SN-0001", "!", "~" * 64],
    r"^(100|[1-9][0-9]?)%$": ["1%", "99%", "100%", 1, 100000],
    r"[KMGTPE]i": ["1Gi", "0", ".5", "1.", "+3k", "1e3", "5E", "999999999999999.999999999Ei", "1e30"],
    r"T[0-9]{2}:": ["2026-11-30T12:00:00Z", "2024-02-29T23:59:59.123456789Z"],
    r"{0,61}[A-Za-z0-9])?$": ["a/B", "npufleet.io/pool", "a.b-c/x_y.z"],
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$": ["", "x", "A.b_c-9"],
    r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$": ["Ready", "A", "a,b:c_"],
    r"^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$": ["", "Bound"],
    r"^[A-Za-z0-9][A-Za-z0-9._+-]*$": ["RBLN-CA25", "910B4", "a+b"],
    r"^[A-Za-z0-9][A-Za-z0-9_.-]*$": ["Auto", "vfio-pci", "vir01"],
    r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$": ["", "rebellions"],
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": ["L40S-24Q", "A100-1-5CME"],
    r"^[0-9A-Za-z][0-9A-Za-z._+-]*$": ["1.2.0", "1.0.0-rc.1+b"],
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": ["rule", "a", "a-0", "x" * 63],
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.": ["", "policy.one"],
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.": ["npufleet.io", "a", "a.b-c.d"],
}


def fitting(pattern: str) -> list[Any]:
    """Strings (and numbers, where they are taken, too) that fit a pattern of the API."""
    return next(values for word, values in FITTING.items() if word in pattern)


def choices() -> st.SearchStrategy[Pick]:
    """Some hundreds of choices, out of one draw."""
    return st.binary(min_size=_BYTES, max_size=_BYTES).map(lambda data: Digits(int.from_bytes(data, "little")).pick)


class Maker:
    """Makes values by a schema.

    A ``sloppy`` maker forgets a rule between fields now and then: often just one, so that each rule decides alone.
    """

    def __init__(self, pick: Pick, *, sloppy: bool) -> None:
        self._pick = pick
        self._sloppy = sloppy

    def value(self, node: dict[str, Any], name: str = "") -> Any:
        if "enum" in node:
            return self._pick(node["enum"])
        if node.get("x-kubernetes-int-or-string") or node["type"] == "string":
            return self._string(node)
        if node["type"] == "integer":
            low, high = node.get("minimum", 0), node.get("maximum", 2**63 - 1)
            return self._pick([low, min(low + 1, high), high])
        if node["type"] == "array":
            return self._list(node, name)
        if "additionalProperties" in node:
            return self._map(node, name)
        return self._object(node)

    def _string(self, node: dict[str, Any]) -> Any:
        if "pattern" not in node:
            return self._pick(["x", "serving", "\u00fc" * min(5, node["maxLength"])])
        values = fitting(node["pattern"])
        if not node.get("x-kubernetes-int-or-string"):
            values = [text for text in values if isinstance(text, str) and len(text) <= node.get("maxLength", 9999)]
        return self._pick(values)

    def _map(self, node: dict[str, Any], name: str) -> dict[str, Any]:
        first, second = ("npufleet.io/pool", "a/B") if name == "matchLabels" else ("L40S-24Q", "A40-48Q")
        chosen = list(self._pick([(), (first,), (second,), (first, second), (second, first)]))
        if self._forgets():
            chosen.append(self._pick(["not a key", "", "/", "a" * 64, "-", "a/b/c", "x" * 320, "A/b"]))
        return {key: self.value(node["additionalProperties"]) for key in chosen}

    def _list(self, node: dict[str, Any], name: str) -> list[Any]:
        least = node.get("minItems", 0)
        size = self._pick(range(least, max(least, min(2, node["maxItems"])) + 1))
        items = [self.value(node["items"]) for _ in range(size)]
        keys = node.get("x-kubernetes-list-map-keys") or (["name"] if name == "devices" else None)
        if node.get("x-kubernetes-list-type") == "set" or keys:
            told = [
                json.dumps([item.get(k) for k in keys] if keys and isinstance(item, dict) else item) for item in items
            ]
            items = [item for index, item in enumerate(items) if told[index] not in told[:index]]
            if items and self._forgets():
                items.append(copy.deepcopy(items[0]))
        return items

    def _object(self, node: dict[str, Any]) -> dict[str, Any]:
        required = node.get("required", ())
        found = {
            key: self.value(child, key)
            for key, child in node.get("properties", {}).items()
            if key in required or self._pick((False, False, False, True))
        }
        if node.get("x-kubernetes-validations"):
            found = self._keep_rules(found, node["properties"])
            if self._forgets():
                found = self._break_a_rule(found, node["properties"])
        return found

    def _keep_rules(self, found: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
        if "mode" in properties:
            blocks = {"Passthrough": "passthrough", "VGPU": "vgpu", "SoftVNPU": "softVNPU", "HardVNPU": "hardVNPU"}
            found = {k: v for k, v in found.items() if k not in blocks.values() or k == blocks.get(found["mode"])}
            if found["mode"] in {"VGPU", "SoftVNPU"}:
                found.setdefault(blocks[found["mode"]], self.value(properties[blocks[found["mode"]]]))
        elif "numaNodes" in properties:
            found.setdefault("vendors", ["1eff"])
            if "addresses" in found:
                found.setdefault("products", ["RBLN-CA25"])
        elif "deviceClasses" in properties:
            found.setdefault("products", ["RBLN-CA25"])
        elif "operator" in properties:
            wants = found["operator"] in {"In", "NotIn"}
            found = {k: v for k, v in found.items() if k != "values"} | ({"values": ["x"]} if wants else {})
        elif "minCores" in properties:
            found = {k: v for k, v in found.items() if k not in {"maxCores", "maxDevices"}}
        return found

    def _break_a_rule(self, found: dict[str, Any], properties: dict[str, Any]) -> Any:
        if "mode" in properties:
            block = self._pick(["passthrough", "vgpu", "softVNPU", "hardVNPU"])
            without = {k: v for k, v in found.items() if k != block}
            return self._pick([without, found | {block: self.value(properties[block])}])
        if "numaNodes" in properties:
            lone = {key: self.value(properties[key]) for key in ("addresses", "devices", "function")}
            return self._pick([{key: value} for key, value in lone.items()])
        if "deviceClasses" in properties:
            return {}
        if "operator" in properties:
            return self._pick([found | {"values": ["x"]}, {k: v for k, v in found.items() if k != "values"}])
        if "minCores" in properties:
            return self._pick([found | {f"min{what}": 2, f"max{what}": 1} for what in ("Cores", "Devices")])
        return found

    def _forgets(self) -> bool:
        return self._sloppy and bool(self._pick((False, False, False, True)))
