"""Which changes are not to be tried again yet, because the last attempt failed. In memory: a restart tries at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from crds.models.profiling import ProfileReason as Reason
from profile_writer.card import Obstacle

BASE_SECONDS: Final = 5.0
CAP_SECONDS: Final = 300.0
_SEEN_EACH_TIME: Final = frozenset({Reason.IN_USE, Reason.PUBLISHED, Reason.CHANGED, Reason.VETOED})
"""What a look shows by itself is acted on as soon as it changes."""


@dataclass(frozen=True, slots=True)
class _Failure:
    obstacle: Obstacle
    count: int
    due: float


class Retries:
    """Failures by card and function, with exponential back-off; ``jitter`` gives 0 to 1, times are of one clock."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._failures: dict[tuple[str, str], _Failure] = {}

    def in_force(self, card: str, now: float) -> dict[str, Obstacle]:
        """What is not tried yet on a card, by function (or the card's own address)."""
        return {
            subject: failure.obstacle
            for (owner, subject), failure in self._failures.items()
            if owner == card and failure.due > now
        }

    def record(self, card: str, failed: Mapping[str, Obstacle], now: float) -> None:
        """Take in how a pass over the card ended; what did not fail in it is forgotten."""
        before = {subject: failure for (owner, subject), failure in self._failures.items() if owner == card}
        for subject in before:
            if subject not in failed:
                del self._failures[card, subject]
        for subject, obstacle in failed.items():
            known = before.get(subject)
            if obstacle.reason in _SEEN_EACH_TIME:
                self._failures.pop((card, subject), None)
            elif known is None or known.due <= now:
                count = known.count + 1 if known else 1
                wait = min(CAP_SECONDS, BASE_SECONDS * 2.0 ** min(count - 1, 20)) * (0.5 + 0.5 * self._jitter())
                self._failures[card, subject] = _Failure(obstacle, count, now + wait)

    def next_due(self, now: float) -> float | None:
        """Seconds until something may be tried again, None when nothing waits."""
        return min((max(0.0, failure.due - now) for failure in self._failures.values()), default=None)

    def forget(self, card: str) -> None:
        """New orders: everything is tried at once."""
        for key in [key for key in self._failures if key[0] == card]:
            del self._failures[key]

    def clear(self) -> None:
        """Another boot: nothing has been tried yet."""
        self._failures.clear()
