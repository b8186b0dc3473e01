"""The models and the generated schemas take exactly the same objects."""

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from crds.generator.schema import structural_schema, walk
from crds.models.base import API_VERSION
from crds.models.kinds import BY_NAME, KINDS
from tests.builders.examples import at_least
from tests.builders.schema_judge import Judge

FLOOR = 2000
SCHEMAS = {kind.name: structural_schema(kind.model) for kind in KINDS}
JUDGES = {name: Judge(schema) for name, schema in SCHEMAS.items()}

# Strings by a word of their pattern that no other pattern has: what fits, the longest included, and what nearly fits.
NEARLY = ["", " ", "a b", "A", "-", "a-", "a\n", "ä", "x" * 400, "0x1eff", "1EFF", "..", "a/b/c", "100%", "0%", "٣"]
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
    return next(values for word, values in FITTING.items() if word in pattern)


def test_every_pattern_has_strings_that_fit_and_strings_that_nearly_do() -> None:
    patterns = {
        (node["pattern"], int(node["maxLength"]))
        for schema in SCHEMAS.values()
        for _, node in walk(schema)
        if "pattern" in node
    }
    for pattern, longest in patterns:
        bare = Judge({"type": "string", "pattern": pattern, "maxLength": longest})
        strings = [text for text in fitting(pattern) if isinstance(text, str) and len(text) <= longest]
        assert strings
        assert [text for text in strings if bare.faults(text)] == [], pattern
        assert any(bare.faults(text) for text in NEARLY), pattern


