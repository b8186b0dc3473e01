"""The death of a process at any one of its writes: each call that changes a file, or reaches the API server, is a step.

    with Deaths(root, at=7) as deaths:
        ...                     # Died is raised before the seventh step, and at everything after it

In a process of its own `kill` is sent instead, so that really nothing comes after it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self


class Died(BaseException):
    """The process is dead: nothing of the program runs after this."""


_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PATHS: Final = ("replace", "rename", "unlink", "rmdir", "mkdir", "link")
_DESCRIPTORS: Final = ("write", "fsync")


class Deaths:
    """Counts steps below ``root``, and dies before number ``at`` (from 0; None: never).

    With ``torn`` a write puts half of its bytes first. ``steps`` are told in words.
    """

    def __init__(
        self, root: Path, *, at: int | None = None, torn: bool = False, die: Callable[[], None] | None = None
    ) -> None:
        self.steps: list[str] = []
        self.dead = False
        self._root = str(root)
        self._at = at
        self._torn = torn
        self._die = die
        self._lock = threading.Lock()
        self._real: dict[str, Any] = {}
        self._ours: set[int] = set()

    def __enter__(self) -> Self:
        for name in (*_PATHS, *_DESCRIPTORS, "open", "close"):
            self._real[name] = getattr(os, name)
        for name in _PATHS:
            setattr(os, name, self._on_path(name))
        for name in ("open", "close", "write", "fsync"):
            setattr(os, name, getattr(self, f"_{name}"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def step(self, words: str, half: Callable[[], object] = lambda: None) -> None:
        """Take a step; what is done half-way of it is ``half``."""
        with self._lock:
            if self.dead:
                raise Died
            number = len(self.steps)
            self.steps.append(words)
            if number != self._at:
                return
            if self._torn:
                half()
            if self._die is not None:
                self._die()
            self.dead = True
            raise Died

    def api(self, when: str, verb: str) -> None:
        """A call of the API server, for `MemoryApi.fault`: it dies before it or after it."""
        self.step(f"{when} {verb}")

    def _below(self, path: Any, directory: int | None) -> bool:
        if directory is not None:
            return directory in self._ours
        return isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(self._root)

    def _on_path(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(path: Any, *rest: Any, **more: Any) -> Any:
            if self._below(path, more.get("dir_fd", more.get("src_dir_fd"))):
                self.step(f"{name} {Path(os.fsdecode(path)).name}")
            return real(path, *rest, **more)

        return call

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        is_ours = self._below(path, dir_fd)
        if is_ours and flags & _WRITES:
            self.step(f"open {Path(os.fsdecode(path)).name}")
        descriptor: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        if is_ours:
            self._ours.add(descriptor)
        return descriptor

    def _close(self, descriptor: int) -> None:
        self._ours.discard(descriptor)
        self._real["close"](descriptor)

    def _write(self, descriptor: int, data: Any) -> int:
        if descriptor in self._ours:
            self.step("write", lambda: self._real["write"](descriptor, bytes(data)[: len(data) // 2]))
        written: int = self._real["write"](descriptor, data)
        return written

    def _fsync(self, descriptor: int) -> None:
        if descriptor in self._ours:
            self.step("fsync")
        self._real["fsync"](descriptor)
