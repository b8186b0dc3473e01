"""A local copy of one kind that can neither keep ghosts nor lose objects, however its input was reordered.

Fed by lists and watch events from any source. What it holds per object is what the caller's `compact` makes of it:
thousands of whole bodies with their managedFields would cost hundreds of megabytes.

resourceVersions are compared as integers. KEP-5504 makes that part of the API's contract (1.35); before that it held
for every resource that the API server keeps in etcd, which is all that npufleet reads.

The rules, for a list taken at resourceVersion L:
- it removes entries that it does not contain, unless they are newer than L;
- it never overwrites an entry with an older one;
- a list older than one already seen changes nothing.
And for events:
- a deletion leaves a tombstone at its name until a list newer than it, so that no late event of this or an earlier
  incarnation can bring an object back;
- an event not newer than the last list, about a name that this list did not contain, is a late one too;
- one name has one object: a newer incarnation (another UID) of a name ends the older one.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class Key(NamedTuple):
    """Name of an object within its kind; `namespace` is "" for cluster-scoped kinds. Sorts by namespace, then name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One object as kept: `record` is what `compact` made of it, None with `broken` set when it could not be read."""

    key: Key
    uid: str
    resource_version: int
    record: T | None
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What happened to the object of one name: `old` None = appeared, `new` None = went away."""

    key: Key
    old: T | None
    new: T | None


class MalformedObject(ValueError):  # noqa: N818 - says what is wrong with the object, like the API errors do
    """An object without the metadata that every API server sends; the feed it came from cannot be trusted."""


