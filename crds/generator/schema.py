"""Structural OpenAPI v3 schemas from pydantic models.

Source of the rules: Kubernetes documentation, "Specifying a structural schema": one type per node, no ``$ref``, no
``default`` (a decision of this API), and outside of ``properties`` only keywords that the API server knows.
"""

from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import to_jsonable_python

from crds.models.base import ABSENT, KubeObject

Schema = dict[str, Any]

LARGEST_INTEGER: Final = 2**63 - 1
_SMALL_INTEGER: Final = 2**31 - 1
_EXTENSIONS: Final = (
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
)
# The order of keywords in the manifests: what a reader looks for first comes first.
_KEYWORDS: Final = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "properties",
    "additionalProperties",
    "items",
    *_EXTENSIONS,
)
_DROPPED: Final = frozenset({"title", "default", "patternProperties", "propertyNames", ABSENT})
_ENVELOPE: Final = {
    "apiVersion": {"description": "Version of the API: `npufleet.io/v1alpha1`.", "type": "string"},
    "kind": {"description": "Kind of the object.", "type": "string"},
    "metadata": {"type": "object"},  # the API server allows no description here
}


class SchemaError(ValueError):
    """A model uses something that a structural schema cannot say."""


def structural_schema(model: type[KubeObject]) -> Schema:
    """The schema of a kind for ``openAPIV3Schema``.

    Raises SchemaError with the path of the field that cannot be expressed.
    """
    raw = model.model_json_schema(by_alias=True, mode="validation")
    definitions = raw.get("$defs", {})
    properties = {
        name: _node(node, definitions, (name,), effective=name == "spec")
        for name, node in raw["properties"].items()
        if name not in _ENVELOPE
    }
    return {
        "description": _one_line(raw["description"]),
        "type": "object",
        "required": ["spec"],
        "properties": {**_ENVELOPE, **properties},
    }


def walk(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Each node of a structural schema with its path; items are ``[]`` and values of a map ``{}``."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, (*path, name))
    if "items" in schema:
        yield from walk(schema["items"], (*path, "[]"))
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], (*path, "{}"))


def absent_text(node: Schema) -> str | None:
    """What holds when a field with this raw (pydantic) schema is absent; None when nothing is documented."""
    if ABSENT in node:
        return str(node[ABSENT])
    default = to_jsonable_python(node.get("default"))
    if default is None or default in ([], {}):
        return None
    if isinstance(default, dict):
        return "the effective value of each of its fields"
    if isinstance(default, list):
        return ", ".join(f"`{item}`" for item in default)
    return f"`{default}`"


def _node(raw: Schema, definitions: Schema, path: tuple[str, ...], *, effective: bool) -> Schema:
    node = _resolved(raw, definitions, path)
    out: Schema = {}
    for keyword, value in node.items():
        if keyword in _DROPPED:
            continue
        if keyword == "properties":
            out["properties"] = {
                name: _node(child, definitions, (*path, name), effective=effective) for name, child in value.items()
            }
        elif keyword == "items":
            out["items"] = _node(value, definitions, (*path, "[]"), effective=effective)
        elif keyword in _KEYWORDS:
            out[keyword] = value
        elif keyword != "additionalProperties":
            raise SchemaError(f"{'.'.join(path)}: a structural schema has no place for {keyword!r}")
    values = _map_values(node, path)
    if values is not None:
        out["additionalProperties"] = _node(values, definitions, (*path, "{}"), effective=effective)
    if out.get("type") == "integer":
        _bound_integer(out)
    if "description" in out:
        text = _one_line(out["description"])
        effect = absent_text(node) if effective else None
        out["description"] = f"{text} Absent: {effect}." if effect else text
    return {keyword: out[keyword] for keyword in _KEYWORDS if keyword in out}


def _resolved(raw: Schema, definitions: Schema, path: tuple[str, ...]) -> Schema:
    node = dict(raw)
    if node.get("x-kubernetes-int-or-string"):
        return node
    if "anyOf" in node:
        branches = [branch for branch in node.pop("anyOf") if branch != {"type": "null"}]
        if len(branches) != 1:
            raise SchemaError(f"{'.'.join(path)}: a structural schema has one type per field, not a union")
        node = branches[0] | node
    if "$ref" in node:
        target = definitions[node.pop("$ref").removeprefix("#/$defs/")]
        node = _resolved(target, definitions, path) | node
    if "const" in node:
        node["enum"] = [node.pop("const")]
    return node


def _map_values(node: Schema, path: tuple[str, ...]) -> Schema | None:
    if "patternProperties" in node:
        patterns = list(node["patternProperties"].values())
        if len(patterns) != 1:
            raise SchemaError(f"{'.'.join(path)}: a map has one schema for all of its values")
        return dict(patterns[0])
    values = node.get("additionalProperties")
    return dict(values) if isinstance(values, dict) else None


def _bound_integer(node: Schema) -> None:
    node.setdefault("maximum", LARGEST_INTEGER)
    node["format"] = "int32" if node["maximum"] <= _SMALL_INTEGER else "int64"
    if node["maximum"] == LARGEST_INTEGER:
        del node["maximum"]


def _one_line(text: str) -> str:
    return " ".join(text.split())
