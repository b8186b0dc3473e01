"""Lists and maps that are far longer than the schema lets them be: the API server sends none, so none is judged.

A few too many are judged as everything else is: what is wrong beside them is told in the same words everywhere.
"""

from collections.abc import Iterator
from typing import Any, Final

from crds.models.kinds import Kind
from webhooks.rules.pointers import Step, field_of, pointer, value_at
from webhooks.rules.schema_rules import schema_of
from webhooks.rules.structural import Schema, child_of
from webhooks.rules.subject import Content

_FEW: Final = 64


def beyond_bounds(kind: Kind, content: Content, old: Content | None = None) -> str | None:
    """One list or map of the spec that is too long, in a sentence; None when there is none.

    One that the old object has as well is left alone, as the API server does when a bound became tighter.
    """
    for at, size, most in _too_long(schema_of(kind.model)["properties"]["spec"], content.get("spec"), ("spec",)):
        if old is None or value_at(old, at) != value_at(content, at):
            return f"{field_of(at)} has {size} items, and the schema allows {most}: nothing is judged beyond it"
    return None


def _too_long(schema: Schema, value: Any, at: tuple[Step, ...]) -> Iterator[tuple[str, int, int]]:
    if isinstance(value, list):
        most = schema.get("maxItems", len(value))
        items: Iterator[tuple[Step, Any, Schema | None]] = (
            (index, item, schema.get("items")) for index, item in enumerate(value)
        )
    elif isinstance(value, dict):
        most = schema.get("maxProperties", len(value))
        items = ((name, item, child_of(schema, name)) for name, item in value.items())
    else:
        return
    if len(value) > most + _FEW:
        yield pointer(*at), len(value), most
        return
    for step, item, child in items:
        if child is not None:
            yield from _too_long(child, item, (*at, step))
