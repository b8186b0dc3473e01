"""Spoils objects: one value somewhere becomes what is nearly right, or something else altogether."""

import copy
from typing import Any

from hypothesis import strategies as st

from tests.builders.made_objects import Pick

# Strings that nearly fit the patterns of the API.
NEARLY = ["", " ", "a b", "A", "-", "a-", "a\n", "ä", "x" * 400, "0x1eff", "1EFF", "..", "a/b/c", "100%", "0%", "٣"]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside."""
    if isinstance(value, dict):
        return [at, *(place for key, item in value.items() for place in places(item, (*at, key)))]
    if isinstance(value, list):
        return [at, *(place for index, item in enumerate(value) for place in places(item, (*at, index)))]
    return [at]


def spoil(draw: st.DrawFn, obj: dict[str, Any]) -> None:
    """Change one value somewhere in spec or status."""
    spoil_by(lambda choices: draw(st.sampled_from(choices)), obj)


def spoil_by(pick: Pick, obj: dict[str, Any]) -> None:
    """The same, out of choices that somebody else makes."""
    place = pick([place for place in places(obj) if len(place) > 0])
    holder = obj
    for step in place[:-1]:
        holder = holder[step]
    last = place[-1]
    holder[last] = pick(_ways(holder[last]))


def _ways(value: Any) -> list[Any]:
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
    return ways
