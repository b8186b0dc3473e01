"""Writes that may sleep in the kernel: given in a thread or a child of their own, and waited for with a deadline."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from node_host.host import Host


class Order(Protocol):
    """One write that somebody else does."""

    path: str

    @property
    def done(self) -> bool: ...

    def result(self, seconds: float = 20) -> str:
        """ "ok" or the errno's name; TimeoutError when it still sleeps."""
        ...


class ThreadOrder:
    """For a kernel that puts only the writing thread to sleep."""

    def __init__(self, host: Host, path: str, data: bytes) -> None:
        self.path = path
        self._result: str | None = None
        self._thread = threading.Thread(target=self._write, args=(host, data), daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, seconds: float = 20) -> str:
        self._thread.join(seconds)
        if self._result is None:
            raise TimeoutError(f"a write to {self.path} still sleeps")
        return self._result

    def _write(self, host: Host, data: bytes) -> None:
        self._result = outcome(host, self.path, data)


class ChildOrder:
    """For a kernel whose sleepers cannot be woken, not even by a signal. A fork starts in no time."""

    def __init__(self, host: Host, path: str, data: bytes) -> None:
        self.path = path
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            number = errno.EIO
            try:
                number = _number(host, path, data)
            finally:
                os._exit(number)

    @property
    def done(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status is not None

    def result(self, seconds: float = 20) -> str:
        if not poll(lambda: self.done, seconds):
            raise TimeoutError(f"a write to {self.path} still sleeps")
        return errno.errorcode[self._status] if self._status else "ok"


def poll(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def outcome(host: Host, path: str, data: bytes) -> str:
    """A write's raw result: "ok", or the name of its errno."""
    number = _number(host, path, data)
    return errno.errorcode[number] if number else "ok"


def _number(host: Host, path: str, data: bytes) -> int:
    try:
        host.write(path, data)
    except OSError as error:
        return error.errno or errno.EIO
    return 0
