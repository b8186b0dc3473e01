"""Evaluates the CEL rules of a schema, transition rules included, with a real CEL implementation.

A rule's id stands at the end of its message, so that kubectl shows it as well.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import cel

from webhooks.rules.pointers import pointer
from webhooks.rules.structural import Schema, Steps, child_of

VALIDATIONS: Final = "x-kubernetes-validations"
_ID: Final = re.compile(r" \[(NPF-[A-Z]{2,3}-[0-9]{3})\]$")
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that does not hold: its id ("" when the schema gives it none), where, and its message without the id."""

    id: str
    pointer: str
    message: str


def told_id(message: str) -> tuple[str, str]:
    """The id and the rest of a rule's message in a schema."""
    found = _ID.search(message)
    return (found[1], message[: found.start()]) if found else ("", message)


def holds(rule: str, value: Any, **variables: Any) -> bool:
    """Whether a CEL rule is true of ``self`` = value. Raises what the library raises where it cannot be evaluated."""
    return bool(_program(rule).execute({"self": value} | variables))


def broken_rules(schema: Schema, value: Any, old: Any = _ABSENT, at: Steps = ()) -> Iterator[Broken]:
    """Rules of the schema that do not hold of the value; ``old`` is what it was before, for rules about a change.

    A rule that cannot be evaluated, because the value is not of the schema's types, is not judged: that fault is told.
    """
    for rule in schema.get(VALIDATIONS, ()):
        if _is_broken(rule, value, old):
            id, message = told_id(rule["message"])
            yield Broken(id, pointer(*at) + rule.get("fieldPath", "").replace(".", "/"), message)
    if isinstance(value, dict):
        for name, item in value.items():
            child = child_of(schema, name)
            if child is not None and item is not None:
                before = old.get(name, _ABSENT) if isinstance(old, dict) else _ABSENT
                yield from broken_rules(child, item, before, (*at, name))
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            before = _twin(schema, item, old)
            yield from broken_rules(schema["items"], item, before, (*at, index))


def _is_broken(rule: dict[str, Any], value: Any, old: Any) -> bool:
    text = rule["rule"]
    variables = {}
    if _is_of_change(text):
        if rule.get("optionalOldSelf"):
            known = old is not _ABSENT
            variables["oldSelf"] = cel.OptionalValue.of(old) if known else cel.OptionalValue.none()
        elif old is _ABSENT:
            return False
        else:
            variables["oldSelf"] = old
    try:
        return not holds(text, value, **variables)
    except (TypeError, ValueError, KeyError, RuntimeError, AttributeError):
        return False


def _twin(schema: Schema, item: Any, old: Any) -> Any:
    """What an item of a list of type map was before, by its keys; items of other lists have no before."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys or not isinstance(old, list) or not isinstance(item, dict):
        return _ABSENT
    told = [item.get(key) for key in keys]
    return next(
        (before for before in old if isinstance(before, dict) and [before.get(key) for key in keys] == told), _ABSENT
    )


@cache
def _is_of_change(rule: str) -> bool:
    return re.search(r"\boldSelf\b", rule) is not None


@cache
def _program(rule: str) -> Any:
    return cel.compile(rule)
