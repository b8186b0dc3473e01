"""Whether an object's spec was changed past Git, and Git has not caught up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from controllers.break_glass.managed_fields import Path, leaves_by_manager, told
from crds.break_glass import REASON_ANNOTATION, UNTIL_ANNOTATION

_SPEC: Final = "f:spec"
_REASON: Final = ("f:metadata", "f:annotations", f"f:{REASON_ANNOTATION}")
_SHOWN_FIELDS: Final = 4
_SHOWN_REASON: Final = 256


@dataclass(frozen=True, slots=True)
class HandEdit:
    """A change by hand that stands. `managers` and `fields` are sorted; `until` is as written, "" where it was not."""

    managers: tuple[str, ...]
    fields: tuple[str, ...]
    reason: str
    until: str

    @property
    def message(self) -> str:
        """What the condition says; it follows from the object alone, so nothing in it moves by itself."""
        more = len(self.fields) - _SHOWN_FIELDS
        fields = ", ".join(self.fields[:_SHOWN_FIELDS]) + (f" and {more} more" if more > 0 else "")
        until = f", until {self.until}" if self.until else ""
        return (
            f"changed by hand with {', '.join(self.managers)}{until}: {fields}; because: {self.reason}. "
            "Goes when Git is applied with its own values for these fields"
        )


def edited_by_hand(obj: Mapping[str, Any]) -> HandEdit | None:
    """The change by hand that the object still has; None when it has none.

    By hand is what a field manager has set that also gave the reason for breaking glass. Once the manager of Git sets
    the same field the two agree, or Git has won: where another manager has set the field too, or anything in it, it
    does not count any more. A field that was taken away by hand has no manager, and does not show.
    """
    metadata = _mapping(obj.get("metadata"))
    annotations = _mapping(metadata.get("annotations"))
    if REASON_ANNOTATION not in annotations:
        return None  # nearly always: managed fields need not be looked at
    leaves = leaves_by_manager(metadata.get("managedFields"))
    fields: set[Path] = set()
    managers = []
    for manager, paths in leaves.items():
        if _REASON not in paths:
            continue
        others = {prefix for name, set_ in leaves.items() if name != manager for path in set_ for prefix in _ways(path)}
        own = {path for path in paths if path[0] == _SPEC and path not in others}
        if own:
            managers.append(manager)
            fields |= own
    if not fields:
        return None
    return HandEdit(
        tuple(sorted(managers)),
        tuple(sorted(map(told, fields))),
        _line(annotations[REASON_ANNOTATION]),
        _line(annotations.get(UNTIL_ANNOTATION, "")),
    )


def _ways(path: Path) -> list[Path]:
    """The path and all above it."""
    return [path[:length] for length in range(1, len(path) + 1)] if path[0] == _SPEC else []


def _line(text: Any) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _SHOWN_REASON else f"{line[:_SHOWN_REASON]}…"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
