"""Judges a value by a structural schema as the API server does, with its words, and says the nearest legal value.

Only the generated schema is read, never the models: both are compared in tests. Source of the semantics: Kubernetes
documentation on CustomResourceDefinitions, and what a real API server answered in tests/cluster.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, Final

from crds.near_matches import did_you_mean
from webhooks.rules.nearest import fitting
from webhooks.rules.pointers import Step, canonical, pointer

Schema = Mapping[str, Any]
Steps = tuple[Step, ...]

_LARGEST: Final = 2**63 - 1
_NOTHING: Final[Schema] = {}
"""The schema of what cannot be: an item where no list belongs."""
_QUOTES: Final = "put it in quotes"
_WORDS: Final = "put it in quotes: without, YAML reads yes, no, on and off as true and false"


class Keyword(StrEnum):
    """What of a schema is broken."""

    UNKNOWN_FIELD = "unknown field"
    NULL = "null"
    TYPE = "type"
    REQUIRED = "required"
    ENUM = "enum"
    PATTERN = "pattern"
    BOUNDS = "bounds"
    LENGTH = "length"
    SIZE = "size"
    TWICE = "twice"
    FORMAT = "format"


@dataclass(frozen=True, slots=True)
class Flaw:
    """One broken keyword: where, in the API server's words, and what would be legal."""

    keyword: Keyword
    pointer: str
    message: str
    fix: str = ""


def flaws(schema: Schema, value: Any, at: Steps = ()) -> Iterator[Flaw]:
    """Everything in a value that its schema does not take, rules between fields apart."""
    if value is None:
        told = f'Invalid value: must be of type {_type_name(schema)}: "null"'
        yield Flaw(Keyword.TYPE, pointer(*at), told, "fill it in, or take it out")
        return
    if not _has_type(schema, value):
        is_huge = type(value) is int and schema.get("type") == "integer"
        told = f'Invalid value: must be of type {_type_name(schema)}: "{"number" if is_huge else _type_of(value)}"'
        fix = "no number of the API has more than 64 bits" if is_huge else _quoting(schema, value)
        yield Flaw(Keyword.TYPE, pointer(*at), told, fix)
        return
    yield from _of_scalar(schema, value, pointer(*at))
    if isinstance(value, list):
        yield from _of_list(schema, value, at)
    elif isinstance(value, dict):
        yield from _of_object(schema, value, at)


def _has_type(schema: Schema, value: Any) -> bool:
    if schema.get("x-kubernetes-int-or-string"):
        return isinstance(value, str) or _is_integer(value)
    match schema.get("type"):
        case "string":
            return isinstance(value, str)
        case "integer":
            return _is_integer(value)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case other:
            raise ValueError(f"a schema of this API has no type {other}")


def _is_integer(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer() and abs(value) <= _LARGEST
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST - 1 <= value <= _LARGEST


def _type_name(schema: Schema) -> str:
    return "integer or string" if schema.get("x-kubernetes-int-or-string") else str(schema.get("type"))


def _type_of(value: Any) -> str:
    for kinds, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
        (dict, "object"),
    ):
        if isinstance(value, kinds):
            return name
    return "null"


def _quoting(schema: Schema, value: Any) -> str:
    if schema.get("type") == "string" and isinstance(value, bool):
        return _WORDS
    if schema.get("type") == "string" and isinstance(value, int | float):
        return _QUOTES
    if schema.get("type") == "integer" and isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        return "leave the quotes out"
    if schema.get("type") == "array" and _has_type(schema["items"], value):
        return "write it as a list of one"
    if isinstance(value, list) and len(value) == 1 and _has_type(schema, value[0]):
        return "write it without the list around it"
    return _about(schema)


def _of_scalar(schema: Schema, value: Any, at: str) -> Iterator[Flaw]:
    if "enum" in schema and value not in schema["enum"]:
        legal = ", ".join(f'"{word}"' for word in schema["enum"])
        near = did_you_mean(str(value), schema["enum"]).removeprefix("; ")
        yield Flaw(Keyword.ENUM, at, f"Unsupported value: {_shown(value)}: supported values: {legal}", near)
        return
    if isinstance(value, str):
        yield from _of_string(schema, value, at)
    elif isinstance(value, int | float):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        if not low <= value <= high:
            limit, words = (low, "greater") if value < low else (high, "less")
            told = f"Invalid value: {_shown(value)}: should be {words} than or equal to {limit}"
            yield Flaw(Keyword.BOUNDS, at, told, f"the nearest is {limit}")


