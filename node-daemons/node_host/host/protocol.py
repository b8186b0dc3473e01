"""The one way node daemons see a host.

Everything a daemon reads from the kernel, and everything it orders from it, passes this port, so that the same daemon
runs on a real host, in a guest and on the simulated node. Paths are absolute paths of the host
("/sys/bus/pci/devices/0000:23:00.0/vendor"), wherever the host's root is mounted for the daemon. Errors are
``OSError`` with the errno of the kernel.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from os import stat_result
from pathlib import Path
from typing import Protocol, TypeAlias

# ``list`` is a method of the port, so that annotations inside the class need another name for the type.
Names: TypeAlias = list[str]


@dataclass(frozen=True, slots=True)
class Uevent:
    """One kernel object event (netlink KOBJECT_UEVENT, group 1).

    ``devpath`` is relative to /sys. ``driver`` (DRIVER) and ``slot`` (PCI_SLOT_NAME, a BDF) are None where the kernel
    does not send them.
    """

    action: str
    devpath: str
    subsystem: str
    driver: str | None
    slot: str | None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a program of the host ended: its exit status, and the end of what it printed."""

    status: int
    output: str


class Host(Protocol):
    """A host seen through its files. Reads and writes may hang as the kernel's do: callers bound them."""

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        ...

    def read_link(self, path: str) -> str:
        """The text of a symbolic link; links in the directories before it are followed."""
        ...

    def resolve(self, path: str) -> str:
        """The absolute host path, every link followed inside the root; FileNotFoundError when it leads nowhere."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the name is there; a dangling link is."""
        ...

    def stat(self, path: str) -> stat_result:
        """The state of the file that the path leads to, links followed."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """One write(2) to an existing attribute. May block for minutes, uninterruptibly on a real host."""
        ...

    def write_command(self, path: str, data: bytes) -> Names | None:
        """The command of a child process that does just this write, for writes that may block.

        It exits 0 when the kernel took the write; else it prints ``{"errno": n, "message": text}`` and exits 1. None
        where no child is needed, because a blocked write blocks only the calling thread (the simulated kernel in the
        same process).
        """
        ...

    def load_module(self, name: str) -> None:
        """modprobe. FileNotFoundError when the kernel has no such module; no error when it is loaded or built in."""
        ...

    def local(self, path: str) -> Path:
        """Where an ordinary file of the host (journal, lock, token) is for this process; it need not exist."""
        ...

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[Uevent]]:
        """Events from the moment of entering. The iterator raises OSError(ENOBUFS) when some were lost: rescan, enter
        again.
        """
        ...

    def scan(self, path: str) -> Sequence[tuple[str, bool]]:
        """The names in a directory, sorted, each with whether it is a directory itself (a link to one is not)."""
        ...

    def links(self, path: str) -> Mapping[str, str | OSError]:
        """The names in a directory, sorted, each with the text of the link that it is, or the error of reading it."""
        ...

    def list(self, path: str) -> Names:
        """The names in a directory, sorted."""
        ...


class HostWithTools(Host, Protocol):
    """A host whose own programs can be run, too."""

    def run_tool(self, path: str, arguments: Sequence[str], *, inherit: Sequence[int] = ()) -> ToolResult:
        """Run a program of the host, such as a vendor's, to its end, however long that takes; ``inherit`` are
        descriptors (locks) that it keeps open. FileNotFoundError when the host has no such program.
        """
        ...
