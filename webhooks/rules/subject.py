"""The object that is judged: as it was written, as a model where it is sound enough, and as it was before."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Final, Self, TypeVar

from pydantic import ValidationError

from crds.models.base import KubeObject, Model
from crds.models.kinds import Kind
from webhooks.rules.pointers import EACH, Step, each, pointer
from webhooks.rules.structural import without_nulls

Content = dict[str, Any]
_CRITERIA: Final = frozenset(("vendors", "devices", "subsystems", "classes", "addresses", "serials", "numaNodes"))
AnyModel = TypeVar("AnyModel", bound=Model)
Result = TypeVar("Result")


class Operation(StrEnum):
    """What is asked of the API server."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class Subject:
    """One object of one of our kinds, JSON values all the way down; on DELETE the object that goes away.

    ``model`` is None where the schema or a rule between fields is broken; ``models`` gives the parts that are sound all
    the same. ``user`` and ``groups`` are those of who asks, "" and None when that is not known.
    """

    kind: Kind
    content: Content
    model: KubeObject | None
    old: Content | None = None
    old_model: KubeObject | None = None
    operation: Operation = Operation.CREATE
    groups: frozenset[str] | None = None
    user: str = ""
    _found: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        kind: Kind,
        content: Content,
        old: Content | None = None,
        *,
        operation: Operation | None = None,
        groups: frozenset[str] | None = None,
        user: str = "",
    ) -> Self:
        """The subject with its models read. Without ``operation`` it is an UPDATE where ``old`` is given."""
        if operation is None:
            operation = Operation.CREATE if old is None else Operation.UPDATE
        old_model = None if old is None else read(kind, old)
        return cls(kind, content, read(kind, content), old, old_model, operation, groups, user)

    @property
    def name(self) -> str:
        """metadata.name; "" when it is not there (yet) or no string."""
        return self._metadata("name")

    @property
    def namespace(self) -> str:
        """metadata.namespace; "" when it is not there or no string."""
        return self._metadata("namespace")

    @property
    def is_going(self) -> bool:
        """Whether the object is being deleted: nobody can do anything about its faults."""
        return bool(self._metadata("deletionTimestamp"))

    @property
    def changes_spec(self) -> bool:
        """Whether the spec is another than that of the old object; also where there is no old one."""
        return self.old is None or self.old.get("spec") != self.content.get("spec")

    def once(self, find: "Callable[[Subject], Result]") -> Result:
        """What the function finds in this subject; several rules that need the same share one run."""
        if find not in self._found:
            self._found[find] = find(self)
        result: Result = self._found[find]
        return result

    def before(self) -> "Subject":
        """The old object as a subject of its own. Raises ValueError when there is none."""
        if self.old is None:
            raise ValueError("there is no old object")
        return Subject(self.kind, self.old, self.old_model, groups=self.groups, user=self.user)

    def each(self, *steps: Step) -> Iterator[tuple[str, Any]]:
        """Raw values at the end of the steps (EACH for all items), with their pointers; whatever is not there ends."""
        return each(self.content, steps)

    def models(self, model: type[AnyModel], *steps: Step) -> list[tuple[str, AnyModel]]:
        """The values at the end of the steps that are sound by themselves, as models, with their pointers."""
        key = (model, steps)
        if key not in self._found:
            known = None if self.model is None else parts_of(self.model, model, steps)
            if known is None:
                parts = ((at, part(model, value, leniently=True)) for at, value in self.each(*steps))
                known = [(at, found) for at, found in parts if found is not None]
            self._found[key] = known
        result: list[tuple[str, AnyModel]] = self._found[key]
        return result

    def _metadata(self, key: str) -> str:
        metadata = self.content.get("metadata")
        value = metadata.get(key) if isinstance(metadata, dict) else None
        return value if isinstance(value, str) else ""


def parts_of(whole: Model, model: type[AnyModel], steps: tuple[Step, ...]) -> list[tuple[str, AnyModel]] | None:
    """The parts of a sound object at the end of the steps, without reading them again: only fields that were set.

    None where something else than a `model` stands there: then the content has to be read.
    """
    places: list[tuple[tuple[Step, ...], Any]] = [((), whole)]
    for step in steps:
        following: list[tuple[tuple[Step, ...], Any]] = []
        for at, value in places:
            if step == EACH and isinstance(value, tuple):
                following += [((*at, index), item) for index, item in enumerate(value)]
            elif isinstance(value, Model):
                attribute = _attributes(type(value)).get(str(step))
                if attribute is None:
                    return None
                if attribute in value.model_fields_set and getattr(value, attribute) is not None:
                    following.append(((*at, step), getattr(value, attribute)))
            else:
                return None
        places = following
    if not all(isinstance(value, model) for _, value in places):
        return None
    return [(pointer(*at), value) for at, value in places]


@cache
def _attributes(model: type[Model]) -> Mapping[str, str]:
    """The attributes of a model by the names that they have in YAML."""
    return {info.alias: attribute for attribute, info in model.model_fields.items() if info.alias is not None}


def read(kind: Kind, content: Content) -> KubeObject | None:
    """The object as a model, or None. Its status is left out: nobody but a controller answers for that."""
    metadata = content.get("metadata")
    if not isinstance(metadata, dict):
        return None
    named = {"name": metadata.get("generateName", "")} | metadata
    return part(kind.model, {key: value for key, value in content.items() if key != "status"} | {"metadata": named})


def part(model: type[AnyModel], value: Any, *, leniently: bool = False) -> AnyModel | None:
    """A part of an object as a model, or None when it is not sound; unknown fields and nulls are left out.

    ``leniently``: so are wrong values in a list of criteria that has right ones, too.
    """
    try:
        text = json.dumps(value, allow_nan=False)
        if "null" in text:
            text = json.dumps(without_nulls(value))
        try:
            return _read(model, text)
        except ValidationError as error:
            if not leniently:
                return None
            content = json.loads(text)
            return _read(model, json.dumps(content)) if _drop_values(content, error) else None
    except (ValidationError, TypeError, ValueError, RecursionError):
        return None


def _read(model: type[AnyModel], text: str) -> AnyModel:
    return model.model_validate_json(text, strict=True, extra="ignore", by_alias=True, by_name=False)


def _drop_values(content: Any, error: ValidationError) -> bool:
    """Takes wrong values out of lists of criteria where others remain, so that the rest of the part can be judged.

    False where something else is wrong. A list whose items rules point at keeps them all: they would move.
    """
    wrong = sorted({tuple(fault["loc"]) for fault in error.errors(include_url=False, include_input=False)}, key=str)
    lists: dict[int, tuple[list[Any], set[int]]] = {}
    for loc in wrong:
        holder: Any = content
        for step in loc[:-1]:
            holder = holder[step] if isinstance(holder, dict) or isinstance(step, int) else None
        if len(loc) < 2 or loc[-2] not in _CRITERIA or not isinstance(holder, list) or not isinstance(loc[-1], int):
            return False
        lists.setdefault(id(holder), (holder, set()))[1].add(loc[-1])
    for holder, bad in lists.values():
        holder[:] = [item for index, item in enumerate(holder) if index not in bad]
    return all(holder for holder, _ in lists.values())
