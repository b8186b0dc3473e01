"""For GitHub Actions: workflow commands, which show each fault beside its line in the pull request.

Source of the escapes: actions/toolkit, ``command.ts`` (escapeData, escapeProperty).
"""

from __future__ import annotations

from itertools import groupby

from cli.lint.findings import Finding
from cli.lint.formats.text import plain
from cli.lint.report import Report, orders


def write(report: Report) -> str:
    """One command per finding, a notice for each object with several steps, and the summary as plain text."""
    lines = [_command(one) for one in report.findings]
    for file, findings in groupby(report.findings, key=lambda one: one.spot.file):
        lines += [f"::notice file={_property(file)},title=order::{_data(text)}" for text in orders(findings)]
    lines += [f"::notice ::{_data(note)}" for note in (*report.notes, *report.stale)]
    # A line of its own that begins with :: would be a command.
    return "\n".join([*lines, plain(report.summary)]) + "\n"


def _command(finding: Finding) -> str:
    spot = finding.spot
    place = f",line={spot.line},col={spot.column}" if spot.line else ""
    name = f"{finding.object}: " if finding.object else ""
    properties = f"file={_property(spot.file)}{place},title={_property(finding.rule)}"
    return f"::{finding.violation.severity} {properties}::{_data(name + finding.violation.line)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
