"""What each device had before npufleet changed it.

Written before the first write to a device and dropped after its return was verified: whatever moment the daemon dies
at, an entry says at worst that a device may have been changed. Entries of another boot say nothing about drivers now.

Several processes share the file (the daemon, and whoever runs one pass by hand). So a change is made under a flock, to
what is in the file then.
"""

import errno
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from node_host.durable_file import sync_directory, write_durably
from node_host.pci.device import is_address

JOURNAL: Final = "/var/lib/npufleet/binder/journal.json"
VERSION: Final = 2
# Version 1 knew nothing of virtual functions, and is read as it stands.
_READABLE: Final = (1, 2)
_MAX_BYTES: Final = 4 << 20
_ASIDE: Final = ".corrupt-"
_MAX_ASIDE: Final = 16


class JournalError(Exception):
    """The journal cannot be read or written now; nothing may be changed that would have to be in it."""


@dataclass(frozen=True, slots=True)
class FormerFunctions:
    """What a card had before npufleet changed the number of its virtual functions.

    ``former_autoprobe`` None: the kernel has no such switch. ``made`` is how many npufleet made, None while at it.
    """

    former_number: int
    former_autoprobe: bool | None
    made: int | None = None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One device. ``former_driver`` is empty when it had none; ``companion_of`` names the devices it was bound for.

    With ``functions`` the device itself stays on its driver, and it is its virtual functions that npufleet made.
    """

    former_driver: str
    bound_driver: str
    boot_id: str
    identity: str
    former_override: str | None = None
    companion_of: tuple[str, ...] = ()
    functions: FormerFunctions | None = None


JournalView: TypeAlias = Mapping[str, JournalEntry]


@dataclass(frozen=True, slots=True)
class JournalState:
    """Entries by address; ``problem`` says why entries may be missing, or None; only a writable journal takes more."""

    entries: JournalView = field(default_factory=dict)
    problem: str | None = None
    writable: bool = True


class JournalChangedError(JournalError):
    """Another process has changed the entry since it was read."""


class _CorruptError(ValueError):
    pass


class Journal:
    """The file. Every change is on disk when the call returns; safe to use from several threads."""

    def __init__(self, path: Path, *, fault: OSError | None = None) -> None:
        """With ``fault``, the reason why there is no way to the file, the journal can neither be read nor written."""
        self._path = path
        self._fault = fault
        self._lock_path = path.with_suffix(".lock")
        self._lock = threading.Lock()
        self._is_read = False

    def load(self, *, set_aside: bool = True) -> JournalState:
        """Read the file again. One that is not whole is set aside and said to be so, until somebody removes it.

        A file that cannot be read, or may not be set aside, is left alone: then changes raise JournalError.
        """
        with self._lock:
            self._is_read = False
            try:
                if self._fault is not None:
                    raise self._fault
                try:
                    entries = self._read()
                except _CorruptError as error:
                    if not set_aside:
                        return JournalState(problem=f"{self._path}: {error}", writable=False)
                    entries = self._mended()
                problem = self._aside()
                self._is_read = True
                return JournalState(MappingProxyType(entries), problem)
            except OSError as error:
                return JournalState(problem=f"{self._path}: {error.strerror or error}", writable=False)

    def put(self, address: str, entry: JournalEntry) -> None:
        """Remember a device. Raises JournalError when it is not on disk."""
        self._change(lambda entries: entries.__setitem__(address, entry))

    def drop(self, *addresses: str) -> None:
        """Forget devices, all at once. Raises JournalError when that is not on disk."""

        def change(entries: dict[str, JournalEntry]) -> None:
            for address in addresses:
                entries.pop(address, None)

        self._change(change)

    def exchange(self, address: str, seen: JournalEntry | None, entry: JournalEntry | None) -> None:
        """Put ``entry`` (None: nothing) in the place of ``seen``. Raises JournalError, JournalChangedError when another
        process has put something else there."""

        def change(entries: dict[str, JournalEntry]) -> None:
            if entries.get(address) != seen:
                raise JournalChangedError(f"{self._path}: another process has changed the entry of {address}")
            if entry is None:
                entries.pop(address, None)
            else:
                entries[address] = entry

        self._change(change)

    def _change(self, change: Callable[[dict[str, JournalEntry]], object]) -> None:
        with self._lock:
            if not self._is_read:
                raise JournalError(f"{self._path} was not read, so it is not written")
            try:
                with self._exclusive():
                    entries = self._read()
                    changed = dict(entries)
                    change(changed)
                    if changed != entries:
                        write_durably(self._path, encode(changed))
            except OSError as error:
                raise JournalError(f"{self._path}: {error.strerror or error}") from error
            except _CorruptError as error:
                raise JournalError(f"{self._path}: {error}") from error

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """No other process changes the file meanwhile. The lock is a file of its own: the journal's is replaced."""
        self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _mended(self) -> dict[str, JournalEntry]:
        """What is in the file once one that is not whole is out of the way, which another process may have done."""
        with self._exclusive():
            try:
                return self._read()
            except _CorruptError as error:
                self._set_aside(error)
                return {}

    def _read(self) -> dict[str, JournalEntry]:
        try:
            with self._path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return {}
        return decode(data)

    def _set_aside(self, error: _CorruptError) -> None:
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
        return (
            f"{', '.join(found)} in {self._path.parent}: a journal that was not whole was set aside. Devices that it "
            "named are no longer known as npufleet's and stay on their present drivers; give them back by hand, then "
            "remove the file"
        )