class Maker:
    """Draws objects from a schema, mostly valid ones.

    A ``sloppy`` maker forgets a rule between fields now and then: often just one, so that each rule decides alone.
    """

    def __init__(self, draw: st.DrawFn, *, sloppy: bool) -> None:
        self._draw = draw
        self._sloppy = sloppy

    def value(self, node: dict[str, Any], name: str = "") -> Any:
        if "enum" in node:
            return self._one(node["enum"])
        if node.get("x-kubernetes-int-or-string") or node["type"] == "string":
            return self._string(node)
        if node["type"] == "integer":
            low, high = node.get("minimum", 0), node.get("maximum", 2**63 - 1)
            return self._one([low, min(low + 1, high), high])
        if node["type"] == "array":
            return self._list(node, name)
        if "additionalProperties" in node:
            return self._map(node, name)
        return self._object(node)

    def _string(self, node: dict[str, Any]) -> Any:
        if "pattern" not in node:
            return self._one(["x", "serving", "\u00fc" * min(5, node["maxLength"])])
        values = fitting(node["pattern"])
        if not node.get("x-kubernetes-int-or-string"):
            values = [text for text in values if isinstance(text, str) and len(text) <= node.get("maxLength", 9999)]
        return self._one(values)

    def _map(self, node: dict[str, Any], name: str) -> dict[str, Any]:
        keys = ["npufleet.io/pool", "a/B"] if name == "matchLabels" else ["L40S-24Q", "A40-48Q"]
        chosen = self._draw(st.lists(st.sampled_from(keys), unique=True, max_size=2))
        if self._forgets():
            chosen.append(self._one(["not a key", "", "/", "a" * 64, "-", "a/b/c", "x" * 320, "A/b"]))
        return {key: self.value(node["additionalProperties"]) for key in chosen}

    def _list(self, node: dict[str, Any], name: str) -> list[Any]:
        least = node.get("minItems", 0)
        size = self._draw(st.integers(least, max(least, min(2, node["maxItems"]))))
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
            if key in required or self._draw(st.integers(0, 3)) == 0
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
            block = self._one(["passthrough", "vgpu", "softVNPU", "hardVNPU"])
            without = {k: v for k, v in found.items() if k != block}
            return self._one([without, found | {block: self.value(properties[block])}])
        if "numaNodes" in properties:
            lone = {key: self.value(properties[key]) for key in ("addresses", "devices", "function")}
            return self._one([{key: value} for key, value in lone.items()])
        if "deviceClasses" in properties:
            return {}
        if "operator" in properties:
            return self._one([found | {"values": ["x"]}, {k: v for k, v in found.items() if k != "values"}])
        if "minCores" in properties:
            return self._one([found | {f"min{what}": 2, f"max{what}": 1} for what in ("Cores", "Devices")])
        return found

    def _forgets(self) -> bool:
        return self._sloppy and self._draw(st.integers(0, 3)) == 0

    def _one(self, values: list[Any]) -> Any:
        return values[self._draw(st.integers(0, len(values) - 1))]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside."""
    if isinstance(value, dict):
        return [at, *(place for key, item in value.items() for place in places(item, (*at, key)))]
    if isinstance(value, list):
        return [at, *(place for index, item in enumerate(value) for place in places(item, (*at, index)))]
    return [at]


def spoil(draw: st.DrawFn, obj: dict[str, Any]) -> None:
    """Change one value somewhere in spec or status."""
    place = draw(st.sampled_from([place for place in places(obj) if len(place) > 0]))
    holder = obj
    for step in place[:-1]:
        holder = holder[step]
    last = place[-1]
    value = holder[last]
    ways: list[Any] = ["x", "", 1, 0, -1, True, 1.5, [], {}, [[]], 2**31, 2**63]
    if isinstance(value, str):
        ways += [*NEARLY, value + "\n", value.upper(), value.lower(), value * 30]
    if isinstance(value, int):
        ways += [value + 1, value - 1, str(value)]
    if isinstance(value, list) and value:
        ways += [[*value, copy.deepcopy(value[0])], value * 40, value[:-1]]
    if isinstance(value, dict):
        ways += [value | {"unknown": 1}, dict(list(value.items())[1:]), value | {"a b": "x"}]
        ways += [value | {f"key-{number}": "x" for number in range(70)}]
    holder[last] = draw(st.sampled_from(ways))


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    # The policy has most of the rules.
    name = draw(st.sampled_from([*sorted(SCHEMAS), "NPUNodePolicy"]))
    maker = Maker(draw, sloppy=draw(st.booleans()))
    properties = SCHEMAS[name]["properties"]
    found: dict[str, Any] = {"spec": maker.value(properties["spec"])}
    if draw(st.booleans()):
        found["status"] = maker.value(properties["status"])
    if draw(st.integers(0, 2)) == 0:
        spoil(draw, found)
    return {"apiVersion": API_VERSION, "kind": name, "metadata": {"name": "x"}} | found


def test_the_models_take_what_the_schemas_take_and_nothing_else() -> None:
    verdicts = {True: 0, False: 0}

    @settings(max_examples=2400, deadline=None, suppress_health_check=list(HealthCheck))
    @given(objects())
    def agree(obj: dict[str, Any]) -> None:
        examples.one()
        schema_faults = JUDGES[obj["kind"]].faults({key: obj[key] for key in obj if key in {"spec", "status"}})
        try:
            BY_NAME[obj["kind"]].model.strict(obj)
            model_faults: list[str] = []
        except ValidationError as error:
            model_faults = [f"{fault['loc']}: {fault['msg']}" for fault in error.errors()]
        verdicts[not schema_faults] += 1
        assert bool(schema_faults) == bool(model_faults), f"schema: {schema_faults}\nmodel: {model_faults}\n{obj}"

    with at_least(FLOOR, "schema and model agree") as examples:
        agree()
    print(f"of these {verdicts[True]} valid, {verdicts[False]} invalid")
    assert min(verdicts.values()) >= FLOOR // 5


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_an_object_that_is_none_is_refused_in_one_message_per_fault(name: str) -> None:
    nonsenses: list[Any] = [[], "x", 1, {}, {"spec": []}]
    for nonsense in nonsenses:
        with pytest.raises(ValidationError) as caught:
            BY_NAME[name].model.strict(nonsense)
        assert caught.value.errors()
