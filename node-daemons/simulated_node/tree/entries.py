"""A tree of files as a value: absolute host path -> what is there."""

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

_LINKS = 40


class TreeBuilder:
    """Collects entries; directories above them come by themselves."""

    def __init__(self) -> None:
        self.tree: Tree = {}

    def directory(self, path: str) -> None:
        while path and path not in self.tree:
            self.tree[path] = Directory()
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


def lookup(tree: Tree, path: str) -> tuple[str, Entry] | None:
    """The entry that a path leads to, links followed; None when it leads nowhere."""
    if not path.startswith("/"):
        return None
    done: list[str] = []
    todo = path.split("/")[::-1]
    links = 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            del done[-1:]
            continue
        entry = tree.get("/" + "/".join((*done, name)))
        if entry is None:
            return None
        if not isinstance(entry, Link):
            done.append(name)
            continue
        links += 1
        if links > _LINKS:
            return None
        if entry.text.startswith("/"):
            done.clear()
        todo.extend(reversed(entry.text.split("/")))
    found = "/" + "/".join(done)
    if found == "/":
        return found, Directory()
    return (found, tree[found]) if found in tree else None
