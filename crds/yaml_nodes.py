"""Composes YAML into nodes that know where they stand, so that a fault can be shown at its line and column.

Works on the parser's events and not on its nodes: nothing here recurses, one fault does not hide the next one, and a
text is cut into documents where kubectl cuts it (k8s.io/apimachinery ``util/yaml`` YAMLReader, tried with kubectl 1.37:
text behind ``---`` is refused, and what follows ``...`` is dropped without a word).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import yaml

DEEPEST: Final = 200
"""Levels of lists and maps. Kubernetes objects stay below 100, schemas in CustomResourceDefinitions included."""

MOST_FAULTS: Final = 50
"""In one document: a file that is no YAML at all shall not fill the screen."""

_TOO_DEEP: Final = f"nested too deeply: lists and maps lie more than {DEEPEST} levels deep"

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SEPARATOR: Final = re.compile(r"^(?:---.*|\.\.\.(?:[ \t\r].*)?)$", re.MULTILINE)
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_UNREADABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SURROGATES: Final = re.compile(r"(?<!\\)\\u[dD]([89abAB][0-9a-fA-F]{2})\\u[dD]([c-fC-F][0-9a-fA-F]{2})")


class FaultKind(StrEnum):
    """What sort of fault a text has."""

    SYNTAX = "syntax"
    REPEATED_KEY = "repeated key"
    SEPARATION = "separation"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class YAMLFault:
    """One fault of a text. Lines and columns count from 1; ``fix`` is "" when the message says it all."""

    kind: FaultKind
    line: int
    column: int
    message: str
    fix: str = ""

    @property
    def text(self) -> str:
        """What is wrong and what to do, in one sentence."""
        return f"{self.message}; {self.fix}" if self.fix else self.message


class Place(NamedTuple):
    """Where a node stands: line and column from 1, and the part of the text, as indices, that it takes."""

    line: int
    column: int
    start: int
    end: int


@dataclass(slots=True, eq=False)
class Scalar:
    """``tag`` None: unquoted, so that its value follows from its text. ``is_bare``: no quotes, tag, anchor or lines."""

    place: Place
    text: str
    tag: str | None
    is_bare: bool


@dataclass(slots=True, eq=False)
class Sequence:
    """A list of nodes."""

    place: Place
    items: "list[Node]"
    tag: str | None


@dataclass(slots=True, eq=False)
class Mapping:
    """A map: its entries as they are written, merge keys (``<<``) and repeated keys among them.

    ``by_name`` is left to whoever looks entries up: a map may have a hundred thousand.
    """

    place: Place
    entries: "list[tuple[Node, Node]]"
    tag: str | None
    by_name: "dict[str, tuple[Node, Node]] | None" = field(default=None, repr=False)


Node = Scalar | Sequence | Mapping
STRING: Final = "tag:yaml.org,2002:str"
MERGE: Final = "tag:yaml.org,2002:merge"
SEQUENCE: Final = "tag:yaml.org,2002:seq"
MAPPING: Final = "tag:yaml.org,2002:map"


@dataclass(slots=True)
class _Chunk:
    """What stands between two separators, with the place of its first character."""

    text: str
    index: int
    line: int
    is_json: bool = False
    is_dropped: bool = False  # it follows the mark of a document's end


def compose(text: str) -> tuple[list[Node], list[YAMLFault]]:
    """The root of each document, empty ones left out, and everything that is wrong with the text as YAML."""
    roots: list[Node] = []
    faults: list[YAMLFault] = []
    for chunk in _chunks(text, faults):
        roots += _Composer(chunk, faults).documents()
    return roots, faults


def line_breaks(text: str) -> int:
    """How many lines end in a text, as YAML counts them."""
    return sum(1 for _ in _BREAK.finditer(text)) if not text.isascii() or "\r" in text else text.count("\n")


def _chunks(text: str, faults: list[YAMLFault]) -> Iterator[_Chunk]:
    at, line, is_dropped = 0, 1, False
    for mark in _SEPARATOR.finditer(text):
        if mark.start() > at:
            yield _chunk(text[at : mark.start()], at, line, is_dropped=is_dropped)
            line += line_breaks(text[at : mark.start()])
        is_dropped = mark[0].startswith("...")
        behind = mark[0][3:].strip()
        at = mark.start()
        if is_dropped or not behind or behind.startswith("#"):
            at = min(mark.end() + 1, len(text))
            line += 1
        else:
            message = f"kubectl refuses a document that starts in the line of its separator: {_shortened(mark[0])}"
            faults.append(YAMLFault(FaultKind.SEPARATION, line, 1, message, "put --- in a line of its own"))
    if at < len(text):
        yield _chunk(text[at:], at, line, is_dropped=is_dropped)


def _chunk(text: str, index: int, line: int, *, is_dropped: bool) -> _Chunk:
    is_json = index == 0 and text.lstrip("\ufeff \t\r\n")[:1] == "{"
    if text.startswith("\ufeff"):
        text, index = text[1:], index + 1
    return _Chunk(text, index, line, is_json, is_dropped)


def _shortened(text: str, most: int = 40) -> str:
    text = text.strip()
    return text if len(text) <= most else f"{text[:most]}…"


class _StopError(Exception):
    """The rest of a chunk cannot be understood."""


class _Composer:
    """One chunk. Open collections are kept in a list, not on the interpreter's stack."""

    def __init__(self, chunk: _Chunk, faults: list[YAMLFault]) -> None:
        self._chunk = chunk
        self._faults = faults
        self._most = len(faults) + MOST_FAULTS
        self._anchors: dict[str, Node] = {}
        self._open: list[Sequence | Mapping] = []
        self._keys: list[Node | None] = []
        self._roots: list[Node] = []

    def documents(self) -> list[Node]:
        try:
            text = self._readable(self._chunk.text)
            for event in yaml.parse(text, Loader=_LOADER):
                self._take(event)
        except yaml.MarkedYAMLError as error:
            self._syntax_fault(error)
        except (yaml.YAMLError, ValueError) as error:
            # PyYAML's own reading of escapes and directives has holes that raise ValueError.
            self._add(FaultKind.SYNTAX, self._place_at(0), " ".join(str(error).split()))
        except _StopError:
            pass
        # A document that broke off is left out: what it would have said is not known.
        return [] if self._open else self._roots

    def _readable(self, text: str) -> str:
        found = _UNREADABLE.search(text)
        if found is not None:
            what = "a lone surrogate" if "\ud800" <= found[0] <= "\udfff" else "a control character"
            message = f"{what} (U+{ord(found[0]):04X}) has no place in YAML"
            self._add(FaultKind.SYNTAX, self._place_at(found.start()), message, "remove it, or escape it in quotes")
            text = _UNREADABLE.sub("\ufffd", text)
        if self._chunk.is_json:
            text = _SURROGATES.sub(_joined, text)
        return text

    def _take(self, event: yaml.Event) -> None:
        match event:
            case yaml.ScalarEvent():
                self._scalar(event)
            case yaml.AliasEvent():
                self._alias(event)
            case yaml.SequenceStartEvent():
                self._start(event, Sequence(self._place(event), [], event.tag))
            case yaml.MappingStartEvent():
                self._start(event, Mapping(self._place(event), [], event.tag))
            case yaml.CollectionEndEvent():
                node, _ = self._open.pop(), self._keys.pop()
                node.place = node.place._replace(end=self._place(event).end)
                self._attach(node)
            case yaml.DocumentStartEvent():
                self._document(event)

    def _document(self, event: yaml.DocumentStartEvent) -> None:
        self._anchors = {}
        if event.version is not None or event.tags:
            self._add(
                FaultKind.SEPARATION, self._place(event), "kubectl refuses a line that starts with %", "remove it"
            )
        if self._roots or (self._chunk.is_dropped and not event.explicit):
            message = "kubectl drops without a word what follows this document's end (...)"
            self._add(FaultKind.SEPARATION, self._place(event), message, "separate documents by a line of ---")

    def _start(self, event: yaml.CollectionStartEvent, node: Sequence | Mapping) -> None:
        if len(self._open) >= DEEPEST:
            self._add(FaultKind.SIZE, node.place, _TOO_DEEP)
            raise _StopError
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        self._open.append(node)
        self._keys.append(None)

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        tag = None if event.implicit[0] else event.tag or STRING
        if event.tag == "!":
            tag = STRING
        is_bare = tag is None and event.tag is None and event.anchor is None and not _BREAK.search(event.value)
        node = Scalar(self._place(event), event.value, tag, is_bare)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        self._attach(node)

    def _alias(self, event: yaml.AliasEvent) -> None:
        node = self._anchors.get(event.anchor or "")
        if node is None:
            message = f"nothing before this place in the document has the anchor &{event.anchor}"
            self._add(
                FaultKind.SYNTAX, self._place(event), message, "write the value out, or quote a text that begins with *"
            )
            node = Scalar(self._place(event), "", None, is_bare=False)
        self._attach(node)

    def _attach(self, node: Node) -> None:
        if not self._open:
            self._roots.append(node)
            return
        holder = self._open[-1]
        if isinstance(holder, Sequence):
            holder.items.append(node)
        elif self._keys[-1] is None:
            self._keys[-1] = node
        else:
            holder.entries.append((self._keys[-1], node))
            self._keys[-1] = None

    def _place(self, event: yaml.Event) -> Place:
        start, end, chunk = event.start_mark, event.end_mark, self._chunk
        if start is None or end is None:
            raise TypeError("the parser gives every event its marks")
        # The byte order mark that was cut off is the first column of the first line of a file.
        return Place(start.line + chunk.line, start.column + 1, start.index + chunk.index, end.index + chunk.index)

    def _place_at(self, index: int) -> Place:
        before = self._chunk.text[:index]
        breaks = list(_BREAK.finditer(before))
        column = index - (breaks[-1].end() if breaks else 0) + 1
        return Place(self._chunk.line + len(breaks), column, self._chunk.index + index, self._chunk.index + index)

    def _syntax_fault(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        text = self._chunk.text
        index = min(mark.index, len(text.rstrip("\n"))) if mark else 0
        message = str(error.problem or error.context)
        if "nesting depth" in message:
            self._add(FaultKind.SIZE, self._place_at(index), _TOO_DEEP)
            return
        if error.problem and error.context:
            message += f" ({error.context})"
        self._add(FaultKind.SYNTAX, self._place_at(index), message, _hint(message, text[index : index + 1]))

    def _add(self, kind: FaultKind, place: Place, message: str, fix: str = "") -> None:
        if len(self._faults) >= self._most:
            raise _StopError
        self._faults.append(YAMLFault(kind, place.line, place.column, message, fix))


def _joined(pair: re.Match[str]) -> str:
    """Both halves of a character that JSON writes as a pair, as the one escape that YAML has for it."""
    high, low = int("d" + pair[1], 16), int("d" + pair[2], 16)
    return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08X}"


def _hint(message: str, character: str) -> str:
    if character == "\t" or "tab character" in message:
        return "indent with spaces: YAML takes no tabs there"
    if "mapping values are not allowed" in message:
        return "quote a value that has a colon followed by a blank, or mend the indentation"
    if "cannot start any token" in message:
        return f"quote a value that begins with {character}"
    if "quoted scalar" in message and "end of stream" in message:
        return "close the quote"
    if "flow node" in message:
        return "close the [ or {, and put a value behind each comma and colon"
    if "flow sequence" in message:
        return "close the [ with a ], and put commas between its items"
    if "flow mapping" in message:
        return "close the { with a }, and put commas between its entries"
    if "block mapping" in message or "block collection" in message or "indicator" in message:
        return "mend the indentation of this line or of those above it"
    if "document start" in message:
        return "remove what stands before the document's first line, or separate documents by a line of ---"
    return ""
