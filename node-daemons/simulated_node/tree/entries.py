"""A tree of files as a value: absolute host path -> what is there."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from simulated_node.model.attributes import Attribute

READ_ONLY = 0o444
READ_WRITE = 0o644
WRITE_ONLY = 0o200


@dataclass(frozen=True, slots=True)
class File:
    """``attribute`` is what a write goes to; None where the kernel has nothing to write to, or we do not support it."""

    data: bytes
    mode: int = READ_ONLY
    attribute: Attribute | None = None


@dataclass(frozen=True, slots=True)
class Link:
    text: str


@dataclass(frozen=True, slots=True)
class Directory:
    pass


Entry: TypeAlias = File | Link | Directory
Tree: TypeAlias = dict[str, Entry]

# One for all: trees are compared after every order, and what is the same object is equal at once.
DIRECTORY = Directory()
_LINKS = 40


class TreeBuilder:
    """Collects entries; directories above them come by themselves."""

    def __init__(self) -> None:
        self.tree: Tree = {}

    def directory(self, path: str) -> None:
        while path and path not in self.tree:
            self.tree[path] = DIRECTORY
            path = path.rpartition("/")[0]

    def file(self, path: str, data: str | bytes, mode: int = READ_ONLY, attribute: Attribute | None = None) -> None:
        """A file; text that does not end its line is ended, as sysfs attributes are."""
        self.directory(path.rpartition("/")[0])
        if isinstance(data, str):
            data = (data if data.endswith("\n") or not data else data + "\n").encode()
        self.tree[path] = File(data, mode, attribute)

    def link(self, path: str, target: str) -> None:
        """A relative link to an absolute path, as sysfs makes them."""
        own, other = path.split("/")[:-1], target.split("/")
        common = 0
        while common < min(len(own), len(other)) and own[common] == other[common]:
            common += 1
        self.raw_link(path, "/".join([".."] * (len(own) - common) + other[common:]) or ".")

    def raw_link(self, path: str, text: str) -> None:
        self.directory(path.rpartition("/")[0])
        self.tree[path] = Link(text)


class Memory:
    """Parts of a machine's tree as they were when last rendered: most orders change one part of many.

    It is kept from one rendering to the next of the same boot, and saves time only.
    """

    def __init__(self) -> None:
        self._parts: dict[str, tuple[object, Tree]] = {}

    def clear(self) -> None:
        self._parts.clear()

    def add(self, out: TreeBuilder, part: str, looks: object, render: Callable[[TreeBuilder], None]) -> None:
        """Add a part; ``looks`` is all that ``render`` makes it from and that may change while the machine is on."""
        known = self._parts.get(part)
        if known is None or known[0] != looks:
            builder = TreeBuilder()
            render(builder)
            self._parts[part] = known = (looks, builder.tree)
        out.tree |= known[1]


def resolve(tree: Tree, path: str) -> str:
    """Where a path leads, links followed; OSError as the kernel raises it when it leads nowhere."""
    if not path.startswith("/") or "\0" in path:
        raise OSError(errno.EINVAL, "not an absolute host path", path)
    done = ""
    todo = path.split("/")[::-1]
    links = 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            done = done.rpartition("/")[0]
            continue
        entry = tree.get(f"{done}/{name}")
        if entry is None:
            is_in_file = done != "" and not isinstance(tree[done], Directory)
            number = errno.ENOTDIR if is_in_file else errno.ENOENT
            raise OSError(number, os.strerror(number), path)
        if not isinstance(entry, Link):
            done = f"{done}/{name}"
            continue
        links += 1
        if links > _LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if entry.text.startswith("/"):
            done = ""
        todo.extend(reversed(entry.text.split("/")))
    return done or "/"


def lookup(tree: Tree, path: str) -> tuple[str, Entry] | None:
    """The entry that a path leads to, links followed; None when it leads nowhere."""
    try:
        found = resolve(tree, path)
    except OSError:
        return None
    return found, tree.get(found, DIRECTORY)