class Store(Generic[T]):
    """Objects of one kind by UID and by name. Single-threaded: use it within one event loop.

    `renew` makes the record of an object that is known already, from the former record of the same UID: for big objects
    of which little changes at a time. It must give what `compact` gives.
    """

    def __init__(
        self, compact: Callable[[dict[str, Any]], T], *, renew: Callable[[dict[str, Any], T], T] | None = None
    ) -> None:
        self._compact = compact
        self._renew = renew
        self._entries: dict[str, Entry[T]] = {}
        self._uids: dict[Key, str] = {}
        self._tombstones: dict[Key, int] = {}
        self._subscribers: list[Callable[[Sequence[Change[T]]], None]] = []
        self._broken: dict[Key, str] = {}
        self._listed = 0
        self._synced = False

    # Reading.

    @property
    def synced(self) -> bool:
        """True once a whole list has been taken in: only then does absence from the store mean anything."""
        return self._synced

    @property
    def resource_version(self) -> int:
        """resourceVersion of the newest list taken in, 0 before the first."""
        return self._listed

    @property
    def broken(self) -> Mapping[Key, str]:
        """Objects that exist but that `compact` could not read, with the reason. Not absent: hold, do not release."""
        return self._broken

    def get(self, name: str, namespace: str = "") -> T | None:
        """The record of the object with that name now."""
        entry = self.entry(name, namespace)
        return entry.record if entry else None

    def entry(self, name: str, namespace: str = "") -> Entry[T] | None:
        """The entry (UID, resourceVersion, record) of the object with that name now."""
        return self._at(Key(namespace, name))

    def items(self) -> Iterator[tuple[Key, T]]:
        """All readable records, sorted by name, so that what is computed from them does not depend on arrival."""
        for key in sorted(self._uids):
            record = self._entries[self._uids[key]].record
            if record is not None:
                yield key, record

    def entries(self) -> Iterator[Entry[T]]:
        """All entries, broken ones included, in no particular order."""
        return iter(self._entries.values())

    def keys(self) -> list[Key]:
        """All names, those of broken objects included, sorted."""
        return sorted(self._uids)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._uids

    def subscribe(self, callback: Callable[[Sequence[Change[T]]], None]) -> Callable[[], None]:
        """Call `callback` with each batch of changes, after the store has taken it in; the return value unsubscribes.

        Records that compare equal to what was there are no change (a heartbeat of a Node, for a record without it);
        a recreated object always is. `callback` must be quick, typically `queue.add`; its errors are logged.
        """
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback) if callback in self._subscribers else None

    # Feeding.

    def convert(self, item: dict[str, Any]) -> Entry[T]:
        """The entry for an object from the API; raises MalformedObject without name, UID or resourceVersion.

        Give it to `Api.list(convert=…)`, so that bodies are compacted page by page.
        """
        key, uid, version = _identity(item)
        known = self._entries.get(uid) if self._renew is not None else None
        try:
            if self._renew is not None and known is not None and known.record is not None:
                return Entry(key, uid, version, self._renew(item, known.record))
            return Entry(key, uid, version, self._compact(item))
        except Exception as error:  # one bad object, one condition: the others go on
            log.warning("Object %s could not be read: %s: %s", key, type(error).__name__, error)
            return Entry(key, uid, version, None, f"{type(error).__name__}: {error}"[:1024])

    def replace(self, items: Iterable[Entry[T]], resource_version: str | int, *, restart: bool = False) -> bool:
        """Take in a whole list (entries from `convert`). False: it is older than one already seen, nothing changed.

        `restart` says that the list, though its version is lower, was asked for after the last one had been answered:
        the history of the server was set back (etcd restored from a backup), so the list is the truth as it is.
        """
        version = parse_version(resource_version)
        if version < self._listed:
            if not restart:
                return False
            log.warning(
                "resourceVersion went back from %d to %d: the server's history was reset", self._listed, version
            )
            self._tombstones.clear()
            self._entries = {
                uid: dataclasses.replace(entry, resource_version=0) for uid, entry in self._entries.items()
            }
        changes: list[Change[T]] = []
        listed: set[str] = set()
        for entry in items:
            listed.add(entry.uid)
            known = self._at(entry.key)
            newer = known is None or known.resource_version < entry.resource_version
            if newer and self._tombstones.get(entry.key, -1) <= version:
                self._put(entry, changes)
        for uid, entry in list(self._entries.items()):
            if uid not in listed and entry.resource_version <= version:
                self._remove(entry, changes)
        self._tombstones = {key: at for key, at in self._tombstones.items() if at > version}
        self._listed = version
        self._synced = True
        self._notify(changes)
        return True

    def apply_event(self, kind: str, item: dict[str, Any]) -> None:
        """Take in ADDED, MODIFIED or DELETED; other types are ignored. Raises MalformedObject, changing nothing."""
        if kind not in {"ADDED", "MODIFIED", "DELETED"}:
            return
        key, _, version = _identity(item)
        known = self._at(key)
        changes: list[Change[T]] = []
        if kind == "DELETED":
            if known is not None and known.resource_version > version:
                return
            if known is not None:
                self._remove(known, changes)
            if version > self._listed:
                self._tombstones[key] = max(version, self._tombstones.get(key, -1))
        else:
            latest = known.resource_version if known is not None else self._listed
            if version > max(latest, self._tombstones.get(key, -1)):
                # Newer than a tombstone: created anew, or back in the selector of the watch.
                self._tombstones.pop(key, None)
                self._put(self.convert(item), changes)
        self._notify(changes)

    def _at(self, key: Key) -> Entry[T] | None:
        uid = self._uids.get(key)
        return self._entries[uid] if uid is not None else None

    def _put(self, entry: Entry[T], changes: list[Change[T]]) -> None:
        before = self._at(entry.key)
        if before is not None:
            del self._entries[before.uid]
            if entry.broken and before.uid == entry.uid:
                # Unreadable now: the last readable state goes on, with the reason beside it.
                entry = dataclasses.replace(entry, record=before.record)
        self._entries[entry.uid] = entry
        self._uids[entry.key] = entry.uid
        was_broken = self._broken.pop(entry.key, "")
        if entry.broken:
            self._broken[entry.key] = entry.broken
        old = before.record if before is not None else None
        if before is not None and before.uid == entry.uid and old == entry.record and was_broken == entry.broken:
            return
        changes.append(Change(entry.key, old, entry.record))

    def _remove(self, entry: Entry[T], changes: list[Change[T]]) -> None:
        del self._entries[entry.uid]
        if self._uids.get(entry.key) == entry.uid:
            del self._uids[entry.key]
            self._broken.pop(entry.key, None)
        changes.append(Change(entry.key, entry.record, None))

    def _notify(self, changes: list[Change[T]]) -> None:
        if not changes:
            return
        for callback in list(self._subscribers):
            try:
                callback(changes)
            except Exception:
                log.exception("A subscriber failed on %d changes", len(changes))


def _identity(item: dict[str, Any]) -> tuple[Key, str, int]:
    metadata = item.get("metadata") or {}
    name, uid = metadata.get("name"), metadata.get("uid")
    if not name or not uid:
        raise MalformedObject(f"an object without metadata.name or metadata.uid: {str(metadata)[:200]}")
    return Key(metadata.get("namespace") or "", name), uid, parse_version(metadata.get("resourceVersion"))


def parse_version(value: Any) -> int:
    """A resourceVersion as an integer; raises MalformedObject for anything that is not a decimal number."""
    if isinstance(value, int) and value >= 0:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    raise MalformedObject(f"resourceVersion {value!r} is not a decimal number")
