"""Scalars that different readers of YAML take for different things, and what to write instead.

kubectl and Argo CD read with go-yaml v2, kustomize with go-yaml v3, most other tools follow YAML 1.1 (PyYAML, Ruby) or
1.2. A file whose meaning depends on the reader is a fault that shows on the day when the reader changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from crds.yaml_documents import scalar, scalars
from crds.yaml_nodes import Node, Scalar
from webhooks.rules.files import EXPONENT, LEADING_ZERO, SIXTIES, WORD
from webhooks.rules.pointers import pointer

_PLAIN_WORDS: Final = frozenset({"true", "false", "True", "False", "TRUE", "FALSE"})
_LEADING_ZERO: Final = re.compile(r"[-+]?0[0-9_]+")
_SIXTIES: Final = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_EXPONENT: Final = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+")


class Trap(NamedTuple):
    """An unquoted scalar that is read in different ways. ``is_key``: it is the key of an entry, not a value."""

    rule: str
    pointer: str
    node: Scalar
    is_key: bool
    message: str
    fix: str


def traps(root: Node) -> Iterator[Trap]:
    """The traps below a node, with pointers from it."""
    for steps, node, is_key in scalars(root):
        if node.tag is not None or not node.text:
            continue
        told = _trap(node.text)
        if told is not None:
            rule, message, fix = told
            what = "the key" if is_key else "unquoted"
            yield Trap(rule, pointer(*steps), node, is_key, f"{what} {node.text} {message}", fix)


def quoted(text: str) -> str:
    """The text in double quotes, as YAML and JSON have it."""
    return json.dumps(text, ensure_ascii=False)


def reading(text: str) -> str:
    """What kubectl makes of an unquoted text, for a message: `the number 72`, `true`."""
    value: Any = scalar(text)
    return (
        f"the number {value}" if isinstance(value, int | float) and not isinstance(value, bool) else json.dumps(value)
    )


def _trap(text: str) -> tuple[str, str, str] | None:
    if text[0] in "yYnNoO":
        value = scalar(text)
        if isinstance(value, bool) and text not in _PLAIN_WORDS:
            word = json.dumps(value)
            return WORD, f"is {word} to kubectl and a text to others", f"write {word}, or {quoted(text)} for the text"
        return None
    if text[0] not in "-+0123456789":
        return None
    if _LEADING_ZERO.fullmatch(text):
        value = scalar(text)
        fix = f"write {quoted(text)} for the text, or {value} for the number"
        return LEADING_ZERO, f"is {reading(text)} to kubectl", fix
    if _SIXTIES.fullmatch(text):
        return SIXTIES, "is a text to kubectl and a number in base 60 to YAML 1.1", f"write {quoted(text)}"
    if _EXPONENT.fullmatch(text) and not isinstance(scalar(text), str):
        fix = f"write {quoted(text)} for the text, or the number without its exponent"
        return EXPONENT, f"is {reading(text)} to kubectl and a text to YAML 1.1", fix
    return None
