"""One boot of the guest with its pytest, followed by a thread while the host's pytest waits for reports."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tests.kernel.lab.share import BootDirectory, write_atomically
from tests.kernel.lab.watch import ROUND_SECONDS, Guest, Watch

STOP_SECONDS = 10.0
# From QEMU's start to the guest's first line of ours: 5 s on a quiet host, 45 s on one that does the work of five.
UP_SECONDS = 100.0
START_TRIES = 3
REPEATS = 2
MEANWHILE_SECONDS = 1.0
# The kernel's words for a processor that does not tick; a start that gets there does not recover.
STALLED = b"rcu_preempt detected stalls"


class Run(Protocol):
    """What boots: the lab's guests, or one that a test plays."""

    @property
    def summary(self) -> str: ...
    def prepare_boot(self, number: int, command: Sequence[str], *, wait_for_roles: bool) -> BootDirectory: ...
    def start(self, boot: BootDirectory) -> Guest: ...
    def close(self) -> None: ...


class Started(NamedTuple):
    """A guest whose stage2 runs, or whose last try has failed; `failed_starts` are the directories of those before."""

    directory: BootDirectory
    guest: Guest
    failed_starts: list[Path]


def start_up(run: Run, number: int, deadlines: Mapping[str, float], command: Sequence[str]) -> Started:
    """Start the guest until its stage2 runs. An emulated kernel may lose its timer while it starts, and hang: nothing
    has run then, so the start is repeated, and told to have been."""
    failed_starts: list[Path] = []
    while True:
        directory = run.prepare_boot(number, command, wait_for_roles=not deadlines)
        tests = [{"id": identity, "deadline": seconds} for identity, seconds in deadlines.items()]
        write_atomically(directory.request, {"tests": tests})
        guest = run.start(directory)
        if _comes_up(directory, guest) or len(failed_starts) == START_TRIES - 1:
            return Started(directory, guest, failed_starts)
        guest.kill()
        failed_starts.append(_put_aside(directory, "failed"))


def _put_aside(directory: BootDirectory, why: str) -> Path:
    """Where the directory of a boot that is repeated now lies."""
    places = (directory.path.with_name(f"{directory.path.name}-{why}-{number}") for number in itertools.count(1))
    place = next(place for place in places if not place.exists())
    return directory.path.rename(place)


def _comes_up(directory: BootDirectory, guest: Guest) -> bool:
    """Whether stage2 runs in time."""
    deadline = time.monotonic() + UP_SECONDS
    while not directory.dmesg.exists():
        if guest.status() is not None or time.monotonic() > deadline or _has_lost_its_timer(directory):
            return directory.dmesg.exists()
        time.sleep(ROUND_SECONDS)
    return True


def _has_lost_its_timer(directory: BootDirectory) -> bool:
    return directory.serial.exists() and STALLED in directory.serial.read_bytes()


class Boot:
    """Starts the guest at once. `deadlines`: seconds by node id, in the order in which they are to run; `command`:
    the guest's pytest, or what stands in for it when there is no test for this boot.

    A guest whose kernel loses a timer in mid-run says nothing of its tests, and is started again with those that have
    not ended; `lost` are the directories of such tries. Call from the main thread alone: QEMU ends with the thread that
    started it."""

    def __init__(self, run: Run, number: int, deadlines: Mapping[str, float], command: Sequence[str]) -> None:
        self.run = run
        self.number = number
        self.command = command
        self.failed_starts: list[Path] = []
        self.lost: list[Path] = []
        self._begin(deadlines, {})

    def _begin(self, deadlines: Mapping[str, float], earlier: Mapping[str, list[dict[str, Any]]]) -> None:
        started = start_up(self.run, self.number, deadlines, self.command)
        self.directory, self.guest = started.directory, started.guest
        self.failed_starts += started.failed_starts
        self.watch = Watch(self.guest, self.directory, deadlines, time.monotonic, earlier=earlier)
        name = f"kernel-lab-boot-{self.number}"
        self._thread = threading.Thread(target=self._follow, args=(self.watch,), name=name, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return self.watch.over and not self._is_to_be_repeated()

    def _is_to_be_repeated(self) -> bool:
        unfinished = self.watch.deadlines.keys() - self.watch.finished
        return self.watch.lost_its_timer and len(self.lost) < REPEATS and bool(unfinished)

    def repeat_if_lost(self) -> bool:
        """Start it again if its kernel has lost a timer and its guest is gone; whether it was. Raises LabError."""
        if not (self.watch.over and self._is_to_be_repeated()):
            return False
        self.stop()
        watch = self.watch
        self.lost.append(_put_aside(self.directory, "lost"))
        rest = {identity: seconds for identity, seconds in watch.deadlines.items() if identity not in watch.finished}
        self._begin(rest, {identity: watch.reports.get(identity, []) for identity in watch.finished})
        return True

    @staticmethod
    def _follow(watch: Watch) -> None:
        while not watch.over:
            try:
                watch.step()
            except Exception as error:  # a message that nobody can read: the run must say so, not hang
                watch.cancel(f"the lab cannot follow the guest: {error!r}")
                watch.abandon()
                return
            time.sleep(ROUND_SECONDS)

    def reports(self, nodeid: str, meanwhile: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """Wait for the test's end, or for the reason why it will not come; what has been reported until then.
        `meanwhile` is called now and then."""
        self._wait(lambda: self._is_settled(nodeid), meanwhile)
        with self.watch.changed:
            return list(self.watch.reports.get(nodeid, ()))

    def _is_settled(self, nodeid: str) -> bool:
        return nodeid in self.watch.finished or (self.watch.verdict is not None and not self._is_to_be_repeated())

    def finish(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Let the guest end its pytest and switch itself off; its watch knows how long that may take."""
        self._wait(lambda: self.over, meanwhile)
        self.stop()

    def _wait(self, what: Callable[[], bool], meanwhile: Callable[[], None]) -> None:
        while True:
            with self.watch.changed:
                if self.watch.changed.wait_for(what, timeout=MEANWHILE_SECONDS):
                    return
            self.repeat_if_lost()
            meanwhile()

    def stop(self) -> None:
        """End it at once, if it still runs."""
        self.guest.kill()
        self._thread.join(STOP_SECONDS)
