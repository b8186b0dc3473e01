"""Times and counts of objects, so that no value that one object may hold can stop the plan for all of them.

The schema allows any date, and a clock may have been wrong: what stands in the future happened now, and sums end at the
last moment that there is.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from crds.models.conditions import parse_timestamp

_LAST: Final = datetime.max.replace(tzinfo=UTC)
_MOST: Final = 2**31 - 1


def happened(text: str, now: datetime) -> datetime:
    """The moment that an object tells, at most `now`; of one that tells none, `now`."""
    return min(parse_timestamp(text) or now, now)


def in_future(text: str, now: datetime) -> bool:
    """Whether the object tells a moment that cannot be, or none at all: its time starts anew."""
    moment = parse_timestamp(text)
    return moment is None or moment > now


def later(moment: datetime, seconds: float) -> datetime:
    """The moment so many seconds later, at most the last one that there is."""
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return _LAST


def lasted(since: datetime, now: datetime) -> float:
    """Seconds from one to the other, 0 where a clock was put back."""
    return max(0.0, (now - since).total_seconds())


def one_more(count: int) -> int:
    """The next number of a counter of the API, which ends at its bound."""
    return min(count + 1, _MOST)
