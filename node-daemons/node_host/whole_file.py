"""Files that are there whole or not at all, whenever the process dies; cheaper where they need not outlive the host."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_MODE_OF_DIRECTORIES: Final = 0o755


def write_whole(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace the file at once, unsynced: a crash of the host may lose it, one of the process may not. Raises OSError.

    The staged file has a name that container runtimes do not read; directories are made.
    """
    staged = path.with_name(f".{path.name}.new")
    try:
        descriptor = _create(staged, mode)
    except FileNotFoundError:
        make_directories(path.parent)
        descriptor = _create(staged, mode)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        os.replace(staged, path)  # noqa: PTH105 - before every answer
    except BaseException:
        with suppress(OSError):
            os.unlink(staged)  # noqa: PTH108
        raise


def make_directories(path: Path) -> None:
    """The directory and those above it, readable for all: runtimes and containers read what is below."""
    path.mkdir(mode=_MODE_OF_DIRECTORIES, parents=True, exist_ok=True)


def remove(path: Path) -> None:
    """Take the file away, if it is there. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108


def read_if_there(path: Path, most: int = 1 << 20) -> bytes | None:
    """The content, at most that many bytes of it; None without the file. Raises OSError, also for links."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def _create(path: Path, mode: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
