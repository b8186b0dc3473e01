"""Reads YAML as kubectl and Argo CD read it, so that a check of a file speaks of what the API server will get.

PyYAML alone follows YAML 1.1 further than they do: to it an unquoted ``0000:27:00.0`` is a number in base 60, an
unquoted date is a date, ``y`` is a word and ``26e9`` a string. Source of the rules here: go.yaml.in/yaml/v2
``resolve.go`` and sigs.k8s.io/yaml ``convertToJSONableObject``. Repeated keys are refused, as kustomize does: kubectl
takes the last one without a word (tried with kubectl 1.37).
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from crds.yaml_nodes import (
    DEEPEST,
    MAPPING,
    MERGE,
    SEQUENCE,
    STRING,
    FaultKind,
    Mapping,
    Node,
    Place,
    Scalar,
    Sequence,
    YAMLFault,
    compose,
)

_WORDS: Final[dict[str, bool | float | None]] = (
    dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True)
    | dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False)
    | dict.fromkeys(("", "~", "null", "Null", "NULL"))
    | dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf)
    | dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf)
    | dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan)
)
_INTEGER: Final = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# Go writes larger whole floats in JSON with an exponent; smaller ones arrive as integers.
_LARGEST_WHOLE: Final = 1e21
# No 64-bit integer has more digits; Python's own limit would raise for the longest.
_MOST_DIGITS: Final = 100


# Far more than the API server takes in one object (3 MiB), in one file of several.
_MOST_VALUES: Final = 500_000
_MOST_FAULTS: Final = 1000
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "tag:yaml.org,2002:int": (int,),
    "tag:yaml.org,2002:float": (int, float),
    "tag:yaml.org,2002:bool": (bool,),
    "tag:yaml.org,2002:null": (type(None),),
}


class YAMLError(ValueError):
    """A text that is no YAML, or that kubectl or kustomize would refuse; the message names file, line and column."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: its content as JSON values, the line where it starts (from 1), and where all stands."""

    content: Any
    line: int
    root: Node | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Reading:
    """All of a text: its documents, empty ones left out, and its faults by line. Faulty entries are left out."""

    documents: list[Document]
    faults: list[YAMLFault]


def read_all(text: str) -> Reading:
    """Every document and every fault of a text; raises nothing, whatever the text is."""
    roots, faults = compose(text)
    values = _Values(faults)
    documents = []
    for root in roots:
        try:
            content = values.of(root)
        except _TooManyError:
            break
        if content is not None:
            documents.append(Document(content, root.place.line, root))
    return Reading(documents, sorted(faults, key=lambda fault: (fault.line, fault.column)))


def read_documents(text: str, name: str) -> list[Document]:
    """The documents of a text, empty ones left out; ``name`` is the file's name in messages.

    Raises YAMLError.
    """
    reading = read_all(text)
    if reading.faults:
        first = reading.faults[0]
        raise YAMLError(f"{name}:{first.line}:{first.column}: {first.text}")
    return reading.documents


def scalar(text: str) -> bool | int | float | str | None:
    """The value of an unquoted scalar; infinities and NaN, which JSON does not have, are floats."""
    if text in _WORDS:
        return _WORDS[text]
    plain = text.replace("_", "") if text[:1] in set("0123456789+-") else text
    if _INTEGER.fullmatch(plain) and len(plain) <= _MOST_DIGITS and -(2**63) <= (whole := _integer(plain)) < 2**64:
        return whole
    if plain[:1] in set("0123456789+-.") and _FLOAT.fullmatch(plain) and math.isfinite(number := float(plain)):
        return int(number) if number.is_integer() and abs(number) < _LARGEST_WHOLE else number
    return text


def find(root: Node, steps: tuple[str, ...]) -> tuple[Place, bool]:
    """Where the value at the end of the steps stands, and whether it is there.

    A field that is not there stands where its nearest parent does. A scalar has its own place, anything else that of
    its key, as it may begin lines below.
    """
    node, place = root, root.place
    for step in steps:
        child = _child(node, step)
        if child is None:
            return place, False
        key, node = child
        place = node.place if key is None or isinstance(node, Scalar) else key.place
    return place, True


def find_key(root: Node, steps: tuple[str, ...]) -> Place | None:
    """Where the key of an entry stands; None when the last step is no key of a map, or not there."""
    node: Node | None = root
    for step in steps[:-1]:
        child = _child(node, step) if node is not None else None
        node = None if child is None else child[1]
    child = None if node is None or not steps else _child(node, steps[-1])
    return None if child is None or child[0] is None else child[0].place


def find_node(root: Node, steps: tuple[str, ...]) -> Node | None:
    """The node at the end of the steps."""
    node = root
    for step in steps:
        child = _child(node, step)
        if child is None:
            return None
        node = child[1]
    return node


def scalars(root: Node, steps: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Scalar, bool]]:
    """Each scalar of a document with its steps, and whether it is a key; what aliases repeat is told once."""
    seen: set[int] = set()
    waiting: list[tuple[Node, tuple[str, ...]]] = [(root, steps)]
    while waiting:
        node, at = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Scalar):
            yield at, node, False
        elif isinstance(node, Sequence):
            waiting += [(item, (*at, str(index))) for index, item in enumerate(node.items)]
        else:
            for key, value in node.entries:
                name = key.text if isinstance(key, Scalar) else ""
                if isinstance(key, Scalar) and not _is_merge(key):
                    yield (*at, key_name(key) or name), key, True
                waiting.append((value, at if _is_merge(key) else (*at, key_name(key) or name)))


