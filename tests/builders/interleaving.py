"""Two or more processes that take turns step by step, in every order that there is, each killed after any of its steps.

A process is a function that takes its steps through a gate. Every run is made anew from the beginning, with the turns
of the run before but for the last one that can be taken otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from node_host.handover.token_files import TokenFiles
from node_host.host import Host

T = TypeVar("T")


class Killed(BaseException):
    """The process ends here; its descriptors are closed, and nothing of it runs on."""


class Gate:
    """Where one process waits for its turn before each step. ``kill_after``: the number of its last step."""

    def __init__(self, kill_after: int | None = None) -> None:
        self.steps = 0
        self.killed = False
        self._kill_after = kill_after
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self.done = False
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def step(self, act: Callable[[], T]) -> T:
        """Take one step when it is this process's turn."""
        self._back.release()
        self._turn.acquire()
        result = act()
        self.steps += 1
        if self.steps == self._kill_after:
            raise Killed
        return result

    def start(self, work: Callable[[], None]) -> None:
        """Run up to the first step."""

        def run() -> None:
            try:
                work()
            except Killed:
                self.killed = True
            except BaseException as error:
                self.error = error
            self.done = True
            self._back.release()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self._back.acquire()

    def turn(self) -> None:
        """Let it take one step, and run up to the next."""
        self._turn.release()
        self._back.acquire()


class StepFiles(TokenFiles):
    """Token files of one process, each call of which is a step."""

    def __init__(self, host: Host, gate: Gate) -> None:
        super().__init__(host)
        self._gate = gate

    def names(self) -> list[str]:
        return self._gate.step(super().names)

    def read(self, name: str) -> bytes | None:
        return self._gate.step(lambda: super(StepFiles, self).read(name))

    def exists(self, name: str) -> bool:
        return self._gate.step(lambda: super(StepFiles, self).exists(name))

    def write(self, name: str, data: bytes) -> None:
        self._gate.step(lambda: super(StepFiles, self).write(name, data))

    def rename(self, name: str, new_name: str) -> bool:
        return self._gate.step(lambda: super(StepFiles, self).rename(name, new_name))

    def remove(self, name: str) -> None:
        self._gate.step(lambda: super(StepFiles, self).remove(name))


@dataclass
class Turns:
    """The turns of one run: at each moment which of those that can go on goes on."""

    chosen: list[int] = field(default_factory=list)
    options: list[int] = field(default_factory=list)

    def choose(self, count: int) -> int:
        position = len(self.options)
        self.options.append(count)
        if position == len(self.chosen):
            self.chosen.append(0)
        return self.chosen[position]

    def next(self) -> Turns | None:
        """Those of the next run, None when all have been."""
        chosen = self.chosen[: len(self.options)]
        while chosen:
            if chosen[-1] + 1 < self.options[len(chosen) - 1]:
                return Turns([*chosen[:-1], chosen[-1] + 1])
            chosen.pop()
        return None


def interleave(
    processes: Mapping[str, Callable[[Gate], None]],
    turns: Turns,
    *,
    kill: tuple[str, int] | None = None,
    between: Callable[[], None] = lambda: None,
) -> dict[str, Gate]:
    """One run; ``between`` looks at the world after each step. Errors of the processes come through."""
    gates = {name: Gate(kill[1] if kill is not None and kill[0] == name else None) for name in processes}
    for name, gate in gates.items():
        gate.start(lambda name=name, gate=gate: processes[name](gate))  # type: ignore[misc]
    while ready := [gate for gate in gates.values() if not gate.done]:
        ready[turns.choose(len(ready))].turn()
        between()
    for gate in gates.values():
        if gate.error is not None:
            raise gate.error
    return gates


def every_order(run: Callable[[Turns, tuple[str, int] | None], dict[str, Gate]]) -> Iterator[dict[str, Gate]]:
    """``run`` in every order of turns; then again with each process killed after each of its steps, in every order."""
    longest: dict[str, int] = {}
    for gates in _orders(run, None):
        for name, gate in gates.items():
            longest[name] = max(longest.get(name, 0), gate.steps)
        yield gates
    for name, steps in longest.items():
        for step in range(1, steps + 1):
            yield from _orders(run, (name, step))


def _orders(
    run: Callable[[Turns, tuple[str, int] | None], dict[str, Gate]], kill: tuple[str, int] | None
) -> Iterator[dict[str, Gate]]:
    turns: Turns | None = Turns()
    while turns is not None:
        yield run(turns, kill)
        turns = turns.next()
