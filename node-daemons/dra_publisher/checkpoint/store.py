"""The checkpoint's file: read and written by the processes that share it during an update, one at a time.

A change is made under `locked`, to what is in the file then. What is read is kept as long as the file is the same one,
so that a look costs one stat. A file that is not whole, or that only a newer version can read, is kept beside it and
replaced by one that says so (`Checkpoint.doubt`): there is no moment at which it looks as if no claim were prepared.

What is in the file, and how, is in `node_host/evidence/checkpoint.py`: whoever changes devices reads it as well.
"""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from node_host.durable_file import sync_directory, write_durably
from node_host.evidence.checkpoint import CHECKPOINT, UNKNOWN_SHAPE, Checkpoint, PreparedClaim, decode, encode
from node_host.host import Host
from node_host.whole_file import write_whole

_MAX_BYTES: Final = 17 << 20  # more than any that can be read, so that a longer one is told apart
_MAX_ASIDE: Final = 16
_ASIDE: Final = ".corrupt-"
_MODE: Final = 0o600


class CheckpointError(Exception):
    """The checkpoint cannot be read or written now, and was left alone: nothing may be prepared. The text says why."""


class BusyError(Exception):
    """Another process has the lock."""


class CheckpointStore:
    """The file of one host. ``checkpoint`` may be called at any time, all else under ``locked``."""

    def __init__(self, host: Host) -> None:
        self._path: Path = host.local(CHECKPOINT)
        self._lock_path = self._path.with_suffix(".lock")
        self._seen: tuple[int, int, int] | None = None
        # Open, so that no other file gets its inode number: then the same number is the same file.
        self._held: int | None = None
        self._checkpoint = Checkpoint()
        # What was read is looked at in the event loop while a thread writes.
        self._guard = threading.Lock()

    def close(self) -> None:
        """Forget what was read."""
        with self._guard:
            self._keep(None, None, Checkpoint())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process reads or changes claims meanwhile. Raises BusyError at once, CheckpointError."""
        try:
            try:
                descriptor = self._open_lock()
            except FileNotFoundError:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = self._open_lock()
        except OSError as error:
            raise self._error(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise BusyError(f"{self._lock_path} is locked by another publisher") from None
        except BaseException:
            os.close(descriptor)
            raise
        try:
            yield
        finally:
            os.close(descriptor)

    def checkpoint(self) -> Checkpoint:
        """What is in the file now; an empty one without a file.

        Raises CheckpointError when it cannot be read, CheckpointUnreadableError when it has to be set aside.
        """
        try:
            with self._guard:
                found = self._signature()
                if found is None or found != self._seen:
                    self._read()
                return self._checkpoint
        except OSError as error:
            raise self._error(error) from error

    def write(self, checkpoint: Checkpoint, *, durable: bool = True) -> None:
        """Put it in the file's place. It outlives the process in any case, the host where ``durable``.

        Raises CheckpointError, with what was there before in its place.
        """
        data = encode(checkpoint)
        try:
            if durable:
                write_durably(self._path, data, mode=_MODE)
            else:
                write_whole(self._path, data, mode=_MODE)
            with self._guard:
                descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                self._keep(descriptor, os.fstat(descriptor), checkpoint)
        except OSError as error:
            raise self._error(error) from error

    def set_aside(self, why: str) -> str:
        """Keep a file that cannot be read beside, and put one in its place that says so; the name of what was kept.

        Raises CheckpointError; the file is in its place then as before.
        """
        try:
            name = self._link_aside(why)
        except OSError as error:
            raise self._error(error) from error
        self.write(Checkpoint(doubt=f"an earlier checkpoint was lost ({why}); it is kept as {name}"))
        return name

    def note_published(self, shapes: Mapping[str, str]) -> None:
        """Remember devices, by address, that pods may have from now on, and the digest of their shape; on disk when
        this returns. Raises CheckpointError, CheckpointUnreadableError.

        Claims of which nobody knew the shape that they have a device in, because the record was lost, have it in this
        one: else nobody could give it to them again after a reboot.
        """
        there = self.checkpoint()
        wanted = {**there.published, **shapes}
        if wanted != there.published:
            claims = {uid: _shaped(claim, shapes) for uid, claim in there.claims.items()}
            self.write(replace(there, claims=MappingProxyType(claims), published=MappingProxyType(wanted)))

    def forget_published(self, addresses: Collection[str]) -> None:
        """Forget devices that pods can have no more. Raises CheckpointError, CheckpointUnreadableError."""
        there = self.checkpoint()
        kept = {address: shape for address, shape in there.published.items() if address not in addresses}
        if kept != there.published:
            self.write(replace(there, published=MappingProxyType(kept)))

    def _read(self) -> None:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            self._keep(None, None, Checkpoint())
            return
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a plain file")
            with open(descriptor, "rb", buffering=0, closefd=False) as file:
                data = file.read(_MAX_BYTES) or b""
            checkpoint = decode(data)
        except BaseException:
            os.close(descriptor)
            raise
        self._keep(descriptor, found, checkpoint)

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            return _signature(os.stat(self._path, follow_symlinks=False))  # noqa: PTH116 - before every answer
        except FileNotFoundError:
            return None

    def _keep(self, descriptor: int | None, found: os.stat_result | None, checkpoint: Checkpoint) -> None:
        held, self._held = self._held, descriptor
        self._seen = None if found is None else _signature(found)
        self._checkpoint = checkpoint
        if held is not None:
            os.close(held)

    def _open_lock(self) -> int:
        return os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _link_aside(self, why: str) -> str:
        for number in range(1, _MAX_ASIDE + 1):
            aside = self._path.with_name(f"{self._path.name}{_ASIDE}{number}")
            with suppress(FileExistsError):
                os.link(self._path, aside, follow_symlinks=False)
                sync_directory(self._path.parent)
                return aside.name
            if os.path.samestat(aside.lstat(), self._path.lstat()):
                return aside.name  # a death in the middle, last time
        raise OSError(errno.EEXIST, f"{why}; {_MAX_ASIDE} files are set aside already, remove them")

    def _error(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{CHECKPOINT}: {error.strerror or error}")


def _shaped(claim: PreparedClaim, shapes: Mapping[str, str]) -> PreparedClaim:
    if not any(one.shape == UNKNOWN_SHAPE and one.address in shapes for one in claim.devices):
        return claim
    devices = (
        replace(one, shape=shapes.get(one.address, one.shape)) if one.shape == UNKNOWN_SHAPE else one
        for one in claim.devices
    )
    return replace(claim, devices=tuple(devices))


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size
