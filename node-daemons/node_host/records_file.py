"""A file of records by device that processes share: whole after a crash, checksummed, with a version.

Several processes share it (the daemon, and whoever runs one pass by hand). So a change is made under a flock, to what
is in the file then. One that is not whole is set aside, never written over.
"""

import errno
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from node_host.durable_file import sync_directory, write_durably
from node_host.pci.device import is_address

T = TypeVar("T")

_MAX_BYTES: Final = 4 << 20
_ASIDE: Final = ".corrupt-"
_MAX_ASIDE: Final = 16


class RecordsError(Exception):
    """The file cannot be read or written now; nothing may be changed that would have to be in it."""


class RecordsChangedError(RecordsError):
    """Another process has changed the entry since it was read."""


class CorruptError(ValueError):
    """The file is not whole; the text says what is wrong."""


@dataclass(frozen=True)  # with slots, making one by a name such as RecordsState[X] fails (Python 3.11)
class RecordsState(Generic[T]):
    """Entries by address; ``problem`` says why entries may be missing, or None; only a writable file takes more."""

    entries: Mapping[str, T] = field(default_factory=dict)
    problem: str | None = None
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Format(Generic[T]):
    """What is in the file. ``from_json`` raises CorruptError for what is no entry of an address; ``readable`` versions
    are read as they stand, ``what`` names the file in messages, ``lost`` says what it means that one is lost.
    """

    what: str
    lost: str
    version: int
    readable: Collection[int]
    to_json: Callable[[T], dict[str, Any]]
    from_json: Callable[[str, dict[str, Any]], T]

    def encode(self, entries: Mapping[str, T]) -> bytes:
        """The file's content: version, entries, and a checksum over their canonical JSON."""
        devices = {address: self.to_json(entries[address]) for address in sorted(entries)}
        document = {"version": self.version, "checksum": _checksum(devices), "devices": devices}
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()

    def decode(self, data: bytes) -> dict[str, T]:
        """Raises CorruptError, saying what is wrong, for anything that `encode` does not write."""
        if len(data) > _MAX_BYTES:
            raise CorruptError(f"more than {_MAX_BYTES} bytes")
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptError(f"not JSON: {error}") from error
        if not isinstance(document, dict) or not isinstance(document.get("devices"), dict):
            raise CorruptError(f"not a {self.what}")
        if document.get("version") not in self.readable:
            known = " or ".join(map(str, self.readable))
            raise CorruptError(f"version {document.get('version')!r} is not {known}")
        if document.get("checksum") != _checksum(document["devices"]):
            raise CorruptError("the checksum does not fit the content")
        return {str(address): self._entry(address, value) for address, value in document["devices"].items()}

    def _entry(self, address: Any, value: Any) -> T:
        if not isinstance(address, str) or not is_address(address) or not isinstance(value, dict):
            raise CorruptError(f"{address!r} is no entry")
        return self.from_json(address, value)


def _checksum(devices: Any) -> str:
    return hashlib.sha256(json.dumps(devices, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class RecordsFile(Generic[T]):
    """The file. Every change is on disk when the call returns; safe to use from several threads."""

    def __init__(self, path: Path, form: Format[T], *, fault: OSError | None = None) -> None:
        """With ``fault``, the reason why there is no way to the file, it can neither be read nor written."""
        self._path = path
        self._form = form
        self._fault = fault
        self._lock_path = path.with_suffix(".lock")
        self._lock = threading.Lock()
        self._is_read = False

    def load(self, *, set_aside: bool = True) -> RecordsState[T]:
        """Read the file again. One that is not whole is set aside and said to be so, until somebody removes it.

        A file that cannot be read, or may not be set aside, is left alone: then changes raise RecordsError.
        """
        with self._lock:
            self._is_read = False
            try:
                if self._fault is not None:
                    raise self._fault
                try:
                    entries = self._read()
                except CorruptError as error:
                    if not set_aside:
                        return RecordsState(problem=f"{self._path}: {error}", writable=False)
                    entries = self._mended()
                problem = self._aside()
                self._is_read = True
                return RecordsState(MappingProxyType(entries), problem)
            except OSError as error:
                return RecordsState(problem=f"{self._path}: {error.strerror or error}", writable=False)

    def put(self, address: str, entry: T) -> None:
        """Remember a device. Raises RecordsError when it is not on disk."""
        self._change(lambda entries: entries.__setitem__(address, entry))

    def drop(self, *addresses: str) -> None:
        """Forget devices, all at once. Raises RecordsError when that is not on disk."""

        def change(entries: dict[str, T]) -> None:
            for address in addresses:
                entries.pop(address, None)

        self._change(change)

    def exchange(self, address: str, seen: T | None, entry: T | None) -> None:
        """Put ``entry`` (None: nothing) in the place of ``seen``. Raises RecordsError, RecordsChangedError when another
        process has put something else there."""

        def change(entries: dict[str, T]) -> None:
            if entries.get(address) != seen:
                raise RecordsChangedError(f"{self._path}: another process has changed the entry of {address}")
            if entry is None:
                entries.pop(address, None)
            else:
                entries[address] = entry

        self._change(change)

    def _change(self, change: Callable[[dict[str, T]], object]) -> None:
        with self._lock:
            if not self._is_read:
                raise RecordsError(f"{self._path} was not read, so it is not written")
            try:
                with self._exclusive():
                    entries = self._read()
                    changed = dict(entries)
                    change(changed)
                    if changed != entries:
                        write_durably(self._path, self._form.encode(changed))
            except OSError as error:
                raise RecordsError(f"{self._path}: {error.strerror or error}") from error
            except CorruptError as error:
                raise RecordsError(f"{self._path}: {error}") from error

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """No other process changes the file meanwhile. The lock is a file of its own: this one is replaced."""
        self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _mended(self) -> dict[str, T]:
        """What is in the file once one that is not whole is out of the way, which another process may have done."""
        with self._exclusive():
            try:
                return self._read()
            except CorruptError as error:
                self._set_aside(error)
                return {}

    def _read(self) -> dict[str, T]:
        try:
            with self._path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return {}
        return self._form.decode(data)

    def _set_aside(self, error: CorruptError) -> None:
        """Out of the way, never over an older one."""
        for number in range(1, _MAX_ASIDE + 1):
            aside = self._path.with_name(f"{self._path.name}{_ASIDE}{number}")
            if not aside.exists():
                self._path.rename(aside)
                sync_directory(self._path.parent)
                return
        raise OSError(errno.EEXIST, f"{error}; {_MAX_ASIDE} files are set aside already, remove them")

    def _aside(self) -> str | None:
        found = sorted(path.name for path in self._path.parent.glob(f"{self._path.name}{_ASIDE}*"))
        if not found:
            return None
        named = f"{', '.join(found)} in {self._path.parent}"
        return f"{named}: a {self._form.what} that was not whole was set aside. {self._form.lost}"
