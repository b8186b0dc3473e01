"""Faults that a test orders: writes that fail, lie, or hang.

Each fault names operations by pattern (fnmatch): a write by its path as the writer gave it or as the kernel resolves it
("/sys/bus/pci/drivers/*/bind"), a module load as "module:vfio_pci", a probe as "probe:vfio-pci:0000:23:00.0", a read
of the same process as "read:/sys/…/vendor" (readers of other processes read plain files, which never fail).
"""

import errno as errnos
import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase

from simulated_node.description import PROBE_DEFER


@dataclass(slots=True)
class _Fault:
    pattern: str
    errno: str | None
    times: int


@dataclass(slots=True)
class Block:
    """A hold on matching writes: they sleep between open and write until ``release``."""

    pattern: str
    _changed: threading.Condition
    waiting: int = 0
    released: bool = False

    def release(self) -> None:
        with self._changed:
            self.released = True
            self._changed.notify_all()

    def wait_until_blocked(self, timeout_seconds: float = 5) -> bool:
        """Whether a write has come to sleep here in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.waiting > 0, timeout_seconds)


class Faults:
    """The faults in force. The kernel asks under its own lock, ``changed``, which wakes sleeping writes as well."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._faults: list[_Fault] = []
        self._blocks: list[Block] = []

    @property
    def none(self) -> bool:
        return not self._faults and not self._blocks

    def fail_next(self, pattern: str, errno: str, times: int = 1) -> None:
        """The next matching operations fail with this errno and do nothing. ValueError for an unknown errno."""
        if not hasattr(errnos, errno) and not (errno == PROBE_DEFER and pattern.startswith("probe:")):
            raise ValueError(f"no errno is called {errno!r}")
        with self._changed:
            self._faults.append(_Fault(pattern, errno, times))

    def swallow_next(self, pattern: str, times: int = 1) -> None:
        """The next matching operations report success and do nothing."""
        with self._changed:
            self._faults.append(_Fault(pattern, None, times))

    def block(self, pattern: str) -> Block:
        with self._changed:
            self._blocks.append(made := Block(pattern, self._changed))
        return made

    def hit(self, *names: str) -> tuple[bool, str | None]:
        """Whether a fault strikes an operation known by these names, and its errno, None when it is a lie."""
        for fault in self._faults:
            if any(fnmatchcase(name, fault.pattern) for name in names):
                fault.times -= 1
                if fault.times == 0:
                    self._faults.remove(fault)
                return True, fault.errno
        return False, None

    def blocking(self, *names: str) -> Block | None:
        for block in self._blocks:
            if not block.released and any(fnmatchcase(name, block.pattern) for name in names):
                return block
        return None