def _of_string(schema: Schema, value: str, at: str) -> Iterator[Flaw]:
    longest, shortest = schema.get("maxLength"), schema.get("minLength", 0)
    if longest is not None and len(value) > longest:
        yield Flaw(Keyword.LENGTH, at, f"Too long: may not be more than {longest} bytes", f"it has {len(value)}")
    if len(value) < shortest:
        told = f"Invalid value: {_shown(value)}: should be at least {shortest} chars long"
        yield Flaw(Keyword.LENGTH, at, told, "leave the field out" if not value else "")
    if value == "" and shortest:
        return
    if "pattern" in schema and not pattern(schema["pattern"]).search(value):
        near = fitting(value, pattern(schema["pattern"]), longest)
        told = f"Invalid value: {_shown(value)}: should match '{schema['pattern']}'"
        yield Flaw(Keyword.PATTERN, at, told, f"did you mean {_shown(near)}?" if near else _about(schema))
    if schema.get("format") == "date-time" and not _is_time(value):
        told = f'Invalid value: {_shown(value)}: must be of type datetime: "{value[:64]}"'
        yield Flaw(Keyword.FORMAT, at, told, 'write RFC 3339, e.g. "2026-11-30T12:00:00Z"')


def _of_list(schema: Schema, value: list[Any], at: Steps) -> Iterator[Flaw]:
    yield from _size(schema, len(value), at, "minItems", "maxItems")
    yield from _twins(schema, value, at)
    for index, item in enumerate(value):
        yield from flaws(schema["items"], item, (*at, index))


def _of_object(schema: Schema, value: dict[str, Any], at: Steps) -> Iterator[Flaw]:
    yield from _size(schema, len(value), at, "minProperties", "maxProperties")
    for name in schema.get("required", ()):
        if value.get(name) is None:
            yield Flaw(Keyword.REQUIRED, pointer(*at, name), "Required value", _about(child_of(schema, name) or {}))
    for name, item in value.items():
        child = child_of(schema, name)
        if child is not None and item is not None:
            yield from flaws(child, item, (*at, name))


def _about(schema: Schema) -> str:
    first = re.split(r"(?<!e\.g)(?<! )\.(?:\s|$)", str(schema.get("description", "")), maxsplit=1)[0]
    return f"what belongs there: {first}" if first else ""


def _size(schema: Schema, size: int, at: Steps, least: str, most: str) -> Iterator[Flaw]:
    if size > schema.get(most, size):
        yield Flaw(Keyword.SIZE, pointer(*at), f"Too many: {size}: must have at most {schema[most]} items")
    if size < schema.get(least, size):
        told = f"Invalid value: {size}: should have at least {schema[least]} items"
        yield Flaw(Keyword.SIZE, pointer(*at), told, _about(schema))


def _twins(schema: Schema, value: list[Any], at: Steps) -> Iterator[Flaw]:
    kind = schema.get("x-kubernetes-list-type")
    if kind not in {"set", "map"}:
        return
    keys = schema.get("x-kubernetes-list-map-keys", ())
    seen: dict[str, int] = {}
    for index, item in enumerate(value):
        told = {key: item.get(key) for key in keys} if kind == "map" and isinstance(item, dict) else item
        shown = canonical(told)
        if shown in seen:
            fix = f"item {seen[shown]} of the list has it already"
            yield Flaw(Keyword.TWICE, pointer(*at, index), f"Duplicate value: {shown}", fix)
        seen.setdefault(shown, index)


def unknown_fields(schema: Schema, value: Any, at: Steps = ()) -> Iterator[Flaw]:
    """Fields that the schema does not have: the API server drops them, and refuses them where validation is strict."""
    for name, item in _items(value):
        child = schema.get("items", _NOTHING) if isinstance(name, int) else child_of(schema, name)
        if child is not None:
            yield from unknown_fields(child, item, (*at, name))
        elif isinstance(name, str) and ("properties" in schema or schema.get("type") != "object"):
            near = did_you_mean(name, schema.get("properties", ())).removeprefix("; ")
            yield Flaw(Keyword.UNKNOWN_FIELD, pointer(*at, name), f'unknown field "{name[:64]}"', near)


def nulls(value: Any, at: Steps = ()) -> Iterator[Flaw]:
    """Fields that are null: the API server drops them without a word, and what is read back is not what was written."""
    for name, item in _items(value):
        if item is None and isinstance(name, str):
            told = "null is no value: the API server drops the field"
            yield Flaw(Keyword.NULL, pointer(*at, name), told, "leave it out")
        yield from nulls(item, (*at, name))


def without_nulls(value: Any) -> Any:
    """The value without fields that are null, as the API server goes on with it; items of lists stay."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def child_of(schema: Schema, name: str) -> Schema | None:
    """The schema of a field or of a map's value; None when there is none."""
    child: Schema | None = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
    return child


def _items(value: Any) -> Iterator[tuple[Step, Any]]:
    if isinstance(value, dict):
        yield from ((str(name), item) for name, item in value.items())
    elif isinstance(value, list):
        yield from enumerate(value)


@cache
def pattern(text: str) -> re.Pattern[str]:
    """The pattern as the API server reads it: to Python alone, `$` lets a line feed follow."""
    return re.compile(text.removesuffix("$") + r"\Z" if text.endswith("$") else text)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(re.sub(r"\.[0-9]+", "", text).replace("Z", "+00:00"))
    except ValueError:
        return False
    return True


def _shown(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= 80 else f"{text[:76]}…{text[-1]}"
