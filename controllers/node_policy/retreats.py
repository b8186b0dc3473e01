"""When a device that was taken into use just as it was ordered to change is ordered again: ever later.

Somebody may open it each time that it is about to change, a monitor on the host, say. Without a pause each plan would
order it or take the order back. Kept in memory: a new leader tries once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

FIRST_SECONDS: Final = 30
LONGEST_SECONDS: Final = 3600
_CALM: Final = timedelta(seconds=2 * LONGEST_SECONDS)


@dataclass(frozen=True, slots=True)
class _Pause:
    until: datetime
    times: int


class Retreats:
    """By node and device: until when it is not ordered to change again. After two calm hours it counts anew."""

    def __init__(self) -> None:
        self._pauses: dict[tuple[str, str], _Pause] = {}

    def note(self, retreats: Mapping[str, Iterable[str]], now: datetime) -> None:
        """These orders, by node, are taken back, since the devices were in use before they could change."""
        self._pauses = {place: pause for place, pause in self._pauses.items() if now < pause.until + _CALM}
        for node, addresses in retreats.items():
            for address in addresses:
                last = self._pauses.get((node, address))
                if last is not None and now < last.until:
                    continue  # planned once more, for it is not written yet
                times = last.times + 1 if last is not None else 1
                seconds = min(LONGEST_SECONDS, FIRST_SECONDS << min(times - 1, LONGEST_SECONDS.bit_length()))
                self._pauses[node, address] = _Pause(now + timedelta(seconds=seconds), times)

    def resting(self, now: datetime) -> dict[str, frozenset[str]]:
        """By node: the devices that are not ordered to change yet."""
        found: dict[str, set[str]] = {}
        for (node, address), pause in self._pauses.items():
            if now < pause.until:
                found.setdefault(node, set()).add(address)
        return {node: frozenset(addresses) for node, addresses in found.items()}

    def wait(self, now: datetime) -> float | None:
        """Seconds until the next of them may be ordered again; None when none rests."""
        ends = [pause.until for pause in self._pauses.values() if now < pause.until]
        return (min(ends) - now).total_seconds() if ends else None
