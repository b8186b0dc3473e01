"""Which devices are not to be tried again yet, because the last attempt failed.

Kept in memory only: a restarted daemon tries at once. What an observation shows by itself (a user, a veto) is not
remembered, so that it is acted on as soon as it changes.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

BASE_SECONDS: Final = 5.0
CAP_SECONDS: Final = 300.0
# A failure of a device that is used again is told for so long: only another attempt shows whether it has passed, and
# its users pay for that. So it is told longer each time.
FIRST_TOLD_SECONDS: Final = 300.0
LONGEST_TOLD_SECONDS: Final = 3600.0
_SHORT_CAP_SECONDS: Final = 15.0


class Attempted(Protocol):
    """What became of one device."""

    @property
    def address(self) -> str:
        """Its PCI address."""
        ...

    @property
    def reason(self) -> str:
        """One stable CamelCase word."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether it is as it was to be."""
        ...


T = TypeVar("T", bound=Attempted)


@dataclass(frozen=True, slots=True)
class _Attempt(Generic[T]):
    outcome: T
    count: int
    due: float
    told_until: float


class Attempts(Generic[T]):
    """Failed attempts with exponential back-off; ``jitter`` gives 0 to 1, times are seconds of one clock.

    Only failures of ``remembered`` reasons wait; those of ``short`` ones pass by themselves as a rule, and soon.
    """

    def __init__(
        self,
        jitter: Callable[[], float],
        *,
        remembered: Collection[str],
        short: Collection[str] = (),
        base_seconds: float = BASE_SECONDS,
        cap_seconds: float = CAP_SECONDS,
    ) -> None:
        self._jitter = jitter
        self._remembered = remembered
        self._short = short
        self._base = base_seconds
        self._cap = cap_seconds
        self._attempts: dict[str, _Attempt[T]] = {}

    def record(self, outcomes: Iterable[T], now: float) -> None:
        """Take in what became of a run: successes are forgotten, failures wait longer each time."""
        for outcome in outcomes:
            if outcome.is_done:
                self._attempts.pop(outcome.address, None)
            elif outcome.reason in self._remembered:
                before = self._attempts.get(outcome.address)
                count = before.count + 1 if before else 1
                cap = min(self._cap, _SHORT_CAP_SECONDS) if outcome.reason in self._short else self._cap
                wait = min(cap, self._base * 2.0 ** min(count - 1, 20)) * (0.5 + 0.5 * self._jitter())
                told = min(LONGEST_TOLD_SECONDS, FIRST_TOLD_SECONDS * 2.0 ** min(count - 1, 20))
                self._attempts[outcome.address] = _Attempt(outcome, count, now + wait, now + told)

    def in_force(self, now: float) -> dict[str, T]:
        """Devices that still wait, with the outcome that they wait for."""
        return {address: attempt.outcome for address, attempt in self._attempts.items() if attempt.due > now}

    def told_while_used(self, now: float) -> dict[str, T]:
        """Failures that are told of a device that is used again."""
        return {address: attempt.outcome for address, attempt in self._attempts.items() if attempt.told_until > now}

    def last(self) -> dict[str, T]:
        """The last failure of each device that has not succeeded since."""
        return {address: attempt.outcome for address, attempt in self._attempts.items()}

    def next_due(self, now: float) -> float | None:
        """Seconds until the first device may be tried again, None when none waits."""
        waits = [attempt.due - now for attempt in self._attempts.values() if attempt.due > now]
        return min(waits, default=None)

    def keep(self, addresses: Iterable[str]) -> None:
        """Forget all others: they are where they should be, or nobody wants them anywhere."""
        kept = set(addresses)
        self._attempts = {address: attempt for address, attempt in self._attempts.items() if address in kept}

    def try_again(self) -> None:
        """Everything may be tried at once; what became of it before is still known."""
        self._attempts = {address: replace(one, due=float("-inf")) for address, one in self._attempts.items()}

    def clear(self) -> None:
        """Another boot: nothing has been tried yet."""
        self._attempts.clear()