def encode(entries: Mapping[str, JournalEntry]) -> bytes:
    """The file's content: version, entries, and a checksum over their canonical JSON."""
    devices = {address: _to_json(entries[address]) for address in sorted(entries)}
    document = {"version": VERSION, "checksum": _checksum(devices), "devices": devices}
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def decode(data: bytes) -> dict[str, JournalEntry]:
    """Raises ValueError, saying what is wrong, for anything that `encode` does not write."""
    if len(data) > _MAX_BYTES:
        raise _CorruptError(f"more than {_MAX_BYTES} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _CorruptError(f"not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("devices"), dict):
        raise _CorruptError("not a journal")
    if document.get("version") not in _READABLE:
        raise _CorruptError(f"version {document.get('version')!r} is not {' or '.join(map(str, _READABLE))}")
    if document.get("checksum") != _checksum(document["devices"]):
        raise _CorruptError("the checksum does not fit the content")
    return {str(address): _from_json(address, value) for address, value in document["devices"].items()}


def _checksum(devices: Any) -> str:
    return hashlib.sha256(json.dumps(devices, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _to_json(entry: JournalEntry) -> dict[str, Any]:
    value: dict[str, Any] = {
        "formerDriver": entry.former_driver,
        "boundDriver": entry.bound_driver,
        "bootID": entry.boot_id,
        "identity": entry.identity,
    }
    if entry.former_override is not None:
        value["formerOverride"] = entry.former_override
    if entry.companion_of:
        value["companionOf"] = list(entry.companion_of)
    if entry.functions is not None:
        value["functions"] = {
            "formerNumber": entry.functions.former_number,
            "formerAutoprobe": entry.functions.former_autoprobe,
            "made": entry.functions.made,
        }
    return value


def _from_json(address: Any, value: Any) -> JournalEntry:
    if not isinstance(address, str) or not is_address(address) or not isinstance(value, dict):
        raise _CorruptError(f"{address!r} is no entry")
    texts = [value.get(name) for name in ("formerDriver", "boundDriver", "bootID", "identity")]
    override, companions = value.get("formerOverride"), value.get("companionOf", [])
    if (
        not all(isinstance(text, str) for text in texts)
        or not (override is None or isinstance(override, str))
        or not isinstance(companions, list)
        or not all(isinstance(item, str) for item in companions)
    ):
        raise _CorruptError(f"the entry of {address} is not one")
    former, bound, boot_id, identity = (str(text) for text in texts)
    functions = _functions_from_json(address, value["functions"]) if "functions" in value else None
    return JournalEntry(former, bound, boot_id, identity, override, tuple(companions), functions)


def _functions_from_json(address: str, value: Any) -> FormerFunctions:
    if isinstance(value, dict):
        number, autoprobe, made = (value.get(name) for name in ("formerNumber", "formerAutoprobe", "made"))
        is_switch, is_number = isinstance(autoprobe, bool | None), made is None or type(made) is int
        if type(number) is int and is_switch and is_number:
            return FormerFunctions(number, autoprobe, made)
    raise _CorruptError(f"the entry of {address} is not one")
