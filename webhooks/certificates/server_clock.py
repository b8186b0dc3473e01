"""The API server's clock, as far as this host can know it: certificates and promises of time are kept by that one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

MOST_SKEW: Final = timedelta(minutes=5)
"""Beyond it a replica is not ready and writes nothing: by such a clock good certificates have ended, or new ones begin
too late."""


class ServerClock:
    """`skew` tells how far this host's clock is ahead of the API server's, None while nobody knows."""

    def __init__(
        self, skew: Callable[[], timedelta | None], now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._skew = skew
        self._now = now

    def now(self) -> datetime:
        """The present time: of this host while its clock is right, else what the API server's clock shows by it."""
        skew = self._skew()
        return self._now() if skew is None or abs(skew) <= MOST_SKEW else self._now() - skew

    def fault(self) -> str | None:
        """Why this host's clock cannot be relied on; None when it can. From any thread."""
        return skew_fault(self._skew())


def skew_fault(skew: timedelta | None) -> str | None:
    """What is wrong with a clock that is so far ahead of the API server's."""
    if skew is None or abs(skew) <= MOST_SKEW:
        return None
    side = "ahead of" if skew > timedelta() else "behind"
    return f"this host's clock is {abs(skew).total_seconds():.0f} s {side} the API server's: set it right"