def key_name(node: Node) -> str | None:
    """The key as the JSON object has it; None when it can be none."""
    value = scalar(node.text) if isinstance(node, Scalar) and node.tag is None else getattr(node, "text", None)
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)
        case _:
            return None


def _child(node: Node, step: str) -> tuple[Node | None, Node] | None:
    if isinstance(node, Sequence):
        return (None, node.items[int(step)]) if step.isdecimal() and int(step) < len(node.items) else None
    if not isinstance(node, Mapping):
        return None
    if node.by_name is None:
        node.by_name = {}
        for key, value in _entries(node, []):
            name = key_name(key)
            if name is not None:
                node.by_name[name] = key, value
    return node.by_name.get(step)


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").lower()
    # A leading zero alone means octal, which Python's int(…, 0) refuses.
    octal = re.fullmatch(r"0([0-7]+)", digits)
    return sign * (int(octal[1], 8) if octal else int(digits, 0))


class _TooManyError(Exception):
    """The text says more than anybody can mean."""


class _Values:
    """Makes values of nodes, and notes what is wrong on the way.

    Counts what it makes: a few lines of aliases of aliases would otherwise fill the memory.
    """

    def __init__(self, faults: list[YAMLFault]) -> None:
        self._faults = faults
        self._made = 0
        self._inside: list[Node] = []

    def of(self, node: Node) -> Any:
        self._made += 1
        if self._made > _MOST_VALUES:
            self._fault(node, f"more than {_MOST_VALUES} values: are there aliases of aliases?", FaultKind.SIZE)
            raise _TooManyError
        if isinstance(node, Scalar):
            return self._scalar(node)
        if any(node is outer for outer in self._inside):
            self._fault(node, "an anchor contains itself")
            return None
        if len(self._inside) >= DEEPEST:
            self._fault(node, f"nested too deeply: aliases lie more than {DEEPEST} levels deep", FaultKind.SIZE)
            return None
        if node.tag not in (None, "!", SEQUENCE if isinstance(node, Sequence) else MAPPING):
            self._fault(node, f"the tag {node.tag} has no place in a Kubernetes object")
        self._inside.append(node)
        try:
            return [self.of(item) for item in node.items] if isinstance(node, Sequence) else self._map(node)
        finally:
            self._inside.pop()

    def _map(self, node: Mapping) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in _entries(node, self._faults):
            name = key_name(key)
            if name is None:
                self._fault(key, "a key must be a string")
            elif name in found:
                message = f"the key {name!r} is there twice"
                self._fault(key, message, FaultKind.REPEATED_KEY, f"line {lines[name]} has it first")
            if name is not None:
                lines.setdefault(name, key.place.line)
                found[name] = self.of(value)
        return found

    def _scalar(self, node: Scalar) -> bool | int | float | str | None:
        if node.tag == STRING:
            return node.text
        value = scalar(node.text)
        if node.tag is not None and node.tag not in _TYPES:
            self._fault(node, f"the tag {node.tag} has no place in a Kubernetes object")
        elif node.tag is not None and not isinstance(value, _TYPES[node.tag]):
            self._fault(node, f"{node.text!r} is no {node.tag.rpartition(':')[2]}")
        elif isinstance(value, float) and not math.isfinite(value):
            self._fault(node, f"{node.text} is a number that JSON does not have", fix="quote it if it is a text")
            return None
        return value

    def _fault(self, node: Node, message: str, kind: FaultKind = FaultKind.SYNTAX, fix: str = "") -> None:
        if len(self._faults) < _MOST_FAULTS:
            self._faults.append(YAMLFault(kind, node.place.line, node.place.column, message, fix))


def _entries(node: Mapping, faults: list[YAMLFault]) -> Iterator[tuple[Node, Node]]:
    """The entries of a mapping; what a merge key (`<<`) brings in comes after, without what is stated already."""
    if not any(_is_merge(key) for key, _ in node.entries):
        yield from node.entries
        return
    own = [(key, value) for key, value in node.entries if not _is_merge(key)]
    yield from own
    stated = {key_name(key) for key, _ in own}
    for key, value in _merged(node, faults, [node], set()):
        if key_name(key) not in stated:
            stated.add(key_name(key))
            yield key, value


def _merged(node: Mapping, faults: list[YAMLFault], inside: list[Node], done: set[int]) -> Iterator[tuple[Node, Node]]:
    """What the merge keys bring in, the nearest first; a source that is there twice has nothing to add."""
    for merged in (value for key, value in node.entries if _is_merge(key)):
        for source in merged.items if isinstance(merged, Sequence) else [merged]:
            problem = ""
            if not isinstance(source, Mapping):
                problem = "<< needs a map"
            elif any(source is outer for outer in inside) or len(inside) > DEEPEST:
                problem = "an anchor contains itself"
            if problem or not isinstance(source, Mapping):
                faults.append(YAMLFault(FaultKind.SYNTAX, source.place.line, source.place.column, problem))
                continue
            if id(source) not in done:
                done.add(id(source))
                yield from ((key, value) for key, value in source.entries if not _is_merge(key))
                yield from _merged(source, faults, [*inside, source], done)


def _is_merge(node: Node) -> bool:
    return isinstance(node, Scalar) and (node.tag == MERGE or (node.tag is None and node.text == "<<"))
