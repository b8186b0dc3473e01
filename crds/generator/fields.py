"""The fields of a kind as flat records: what the reference pages and ``npufleet explain`` print."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from crds.generator.schema import Schema, structural_schema
from crds.models.kinds import Kind


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule of a field: where its fault is shown, what must hold, and the message when it does not."""

    at: str
    expression: str
    message: str


@dataclass(frozen=True, slots=True)
class FieldDoc:
    """One field: its path below the object, e.g. ``spec.devices[].match.vendors``."""

    path: str
    type: str
    required: bool
    effective: str | None
    constraints: tuple[str, ...]
    meaning: str
    rules: tuple[Rule, ...]

    @property
    def name(self) -> str:
        """The last part of the path, without the marks of lists and maps."""
        return self.path.rpartition(".")[2].removesuffix("[]").removesuffix("{}")


@cache
def field_docs(kind: Kind) -> tuple[FieldDoc, ...]:
    """Each field of spec and status in the order of the model; a list's items follow their list."""
    schema = structural_schema(kind.model)
    found: list[FieldDoc] = []
    for top in ("spec", "status"):
        _collect(schema["properties"][top], top, top in schema["required"], found)
    return tuple(found)


def type_name(node: Schema) -> str:
    """The type in words: ``string``, ``list of string``, ``map of integer``, ``integer or string``."""
    if node.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if node.get("type") == "array":
        return f"list of {type_name(node['items'])}"
    if "additionalProperties" in node:
        return f"map of {type_name(node['additionalProperties'])}"
    return str(node["type"])


def _collect(node: Schema, path: str, required: bool, found: list[FieldDoc]) -> None:
    meaning, _, effective = node.get("description", "").partition(" Absent: ")
    mark = "[]" if "items" in node else "{}" if "additionalProperties" in node else ""
    inner = node.get("items") or node.get("additionalProperties") or {}
    found.append(
        FieldDoc(
            path=path,
            type=type_name(node),
            required=required,
            effective=effective.removesuffix(".") or None,
            constraints=tuple(_constraints(node)) + tuple(f"each: {text}" for text in _constraints(inner)),
            meaning=meaning,
            rules=tuple(_rules(node, path)) + tuple(_rules(inner, path + mark)),
        )
    )
    holder = inner or node
    for name, child in holder.get("properties", {}).items():
        _collect(child, f"{path}{mark}.{name}", name in holder.get("required", ()), found)


def _rules(node: Schema, path: str) -> list[Rule]:
    return [
        Rule(path + rule.get("fieldPath", ""), rule["rule"], rule["message"])
        for rule in node.get("x-kubernetes-validations", ())
    ]


def _constraints(node: Schema) -> list[str]:
    texts = []
    if "enum" in node:
        texts.append("one of " + ", ".join(f"`{value}`" for value in node["enum"]))
    if "format" in node and node["format"] not in {"int32", "int64"}:
        texts.append(f"format {node['format']}")
    for low, high, what in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
        ("minProperties", "maxProperties", " keys"),
    ):
        texts += _range(node.get(low), node.get(high), what)
    if "pattern" in node:
        texts.append(f"matches `{node['pattern']}`")
    match node.get("x-kubernetes-list-type"):
        case "set":
            texts.append("no item twice")
        case "map":
            texts.append(f"no `{node['x-kubernetes-list-map-keys'][0]}` twice")
    return texts


def _range(low: Any, high: Any, what: str) -> list[str]:
    if low is not None and high is not None:
        return [f"{low} to {high}{what}" if low != high else f"{low}{what}"]
    if high is not None:
        return [f"at most {high}{what}"]
    return [f"at least {low}{what}"] if low is not None else []
