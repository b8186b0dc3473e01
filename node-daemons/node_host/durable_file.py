"""Files that are there whole after a crash: written beside, synced, renamed, and the directory synced."""

import os
from contextlib import suppress
from pathlib import Path


def write_durably(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace the file at once. Raises OSError and then leaves the old content. Directories are made, for root only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    staged = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except BaseException:
        with suppress(OSError):
            staged.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make names in the directory survive a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
