"""One writer per IOMMU group and per SR-IOV card, across processes and across the death of a daemon.

A lock is a flock on a file below /run/npufleet/locks. It belongs to the open file, not to the process: a child that
does a write which blocks inherits it, so the group stays locked while the kernel is at it, whoever dies meanwhile.
"""

import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from node_host.host import Host

LOCKS: Final = "/run/npufleet/locks"


class LockedError(Exception):
    """Somebody else has the lock; the text says who, as far as known."""


def lock_names(
    address: str, *, group: int | None, physical_function: str | None = None, is_physical: bool = False
) -> tuple[str, ...]:
    """The locks of a device, in the order in which to take them.

    Its group; and its card where virtual functions are involved, because their number is changed under the card's lock.
    """
    names = set()
    if group is not None:
        names.add(f"group-{group}")
    if physical_function is not None:
        names.add(f"pf-{physical_function}")
    if is_physical or not names:
        names.add(f"pf-{address}")
    return tuple(sorted(names))


class Locks:
    """Held locks; released together, and then really free only when no child holds them any more."""

    def __init__(self, host: Host, names: Iterable[str], *, owner: str) -> None:
        self._directory = host.local(LOCKS)
        self.names = tuple(names)
        self._owner = owner
        self._descriptors: list[int] = []

    def __enter__(self) -> Self:
        """Take all without waiting. Raises LockedError, or OSError when the files cannot be made."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            for name in self.names:
                self._descriptors.append(self._take(self._directory / f"{name}.lock", name))
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def descriptors(self) -> list[int]:
        """New descriptors of the same locks, for a child or a thread; the caller closes them."""
        return [os.dup(descriptor) for descriptor in self._descriptors]

    def _take(self, path: Path, name: str) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise LockedError(f"{name} is locked by {holder or 'another process'}") from None
        except BaseException:
            os.close(descriptor)
            raise
        # Who holds it is for people only: the lock itself decides.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{self._owner} (pid {os.getpid()})\n".encode(), 0)
        return descriptor

    def _release(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())
