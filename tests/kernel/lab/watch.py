"""Following one boot: takes the guest's messages, answers its questions, and keeps the deadlines.

`step` does one round and knows no thread, no QEMU and no pytest, so a test can play the guest.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tests.kernel.lab.errors import LabError
from tests.kernel.lab.share import BootDirectory, MessageReader, unanswered, write_atomically

ROUND_SECONDS = 0.05
START_SECONDS = 300.0
END_SECONDS = 60.0
TAIL_LINES = 40
# The kernel's words for a processor whose timer no longer fires. It may come back on a host that was busy: the guest is
# given up only when nothing has been heard of it for a while after them.
TIMER_LOST = b"Possible timer handling issue"
LOST_SECONDS = 30.0


class Guest(Protocol):
    """What the watch needs of a running guest."""

    def status(self) -> int | None: ...
    def kill(self) -> None: ...
    def execute(self, command: str, arguments: Mapping[str, Any]) -> Any: ...


class Watch:
    """`deadlines`: seconds by node id. `clock`: seconds, monotonic. `earlier`: the reports of tests that ended in a try
    of this boot before. Read the rest under `changed`."""

    def __init__(
        self,
        guest: Guest,
        directory: BootDirectory,
        deadlines: Mapping[str, float],
        clock: Callable[[], float],
        *,
        start_seconds: float = START_SECONDS,
        end_seconds: float = END_SECONDS,
        lost_seconds: float = LOST_SECONDS,
        earlier: Mapping[str, list[dict[str, Any]]] | None = None,
    ) -> None:
        self.guest = guest
        self.directory = directory
        self.deadlines = deadlines
        self.clock = clock
        self.end_seconds = end_seconds
        self.lost_seconds = lost_seconds
        self.changed = threading.Condition()
        self.reports: dict[str, list[dict[str, Any]]] = dict(earlier or {})
        self.finished: set[str] = set(self.reports)
        self.collect_errors: list[str] = []
        # Why no further report will come; "" once the guest's pytest has said that it is through.
        self.verdict: str | None = None
        self.over = False
        self.running: str | None = None
        # Whether it was given up because its kernel had lost a timer, which says nothing of the tests.
        self.lost_its_timer = False
        self._reader = MessageReader(directory.messages)
        self._answered: set[Path] = set()
        self._lost_since: float | None = None
        self._due = clock() + start_seconds
        self._waiting_for = f"no test started within {start_seconds:g} s of the boot"

    def step(self) -> None:
        """One round; `over` is set when the guest is gone."""
        ended = self.guest.status() is not None  # before the messages: what it wrote before it ended must count
        messages = list(self._reader.new())
        with self.changed:
            for message in messages:
                self._take(message)
            if self.verdict is None and ended:
                self.verdict = f"the guest ended (QEMU's status {self.guest.status()}) before its tests had"
            self.over = ended
            self.changed.notify_all()
        if not ended:
            self._answer()
            self._look_for_a_lost_timer(heard=bool(messages))
            if self.clock() > self._due:
                self._give_up()

    def cancel(self, reason: str) -> None:
        """End the guest; tests without a result get this reason."""
        with self.changed:
            if self.verdict is None:
                self.verdict = reason
            self.changed.notify_all()
        self.guest.kill()

    def abandon(self) -> None:
        """Nobody will call `step` again."""
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def _take(self, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "start":
                self.running = str(message["id"])
                seconds = self.deadlines.get(self.running, END_SECONDS)
                self._expect(seconds, f"{self.running} did not end within {seconds:g} s")
            case "report":
                self.reports.setdefault(str(message["id"]), []).append(message["data"])
            case "finish":
                self.finished.add(str(message["id"]))
                self.running = None
                self._expect(self.end_seconds, f"nothing happened for {self.end_seconds:g} s after {message['id']}")
            case "collect-error":
                self.collect_errors.append(str(message["text"]))
            case "end":
                self.verdict = ""
                self._expect(self.end_seconds, "the guest did not switch itself off")
            case kind:
                raise LabError(f"unknown message of the guest: {kind}")

    def _expect(self, seconds: float, otherwise: str) -> None:
        self._due, self._waiting_for = self.clock() + seconds, otherwise

    def _look_for_a_lost_timer(self, *, heard: bool) -> None:
        if self._lost_since is None and not _contains(self.directory.serial, TIMER_LOST):
            return
        if self._lost_since is None or heard:
            self._lost_since = self.clock()
        elif self.verdict is None and self.clock() > self._lost_since + self.lost_seconds:
            self._waiting_for = f"nothing happened for {self.lost_seconds:g} s"
            self._due = self.clock() - 1

    def _give_up(self) -> None:
        lost = self._lost_since is not None and self.verdict is None
        with self.changed:
            self.lost_its_timer = lost
        said = "; its kernel had said that a processor's timer no longer fires" if lost else ""
        self.cancel(f"{self._waiting_for}{said}; the guest was ended")
        self._due = float("inf")

    def _answer(self) -> None:
        for request in unanswered(self.directory):
            if request in self._answered:
                continue
            self._answered.add(request)
            write_atomically(request.with_suffix(".answer"), self._reply(request))

    def _reply(self, request: Path) -> dict[str, Any]:
        try:
            content = json.loads(request.read_text())
            return {"return": self.guest.execute(str(content["execute"]), content["arguments"])}
        except (LabError, ValueError, KeyError, TypeError) as error:
            return {"error": str(error) or repr(error)}


def _contains(path: Path, words: bytes) -> bool:
    try:
        return words in path.read_bytes()
    except FileNotFoundError:
        return False


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log that may be missing or hold any bytes."""
    try:
        text = path.read_bytes()[-65536:].decode(errors="replace")
    except OSError as error:
        return f"({error.strerror})"
    return "\n".join(text.replace("\r", "").splitlines()[-lines:])


def evidence(directory: BootDirectory) -> str:
    """What a failure shows of a guest that did not end its tests."""
    logs = {
        "Python stacks before the deadline": directory.stacks,
        "QEMU": directory.path / "qemu.log",
        "the guest's pytest": directory.output,
        "serial line": directory.serial,
        "dmesg": directory.dmesg,
    }
    return "\n".join(f"--- {title} ({path})\n{tail(path)}" for title, path in logs.items())
