"""The loop breaker: a device that somebody else moves away again and again is not fought over.

A repair is a bind of a device that this binder has seen in its place before. After three within ten minutes the device
is left where it is and reported, until new orders come or the first of the three is ten minutes old.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from node_host.evidence.usage import in_use_text
from node_host.view import HostView

LIMIT: Final = 3
WINDOW_SECONDS: Final = 600.0


class DriftGuard:
    """Repairs by device; times are seconds of one clock."""

    def __init__(self, *, limit: int = LIMIT, window_seconds: float = WINDOW_SECONDS) -> None:
        self._limit = limit
        self._window = window_seconds
        self._in_place: set[str] = set()
        self._repairs: dict[str, list[float]] = defaultdict(list)

    def seen_in_place(self, addresses: Iterable[str]) -> None:
        """These are where they should be: if one has to be bound again, somebody moved it."""
        self._in_place.update(addresses)

    def no_longer_wanted(self, wanted: Iterable[str]) -> None:
        """Only these still have a place to be in."""
        self._in_place &= set(wanted)

    def bound(self, addresses: Iterable[str], now: float) -> None:
        """These were bound just now."""
        for address in set(addresses) & self._in_place:
            self._repairs[address].append(now)

    def new_orders(self) -> None:
        """What was done for other orders does not count."""
        self._repairs.clear()

    def new_boot(self) -> None:
        """Nothing is in its place any more, and nobody moved it."""
        self._repairs.clear()
        self._in_place.clear()

    def drifting(self, view: HostView, now: float) -> dict[str, str]:
        """Devices that are not repaired now, with what is seen of whoever moves them."""
        found = {}
        for address, times in self._repairs.items():
            recent = [time for time in times if time > now - self._window]
            times[:] = recent
            if len(recent) >= self._limit:
                found[address] = self._message(view, address, len(recent))
        return found

    def next_due(self, now: float) -> float | None:
        """Seconds until a device may be repaired again, None when none waits."""
        waits = [
            times[-self._limit] + self._window - now for times in self._repairs.values() if len(times) >= self._limit
        ]
        return max(0.0, min(waits)) if waits else None

    def _message(self, view: HostView, address: str, count: int) -> str:
        minutes = f"{self._window / 60:g} min"
        text = f"something moved it away {count} times within {minutes}, so it is left there: stop that, then wait"
        device = view.devices.get(address)
        if device is None:
            return text
        text += f". Now on {device.driver or 'no driver'}"
        if device.driver_override is not None:
            text += f", driver_override {device.driver_override}"
        users = view.users.get(address, ())
        return text + (f", in use by {in_use_text(users)}" if users else "")
