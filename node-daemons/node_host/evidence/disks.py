"""Which PCI functions carry the disks that the host has mounted or swaps to.

Sources: /proc/1/mountinfo (proc_pid_mountinfo(5)), /proc/swaps, /sys/block. From a mounted device the way goes down
through `slaves` and `holders` (device mapper, md) to partitions, disks and their controllers.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from node_host.host import Host
from node_host.pci.device import is_address, last_address

T = TypeVar("T")

BLOCK: Final = "/sys/block"
_NUMBERS: Final = "/sys/dev/block"
_MOUNTS: Final = "/proc/1/mountinfo"
_SWAPS: Final = "/proc/swaps"
_BTRFS: Final = "/sys/fs/btrfs"
# File systems on several disks that nothing in /proc or /sys connects with them: any disk may be theirs.
_DISKS_UNKNOWN: Final = frozenset({"zfs"})
# File systems that stand on disks and show an anonymous number all the same.
_ANONYMOUS_ON_DISKS: Final = frozenset({"btrfs", "bcachefs"})
_OCTAL = re.compile(r"\\([0-7]{3})")
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    number: str
    point: str
    filesystem: str
    source: str


@dataclass(frozen=True, slots=True)
class DiskEvidence:
    """PCI functions by address, with what needs their disks."""

    functions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Raises ValueError for a line that is not one of mountinfo."""
    found = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        words, rest = before.split(" "), after.split(" ")
        if not separator or len(words) < 6 or len(rest) < 2:
            raise ValueError(f"not a mount: {line[:80]!r}")
        found.append(Mount(words[2], _unescape(words[4]), rest[0], _unescape(rest[1])))
    if not found:
        raise ValueError("no mounts at all: every host has a root file system")
    return tuple(found)


