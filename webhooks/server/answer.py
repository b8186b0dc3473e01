"""The answer to a review: all faults at once, bounded, in the words that kubectl and Argo CD will show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from webhooks.rules import Severity, Violation
from webhooks.server.request import API_VERSION, KIND, Request

Answer = dict[str, Any]

MOST_LINES: Final = 50
MOST_LINE: Final = 512
MOST_CAUSES: Final = 100
MOST_WARNINGS: Final = 10
LONGEST_WARNING: Final = 120
_LONGEST_IDS: Final = 512
_INVALID: Final = 422


def allowed(request: Request, *, warnings: Sequence[str] = (), annotations: Mapping[str, str] | None = None) -> Answer:
    """Let it in."""
    return _review(request, {"uid": request.uid, "allowed": True}, warnings, annotations)


def denied(
    request: Request,
    faults: Sequence[Violation],
    *,
    warnings: Sequence[str] = (),
    annotations: Mapping[str, str] | None = None,
) -> Answer:
    """Refuse it for these faults; `faults` are in the order in which they are told."""
    details = {
        "group": request.group,
        "kind": request.kind,
        "name": request.name or _generated(request),
        "causes": [
            {"reason": "FieldValueInvalid", "field": fault.field, "message": _cut(_said(fault), MOST_LINE)}
            for fault in faults[:MOST_CAUSES]
        ],
    }
    status = _status(_INVALID, "Invalid", message_of(faults)) | {"details": details}
    return _review(request, {"uid": request.uid, "allowed": False, "status": status}, warnings, annotations)


def refused(request: Request, code: int, reason: str, message: str) -> Answer:
    """Refuse it for what is wrong with the request itself."""
    status = _status(code, reason, _cut(message, MOST_LINE))
    return _review(request, {"uid": request.uid, "allowed": False, "status": status}, (), None)


def message_of(faults: Sequence[Violation]) -> str:
    """One line for each fault; one fault is one line, for tables that show no more."""
    lines = [_cut(fault.line, MOST_LINE) for fault in faults[:MOST_LINES]]
    if len(faults) == 1:
        return lines[0]
    if len(faults) > MOST_LINES:
        lines.append(f"and {len(faults) - MOST_LINES} more: `npufleet lint` shows them all")
    return "\n".join([f"{len(faults)} violations:", *lines])


def warnings_of(violations: Iterable[Violation], unknown: Sequence[str] = ()) -> list[str]:
    """What is told to somebody whose object is let in, or refused for other things; `unknown` was not looked at.

    The API server puts a warning into a header, and cuts there: a short one arrives whole.
    """
    told = [one.line for one in violations if one.severity is Severity.WARNING]
    if unknown:
        told.insert(0, f"not checked against {', '.join(unknown)}: the webhook does not see them now")
    if len(told) > MOST_WARNINGS:
        more = len(told) - MOST_WARNINGS + 1
        told = [*told[: MOST_WARNINGS - 1], f"and {more} more warnings: `npufleet lint` shows them all"]
    return [_short(line) for line in told]


def annotations_of(violations: Sequence[Violation], *, rules: str, seconds: float) -> dict[str, str]:
    """For the audit log: by which rules it was decided, how long that took, and which of them spoke."""
    found = {"rules-version": rules, "decision-time": f"{seconds * 1000:.3f}ms"}
    ids = sorted({one.rule for one in violations})
    if ids:
        found["rules"] = _cut(",".join(ids), _LONGEST_IDS)
    return found


def _generated(request: Request) -> str:
    """What the object's name will begin with, where it has none yet."""
    metadata = (request.content or {}).get("metadata")
    value = metadata.get("generateName") if isinstance(metadata, dict) else None
    return value if isinstance(value, str) else ""


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"metadata": {}, "status": "Failure", "code": code, "reason": reason, "message": message}


def _review(
    request: Request, response: dict[str, Any], warnings: Sequence[str], annotations: Mapping[str, str] | None
) -> Answer:
    if warnings:
        response["warnings"] = [_short(line) for line in warnings]
    if annotations:
        response["auditAnnotations"] = dict(annotations)
    return {"apiVersion": request.api_version or API_VERSION, "kind": KIND, "response": response}


def _said(fault: Violation) -> str:
    """A cause has its field beside it, and kubectl shows causes alone where it creates or replaces."""
    return f"{fault.text} [{fault.rule}]"


def _short(line: str) -> str:
    """At most LONGEST_WARNING characters, with the rule's id kept: it is where the rest can be read."""
    line = line.replace("\n", " ").replace("\r", " ")
    if len(line) <= LONGEST_WARNING:
        return line
    head, bracket, rule = line.rpartition(" [")
    if not bracket or len(rule) > LONGEST_WARNING // 2:
        return _cut(line, LONGEST_WARNING)
    end = bracket + rule
    return _cut(head, LONGEST_WARNING - len(end)) + end


def _cut(text: str, longest: int) -> str:
    text = text.replace("\n", " ").replace("\r", " ")
    return text if len(text) <= longest else text[: longest - 1] + "…"
