"""Unix sockets of a host that may be mounted anywhere, reached through a descriptor of their directory.

So the length of a path counts as the host sees it, not as this process does. A socket appears under its name only when
it is listened on, and never takes the place of another one.
"""
# Names are used below an open directory, which pathlib cannot do.
# ruff: noqa: PTH108, PTH116

import errno
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from node_host.host import Host

_OPEN: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MAKING: Final = ".npufleet-"  # a leading dot: the kubelet leaves such names alone


class Life(StrEnum):
    """What a socket's file leads to."""

    ALIVE = "Alive"  # somebody listens, or it cannot be told
    DEAD = "Dead"  # whoever listened has ended without removing it
    ABSENT = "Absent"


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One socket's file among all that had its name: by its inode, and by its last change where it may be gone."""

    device: int
    inode: int
    changed_ns: int

    def is_file_of(self, other: "Incarnation | None") -> bool:
        """Whether both are the same file now. Its number is not given away while somebody listens on it."""
        return other is not None and (self.device, self.inode) == (other.device, other.inode)


@contextmanager
def reachable(host: Host, path: str) -> Iterator[str]:
    """A short path of this process for a host's socket, as long as the context lasts. Raises OSError."""
    local = host.local(path.rpartition("/")[0])
    descriptor = os.open(local, _OPEN)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.rpartition('/')[2]}"
    finally:
        os.close(descriptor)


def incarnation(host: Host, path: str) -> Incarnation | None:
    """Which socket is there now; None when none is (or something that is no socket)."""
    directory, _, name = path.rpartition("/")
    try:
        state = os.stat(host.local(directory) / name, follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISSOCK(state.st_mode):
        return None
    return Incarnation(state.st_dev, state.st_ino, state.st_ctime_ns)


def life(host: Host, path: str) -> Life:
    """Whether somebody listens there. What cannot be told counts as alive: it is not to be removed."""
    try:
        with reachable(host, path) as short, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.setblocking(False)
            caller.connect(short)  # EAGAIN where too many wait already
    except FileNotFoundError:
        return Life.ABSENT
    except ConnectionRefusedError:
        return Life.DEAD
    except OSError:
        return Life.ALIVE
    return Life.ALIVE


def place(host: Host, path: str, listen: Callable[[str], None]) -> Incarnation:
    """Have ``listen`` bind a socket, and give it the name ``path``.

    The directory is made if it is not there. Raises FileExistsError when the name is taken, other OSErrors where the
    file system refuses, and what ``listen`` raises; the name is as before then.
    """
    directory, _, name = path.rpartition("/")
    local = _make(host, directory)
    descriptor = os.open(local, _OPEN)
    made = f"{_MAKING}{secrets.token_hex(6)}"
    try:
        listen(f"/proc/self/fd/{descriptor}/{made}")
        os.chmod(made, 0o600, dir_fd=descriptor)
        # A link is made only where there is none; a rename would take another's place.
        os.link(made, name, src_dir_fd=descriptor, dst_dir_fd=descriptor, follow_symlinks=False)
        os.unlink(made, dir_fd=descriptor)
        state = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        return Incarnation(state.st_dev, state.st_ino, state.st_ctime_ns)
    except BaseException:
        with suppress(OSError):
            os.unlink(made, dir_fd=descriptor)
        raise
    finally:
        os.close(descriptor)


def remove(host: Host, path: str, which: Incarnation) -> None:
    """Remove just this socket; another one under its name stays. Raises OSError."""
    if which.is_file_of(incarnation(host, path)):
        directory, _, name = path.rpartition("/")
        with suppress(FileNotFoundError):
            os.unlink(host.local(directory) / name)


def remove_dead(host: Host, path: str) -> bool:
    """Remove a socket that nobody listens on any more; whether there was one. Raises OSError."""
    which = incarnation(host, path)
    if which is None or life(host, path) is not Life.DEAD:
        return False
    remove(host, path, which)
    return True


def remove_unfinished(host: Host, directory: str) -> None:
    """Remove what a death in the middle of ``place`` left in a directory. Raises OSError."""
    with suppress(FileNotFoundError):
        for entry in host.local(directory).iterdir():
            if entry.name.startswith(_MAKING):
                remove_dead(host, f"{directory}/{entry.name}")


def _make(host: Host, directory: str) -> Path:
    local = host.local(directory)
    local.mkdir(mode=0o750, parents=True, exist_ok=True)
    if not local.is_dir():
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
    return local
