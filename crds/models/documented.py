"""How conditions and reasons are documented: the shapes of the tables."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasonDoc:
    """A reason, the status or state that it stands with, and what it means."""

    reason: str
    status: str
    meaning: str


@dataclass(frozen=True, slots=True)
class ConditionDoc:
    """A condition, the field of the object that holds it, and its reasons."""

    holder: str
    type: str
    meaning: str
    reasons: tuple[ReasonDoc, ...]


@dataclass(frozen=True, slots=True)
class ReasonTable:
    """Reasons outside of conditions: the field that holds them, and what each means."""

    field: str
    meaning: str
    reasons: tuple[ReasonDoc, ...]


def reasons(*rows: tuple[str, str, str]) -> tuple[ReasonDoc, ...]:
    """Rows of a table: reason, the status or state that it stands with, and what it means."""
    return tuple(ReasonDoc(str(reason), str(status), meaning) for reason, status, meaning in rows)
