"""Finds the files to lint and reads them: whatever lies there ends as text or as a finding, never as a crash."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cli.errors import CommandError, ExitCode
from cli.lint.findings import Finding, of_file
from cli.lint.kustomizations import KUSTOMIZATION_NAMES, Above, parts_of, resolved
from webhooks.rules.files import BYTE_ORDER_MARK, LEFT_OUT, SIZE, UNREADABLE

LARGEST_BYTES: Final = 32 * 1024 * 1024
"""Of one file: ten objects of the largest size that the API server takes."""

_ENDINGS: Final = frozenset({".yaml", ".yml", ".json"})
_NO_OBJECTS: Final = frozenset({"Chart.yaml", "Chart.lock", "values.yaml", "values.yml", "values.schema.json"})
_TEMPLATE: Final = re.compile(r"\{\{-?\s*[.$a-zA-Z]")


@dataclass(frozen=True, slots=True)
class Source:
    """A text to lint. ``path`` None: it comes from no file. ``is_built``: its lines mean nothing to a reader."""

    name: str
    text: str
    path: Path | None = None
    is_built: bool = False
    is_named: bool = True  # given on the command line, or the only thing there is; not found in a directory


@dataclass(slots=True)
class Collected:
    """What there is to lint, and what is wrong with files before anybody looks inside."""

    sources: list[Source] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)


def collect(paths: Iterable[str], tick: Callable[[str], None] = lambda _: None) -> Collected:
    """The files among the paths and below the directories among them, each once, in the order of their names.

    Raises CommandError (usage) for a path that does not exist.
    """
    found = Collected()
    seen: set[tuple[int, int]] = set()
    above = Above()
    for text in paths:
        path = Path(text)
        try:
            status = path.stat()
        except OSError as error:
            if os.path.lexists(path) and not isinstance(error, PermissionError):
                found.findings.append(_unreadable(path, error))
                continue
            raise CommandError(f"{text}: {error.strerror or error}", ExitCode.USAGE) from None
        except ValueError as error:
            raise CommandError(f"{text!r}: {error}", ExitCode.USAGE) from None
        if stat.S_ISDIR(status.st_mode):
            found.directories.append(path)
            _directory(path, found, seen, tick, above)
        elif _is_new(status, seen):
            left_out = _left_out(path, above.using(path)) or _of_a_chart(path)
            if left_out is not None:
                found.findings.append(left_out)
            else:
                _file(path, found, is_named=True)
    return found


def read_text(name: str, data: bytes, *, is_named: bool = True) -> tuple[str | None, list[Finding]]:
    """The text of a file, or None where it is none, and what is wrong with its bytes."""
    if len(data) > LARGEST_BYTES:
        return None, [of_file(SIZE, name, f"more than {LARGEST_BYTES} bytes", "no set of objects is so large")]
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or data[1:4:2] == b"\x00\x00":
        return None, [of_file(UNREADABLE, name, "the file is UTF-16", "save it as UTF-8", line=1, column=1)]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = len(data[data.rfind(b"\n", 0, error.start) + 1 : error.start].decode(errors="replace")) + 1
        what = "binary" if b"\x00" in data else "not UTF-8"
        message = f"the file is {what}: byte 0x{data[error.start]:02x} is no part of a character"
        return None, [of_file(UNREADABLE, name, message, "save it as UTF-8", line=line, column=column)]
    if "\x00" in text:
        line = text.count("\n", 0, text.index("\x00")) + 1
        return None, [of_file(UNREADABLE, name, "the file is binary: it has a zero byte", line=line, column=1)]
    if text.startswith("\ufeff"):
        fix = "save the file without it" + (", or let --fix do it" if is_named else "")
        return text, [of_file(BYTE_ORDER_MARK, name, "the file begins with a byte order mark", fix, line=1, column=1)]
    return text, []


def is_template(text: str) -> bool:
    """Whether the text looks like one for a template engine."""
    return _TEMPLATE.search(text) is not None


def _file(path: Path, found: Collected, *, is_named: bool) -> None:
    name = str(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor: a pipe must not hold the linter up
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                found.findings.append(of_file(UNREADABLE, name, "this is no file, but a device, a pipe or a socket"))
                return
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        found.findings.append(_unreadable(path, error))
        return
    text, findings = read_text(name, data)
    found.findings += findings
    if text is not None:
        found.sources.append(Source(name, text, path, is_named=is_named))


def _unreadable(path: Path, error: OSError) -> Finding:
    return of_file(UNREADABLE, str(path), f"the file cannot be read: {error.strerror or error}")


def _left_out(path: Path, kustomization: str | None) -> Finding | None:
    if kustomization is None:
        return None
    fix = f"lint what becomes of it with --kustomize {Path(kustomization).parent}"
    return of_file(LEFT_OUT, str(path), f"left out: a patch of {kustomization}", fix)


def _of_a_chart(path: Path) -> Finding | None:
    """A file of a Helm chart that is no object; in a directory that is linted whole nobody asked for it."""
    is_part = path.name in _NO_OBJECTS and (path.parent / "Chart.yaml").is_file()
    is_template = any(
        above.name == "templates" and (above.parent / "Chart.yaml").is_file() for above in path.absolute().parents
    )
    if not is_part and not is_template:
        return None
    what = "a template" if is_template else "a part"
    fix = "lint what `helm template` writes: npufleet lint -"
    return of_file(LEFT_OUT, str(path), f"left out: {what} of a Helm chart", fix)


def _directory(
    top: Path, found: Collected, seen: set[tuple[int, int]], tick: Callable[[str], None], above: Above
) -> None:
    """Everything below a directory, links followed; a directory that was there before, as in a loop of links, is not
    entered again."""
    left_out: dict[Path, str] = {}
    files: list[Path] = []
    for path in _walk(top, found, seen):
        if path.name in KUSTOMIZATION_NAMES:
            left_out |= dict.fromkeys(parts_of(path), str(path))
        files.append(path)
    for path in files:
        tick(str(path))
        told = _left_out(path, left_out.get(resolved(path)) or above.using(path))
        if told is not None:
            found.findings.append(told)
        elif not (path.name in _NO_OBJECTS and (path.parent / "Chart.yaml").is_file()):
            _file(path, found, is_named=False)


def _walk(directory: Path, found: Collected, seen: set[tuple[int, int]]) -> Iterator[Path]:
    waiting = [directory]
    while waiting:
        here = waiting.pop()
        try:
            status = here.stat()
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            found.findings.append(_unreadable(here, error))
            continue
        if not _is_new(status, seen):
            continue
        below: list[Path] = []
        names = {entry.name for entry in entries}
        for entry in entries:
            path = here / entry.name
            if entry.name.startswith("."):
                continue
            try:
                status = path.stat()
            except OSError as error:
                if path.suffix in _ENDINGS:
                    found.findings.append(_unreadable(path, error))
                continue
            if stat.S_ISDIR(status.st_mode):
                if entry.name == "templates" and "Chart.yaml" in names:
                    fix = "lint what `helm template` writes: npufleet lint -"
                    found.findings.append(of_file(LEFT_OUT, str(path), "left out: templates of a Helm chart", fix))
                elif entry.name != "node_modules":
                    below.append(path)
            elif (path.suffix in _ENDINGS or entry.name in KUSTOMIZATION_NAMES) and _is_new(status, seen):
                yield path
        waiting += reversed(below)


def _is_new(status: os.stat_result, seen: set[tuple[int, int]]) -> bool:
    identity = status.st_dev, status.st_ino
    if identity in seen:
        return False
    seen.add(identity)
    return True
