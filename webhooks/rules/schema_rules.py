"""The schema as rules: one id for each way in which a value can miss it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final

from crds.generator.schema import structural_schema
from crds.models.base import KubeObject
from crds.models.kinds import KINDS
from webhooks.rules.object_meta import OBJECT_META
from webhooks.rules.pointers import steps_of
from webhooks.rules.rule import Check, Example, Fault, Layer, Rule, register
from webhooks.rules.structural import Flaw, Keyword, Schema, flaws, nulls, unknown_fields, without_nulls
from webhooks.rules.subject import Subject
from webhooks.rules.view import View
from webhooks.rules.violation import Severity

ALL_KINDS: Final = tuple(kind.name for kind in KINDS)


@cache
def schema_of(model: type[KubeObject]) -> Schema:
    """The schema of a kind's CustomResourceDefinition, with what the API server knows of metadata."""
    schema = structural_schema(model)
    return schema | {"properties": schema["properties"] | {"metadata": OBJECT_META}}


def written(content: dict[str, Any]) -> dict[str, Any]:
    """What of an object the API server judges: it drops a status that is sent along, and fields that are null."""
    found = {key: value for key, value in content.items() if key != "status"}
    return without_nulls(found) if any(nulls(found)) else found


def _schema_flaws(subject: Subject) -> list[Flaw]:
    return list(flaws(schema_of(subject.kind.model), written(subject.content)))


def _unknown_fields(subject: Subject) -> list[Flaw]:
    schema = schema_of(subject.kind.model)
    return [_placed(flaw, schema) for flaw in unknown_fields(schema, subject.content)]


def _placed(flaw: Flaw, schema: Schema) -> Flaw:
    """A field that only stands in the wrong place is told where it belongs."""
    name = steps_of(flaw.pointer)[-1]
    homes = list(_homes(schema["properties"].get("spec", {}), name, ("spec",)))
    return replace(flaw, fix=f"it belongs to {' or '.join(homes)}") if 0 < len(homes) <= 2 else flaw


def _homes(schema: Schema, name: str, at: tuple[str, ...]) -> Iterator[str]:
    if name in schema.get("properties", {}):
        yield ".".join(at)
    for key, child in schema.get("properties", {}).items():
        yield from _homes(child, name, (*at, key))
    if "items" in schema:
        yield from _homes(schema["items"], name, (*at[:-1], f"{at[-1]}[]"))


def _nulls(subject: Subject) -> list[Flaw]:
    return list(nulls(subject.content))


_FINDERS: Final = {Keyword.UNKNOWN_FIELD: _unknown_fields, Keyword.NULL: _nulls}


def _check(keyword: Keyword) -> Check:
    def find(subject: Subject, _: View) -> Iterator[Fault]:
        for flaw in subject.once(_FINDERS.get(keyword, _schema_flaws)):
            if flaw.keyword is keyword:
                yield Fault(flaw.pointer, flaw.message, flaw.fix)

    return find


_GOOD: Final = """\
devices:
- name: rule
  match: {vendors: ["1eff"], devices: ["1250"], addresses: ["0000:23:00.0"]}
  limit: 2
  mode: Passthrough
"""


def _bad(old: str, new: str) -> str:
    if old not in _GOOD:
        raise ValueError(f"{old!r} is not in the good example")
    return _GOOD.replace(old, new)


_ENTRIES: Final = (
    (
        "NPF-ALL-001",
        Keyword.UNKNOWN_FIELD,
        "every field is one of the API",
        """The API server drops a field that it does not know, or refuses it where validation is strict (one at a time
        in a server-side apply). What somebody wrote there would never be done.""",
        _bad("limit: 2", "limits: 2"),
    ),
    (
        "NPF-ALL-002",
        Keyword.TYPE,
        "values have the type of their field",
        """YAML guesses types: 1250 and 26e9 without quotes are numbers, yes and on are true. Ids, label values and
        quantities are strings.""",
        _bad('devices: ["1250"]', "devices: [1250]"),
    ),
    (
        "NPF-ALL-003",
        Keyword.REQUIRED,
        "required fields are there",
        "Some things are never guessed: which nodes, which devices, and what becomes of them.",
        _bad("  mode: Passthrough\n", ""),
    ),
    (
        "NPF-ALL-004",
        Keyword.ENUM,
        "words are among those that the field takes",
        "Each word means one behaviour, upper and lower case counts.",
        _bad("mode: Passthrough", "mode: passthrough"),
    ),
    (
        "NPF-ALL-005",
        Keyword.PATTERN,
        "strings have the form of their field",
        """Ids are 4 lower-case hex digits without 0x, addresses have their domain, quantities are written as Kubernetes
        writes them.""",
        _bad('"1eff"', '"0x1eff"'),
    ),
    (
        "NPF-ALL-006",
        Keyword.BOUNDS,
        "numbers are within their bounds",
        "Bounds keep a slip of the finger from becoming a fleet's setting.",
        _bad("limit: 2", "limit: 0"),
    ),
    (
        "NPF-ALL-007",
        Keyword.LENGTH,
        "strings have a length that the field takes",
        "Every string is bounded: names become parts of other names that have bounds of their own.",
        _bad("name: rule", f"name: {'a' * 64}"),
    ),
    (
        "NPF-ALL-008",
        Keyword.SIZE,
        "lists and maps have a size that the field takes",
        "Every list and map is bounded, so that each object can be judged in bounded time.",
        "devices: []",
    ),
    (
        "NPF-ALL-009",
        Keyword.TWICE,
        "no item is there twice",
        "Where a list is a set, an item that is there twice is a mistake in one of the two places.",
        "devices: [{name: rule, match: {products: [Ascend-310P3]}, mode: HardVNPU, "
        "hardVNPU: {templates: [vir01, vir01]}}]",
    ),
    (
        "NPF-ALL-010",
        Keyword.NULL,
        "no field is null",
        """The API server drops a field that is null without a word. What is read back then differs from the file, and a
        tool that compares the two never finds them in sync. Lint alone tells: the API server accepts the object.""",
        _bad("limit: 2", "limit:"),
    ),
    (
        "NPF-ALL-011",
        Keyword.FORMAT,
        "times are RFC 3339",
        "A time in another notation cannot be compared with the clock.",
        Example(
            "apiVersion: npufleet.io/v1alpha1\nkind: VGPUProfileMap\n"
            "metadata: {name: map, creationTimestamp: yesterday}\n"
            "spec: {gpus: [{match: {products: [L40S]}, layout: [{profile: L40S-24Q, count: 2}]}]}"
        ),
    ),
)
_LAYERS: Final = {Keyword.UNKNOWN_FIELD: Layer.FIELDS, Keyword.NULL: Layer.FIELDS}

for _id, _keyword, _title, _reason, _example in _ENTRIES:
    register(
        Rule(
            _id,
            ALL_KINDS,
            _LAYERS.get(_keyword, Layer.SCHEMA),
            Severity.WARNING if _keyword is Keyword.NULL else Severity.ERROR,
            _title,
            " ".join(_reason.split()),
            (Example(_GOOD),),
            (_example if isinstance(_example, Example) else Example(_example),),
            _check(_keyword),
        )
    )
