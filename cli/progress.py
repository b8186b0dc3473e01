"""Building and starting take minutes the first time: whoever waits must see what is going on and for how long."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO


def duration(seconds: float) -> str:
    """`7.3 s` below a minute, `4m18s` above."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"


class Step:
    """One piece of work in progress. The worker calls `tick` as often as it likes; what is shown is limited here."""

    def __init__(
        self, what: str, stream: TextIO, clock: Callable[[], float], quiet_seconds: float, *, at_once: bool
    ) -> None:
        self.what = what
        self._stream = stream
        self._clock = clock
        self._terminal = stream.isatty()
        self._every = 1.0 if self._terminal else quiet_seconds
        self._started = clock()
        self._shown = self._started - self._every if at_once else self._started
        self._tick_shown = False

    @property
    def seconds(self) -> float:
        return self._clock() - self._started

    def tick(self, detail: str = "") -> None:
        now = self._clock()
        if now - self._shown < self._every:
            return
        self._shown = now
        self._tick_shown = True
        text = f"{self.what}: {duration(self.seconds)}" + (f", {detail}" if detail else "")
        if self._terminal:
            self._stream.write("\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1])
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the moving line of a terminal, so that the next line starts on a clean one."""
        if self._terminal and self._tick_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


class Progress:
    """Reports to stderr (looked up at each use, so that a test runner may redirect it): one moving line on a terminal,
    otherwise a line at the start, every `quiet_seconds` and at the end."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        quiet_seconds: float = 20.0,
    ) -> None:
        self._given = stream
        self._clock = clock
        self._quiet_seconds = quiet_seconds

    @property
    def _stream(self) -> TextIO:
        return self._given if self._given is not None else sys.stderr

    def say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def waiting(self, what: str) -> Step:
        """For something that may not take any time: shown at its first tick, then as a step; the caller clears it."""
        return Step(what, self._stream, self._clock, self._quiet_seconds, at_once=True)

    @contextmanager
    def step(self, what: str, done: str) -> Iterator[Step]:
        """Show `what` while the block runs, then `done` with the time it took. A failed block says nothing more here:
        its error does."""
        stream = self._stream
        step = Step(what, stream, self._clock, self._quiet_seconds, at_once=False)
        if not stream.isatty():
            self.say(f"{what} ...")
        try:
            yield step
        finally:
            step.clear()
        self.say(f"{done} in {duration(step.seconds)}")
