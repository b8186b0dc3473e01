"""Changes that cannot alter what a file means; what they do to its objects is told first, as a JSON patch.

A fix is one of: quotes around a scalar where only a string is taken and the text as written fits; quotes around what
kubectl takes for a text and others for a number; `true` for `yes` where kubectl reads `true`; a null field of ours, or
a key that repeats itself with the same value, left out; a byte order mark left out. Comments and layout stay.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import jsonpatch

from cli.lint.findings import Finding
from cli.lint.linter import Outcome
from cli.lint.objects import FileObject
from cli.lint.sources import Source
from cli.lint.unquoted import quoted, traps
from crds.models.kinds import Kind
from crds.yaml_documents import find_node, key_name, read_all, scalar, scalars
from crds.yaml_nodes import Mapping, Node, Scalar, Sequence
from webhooks.rules.files import BYTE_ORDER_MARK, KUBERNETES_VALUE, REPEATED_KEY, SIXTIES, WORD
from webhooks.rules.pointers import pointer, steps_of
from webhooks.rules.schema_rules import schema_of
from webhooks.rules.structural import child_of, flaws

_TYPE: Final = frozenset({"NPF-ALL-002", KUBERNETES_VALUE})
_NULL: Final = "NPF-ALL-010"
_REQUIRED: Final = "NPF-ALL-003"


@dataclass(frozen=True, slots=True)
class Edit:
    """One change: the text from ``start`` to ``end`` becomes ``new``. ``patch`` is what that does to the document."""

    line: int
    start: int
    end: int
    new: str
    what: str
    document: int
    patch: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FixedFile:
    """A file with all its fixes."""

    source: Source
    text: str
    edits: tuple[Edit, ...]

    @property
    def patches(self) -> dict[int, list[dict[str, Any]]]:
        """The JSON patch of each document that changes, by its number from 1."""
        found: dict[int, list[dict[str, Any]]] = {}
        for edit in self.edits:
            if edit.patch is not None:
                found.setdefault(edit.document + 1, []).append(edit.patch)
        return found

    @property
    def diff(self) -> str:
        """What changes, as a unified diff."""
        before, after = self.source.text.splitlines(keepends=True), self.text.splitlines(keepends=True)
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(before, after, f"a/{self.source.name}", f"b/{self.source.name}")
        )


def fixes(outcome: Outcome, findings: list[Finding]) -> list[FixedFile]:
    """The files that can be mended without altering what they mean; ``findings`` say what is wrong with which."""
    by_source: dict[Source, list[FileObject]] = {}
    for found in outcome.objects:
        by_source.setdefault(found.source, []).append(found)
    of_file: dict[str, list[Finding]] = {}
    for finding in findings:
        of_file.setdefault(finding.spot.file, []).append(finding)
    fixed = []
    for name, told in of_file.items():
        for source in (one for one in by_source if one.name == name and one.path is not None):
            edits = _edits(source, by_source[source], told, outcome)
            text = _applied(source.text, edits)
            if edits and _means_the_same(source.text, text, edits):
                fixed.append(FixedFile(source, text, tuple(edits)))
    return fixed


def _edits(source: Source, objects: list[FileObject], findings: list[Finding], outcome: Outcome) -> list[Edit]:
    edits = []
    rules = {finding.rule for finding in findings}
    if BYTE_ORDER_MARK in rules and source.text.startswith("\ufeff"):
        edits.append(Edit(1, 0, 1, "", "leave the byte order mark out", 0))
    for number, document in enumerate(read_all(source.text).documents):
        root = document.root
        if root is None or _has_aliases(root):
            continue
        if REPEATED_KEY in rules:
            edits += _repeated_keys(source.text, root, number)
        for found in objects:
            if found.root is not None and found.root.place == root.place:
                edits += _of_object(source.text, found, findings, outcome.kinds.get(found), number)
    apart: list[Edit] = []
    for edit in sorted(edits, key=lambda one: (one.start, one.end)):
        if not apart or edit.start >= apart[-1].end:
            apart.append(edit)
    return apart


def _of_object(text: str, found: FileObject, findings: list[Finding], kind: Kind | None, number: int) -> Iterator[Edit]:
    root = find_node(found.root, found.prefix) if found.root is not None else None
    if root is None:
        return
    told = [one for one in findings if one.object == found.title]
    # In a patch that is merged, null means that the key goes: without it the patch would say nothing.
    is_part = any(one.rule == _REQUIRED for one in told) or _is_merged(root)
    for finding in told:
        at = finding.violation.pointer
        full = pointer(*found.prefix) + at
        node = find_node(root, steps_of(at))
        if finding.rule in _TYPE and isinstance(node, Scalar) and _wants_quotes(finding, node, kind):
            new = quoted(node.text)
            patch = {"op": "replace", "path": full, "value": node.text}
            yield Edit(node.place.line, node.place.start, node.place.end, new, f"write {new}", number, patch)
        elif finding.rule == _NULL and node is not None and not is_part:
            holder = find_node(root, steps_of(at)[:-1])
            span = _line_of(text, holder, steps_of(at)[-1], 0)
            if span is not None:
                patch = {"op": "remove", "path": full}
                yield Edit(node.place.line, *span, "", f"leave {finding.violation.field} out", number, patch)
    rules = {(one.rule, one.violation.pointer) for one in told}
    for trap in traps(root):
        if (trap.rule, trap.pointer) in rules and trap.node.is_bare:
            new = ""
            if trap.rule == SIXTIES:
                new = quoted(trap.node.text)
            elif trap.rule == WORD and not trap.is_key:
                new = "true" if scalar(trap.node.text) else "false"
            if new:
                place = trap.node.place
                yield Edit(place.line, place.start, place.end, new, f"write {new}", number)


def _is_merged(root: Node) -> bool:
    """Whether a directive of a strategic merge stands anywhere below."""
    return any(is_key and node.text.startswith("$") for _, node, is_key in scalars(root))


def _wants_quotes(finding: Finding, node: Scalar, kind: Kind | None) -> bool:
    value = scalar(node.text)
    if not node.is_bare or value is None or isinstance(value, str) or "write" not in finding.violation.fix:
        return False
    if kind is None:
        return True
    schema: Any = schema_of(kind.model)
    for step in steps_of(finding.violation.pointer):
        schema = schema.get("items") if step.isdecimal() and "items" in schema else child_of(schema, step)
        if schema is None:
            return False
    return not list(flaws(schema, node.text))


def _repeated_keys(text: str, root: Node, number: int) -> Iterator[Edit]:
    waiting: list[Node] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Sequence):
            waiting += node.items
        elif isinstance(node, Mapping):
            seen: dict[str, list[Node]] = {}
            for key, value in node.entries:
                name = key_name(key)
                if name is not None:
                    seen.setdefault(name, []).append(value)
                waiting.append(value)
            for name, values in seen.items():
                for index, value in enumerate(values[1:], start=1):
                    span = _line_of(text, node, name, index) if _is_same(values[0], value) else None
                    if span is not None:
                        yield Edit(value.place.line, *span, "", f"leave the second {name} out", number)


def _is_same(one: Node, other: Node) -> bool:
    return isinstance(one, Scalar) and isinstance(other, Scalar) and (one.text, one.tag) == (other.text, other.tag)


def _line_of(text: str, holder: Node | None, name: str, index: int) -> tuple[int, int] | None:
    """The whole line of an entry; None where it is not alone in its line, or nothing would be left of its map."""
    if not isinstance(holder, Mapping) or len(holder.entries) < 2:
        return None
    key, value = [(key, value) for key, value in holder.entries if key_name(key) == name][index]
    start = text.rfind("\n", 0, key.place.start) + 1
    end = text.find("\n", key.place.start)
    end = len(text) if end < 0 else end + 1
    if text[start : key.place.start].strip() or value.place.start >= end or not isinstance(value, Scalar):
        return None
    rest = text[key.place.end : end]
    behind = re.escape(text[value.place.start : value.place.end])
    # A comment in the line would go with it.
    return (start, end) if re.fullmatch(rf"\s*:\s*(?:{behind})?\s*", rest) else None


def _has_aliases(root: Node) -> bool:
    """Whether a node is there more than once: a change of it would be a change in several places."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            return True
        seen.add(id(node))
        if isinstance(node, Sequence):
            waiting += node.items
        elif isinstance(node, Mapping):
            waiting += [part for entry in node.entries for part in entry]
    return False


def _applied(text: str, edits: list[Edit]) -> str:
    for edit in reversed(edits):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


def _means_the_same(before: str, after: str, edits: list[Edit]) -> bool:
    """Whether the new text holds what the patches make of the old objects, and nothing else."""
    old, new = read_all(before), read_all(after)
    expected = [document.content for document in old.documents]
    for edit in edits:
        if edit.patch is not None:
            expected[edit.document] = jsonpatch.apply_patch(expected[edit.document], [edit.patch])
    told = [document.content for document in new.documents]
    return len(new.faults) <= len(old.faults) and _typed(expected) == _typed(told)


def _typed(value: Any) -> Any:
    """1, 1.0 and True are equal to Python, and not to the API server."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return (type(value).__name__, value)
