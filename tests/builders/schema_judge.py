"""Judges an object by a structural schema alone, as the API server does: JSON schema, list types, then CEL rules.

Independent of the models: it reads only the generated schema. CEL is evaluated by a real CEL implementation.
"""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import Any

import cel
import jsonschema  # type: ignore[import-untyped]

Schema = dict[str, Any]


class Judge:
    """Says what the API server would find wrong with an object, with unknown fields refused."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        formats = jsonschema.FormatChecker(formats=())
        formats.checks("date-time", raises=ValueError)(_is_time)
        types = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer)
        judge = jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=types)
        self._validator = judge(_as_json_schema(schema), format_checker=formats)

    def faults(self, obj: Any) -> list[str]:
        """What is wrong, one text per fault; CEL rules are looked at when nothing else is wrong."""
        found = [f"{error.json_path}: {error.message}" for error in self._validator.iter_errors(obj)]
        found += list(_twins(self._schema, obj, "$"))
        return found or list(_broken_rules(self._schema, obj, "$"))


def rule_holds(rule: str, value: Any) -> bool:
    """Whether a CEL rule is true of ``self`` = value."""
    return bool(_program(rule).execute({"self": value}))


@cache
def _program(rule: str) -> Any:
    return cel.compile(rule)


def _as_json_schema(node: Schema) -> Schema:
    out: Schema = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if node.get("x-kubernetes-int-or-string"):
        out["type"] = ["integer", "string"]
    if "pattern" in node:
        out["pattern"] = node["pattern"].removesuffix("$") + r"\Z"  # Python's $ lets a line feed follow
    if "properties" in node:
        out["properties"] = {name: _as_json_schema(child) for name, child in node["properties"].items()}
        out["additionalProperties"] = False
    if "items" in node:
        out["items"] = _as_json_schema(node["items"])
    if "additionalProperties" in node:
        out["additionalProperties"] = _as_json_schema(node["additionalProperties"])
    if out.get("format") == "int64":
        out.setdefault("maximum", 2**63 - 1)
    return out


def _is_integer(_: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: object) -> bool:
    if isinstance(value, str):
        datetime.fromisoformat(re.sub(r"\.[0-9]+", "", value).replace("Z", "+00:00"))
    return True


def _twins(schema: Schema, value: Any, path: str) -> Iterator[str]:
    kind = schema.get("x-kubernetes-list-type")
    if isinstance(value, list) and kind in {"set", "map"}:
        keys = schema.get("x-kubernetes-list-map-keys", ())
        seen = set()
        for item in value:
            told = {key: item.get(key) for key in keys} if kind == "map" and isinstance(item, dict) else item
            shown = json.dumps(told, sort_keys=True)
            if shown in seen:
                yield f"{path}: {shown} is there twice"
            seen.add(shown)
    for child, item, name in _below(schema, value):
        yield from _twins(child, item, f"{path}{name}")


def _broken_rules(schema: Schema, value: Any, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if not rule_holds(rule["rule"], value):
            yield f"{path}{rule.get('fieldPath', '')}: {rule['message']}"
    for child, item, name in _below(schema, value):
        yield from _broken_rules(child, item, f"{path}{name}")


def _below(schema: Schema, value: Any) -> Iterator[tuple[Schema, Any, str]]:
    if isinstance(value, dict):
        for name, item in value.items():
            child = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if child is not None:
                yield child, item, f".{name}"
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield schema["items"], item, f"[{index}]"
