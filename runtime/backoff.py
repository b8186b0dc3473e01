"""Growing, jittered pauses between failed attempts: the one formula for queue, watches, Leases and event posting."""

from __future__ import annotations

import random


class Backoff:
    """`next()` gives the pause after another failure in a row; `reset()` after a success.

    The pause doubles from `base` to `cap` seconds; half of it is random, so that many clients that failed together
    do not come back together.
    """

    def __init__(self, base: float, cap: float, jitter: random.Random) -> None:
        if not 0 < base <= cap:
            raise ValueError(f"a backoff needs 0 < base <= cap, not base={base}, cap={cap}")
        self._base = base
        self._cap = cap
        self._random = jitter
        self.failures = 0

    def next(self) -> float:
        """Seconds to wait now, in (pause/2, pause]; counts one failure."""
        pause = min(self._cap, self._base * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return pause * (1.0 - 0.5 * self._random.random())

    def reset(self) -> None:
        self.failures = 0
