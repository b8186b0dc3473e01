"""What the linter tells: one fault, with the file and place where a person can mend it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from crds.yaml_nodes import YAMLFault
from webhooks.rules import RULES, Layer, Severity, Violation
from webhooks.rules.files import FILE_RULES, FileRule
from webhooks.rules.rule import Rule


class Spot(NamedTuple):
    """A place in a file. Line and column count from 1; they are 0 where there are none, as in the output of a build."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. ``object`` is e.g. ``NPUNodePolicy/atoms`` or ``VNPUQuota/team-a/quota``, "" for the file itself."""

    spot: Spot
    violation: Violation
    object: str = ""

    @property
    def rule(self) -> str:
        return self.violation.rule

    @property
    def is_error(self) -> bool:
        return self.violation.severity is Severity.ERROR

    @property
    def layer(self) -> Layer | None:
        """Who would find it, None for kubectl itself."""
        return rule_of(self.rule).layer

    def as_warning(self) -> Finding:
        return replace(self, violation=replace(self.violation, severity=Severity.WARNING))


def rule_of(identity: str) -> Rule | FileRule:
    """The rule with this id. Raises KeyError when there is none."""
    return FILE_RULES[identity] if identity in FILE_RULES else RULES[identity]


def of_file(
    rule: str, file: str, message: str, fix: str = "", *, line: int = 0, column: int = 0, warning: bool = False
) -> Finding:
    """A finding about a file as a whole, or about a place that is in no object."""
    severity = Severity.WARNING if warning else FILE_RULES[rule].severity
    return Finding(Spot(file, line, column), Violation(rule, severity, "", message, fix, value=message))


def of_yaml(rule: str, file: str, fault: YAMLFault) -> Finding:
    """A fault of a text as YAML."""
    return of_file(rule, file, fault.message, fault.fix, line=fault.line, column=fault.column)


def in_order(findings: list[Finding]) -> list[Finding]:
    """By file and place, errors before warnings at one place; faults that are the same word for word stand once."""
    once = dict.fromkeys(findings)
    return sorted(once, key=lambda one: (one.spot, not one.is_error, one.rule, one.violation.pointer, one.object))
