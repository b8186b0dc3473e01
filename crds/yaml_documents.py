"""Reads YAML as kubectl and Argo CD read it, so that a check of a file speaks of what the API server will get.

PyYAML alone follows YAML 1.1 further than they do: to it an unquoted ``0000:27:00.0`` is a number in base 60, an
unquoted date is a date, ``y`` is a word and ``26e9`` a string. Source of the rules here: go.yaml.in/yaml/v2
``resolve.go`` and sigs.k8s.io/yaml ``convertToJSONableObject``. Repeated keys are refused, as kubectl does.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

_WORDS: Final[dict[str, bool | None]] = (
    dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True)
    | dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False)
    | dict.fromkeys(("", "~", "null", "Null", "NULL"))
)
_INTEGER: Final = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# Go writes larger whole floats in JSON with an exponent; smaller ones arrive as integers.
_LARGEST_WHOLE: Final = 1e21


# Far more than the API server takes in one object (3 MiB), in one file of several.
_MOST_VALUES: Final = 500_000
_UNQUOTED: Final = "npufleet.io,2026:unquoted"
_STRING: Final = "tag:yaml.org,2002:str"
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "tag:yaml.org,2002:int": (int,),
    "tag:yaml.org,2002:float": (int, float),
    "tag:yaml.org,2002:bool": (bool,),
    "tag:yaml.org,2002:null": (type(None),),
}


class YAMLError(ValueError):
    """A text that is no YAML, or that kubectl would refuse; the message names file, line and column."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: its content as JSON values, and the line where it starts (counted from 1)."""

    content: Any
    line: int


def read_documents(text: str, name: str) -> list[Document]:
    """The documents of a text, empty ones left out; ``name`` is the file's name in messages.

    Raises YAMLError.
    """
    found = []
    try:
        loader = _Loader(text)
        while loader.check_node() and (node := loader.get_node()) is not None:
            content = _value(loader, node)
            if content is not None:
                found.append(Document(content, node.start_mark.line + 1))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise YAMLError(f"{place}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise YAMLError(f"{name}: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise YAMLError(f"{name}: nested too deeply") from error
    return found


def scalar(text: str) -> bool | int | float | str | None:
    """The value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    plain = text.replace("_", "") if text[:1] in set("0123456789+-") else text
    if _INTEGER.fullmatch(plain) and -(2**63) <= (whole := _integer(plain)) < 2**64:
        return whole
    if plain[:1] in set("0123456789+-.") and _FLOAT.fullmatch(plain):
        number = float(plain)
        return int(number) if number.is_integer() and abs(number) < _LARGEST_WHOLE else number
    return text


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").lower()
    # A leading zero alone means octal, which Python's int(…, 0) refuses.
    octal = re.fullmatch(r"0([0-7]+)", digits)
    return sign * (int(octal[1], 8) if octal else int(digits, 0))


class _Loader(yaml.SafeLoader):
    """Composes nodes and tells unquoted scalars from the others; values are made by _value.

    ``values`` counts what was made: a few lines of aliases of aliases would otherwise fill the memory.
    """

    values = 0

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode:
            return _UNQUOTED if implicit[0] else _STRING
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]


def _value(loader: _Loader, node: yaml.Node, inside: tuple[yaml.Node, ...] = ()) -> Any:
    if any(node is outer for outer in inside):
        raise yaml.MarkedYAMLError(problem="an anchor contains itself", problem_mark=node.start_mark)
    loader.values += 1
    if loader.values > _MOST_VALUES:
        problem = f"more than {_MOST_VALUES} values: are there aliases of aliases?"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, (*inside, node)) for item in node.value]
    found: dict[str, Any] = {}
    for key_node, value_node in _pairs(node, (*inside, node)):
        key = _key(key_node)
        if key in found:
            raise yaml.MarkedYAMLError(problem=f"the key {key!r} is there twice", problem_mark=key_node.start_mark)
        found[key] = _value(loader, value_node, (*inside, node))
    return found


def _pairs(node: yaml.Node, inside: tuple[yaml.Node, ...]) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """The entries of a mapping; what a merge key (`<<`) brings in comes after, without what is stated already."""
    own = [(key, value) for key, value in node.value if not _is_merge(key)]
    yield from own
    stated = {_key(key) for key, _ in own}
    for merged in (value for key, value in node.value if _is_merge(key)):
        for source in merged.value if isinstance(merged, yaml.SequenceNode) else [merged]:
            if not isinstance(source, yaml.MappingNode):
                raise yaml.MarkedYAMLError(problem="<< needs a map", problem_mark=source.start_mark)
            if any(source is outer for outer in inside):
                raise yaml.MarkedYAMLError(problem="an anchor contains itself", problem_mark=source.start_mark)
            for key, value in _pairs(source, (*inside, source)):
                if _key(key) not in stated:
                    stated.add(_key(key))
                    yield key, value


def _is_merge(node: yaml.Node) -> bool:
    return node.tag == _UNQUOTED and node.value == "<<"


def _key(node: yaml.Node) -> str:
    value = _scalar(node) if isinstance(node, yaml.ScalarNode) else node
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)
        case _:
            raise yaml.MarkedYAMLError(problem="a key must be a string", problem_mark=node.start_mark)


def _scalar(node: yaml.ScalarNode) -> bool | int | float | str | None:
    if node.tag == _STRING:
        return str(node.value)
    value = scalar(node.value)
    if node.tag == _UNQUOTED:
        return value
    if node.tag not in _TYPES:
        raise yaml.MarkedYAMLError(
            problem=f"the tag {node.tag} has no place in a Kubernetes object", problem_mark=node.start_mark
        )
    if not isinstance(value, _TYPES[node.tag]):
        kind = node.tag.rpartition(":")[2]
        raise yaml.MarkedYAMLError(problem=f"{node.value!r} is no {kind}", problem_mark=node.start_mark)
    return value
