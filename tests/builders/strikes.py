"""Strikes at single steps of a daemon: an order to the kernel or a change of the journal that fails, lies, or is the
last thing that the process does.

A step is numbered in the order in which the daemon takes it, so a run that records its steps gives the numbers at which
the next runs are struck. What comes after a strike (a roll-back) has numbers too, so strikes are combined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from node_host.acting.journal import Journal, JournalEntry, JournalError
from node_host.handover.token_files import TokenFiles
from node_host.host import Host
from node_host.host.protocol import Names
from simulated_node.in_process import InProcessHost

if TYPE_CHECKING:
    from simulated_node.kernel import SimulatedKernel


R = TypeVar("R")


class Crash(BaseException):
    """The process dies here: nothing of the program runs after it."""


class Kind(StrEnum):
    """What a step is, by the part of the host that it is taken on."""

    OVERRIDE = "override"
    UNBIND = "unbind"
    BIND = "bind"
    PROBE = "probe"
    MODULE = "module"
    NUMBER = "numvfs"
    AUTOPROBE = "autoprobe"
    JOURNAL = "journal"
    TOKEN = "token"
    READ = "read"


@dataclass(frozen=True)
class Step:
    """One step: what it is, and the words of the order."""

    kind: Kind
    text: str

    @classmethod
    def of_write(cls, path: str, data: bytes) -> Step:
        parts = path.rsplit("/", 2)
        kind = {
            "driver_override": Kind.OVERRIDE,
            "unbind": Kind.UNBIND,
            "bind": Kind.BIND,
            "drivers_probe": Kind.PROBE,
            "sriov_numvfs": Kind.NUMBER,
            "sriov_drivers_autoprobe": Kind.AUTOPROBE,
        }[parts[-1]]
        return cls(kind, f"{'/'.join(parts[1:])} {data.decode().strip()}".strip())


@dataclass(frozen=True)
class Strike:
    """``errno`` refuses the step; ``lies`` reports success and does nothing; ``crash`` ends the process ``before`` or
    after it; ``event`` happens to the machine before or after it."""

    errno: int | None = None
    lies: bool = False
    crash: bool = False
    before: bool = True
    event: Callable[[SimulatedKernel], None] | None = None
    name: str = ""

    def __str__(self) -> str:
        return self.name


@dataclass
class Struck:
    """The steps of a run, and the strikes that are to fall. ``concerns`` picks the steps that count."""

    kernel: SimulatedKernel
    concerns: Callable[[Step], bool]
    strikes: Mapping[int, Strike] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    fallen: set[int] = field(default_factory=set)

    def take(self, step: Step, act: Callable[[], None]) -> None:
        """Take a step. What ``act`` raises comes through, and so does the strike."""
        if not self.concerns(step):
            act()
            return
        number = len(self.steps)
        self.steps.append(step)
        strike = self.strikes.get(number)
        if strike is None:
            act()
            return
        self.fallen.add(number)
        if strike.before:
            self._happen(strike)
        if strike.errno is not None:
            raise OSError(strike.errno, f"struck at {step.text}")
        if not strike.lies:
            act()
        if not strike.before:
            self._happen(strike)

    def _happen(self, strike: Strike) -> None:
        if strike.event is not None:
            with suppress(OSError):
                strike.event(self.kernel)
        if strike.crash:
            raise Crash


class StruckHost(InProcessHost):
    """The host port of a machine on which steps are struck."""

    def __init__(self, struck: Struck) -> None:
        super().__init__(struck.kernel)
        self._struck = struck

    def write(self, path: str, data: bytes) -> None:
        self._struck.take(Step.of_write(path, data), lambda: super(StruckHost, self).write(path, data))

    def load_module(self, name: str) -> None:
        self._struck.take(Step(Kind.MODULE, name), lambda: super(StruckHost, self).load_module(name))


class StruckReads(StruckHost):
    """The same where each read is a step too, and orders are none."""

    def read(self, path: str) -> bytes:
        return self._read(path, super().read)

    def read_link(self, path: str) -> str:
        return self._read(path, super().read_link)

    def list(self, path: str) -> Names:
        return self._read(path, super().list)

    def write(self, path: str, data: bytes) -> None:
        InProcessHost.write(self, path, data)

    def load_module(self, name: str) -> None:
        InProcessHost.load_module(self, name)

    def _read(self, path: str, read: Callable[[str], R]) -> R:
        answers: list[R] = []
        self._struck.take(Step(Kind.READ, path), lambda: answers.append(read(path)))
        return answers[0]


class StruckTokens(TokenFiles):
    """Token files whose renames are struck: a step of its own each."""

    def __init__(self, host: Host, struck: Struck) -> None:
        super().__init__(host)
        self._struck = struck

    def rename(self, name: str, new_name: str) -> bool:
        answers: list[bool] = []
        self._struck.take(
            Step(Kind.TOKEN, f"{name} to {new_name}"),
            lambda: answers.append(super(StruckTokens, self).rename(name, new_name)),
        )
        return answers[0] if answers else True


class StruckJournal(Journal):
    """A journal whose changes are struck: a step of its own each, refused as a full or read-only disk does."""

    def __init__(self, path: Path, struck: Struck) -> None:
        super().__init__(path)
        self._path = path
        self._struck = struck

    def _change(self, change: Callable[[dict[str, JournalEntry]], object]) -> None:
        before = Journal(self._path).load(set_aside=False).entries
        after = dict(before)
        with suppress(JournalError):
            change(after)
        names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        if not names:
            super()._change(change)
            return
        try:
            self._struck.take(
                Step(Kind.JOURNAL, f"journal {' '.join(names)}"), lambda: super(StruckJournal, self)._change(change)
            )
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}") from error
