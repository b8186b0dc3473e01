"""Conditions in the shape of metav1.Condition, and the pure rules for changing them.

Source: Kubernetes API conventions, "Typical status properties": ``lastTransitionTime`` moves only when ``status``
changes, ``message`` is at most 32768 characters, ``reason`` is never empty.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from crds.models.base import Distinct, Generation, Model

MESSAGE_LIMIT: Final = 32768
_CUT_MARK: Final = " … (cut)"


class Status(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


TIME_PATTERN: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z$"


@lru_cache(maxsize=1024)
def _checked_time(text: str) -> str:
    # The pattern holds already; what is left are days that no calendar has.
    datetime.fromisoformat(text)
    return text


Time = Annotated[
    str,
    Field(max_length=32, pattern=TIME_PATTERN, json_schema_extra={"format": "date-time"}),
    AfterValidator(_checked_time),
]


class Condition(Model):
    """One observation of an object's state."""

    type: Annotated[str, Field(min_length=1, max_length=316, description="What is observed, e.g. `Ready`.")]
    status: Annotated[Status, Field(description="Whether it holds: `True`, `False` or `Unknown`.")]
    observed_generation: Annotated[
        Generation | None, Field(description="The metadata.generation that this condition was computed from.")
    ] = None
    last_transition_time: Annotated[Time, Field(description="When `status` last changed (RFC 3339, UTC).")]
    reason: Annotated[
        str,
        Field(
            min_length=1,
            max_length=1024,
            pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            description="Why, as one stable CamelCase word.",
        ),
    ]
    message: Annotated[str, Field(max_length=MESSAGE_LIMIT, description="Why, for a human; may be empty.")]


Conditions = Annotated[
    tuple[Condition, ...],
    Field(max_length=16, description="The latest observations of the object's state, one per type."),
    Distinct("type"),
]


def truncate_message(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """The text, cut to ``limit`` characters with a mark that says so."""
    if len(text) <= limit:
        return text
    return text[: limit - len(_CUT_MARK)] + _CUT_MARK if limit > len(_CUT_MARK) else text[:limit]


def condition(
    type: str,
    status: Status | bool | None,
    reason: str,
    message: str = "",
    *,
    now: str,
    observed_generation: int | None = None,
) -> Condition:
    """A condition whose status is given as a Status, or as True, False or None (Unknown)."""
    if not isinstance(status, Status):
        status = {True: Status.TRUE, False: Status.FALSE, None: Status.UNKNOWN}[status]
    fields = {} if observed_generation is None else {"observed_generation": observed_generation}
    return Condition(
        type=type,
        status=status,
        reason=reason,
        message=truncate_message(message),
        last_transition_time=now,
        **fields,
    )


def find_condition(conditions: Iterable[Condition], type: str) -> Condition | None:
    """The condition of that type, or None."""
    return next((c for c in conditions if c.type == type), None)


def merge_conditions(old: Iterable[Condition], new: Iterable[Condition]) -> tuple[Condition, ...]:
    """``new``, each with the old transition time where its status has not changed.

    Types that ``new`` does not name are dropped: the caller states the whole set that it owns.
    """
    former = {c.type: c for c in old}
    merged = []
    for fresh in new:
        before = former.get(fresh.type)
        since = before.last_transition_time if before is not None and before.status == fresh.status else None
        if since is None or since == fresh.last_transition_time:
            merged.append(fresh)
        else:
            merged.append(fresh.model_copy(update={"last_transition_time": since}))
    return tuple(merged)


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, to the second, as metav1.Time has it."""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def parse_timestamp(text: str) -> datetime | None:
    """The moment that an object of the API tells (metav1.Time or MicroTime), None when it tells none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def same_status(left: Any, right: Any) -> bool:
    """Equality as the API sees it, of parts of a status as plain data.

    Absent equals None, and conditions are a map by type, whatever their order.
    """
    if isinstance(left, str) or left is None:
        return bool(left == right)
    if isinstance(left, dict) and isinstance(right, dict):
        return all(same_status(value, right.get(key)) for key, value in left.items()) and all(
            value is None for key, value in right.items() if key not in left
        )
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        if len(left) != len(right):
            return False
        if _are_conditions(left) and _are_conditions(right):
            left = sorted(left, key=lambda condition: str(condition["type"]))
            right = sorted(right, key=lambda condition: str(condition["type"]))
        return all(map(same_status, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def _are_conditions(items: Sequence[Any]) -> bool:
    return bool(items) and all(isinstance(item, dict) and "type" in item and "status" in item for item in items)
