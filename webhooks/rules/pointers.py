"""JSON pointers (RFC 6901): made from steps, shown as the API server names a field, and looked up."""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, Final

Step = str | int
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
MISSING: Final = ""
"""The canonical value of a field that is not there."""


def pointer(*steps: Step) -> str:
    """The pointer that goes these steps down from the whole object: ``pointer("spec", "devices", 0)``."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def steps_of(text: str) -> tuple[str, ...]:
    """The steps of a pointer; indices of lists are digits."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])


def field_of(text: str) -> str:
    """The field as the API server names it: ``spec.devices[0].match``; empty for the object itself."""
    shown = ""
    for step in steps_of(text):
        shown += f".{step}" if _PLAIN.fullmatch(step) and not step.isdecimal() else f"[{step}]"
    return shown.removeprefix(".")


def without_indices(text: str) -> str:
    """The pointer with `*` for every index, so that an item that only moved keeps its place."""
    return "/".join("*" if step.isdecimal() else step for step in text.split("/"))


def value_at(content: Any, text: str) -> str:
    """The value that a pointer leads to, as canonical JSON; MISSING when nothing is there."""
    for step in steps_of(text):
        if isinstance(content, dict) and step in content:
            content = content[step]
        elif isinstance(content, list) and step.isdecimal() and int(step) < len(content):
            content = content[int(step)]
        else:
            return MISSING
    return canonical(content)


def fingerprint(content: Any, text: str) -> str:
    """A short hash of the value that a pointer leads to; MISSING when nothing is there."""
    value = value_at(content, text)
    return hashlib.sha256(value.encode()).hexdigest()[:16] if value != MISSING else MISSING


def canonical(value: Any) -> str:
    """One text per JSON value, whatever the order of its keys."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    except ValueError:
        # A number with more digits than Python writes out; its size tells it apart as well as can be.
        return json.dumps(_written(value), sort_keys=True, separators=(",", ":"), default=str)


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_written(item) for item in value]
    return hex(value) if isinstance(value, int) and value.bit_length() > 64 else value


MOST_ITEMS: Final = 256
"""More items than any list of the API may have: a schema refuses the list, and no rule has to look at the rest."""
EACH: Final = "*"
"""A step into every item of a list, or every value of a map."""


def each(content: Any, steps: tuple[Step, ...], at: tuple[Step, ...] = ()) -> Iterator[tuple[str, Any]]:
    """What lies at the end of the steps, with its pointer; a branch that is not there, or of another type, ends.

    So does a field that is null: for the API server it is not there. Lists end after MOST_ITEMS.
    """
    if not steps:
        yield pointer(*at), content
        return
    step, *rest = steps
    if step == EACH and isinstance(content, list | tuple):
        for index, item in enumerate(content[:MOST_ITEMS]):
            yield from each(item, tuple(rest), (*at, index))
    elif step == EACH and isinstance(content, dict):
        for key, item in content.items():
            if item is not None:
                yield from each(item, tuple(rest), (*at, str(key)))
    elif isinstance(content, dict) and content.get(str(step)) is not None:
        yield from each(content[step], tuple(rest), (*at, step))
