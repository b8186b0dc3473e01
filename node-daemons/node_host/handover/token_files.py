"""The files of the hand-over, below /run/npufleet/handover: small, whole at any moment, and never behind a link.

Each call is one step that a crash falls before or after; what a half does is made of them.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from node_host.host import Host

RUN: Final = "/run/npufleet"
DIRECTORY: Final = "handover"
HANDOVER: Final = f"{RUN}/{DIRECTORY}"
_MAX_BYTES: Final = 4096
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO must hold nobody up


class TokenFiles:
    """The directory of one host. Every method raises OSError; a directory that is not there is an empty one."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def names(self) -> list[str]:
        """What is there, sorted."""
        try:
            with self._directory() as directory:
                return sorted(os.listdir(directory))  # noqa: PTH208 - a descriptor, not a path
        except FileNotFoundError:
            return []

    def signature(self) -> tuple[tuple[str, int], ...]:
        """Names and inodes: another one when anything was put, replaced or taken away."""
        try:
            with self._directory() as directory, os.scandir(directory) as entries:
                return tuple(sorted((entry.name, entry.inode()) for entry in entries))
        except FileNotFoundError:
            return ()

    def read(self, name: str) -> bytes | None:
        """The content, None when there is no such file; OSError for all that is not a small plain file."""
        try:
            with self._directory() as directory:
                descriptor = os.open(name, _READ, dir_fd=directory)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor, not a path
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a plain file", name)
            data = file.read(_MAX_BYTES + 1) or b""
        if len(data) > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"more than {_MAX_BYTES} bytes", name)
        return data

    def exists(self, name: str) -> bool:
        """Whether the name is there, whatever it is."""
        try:
            with self._directory() as directory:
                os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def write(self, name: str, data: bytes) -> None:
        """A new file, synced; what had the name before is gone. For names that nobody else looks at."""
        with self._directory(make=True) as directory:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(name, flags, 0o600, dir_fd=directory)
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

    def rename(self, name: str, new_name: str) -> bool:
        """Give a file another name at once, over whatever has that name; False when it is not there. Synced."""
        try:
            with self._directory() as directory:
                os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=directory)
                os.fsync(directory)
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Take a file away, if it is there. Synced."""
        with suppress(FileNotFoundError), self._directory() as directory:
            os.unlink(name, dir_fd=directory)
            os.fsync(directory)

    @contextmanager
    def _directory(self, *, make: bool = False) -> Iterator[int]:
        run = self._host.local(RUN)
        if make:
            run.mkdir(mode=0o755, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                (run / DIRECTORY).mkdir(mode=0o700)
        descriptor = os.open(run / DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
