"""Decides, request by request and stream by stream, which fault of a plan strikes, and keeps count of what struck."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.builders.fault_proxy.faults import KILLS, ON_STREAMS, Fault, Kind
from tests.builders.fault_proxy.requests import Asked, Verb
from tests.builders.fault_proxy.streams import Stream, Trouble

UNCOUNTED = {"leases", "events"}


@dataclass(slots=True)
class _Planned:
    fault: Fault
    left: int
    armed: bool = False


class Weather:
    """The faults of one run. Nothing strikes before `begin`; `after` of a fault counts writes from there."""

    def __init__(
        self,
        faults: Sequence[Fault] = (),
        *,
        seed: str | int = 0,
        on_kill: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hits: Counter[Kind] = Counter()
        self.last: float | None = None
        """When the last fault struck or was over."""
        self.writes: list[str] = []
        """Writes that took effect since the start, as "VERB path"; Leases and Events apart."""
        self.refused = 0
        """Writes that the server itself has refused."""
        self.opened: Counter[str] = Counter()
        """Watches that were opened, by kind."""
        self.stalled: dict[str, tuple[float, int]] = {}
        """Kinds whose streams were stalled: when, and how many had been opened by then."""
        self.dead: dict[str, float] = {}
        """Kinds that are refused until `revive`, and since when."""
        self._planned = [_Planned(fault, fault.times) for fault in faults]
        self._begun: int | None = None
        self._rng = random.Random(f"weather/{seed}")
        self._on_kill = on_kill
        self._clock = clock
        self._streams: set[Stream] = set()

    def begin(self) -> None:
        """From now on faults may strike."""
        self._begun = len(self.writes)
        self._arm()

    @property
    def pending(self) -> list[Fault]:
        """Faults that have not struck to the end."""
        return [planned.fault for planned in self._planned if planned.left > 0]

    # Requests.

    def strikes(self, asked: Asked) -> Fault | None:
        """The fault that this request meets, if any."""
        if asked.plural in self.dead and asked.verb in (Verb.LIST, Verb.WATCH):
            return Fault(Kind.FORBIDDEN, asked.plural, asked.verb)
        for planned in self._planned:
            if planned.left > 0 and self._meets(planned, asked):
                planned.left -= 1
                if planned.fault.kind is not Kind.STALE:  # counted once there is something old to answer with
                    self.hit(planned.fault.kind)
                return planned.fault
        return None

    def _meets(self, planned: _Planned, asked: Asked) -> bool:
        fault = planned.fault
        if fault.kind in KILLS:
            number = len(self.writes) + 1 - (self._begun or 0)
            return (
                self._begun is not None
                and asked.verb is Verb.WRITE
                and asked.plural not in UNCOUNTED
                and number >= fault.after
            )
        if fault.kind in ON_STREAMS or fault.kind is Kind.DEAD:
            return False
        return planned.armed and (asked.verb, asked.plural) == (fault.verb, fault.plural)

    def hit(self, kind: Kind) -> None:
        self.hits[kind] += 1
        self.over()

    def over(self) -> None:
        self.last = self._clock()

    def kill(self) -> None:
        self._on_kill()

    def wrote(self, text: str, asked: Asked, status: int) -> None:
        """The server has answered a write."""
        if asked.plural in UNCOUNTED:
            return
        if status < 300:
            self.writes.append(text)
            self._arm()
        else:
            self.refused += 1

    # Streams.

    def open(self, stream: Stream) -> None:
        self.opened[stream.plural] += 1
        self._streams.add(stream)

    def close(self, stream: Stream) -> None:
        self._streams.discard(stream)

    def revive(self, plural: str) -> None:
        """End a `DEAD` fault."""
        if self.dead.pop(plural, None) is not None:
            self.over()

    def trouble(self, plural: str, trouble: Trouble) -> int:
        """Do this to the open streams of a kind; returns how many there are."""
        streams = [stream for stream in self._streams if stream.plural == plural]
        for stream in streams:
            stream.trouble(trouble)
        return len(streams)

    def stream_rng(self) -> random.Random:
        return random.Random(self._rng.random())

    def _arm(self) -> None:
        if self._begun is None:
            return
        done = len(self.writes) - self._begun
        for planned in self._planned:
            if not planned.armed and planned.left > 0 and done >= planned.fault.after:
                planned.armed = True
                self._provoke(planned)

    def _provoke(self, planned: _Planned) -> None:
        """Faults on streams strike those that are open now; for others the request that they wait for is provoked."""
        fault = planned.fault
        if fault.kind in KILLS:
            return
        if fault.kind is Kind.DEAD:
            planned.left = 0
            self.dead[fault.plural] = self._clock()
            self.hit(fault.kind)
            self.trouble(fault.plural, Trouble(Kind.DELAY))
        elif fault.kind in ON_STREAMS:
            planned.left = 0
            if self.trouble(fault.plural, Trouble(fault.kind, fault.times, fault.seconds)) == 0:
                planned.left, planned.armed = fault.times, False  # none is open: at the next write then
            elif fault.kind is Kind.STALL:
                self.stalled[fault.plural] = (self._clock(), self.opened[fault.plural])
        elif fault.verb is Verb.LIST:
            self.trouble(fault.plural, Trouble(Kind.GONE))
        elif fault.verb is Verb.WATCH:
            self.trouble(fault.plural, Trouble(Kind.DELAY))
