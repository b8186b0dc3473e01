"""How often slices are put right that somebody else has changed: at once, but not for ever against who insists.

The kubelet wipes a driver's slices when it starts, and again half a minute after the driver's socket went: these are
answered at once. Pure; times are seconds of one clock.
"""

from typing import Final

AT_ONCE: Final = 4
"""As many times in a row nothing is waited for."""
FIRST_PAUSE: Final = 2.0
LONGEST_PAUSE: Final = 60.0
QUIET_SECONDS: Final = 300.0
"""After so long without a repair all is forgotten."""


class RepairPace:
    """`wait` before each repair, `repaired` after it."""

    def __init__(self) -> None:
        self._times = 0
        self._last = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the next repair may be made; 0 for now."""
        if self._times and now - self._last >= QUIET_SECONDS:
            self._times = 0
        if self._times < AT_ONCE:
            return 0.0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._times - AT_ONCE, 30))
        return max(0.0, self._last + pause - now)

    def repaired(self, now: float) -> None:
        self._times += 1
        self._last = now
