"""For code scanning: SARIF 2.1.0 (OASIS, 27 March 2020), with the rules that were broken and why they are there."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

from cli.lint.findings import Finding, rule_of
from cli.lint.report import Report
from webhooks.rules.pointers import without_indices

_SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def write(report: Report) -> str:
    """One run. Paths are relative to where the command ran, as the scanners that read SARIF expect."""
    ids = sorted({one.rule for one in report.findings})
    index = {identity: number for number, identity in enumerate(ids)}
    run = {
        "tool": {"driver": _driver(ids)},
        "columnKind": "unicodeCodePoints",
        "results": [_result(one, index) for one in report.findings],
    }
    if report.notes or report.stale:
        run["invocations"] = [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": "note", "message": {"text": note}} for note in (*report.notes, *report.stale)
                ],
            }
        ]
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _driver(ids: list[str]) -> dict[str, Any]:
    driver: dict[str, Any] = {"name": "npufleet", "rules": [_rule(identity) for identity in ids]}
    with suppress(PackageNotFoundError):
        driver["version"] = version("npufleet")
    return driver


def _rule(identity: str) -> dict[str, Any]:
    rule = rule_of(identity)
    return {
        "id": identity,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.reason},
        "help": {"text": f"{rule.reason} `npufleet explain {identity}` shows examples."},
        "defaultConfiguration": {"level": str(rule.severity)},
    }


def _result(finding: Finding, index: dict[str, int]) -> dict[str, Any]:
    violation = finding.violation
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.spot.file)}}
    if finding.spot.line:
        physical["region"] = {"startLine": finding.spot.line, "startColumn": finding.spot.column}
    location: dict[str, Any] = {"physicalLocation": physical}
    if finding.object:
        full = f"{finding.object}:{violation.field}" if violation.field else finding.object
        location["logicalLocations"] = [{"name": finding.object, "fullyQualifiedName": full, "kind": "object"}]
    same = "\n".join((finding.spot.file, finding.object, violation.rule, without_indices(violation.pointer)))
    return {
        "ruleId": violation.rule,
        "ruleIndex": index[violation.rule],
        "level": str(violation.severity),
        "message": {"text": violation.line},
        "locations": [location],
        "partialFingerprints": {"npufleet/v1": _hash(f"{same}\n{violation.value}")},
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _uri(name: str) -> str:
    if PurePath(name).is_absolute():
        return f"file://{quote(name, errors='surrogateescape')}"
    return quote(name, errors="surrogateescape")
