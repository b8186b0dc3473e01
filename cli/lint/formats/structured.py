"""For programs: one JSON object for the run."""

from __future__ import annotations

import json
from typing import Any

from cli.lint.findings import Finding
from cli.lint.report import Report, by_object, steps


def write(report: Report) -> str:
    """``findings`` in order, ``order`` for objects with faults of several layers, ``summary`` with counts."""
    order = [
        {
            "file": file,
            "object": name,
            "steps": [
                {"step": step.number, "layer": step.layer.name.lower(), "rules": [one.rule for one in step.findings]}
                for step in steps(findings)
            ],
        }
        for (file, name), findings in by_object(report.findings).items()
        if len(steps(findings)) > 1
    ]
    document = {
        "findings": [_finding(one) for one in report.findings],
        "order": order,
        "notes": [*report.notes, *report.stale],
        "summary": {
            "files": report.files,
            "objects": report.objects,
            "errors": report.errors,
            "warnings": report.warnings,
            "inBaseline": report.known,
        },
    }
    return json.dumps(document, indent=2) + "\n"


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "file": finding.spot.file,
        "line": finding.spot.line or None,
        "column": finding.spot.column or None,
        "object": finding.object or None,
        "pointer": finding.violation.pointer,
        "field": finding.violation.field,
        "rule": finding.rule,
        "severity": str(finding.violation.severity),
        "message": finding.violation.message,
        "fix": finding.violation.fix or None,
        "layer": None if finding.layer is None else finding.layer.name.lower(),
    }
