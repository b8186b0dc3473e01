"""Faults that are known and let pass: a repository can take the linter up before it is clean, and only get better."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cli.errors import CommandError, ExitCode
from cli.lint.findings import Finding
from node_host.durable_file import write_durably
from webhooks.rules.pointers import without_indices

_VERSION = 1


class Known(NamedTuple):
    """What stays the same of a fault while the file around it changes. ``where`` is an object, or a file."""

    rule: str
    where: str
    field: str
    value: str


def read(path: Path) -> Counter[Known]:
    """The baseline of a file. Raises CommandError (usage) when it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not {"version", "known"} <= set(content):
            raise ValueError("it is JSON of another shape, without version and known")
        if content["version"] != _VERSION:
            raise ValueError(f"its version is {content['version']}, not {_VERSION}")
        known: Counter[Known] = Counter()
        for one in content["known"]:
            known[Known(*(str(one[key]) for key in Known._fields))] += max(int(one["count"]), 0)
        return known
    except FileNotFoundError:
        raise CommandError(
            f"there is no baseline {path}: make one with --baseline {path} --write-baseline", ExitCode.USAGE
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        what = "an entry lacks a field" if isinstance(error, KeyError | TypeError) else error
        raise CommandError(
            f"{path} is no baseline that can be read ({what}): make a new one with --write-baseline", ExitCode.USAGE
        ) from None


def write(path: Path, findings: Iterable[Finding]) -> int:
    """Write the findings down as known; returns how many. One entry a line, sorted, so that Git shows what changed."""
    counted = Counter(_known(one) for one in findings)
    entries = [json.dumps(entry._asdict() | {"count": counted[entry]}) for entry in sorted(counted)]
    text = f'{{"version": {_VERSION}, "known": [\n' + ",\n".join(entries) + "\n]}\n"
    try:
        write_durably(path, text.encode(), mode=0o644)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
    return sum(counted.values())


def without_known(findings: Iterable[Finding], known: Counter[Known]) -> tuple[list[Finding], int, int]:
    """The findings that are new, how many were known, and how many of the known ones are gone."""
    left = Counter(known)
    new = []
    for one in findings:
        entry = _known(one)
        if left[entry] > 0:
            left[entry] -= 1
        else:
            new.append(one)
    gone = left.total()
    return new, known.total() - gone, gone


def _known(finding: Finding) -> Known:
    violation = finding.violation
    value = hashlib.sha256(violation.value.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    where = finding.object or finding.spot.file
    # Names of files may be bytes that no encoding has.
    where = where.encode("utf-8", "backslashreplace").decode()
    return Known(violation.rule, where, without_indices(violation.pointer), value)
