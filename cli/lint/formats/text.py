"""For people: one line per fault, as compilers write them, so that editors and terminals take one to the place."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Final

from cli.lint.findings import Finding
from cli.lint.report import Report, orders

# Names and values come from files of others: they shall not move the cursor of the reader's terminal.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def write(report: Report) -> str:
    """The findings, the order in which a server would tell them where there is more than one step, and a summary."""
    lines: list[str] = []
    for file, findings in groupby(report.findings, key=lambda one: one.spot.file):
        told = list(findings)
        lines += [line(one) for one in told]
        lines += [plain(f"{file}: note: {text}") for text in orders(told)]
    lines += [plain(f"note: {note}") for note in (*report.notes, *report.stale)]
    return "\n".join([*lines, report.summary]) + "\n"


def line(finding: Finding) -> str:
    """One finding in one line: ``FILE:LINE:COLUMN: error: KIND/NAME: FIELD: what; fix [RULE]``."""
    name = f"{finding.object}: " if finding.object else ""
    return plain(f"{finding.spot}: {finding.violation.severity}: {name}{finding.violation.line}")


def plain(text: str) -> str:
    """The text without characters that steer a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
