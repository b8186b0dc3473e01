"""The faults there are, and how a seed draws one: pure, so that a seed printed by a failed run draws it again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from tests.builders.fault_proxy.requests import Verb


class Kind(StrEnum):
    """What goes wrong. Requests first, then streams, then the process itself."""

    GONE = "gone"
    """410: to lists and to the opening of watches."""
    ERROR = "error"
    """500, not acted on."""
    FORBIDDEN = "forbidden"
    """403, as while rights are being changed."""
    THROTTLED = "throttled"
    """429 with Retry-After."""
    HANG = "hang"
    """No answer for longer than any client waits, not acted on."""
    LOST = "lost"
    """Acted on, then the connection breaks instead of an answer."""
    TIMED_OUT = "timed-out"
    """Acted on, answered with 504."""
    DELAY = "delay"
    """Answered late."""
    STALE = "stale"
    """A list is answered as it was some time ago."""
    CUT = "cut"
    """The open streams break in the middle of a line."""
    EXPIRE = "expire"
    """The open streams end with 410 as an event."""
    DROP = "drop"
    """Events get lost, until the stream says 410."""
    DUPLICATE = "duplicate"
    """Events come twice, and once more after the next one."""
    REORDER = "reorder"
    """Events that lie close together come in another order."""
    LATE = "late"
    """Events come seconds late."""
    STALL = "stall"
    """The open streams stay open and carry nothing any more."""
    DEAD = "dead"
    """Lists and watches of the kind are refused until the process has noticed."""
    KILL_UNSENT = "kill-unsent"
    """kill -9 when a write goes out; it never arrives."""
    KILL_UNANSWERED = "kill-unanswered"
    """kill -9 when a write has taken effect; its answer is kept back."""
    KILL_ANSWERED = "kill-answered"
    """kill -9 when a write has taken effect and was answered."""


ON_STREAMS = (Kind.CUT, Kind.EXPIRE, Kind.DROP, Kind.DUPLICATE, Kind.REORDER, Kind.LATE, Kind.STALL)
KILLS = (Kind.KILL_UNSENT, Kind.KILL_UNANSWERED, Kind.KILL_ANSWERED)

FOLLOWED = ("npunodepolicies", "npunodestates", "nodes", "configmaps")
"""Kinds that the node-policy controller lists and watches."""
LIVELY = ("npunodepolicies", "npunodestates", "nodes")
"""Those of which there is something to tell in most scenarios."""
WRITTEN = ("npunodestates", "npunodestates", "npunodepolicies", "leases")


@dataclass(frozen=True, slots=True)
class Fault:
    """Strikes once the component has made `after` writes: `times` requests or events, with pauses of `seconds`."""

    kind: Kind
    plural: str = ""
    verb: Verb = Verb.WATCH
    after: int = 0
    times: int = 1
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.kind in KILLS:
            return f"{self.kind} at write {self.after}"
        aim = self.plural if self.kind in (*ON_STREAMS, Kind.DEAD) else f"{self.verb} {self.plural}"
        pause = f", {self.seconds:g} s" if self.seconds else ""
        return f"{self.kind} {aim} x{self.times} after {self.after} writes{pause}"


def draw(kind: Kind, seed: str | int, *, writes: int = 24) -> Fault:
    """A fault of this kind; `writes` bounds when it strikes."""
    rng = random.Random(f"{kind}/{seed}")
    after, times = rng.randrange(writes), rng.randint(1, 3)
    if kind in KILLS:
        return Fault(kind, verb=Verb.WRITE, after=1 + after)
    if kind is Kind.STALL:
        return Fault(kind, rng.choice(LIVELY), after=after)
    if kind is Kind.DEAD:
        return Fault(kind, rng.choice(FOLLOWED), after=after)
    if kind in (Kind.CUT, Kind.EXPIRE):
        return Fault(kind, rng.choice(FOLLOWED), after=after, times=times)
    if kind in ON_STREAMS:
        seconds = rng.choice((0.5, 1.0, 2.0))
        # Nodes say little in most scenarios: what is to be lost or shuffled are mostly states and policies.
        return Fault(kind, rng.choice((*LIVELY, "npunodestates")), after=after, times=times, seconds=seconds)
    if kind in (Kind.LOST, Kind.TIMED_OUT):
        return Fault(kind, rng.choice(WRITTEN), Verb.WRITE, after, times)
    if kind is Kind.STALE:
        return Fault(kind, rng.choice(LIVELY), Verb.LIST, after, times)
    if kind is Kind.GONE:
        return Fault(kind, rng.choice(FOLLOWED), rng.choice((Verb.LIST, Verb.WATCH)), after, times)
    verb = rng.choice((Verb.LIST, Verb.WATCH, Verb.WRITE, Verb.WRITE))
    plural = rng.choice(WRITTEN if verb is Verb.WRITE else FOLLOWED)
    if kind is Kind.HANG:
        return Fault(kind, plural, verb, after, 1, 12.0)
    if kind is Kind.DELAY:
        return Fault(kind, plural, verb, after, times, rng.choice((0.3, 1.0, 3.0)))
    return Fault(kind, plural, verb, after, times, 1.0 if kind is Kind.THROTTLED else 0.0)
