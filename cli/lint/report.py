"""What a run of the linter says in the end, before anybody decides how to print it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cli.errors import ExitCode
from cli.lint.findings import Finding
from webhooks.rules import Layer

_SERVER: tuple[Layer, ...] = (Layer.FIELDS, Layer.SCHEMA, Layer.CEL, Layer.WEBHOOK)


@dataclass(frozen=True, slots=True)
class Step:
    """What the API server would show in one go. ``findings`` are the errors of that layer."""

    number: int
    layer: Layer
    findings: tuple[Finding, ...]

    @property
    def text(self) -> str:
        """E.g. ``step 2: schema (14:3, 15:3)``."""
        places = [
            f"{one.spot.line}:{one.spot.column}" if one.spot.line else one.violation.field for one in self.findings
        ]
        return f"step {self.number}: {self.layer.title} ({', '.join(dict.fromkeys(places))})"


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a run, in order. ``known`` are those that a baseline lets pass."""

    findings: tuple[Finding, ...]
    files: int
    objects: int
    known: int = 0
    is_strict: bool = False
    notes: tuple[str, ...] = ()
    stale: tuple[str, ...] = field(default=())

    @property
    def errors(self) -> int:
        return sum(one.is_error for one in self.findings)

    @property
    def warnings(self) -> int:
        return len(self.findings) - self.errors

    @property
    def exit_code(self) -> ExitCode:
        found = self.errors or (self.is_strict and (self.warnings or self.stale))
        return ExitCode.FINDINGS if found else ExitCode.CLEAN

    @property
    def summary(self) -> str:
        """One line: what was looked at, and what came of it."""
        looked = f"{_count(self.objects, 'object')} in {_count(self.files, 'file')}"
        known = f", {self.known} more in the baseline" if self.known else ""
        if not self.findings:
            return f"{looked}: no faults{known}"
        return f"{looked}: {_count(self.errors, 'error')}, {_count(self.warnings, 'warning')}{known}"


def steps(findings: Iterable[Finding]) -> list[Step]:
    """In which steps a server would show the errors of one object of ours, each only when those before are mended."""
    errors = [one for one in findings if one.is_error and not one.rule.startswith("NPF-K8S")]
    found = [(layer, tuple(one for one in errors if one.layer is layer)) for layer in _SERVER]
    shown = [(layer, those) for layer, those in found if those]
    return [Step(number, layer, those) for number, (layer, those) in enumerate(shown, start=1)]


def by_object(findings: Iterable[Finding]) -> Mapping[tuple[str, str], list[Finding]]:
    """The findings by file and object, in their order."""
    found: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        found.setdefault((one.spot.file, one.object), []).append(one)
    return found


def orders(findings: Iterable[Finding]) -> list[str]:
    """A sentence for each object that has faults of more than one step."""
    sentences = []
    for (_, name), those in by_object(findings).items():
        told = steps(those)
        if name and len(told) > 1:
            order = ", ".join(step.text for step in told)
            sentences.append(f"{name}: the API server would show these one step at a time: {order}")
    return sentences


def _place(finding: Finding) -> str:
    return f"{finding.spot.line}:{finding.spot.column}" if finding.spot.line else finding.violation.field


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
