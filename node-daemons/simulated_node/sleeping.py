"""Operations that sleep in the kernel: what they keep locked, what wakes them, and that they end with the machine."""

import threading
from collections.abc import Callable
from typing import TypeVar

from simulated_node.faults import Faults
from simulated_node.model.state import Machine
from simulated_node.rules.registry import WouldBlockError, rule

T = TypeVar("T")

REBOOTED = rule(
    "boot.sleeping-writes-die",
    "A write that sleeps when the machine goes down never succeeds.",
    errno="ESHUTDOWN",
    source="limit of the simulation: a real writer dies with the machine",
)


class Sleepers:
    """All of them. ``changed`` is the kernel's lock, held by every caller; it is given up while one sleeps.

    ``settle`` makes files and events follow the state and says whether there was anything to follow.
    """

    def __init__(self, changed: threading.Condition, faults: Faults, settle: Callable[[], bool]) -> None:
        self.paths: list[str] = []
        self._changed = changed
        self._faults = faults
        self._settle = settle
        self._boot = 0

    def go_down(self) -> None:
        """Whoever sleeps wakes and fails."""
        self._boot += 1
        self._changed.notify_all()

    def hold(self, operation: int, *names: str) -> None:
        """Sleep where an ordered fault holds an operation known by these names."""
        try:
            self.until(names[0], lambda: not self._faults.hold(operation, *names))
        finally:
            self._faults.forget(operation)

    def until(self, path: str, holds: Callable[[], bool]) -> None:
        boot = self._boot
        while not holds():
            self._sleep(path, boot)

    def retry(self, machine: Machine, path: str, operation: int, step: Callable[[], T]) -> T:
        """Do it; as often as it would block, sleep until something changed and do it again."""
        boot = self._boot
        held: set[str] = set()
        try:
            while True:
                try:
                    return step()
                except WouldBlockError as block:
                    held.update(block.holds)
                    for address in block.holds:
                        machine.devices[address].holder = operation
                # Two sleepers that woke each other without a change would never rest.
                if self._settle():
                    self._changed.notify_all()
                self._sleep(path, boot)
        finally:
            self._faults.forget(operation)
            for address in held & machine.devices.keys():
                if machine.devices[address].holder == operation:
                    machine.devices[address].holder = None

    def _sleep(self, path: str, boot: int) -> None:
        self.paths.append(path)
        try:
            self._changed.wait(self._faults.seconds_to_next())
        finally:
            self.paths.remove(path)
        if self._boot != boot:
            raise REBOOTED.refuses("the machine went down meanwhile")