def parse_swaps(text: str) -> tuple[str, ...]:
    """Paths of swap partitions; a swap file lies on a file system that is mounted anyway."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) >= 2 and words[1] == "partition":
            found.append(_unescape(words[0]))
    return tuple(found)


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def read_disk_evidence(host: Host) -> DiskEvidence:
    """Everything; never raises."""
    return _Reader(host).read()


class _Reader:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._unreadable: list[str] = []
        self._paths: dict[str, str] = {}  # block device: its directory
        self._names: dict[str, str] = {}  # device number, or name of a mapped device: block device
        self._lower: dict[str, set[str]] = defaultdict(set)

    def read(self) -> DiskEvidence:
        mounts = self._parsed(_MOUNTS, parse_mountinfo) or ()
        swaps = self._parsed(_SWAPS, parse_swaps, optional=True) or ()
        self._read_block_devices()
        needed: dict[str, list[str]] = defaultdict(list)
        for mount in mounts:
            for block in self._blocks_of(mount):
                needed[block].append(f"is mounted on {mount.point}")
        for path in swaps:
            blocks = self._blocks_named(path)
            if not blocks:
                self._unreadable.append(f"swap on {path}, which is not in {BLOCK}")
            for block in blocks:
                needed[block].append("is swap")
        functions: dict[str, set[str]] = defaultdict(set)
        for block, reasons in needed.items():
            for address in self._functions_below(block):
                functions[address].add(f"{block} {_some(reasons)}")
        for mount in mounts:
            if mount.filesystem in _DISKS_UNKNOWN:
                for address in {address for block in self._paths for address in self._functions_of(block)}:
                    functions[address].add(
                        f"{mount.filesystem} {mount.source} is mounted on {mount.point}, its disks cannot be told"
                    )
        return DiskEvidence(
            functions={address: tuple(sorted(functions[address])) for address in sorted(functions)},
            unreadable=tuple(dict.fromkeys(self._unreadable)),
        )

    def _parsed(self, path: str, parse: Callable[[str], T], *, optional: bool = False) -> T | None:
        try:
            return parse(self._host.read(path).decode("utf-8", "surrogateescape"))
        except (OSError, ValueError) as error:
            if not (optional and isinstance(error, FileNotFoundError)):
                self._fault(path, error)
            return None

    def _read_block_devices(self) -> None:
        for disk in self._list(BLOCK):
            directory = f"{BLOCK}/{disk}"
            entries = self._list(directory)
            self._add(disk, directory, entries)
            mapped = self._text(f"{directory}/dm/name") if "dm" in entries else ""
            if mapped:
                self._names[mapped] = disk
            for entry in entries:
                if entry.startswith(disk):
                    self._add(entry, f"{directory}/{entry}", self._list(f"{directory}/{entry}"))
                    self._lower[entry].add(disk)

    def _add(self, name: str, directory: str, entries: list[str]) -> None:
        self._paths[name] = directory
        number = self._text(f"{directory}/dev") if "dev" in entries else ""
        if number:
            self._names[number] = name
        if "slaves" in entries:
            self._lower[name].update(self._list(f"{directory}/slaves"))
        if "holders" in entries:
            for holder in self._list(f"{directory}/holders"):
                self._lower[holder].add(name)

    def _blocks_of(self, mount: Mount) -> set[str]:
        """Block devices of a mount. Number 0:… is an anonymous device: then the source alone tells.

        A mount that stands on a block device which /sys does not show may stand on any function: unreadable.
        """
        named = self._block_numbered(mount.number)
        found = set() if named is None else {named}
        for source in mount.source.split(":"):
            found |= self._blocks_named(source)
        is_anonymous = mount.number.partition(":")[0] == "0" and mount.filesystem not in _ANONYMOUS_ON_DISKS
        if not found and not is_anonymous:
            self._unreadable.append(
                f"{mount.source} ({mount.number}) is mounted on {mount.point}, but is not in {BLOCK}"
            )
        if mount.filesystem == "btrfs":
            for block in list(found):
                found |= self._btrfs_devices(block)
        return found

    def _block_numbered(self, number: str) -> str | None:
        """The block device of a number; /sys/dev/block knows some that /sys/block does not list, e.g. hidden paths."""
        name = self._names.get(number)
        directory = f"{_NUMBERS}/{number}"
        if name is not None or number.startswith("0:") or not self._host.exists(directory):
            return name
        path = self._resolved(directory)
        if not path:
            return None
        name = path.rpartition("/")[2]
        self._add(name, directory, self._list(directory))
        return name

    def _blocks_named(self, path: str) -> set[str]:
        """Block devices that a path below /dev names, links such as /dev/mapper/root followed."""
        if not path.startswith("/dev/"):
            return set()
        try:
            real = self._host.resolve(path)
        except OSError:
            real = path
        names = {place.removeprefix("/dev/").replace("/", "!") for place in (path, real)}
        mapped = self._names.get(path.removeprefix("/dev/mapper/"))
        return {name for name in names if name in self._paths} | ({mapped} if mapped else set())

    def _btrfs_devices(self, block: str) -> set[str]:
        for filesystem in self._list(_BTRFS):
            devices = set(self._list(f"{_BTRFS}/{filesystem}/devices"))
            if block in devices:
                return devices
        return set()

    def _functions_below(self, block: str) -> Iterator[str]:
        todo, seen = [block], {block}
        while todo:
            name = todo.pop()
            yield from self._functions_of(name)
            below = self._lower.get(name, set()) - seen
            seen |= below
            todo += below

    def _functions_of(self, block: str) -> Iterator[str]:
        """PCI functions of one block device; with NVMe multipath the disk hangs on its subsystem, which names them."""
        directory = self._paths.get(block)
        path = "" if directory is None else self._resolved(directory)
        if not path:
            self._unreadable.append(f"{block} is needed by a mount or as swap, but is not in {BLOCK}")
            return
        before, separator, after = path.partition("/nvme-subsystem/")
        if separator:
            subsystem = f"{before}{separator}{after.partition('/')[0]}"
            for entry in self._list(subsystem):
                controller = last_address(self._resolved(f"{subsystem}/{entry}")) if entry.startswith("nvme") else None
                if controller is not None:
                    yield controller
        address = last_address(path)
        if address is not None and is_address(address):
            yield address

    def _resolved(self, path: str) -> str:
        try:
            return self._host.resolve(path)
        except OSError as error:
            self._fault(path, error)
            return ""

    def _text(self, path: str) -> str:
        try:
            return self._host.read(path).decode("utf-8", "replace").strip()
        except OSError as error:
            self._fault(path, error)
            return ""

    def _list(self, path: str) -> list[str]:
        try:
            return self._host.list(path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._fault(path, error)
            return []

    def _fault(self, path: str, error: Exception) -> None:
        # A device that went away between list and read is not needed any more; the mounts must be there.
        if path == _MOUNTS or not isinstance(error, FileNotFoundError):
            self._unreadable.append(f"{path}: {getattr(error, 'strerror', None) or error}")


def _some(reasons: list[str]) -> str:
    text = " and ".join(reasons[:_SHOWN])
    return text if len(reasons) <= _SHOWN else f"{text} and in {len(reasons) - _SHOWN} more places"
