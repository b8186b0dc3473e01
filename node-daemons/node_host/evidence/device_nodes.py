"""What a PCI function offers to users: its device nodes, its network interfaces, and what stands on its disks.

Found below the function's own directory in sysfs (the `dev` file of each class device), so it works for drivers that
nobody has told us of. NVIDIA's driver makes nodes without class devices and lists them in its own place in /proc.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from node_host.evidence.open_handles import Number
from node_host.host import Host
from node_host.pci.device import DEVICES, PCIDevice, is_address

_MAX_DEPTH: Final = 20
_MAX_ENTRIES: Final = 20000
_NVIDIA: Final = "nvidia"
_NVIDIA_LIST: Final = "/proc/driver/nvidia/gpus"
_NVIDIA_MINOR = re.compile(r"^Device Minor:\s*([0-9]{1,4})\s*$", re.MULTILINE)
_NVIDIA_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9A-Za-z-]{1,64})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NetInterface:
    """A network interface of the function as this network namespace sees it."""

    name: str
    is_up: bool
    master: str | None


@dataclass(frozen=True, slots=True)
class DeviceNodes:
    """Nodes by path and number, and what else stands on the function."""

    paths: frozenset[str] = frozenset()
    numbers: frozenset[Number] = frozenset()
    interfaces: tuple[NetInterface, ...] = ()
    # Its directory of interfaces is there and empty: they are in other network namespaces, e.g. of pods.
    hides_interfaces: bool = False
    # (block device, holder), e.g. ("nvme0n1p2", "dm-0").
    holders: tuple[tuple[str, str], ...] = ()
    # Globs of nodes that are the function's or a twin's, where nothing says whose.
    patterns: tuple[str, ...] = ()
    # By which the vendor's device plugin names the function.
    uuid: str | None = None
    unreadable: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """What the kernel and the vendor's driver call the function."""
        nodes = {path.rpartition("/")[2] for path in self.paths}
        return frozenset(nodes if self.uuid is None else nodes | {self.uuid})


def read_device_nodes(host: Host, device: PCIDevice, patterns: tuple[str, ...] = ()) -> DeviceNodes:
    """Look below the function. Never raises; ``patterns`` are globs that the catalogue knows for the product."""
    walk = _Walk(host)
    walk.function(device.address)
    if device.vfio_device is not None:
        walk.paths.add(f"/dev/vfio/devices/{device.vfio_device}")
    uuid: str | None = None
    if device.driver == _NVIDIA:
        minor, uuid = _nvidia_information(host, device.address)
        if minor is None:
            patterns = (*patterns, "/dev/nvidia[0-9]*")
        else:
            walk.paths.add(f"/dev/nvidia{minor}")
    return DeviceNodes(
        paths=frozenset(walk.paths),
        numbers=frozenset(walk.numbers),
        interfaces=tuple(walk.interfaces),
        hides_interfaces=walk.hides_interfaces,
        holders=tuple(walk.holders),
        patterns=patterns,
        uuid=uuid,
        unreadable=walk.unreadable,
    )


def _nvidia_information(host: Host, address: str) -> tuple[int | None, str | None]:
    """The function's minor number and UUID, as far as NVIDIA's driver tells them."""
    try:
        text = host.read(f"{_NVIDIA_LIST}/{address}/information").decode("utf-8", "replace")
    except OSError:
        return None, None
    minor, uuid = _NVIDIA_MINOR.search(text), _NVIDIA_UUID.search(text)
    return int(minor[1]) if minor else None, uuid[1] if uuid else None


class _Walk:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._seen = 0
        self.paths: set[str] = set()
        self.numbers: set[Number] = set()
        self.interfaces: list[NetInterface] = []
        self.hides_interfaces = False
        self.holders: list[tuple[str, str]] = []
        self.unreadable: str | None = None

    def function(self, address: str) -> None:
        directory = f"{DEVICES}/{address}"
        try:
            for path, names in self._directories(self._host.resolve(directory), 0):
                self._look_at(path, names)
        except FileNotFoundError:
            return
        except OSError as error:
            self._fault(directory, error)

    def _directories(self, path: str, depth: int) -> Iterator[tuple[str, list[str]]]:
        """Every directory below, without other PCI functions and without following links."""
        try:
            entries = self._host.scan(path)
        except OSError as error:
            self._fault(path, error)
            return
        names = [name for name, _ in entries]
        self._seen += len(names)
        if depth > _MAX_DEPTH or self._seen > _MAX_ENTRIES:
            self.unreadable = self.unreadable or f"{path}: more below than can be looked at"
            return
        yield path, names
        for name, is_directory in entries:
            if is_directory and not is_address(name):
                yield from self._directories(f"{path}/{name}", depth + 1)

    def _look_at(self, path: str, names: list[str]) -> None:
        directory, _, name = path.rpartition("/")
        kind = directory.rpartition("/")[2]
        if "dev" in names:
            self._node(path, name, is_block="size" in names)
        if name == "holders":
            self.holders += [(directory.rpartition("/")[2], holder) for holder in names]
        if name == "net" and not names:
            self.hides_interfaces = True
        if kind == "net" and "flags" in names:
            self._interface(path, name, names)

    def _node(self, path: str, name: str, *, is_block: bool) -> None:
        try:
            number = self._host.read(f"{path}/dev").decode("ascii", "replace").strip()
            event = self._host.read(f"{path}/uevent").decode("utf-8", "replace")
        except FileNotFoundError:
            event = ""
            number = self._text(f"{path}/dev")
        except OSError as error:
            self._fault(f"{path}/dev", error)
            return
        major, _, minor = number.partition(":")
        if major.isdecimal() and minor.isdecimal():
            self.numbers.add((is_block, int(major), int(minor)))
        named = next((line[8:] for line in event.splitlines() if line.startswith("DEVNAME=")), name)
        self.paths.add(f"/dev/{named}")

    def _interface(self, path: str, name: str, names: list[str]) -> None:
        flags = self._text(f"{path}/flags")
        try:
            is_up = bool(int(flags, 16) & 1)  # IFF_UP, include/uapi/linux/if.h
        except ValueError:
            is_up = True
        master = None
        if "master" in names:
            try:
                master = self._host.read_link(f"{path}/master").rpartition("/")[2]
            except OSError as error:
                self._fault(f"{path}/master", error)
        self.interfaces.append(NetInterface(name, is_up, master))

    def _text(self, path: str) -> str:
        try:
            return self._host.read(path).decode("utf-8", "replace").strip()
        except OSError as error:
            self._fault(path, error)
            return ""

    def _fault(self, path: str, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self.unreadable = self.unreadable or f"{path}: {error.strerror or error}"
