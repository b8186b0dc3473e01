"""Faults that a test orders: what fails, lies, hangs or takes its time.

Each fault names operations by pattern (fnmatch):

- a write by its path, as the writer gave it or as the kernel resolves it ("/sys/bus/pci/drivers/*/bind");
- a read through the host port as "read:<path>", "list:<path>" or "link:<path>", the path in either form;
- a module load as "module:vfio_pci";
- a driver's callback: "probe:vfio-pci:0000:23:00.0" (fails), "remove:igb:0000:23:00.0" (hangs), "sriov:0000:23:00.0"
  (the number of VFs is set: fails or hangs). One that hangs keeps the device's lock, as the kernel does.

A pattern strikes only what has the same word before its colon: "*" strikes writes and nothing else.
"""

import errno as errnos
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from simulated_node.description import PROBE_DEFER

_READS = ("read", "list", "link")


@dataclass(slots=True)
class _Fault:
    pattern: str
    errno: str | None
    times: int | None


@dataclass(slots=True)
class Block:
    """A hold on matching operations: they sleep until ``release``, or each for ``seconds`` of its own."""

    pattern: str
    seconds: float | None
    _changed: threading.Condition
    _told: Callable[[], None]
    released: bool = False
    _since: dict[int, float] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """How many operations sleep here, or would, had their time not come."""
        return len(self._since)

    def release(self) -> None:
        with self._changed:
            self.released = True
            self._since.clear()
            self._told()
            self._changed.notify_all()

    def wait_until_blocked(self, timeout_seconds: float = 5) -> bool:
        """Whether an operation has come to sleep here in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.waiting > 0, timeout_seconds)

    def holds(self, operation: int, now: float) -> bool:
        if operation not in self._since:
            self._since[operation] = now
            self._changed.notify_all()  # once: sleepers that woke each other again and again would never rest
        return self.seconds is None or now < self._since[operation] + self.seconds

    def ends(self) -> list[float]:
        """When the time of each operation here is over."""
        return [] if self.seconds is None else [since + self.seconds for since in self._since.values()]

    def forget(self, operation: int) -> None:
        self._since.pop(operation, None)


class Faults:
    """The faults in force. The kernel asks under its own lock, ``changed``, which wakes what sleeps as well.

    ``clock`` gives seconds; ``told`` is called, with the lock, when faults come or go.
    """

    def __init__(self, changed: threading.Condition, clock: Callable[[], float], told: Callable[[], None]) -> None:
        self._changed = changed
        self._clock = clock
        self._told = told
        self._faults: list[_Fault] = []
        self._blocks: list[Block] = []

    @property
    def strike_reads(self) -> bool:
        patterns = [fault.pattern for fault in self._faults]
        patterns += [block.pattern for block in self._blocks if not block.released]
        return any(pattern.partition(":")[0] in _READS for pattern in patterns)

    def fail_next(self, pattern: str, errno: str, times: int | None = 1) -> None:
        """The next matching operations (None: all) fail with this errno and do nothing. ValueError for an unknown
        errno.
        """
        if not hasattr(errnos, errno) and not (errno == PROBE_DEFER and pattern.startswith("probe:")):
            raise ValueError(f"no errno is called {errno!r}")
        self._add(_Fault(pattern, errno, times))

    def swallow_next(self, pattern: str, times: int | None = 1) -> None:
        """The next matching operations report success and do nothing."""
        self._add(_Fault(pattern, None, times))

    def block(self, pattern: str, seconds: float | None = None) -> Block:
        with self._changed:
            self._blocks = [block for block in self._blocks if not block.released]
            self._blocks.append(made := Block(pattern, seconds, self._changed, self._told))
            self._told()
        return made

    def clear(self) -> None:
        """All is well again; what sleeps goes on."""
        with self._changed:
            for block in self._blocks:
                block.release()
            self._faults.clear()
            self._told()

    def hit(self, *names: str) -> tuple[bool, str | None]:
        """Whether a fault strikes an operation known by these names, and its errno, None when it is a lie."""
        for fault in self._faults:
            if any(_matches(fault.pattern, name) for name in names):
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self._faults.remove(fault)
                        self._told()
                return True, fault.errno
        return False, None

    def hold(self, operation: int, *names: str) -> bool:
        """Whether the operation has to sleep on; ``forget`` it when it has ended."""
        now = self._clock()
        holding = [
            block.holds(operation, now)
            for block in self._blocks
            if not block.released and any(_matches(block.pattern, name) for name in names)
        ]
        return any(holding)

    def forget(self, operation: int) -> None:
        for block in self._blocks:
            block.forget(operation)

    def seconds_to_next(self) -> float | None:
        """Until the time of the next operation that sleeps for a time is over; None when none does."""
        now = self._clock()
        ahead = [end - now for block in self._blocks if not block.released for end in block.ends() if end > now]
        return min(ahead, default=None)

    def _add(self, fault: _Fault) -> None:
        with self._changed:
            self._faults.append(fault)
            self._told()


def _matches(pattern: str, name: str) -> bool:
    if not name.startswith("/") and pattern.partition(":")[0] != name.partition(":")[0]:
        return False
    return fnmatchcase(name, pattern)
