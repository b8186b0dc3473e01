"""Which processes hold which device nodes open, from one walk over /proc.

A node is recognised by the path that the descriptor's link shows and, on a real procfs, by its device number as well:
in a container the same device may have another name. Evidence that cannot be read is said to be so, never left out.
Sources: proc(5), proc_pid_fd(5); drivers/vfio/vfio_main.c (`anon_inode:[vfio-device]`, fdinfo `vfio-device-syspath`).
"""

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from node_host.evidence.pods import read_pod_uid
from node_host.host import Host
from node_host.pci.device import last_address

PROC: Final = "/proc"
_PROC_ROOT_INODE: Final = 1  # include/linux/proc_fs.h PROC_ROOT_INO
_VFIO_DEVICE: Final = "anon_inode:[vfio-device]"
_SYSPATH: Final = "vfio-device-syspath:"
_DELETED: Final = " (deleted)"
Number: TypeAlias = tuple[bool, int, int]
_ENDED: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.EBADF})


@dataclass(frozen=True, slots=True, order=True)
class Handle:
    """A process and a node that it has open. ``pod_uid``: of the pod that the process is of, as far as is known."""

    pid: int
    comm: str
    node: str
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class OpenHandles:
    """All handles on device nodes of the host."""

    by_path: Mapping[str, tuple[Handle, ...]] = field(default_factory=dict)
    # By (is a block device, major, minor): block and character devices have numbers of their own.
    by_number: Mapping[Number, tuple[Handle, ...]] = field(default_factory=dict)
    # Handles on a VFIO device itself, by the PCI address that the kernel tells.
    by_address: Mapping[str, tuple[Handle, ...]] = field(default_factory=dict)
    # The same where the kernel does not tell which device it is.
    unattributed: tuple[Handle, ...] = ()
    # Why the picture is not whole, or None.
    unreadable: str | None = None


def read_open_handles(host: Host) -> OpenHandles:
    """Walk all processes. Never raises; may hang as any read of a host may."""
    walk = _Walk(host)
    try:
        pids = [int(name) for name in host.list(PROC) if name.isdecimal()]
    except OSError as error:
        return OpenHandles(unreadable=f"{PROC}: {error.strerror or error}")
    for pid in pids:
        walk.process(pid)
    return walk.result()


class _Walk:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._paths: dict[str, set[Handle]] = defaultdict(set)
        self._numbers: dict[Number, set[Handle]] = defaultdict(set)
        self._addresses: dict[str, set[Handle]] = defaultdict(set)
        self._unattributed: set[Handle] = set()
        self._unreadable: str | None = None
        try:
            self._is_procfs = host.stat(PROC).st_ino == _PROC_ROOT_INODE
        except OSError:
            self._is_procfs = False

    def process(self, pid: int) -> None:
        directory = f"{PROC}/{pid}/fd"
        try:
            links = self._host.links(directory)
        except OSError as error:
            self._fault(directory, error)
            return
        opener: tuple[str, str] | None = None
        has_vfio_node = False
        vfio_devices: list[str] = []
        for name, target in links.items():
            if isinstance(target, OSError):
                self._fault(f"{directory}/{name}", target)
                continue
            if target == _VFIO_DEVICE:
                vfio_devices.append(name)
                continue
            if "/dev/" not in target:
                continue
            opener = opener or self._opener(pid)
            path = target.removesuffix(_DELETED)
            has_vfio_node |= path.startswith("/dev/vfio/") and path != "/dev/vfio/vfio"
            handle = self._handle(pid, opener, path)
            self._paths[path].add(handle)
            number = self._number(directory, name)
            if number is not None:
                self._numbers[number].add(handle)
        for name in vfio_devices:
            opener = opener or self._opener(pid)
            self._vfio_device(self._handle(pid, opener, _VFIO_DEVICE), name, explained=has_vfio_node)

    def _vfio_device(self, handle: Handle, name: str, *, explained: bool) -> None:
        """A descriptor of a VFIO device. Without fdinfo the process's open group or device node explains it."""
        try:
            text = self._host.read(f"{PROC}/{handle.pid}/fdinfo/{name}").decode("utf-8", "replace")
        except OSError as error:
            if error.errno in _ENDED:
                return
            text = ""
        syspath = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(_SYSPATH)), "")
        address = last_address(syspath)
        if address is not None:
            self._addresses[address].add(handle)
        elif not explained:
            self._unattributed.add(handle)

    def _number(self, directory: str, name: str) -> Number | None:
        """Device number behind a descriptor; only the magic links of a real procfs lead to the open file."""
        if not self._is_procfs:
            return None
        try:
            status = (self._host.local(directory) / name).stat()
        except OSError:
            return None
        is_block = stat.S_ISBLK(status.st_mode)
        if not (is_block or stat.S_ISCHR(status.st_mode)):
            return None
        return is_block, os.major(status.st_rdev), os.minor(status.st_rdev)

    def _opener(self, pid: int) -> tuple[str, str]:
        return self._comm(pid), read_pod_uid(self._host, pid) or ""

    @staticmethod
    def _handle(pid: int, opener: tuple[str, str], node: str) -> Handle:
        comm, pod = opener
        return Handle(pid, comm, node, pod)

    def _comm(self, pid: int) -> str:
        try:
            comm = self._host.read(f"{PROC}/{pid}/comm")
        except OSError:
            return f"pid-{pid}"
        return comm.decode("utf-8", "replace").strip() or f"pid-{pid}"

    def _fault(self, path: str, error: OSError) -> None:
        if error.errno not in _ENDED:
            self._unreadable = self._unreadable or f"{path}: {error.strerror or error}"

    def result(self) -> OpenHandles:
        return OpenHandles(
            by_path={path: tuple(sorted(handles)) for path, handles in self._paths.items()},
            by_number={number: tuple(sorted(handles)) for number, handles in self._numbers.items()},
            by_address={address: tuple(sorted(handles)) for address, handles in self._addresses.items()},
            unattributed=tuple(sorted(self._unattributed)),
            unreadable=self._unreadable,
        )
