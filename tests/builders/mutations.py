"""Real objects with accidents: values spoilt, taken from other objects, moved, renamed, or made null."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache
from typing import Any

from crds.models.kinds import BY_NAME
from tests.builders.made_objects import Pick
from tests.builders.reviews import catalogue
from tests.builders.samples import INVALID, VALID
from tests.builders.spoiled import places, spoil_by
from webhooks.rules import RULES
from webhooks.rules.examples import staged

Object = dict[str, Any]
WORDS = ["RBLN-CA2", "L40S", "NVIDIA-L40", "Ascend-910B4", "FLEX_170", "L40S-12Q", "vir03", "/etc/passwd", "hunter2"]


@cache
def seeds() -> tuple[Object, ...]:
    """The samples, good and bad, and what the rules show as examples."""
    found = [*VALID, *(sample.object for sample in INVALID)]
    for rule in RULES.values():
        found += [staged(rule, example, catalogue())[0].content for example in (*rule.good, *rule.bad)]
    return tuple(one for one in found if one.get("kind") in BY_NAME)


@cache
def _values() -> dict[str, list[Any]]:
    """What stands in the seeds' fields of each name."""
    found: dict[str, list[Any]] = {}
    for seed in seeds():
        for place in places(seed):
            if place:
                value: Any = seed
                for step in place:
                    value = value[step]
                found.setdefault(_field(place), []).append(value)
    return found


def _field(place: tuple[Any, ...]) -> str:
    return f"{place[-2]}[]" if isinstance(place[-1], int) else str(place[-1])


def mutated(pick: Pick, seed: Object, *, most: int = 3) -> Object:
    """The object after one or more accidents."""
    found = copy.deepcopy(seed)
    for _ in range(pick(range(most)) + 1):
        within = [part for part in ("spec", "metadata") if isinstance(found.get(part), dict) and found[part]]
        one = pick((*within, *within[:1] * 4, None))
        if one is None:
            spoil_by(pick, found)
        else:
            pick((_cross, _cross, spoil_by, _spoil_deeply, _shuffle))(pick, found[one])
    return found


def _holder(obj: Any, place: tuple[Any, ...]) -> Any:
    for step in place[:-1]:
        obj = obj[step]
    return obj


def _place(pick: Pick, obj: Object) -> tuple[Any, ...] | None:
    found = [place for place in places(obj) if place]
    return pick(found) if found else None


def _cross(pick: Pick, obj: Object) -> None:
    """A value of the same field in another object."""
    place = _place(pick, obj)
    if place is not None:
        others = _values().get(_field(place), [None])
        _holder(obj, place)[place[-1]] = copy.deepcopy(pick(others))


def _spoil_deeply(pick: Pick, obj: Object) -> None:
    """A string that is a word of this API somewhere, or null, at a leaf."""
    leaves = [place for place in places(obj) if place and not isinstance(_holder(obj, place)[place[-1]], dict | list)]
    if leaves:
        place = pick(leaves)
        _holder(obj, place)[place[-1]] = pick([*WORDS, None])


def _shuffle(pick: Pick, obj: Object) -> None:
    """A field gone, renamed or put elsewhere; an item gone, doubled or moved."""
    place = _place(pick, obj)
    if place is None:
        return
    holder, last = _holder(obj, place), place[-1]
    value = holder.pop(last)
    if isinstance(holder, dict):
        name = pick([None, f"{last}s", str(last)[:-1], str(last).lower(), f" {last}"])
        if name is not None:
            holder[name] = value
    else:
        for _ in range(pick((0, 1, 2))):
            holder.insert(pick(range(len(holder) + 1)), copy.deepcopy(value))


def without(obj: Object, keys: Iterable[str]) -> Object:
    """The object without these fields at its top."""
    return {key: value for key, value in obj.items() if key not in keys}
