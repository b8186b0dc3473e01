"""Two processes must not build the same binary or run the same directory at once: kernel file locks, which die with
their holder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.2


def try_lock(path: Path, purpose: str) -> int | None:
    """Take the lock and return its descriptor, or None when another process holds it. The file is never removed (a
    removed lock file could be locked twice); it says who holds the lock and for what."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()}: {purpose}".encode(), 0)
    return descriptor


def holder(path: Path) -> str:
    """Who holds the lock, in words; the text is only ever shown, never decided on."""
    try:
        return path.read_text(errors="replace")[:200] or "another process"
    except OSError:
        return "another process"


@contextmanager
def locked(path: Path, purpose: str, *, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock for the block, waiting as long as its holder lives; `waiting` is told repeatedly who that is."""
    descriptor = try_lock(path, purpose)
    while descriptor is None:
        if waiting is not None:
            waiting(holder(path))
        time.sleep(POLL_SECONDS)
        descriptor = try_lock(path, purpose)
    try:
        yield
    finally:
        os.close(descriptor)
