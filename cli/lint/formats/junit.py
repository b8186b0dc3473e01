"""For build servers: JUnit XML, a test case per object; what is wrong with it is its failure."""

from __future__ import annotations

import re
from typing import Final
from xml.sax.saxutils import quoteattr

from cli.lint.findings import Finding
from cli.lint.formats.text import line
from cli.lint.report import Report, by_object

_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(report: Report) -> str:
    """One suite. Errors are failures, and so are warnings of a strict run; other warnings are output of their case."""
    cases = []
    failures = 0
    for (file, name), findings in by_object(report.findings).items():
        wrong = [one for one in findings if one.is_error or report.is_strict]
        failures += bool(wrong)
        cases.append(_case(file, name, wrong, [one for one in findings if one not in wrong]))
    if not cases:
        cases.append(f'    <testcase name="all {report.objects} objects" classname="npufleet lint"/>')
    head = f'name="npufleet lint" tests="{len(cases)}" failures="{failures}" errors="0" skipped="0"'
    body = "\n".join(cases)
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites {head}>\n  <testsuite {head}>\n{body}\n'
        "  </testsuite>\n</testsuites>\n"
    )


def _case(file: str, name: str, wrong: list[Finding], others: list[Finding]) -> str:
    lines = [f"    <testcase name={_attribute(name or file)} classname={_attribute(file)} file={_attribute(file)}>"]
    if wrong:
        text = "\n".join(line(one) for one in wrong)
        message = line(wrong[0]) + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")
        kind = _attribute(wrong[0].rule)
        lines.append(f"      <failure message={_attribute(message)} type={kind}>{_text(text)}</failure>")
    if others:
        lines.append(f"      <system-out>{_text(chr(10).join(line(one) for one in others))}</system-out>")
    return "\n".join([*lines, "    </testcase>"])


def _attribute(text: str) -> str:
    return quoteattr(_NO_XML.sub("\ufffd", text))


def _text(text: str) -> str:
    return _NO_XML.sub("\ufffd", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
