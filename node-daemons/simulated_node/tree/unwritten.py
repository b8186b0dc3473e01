"""A tree that stays in memory and is read there: for machines of which a test makes thousands."""
# Thousands of machines: pathlib would take as long as the file system.
# ruff: noqa: PTH103, PTH108, PTH112, PTH114, PTH208, PTH211

import errno
import os
import shutil
import stat
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from simulated_node.tree.entries import DIRECTORY, Directory, Entry, File, Link, Tree, resolve

# What of the tree is the kernel's. The rest is on the host's disk, where everybody may put files.
_KERNELS = ("/sys", "/proc", "/dev", "/lib")
_BELOW = tuple(f"{top}/" for top in _KERNELS)


class UnwrittenTree:
    """Stands in for ``Materialiser``; only directories of the host's disk are made below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.files = TreeFiles({})

    @property
    def tree(self) -> Tree:
        return self.files.tree

    @staticmethod
    def holds(path: str) -> bool:
        """Whether a path is read here, and not on the host's disk."""
        return path.startswith(_BELOW) or path in _KERNELS

    def replace(self, tree: Tree) -> None:
        if not self.tree:
            self._make_disk(tree)
        self.files = self.files.followed_by(tree)

    def empty(self, directory: str) -> None:
        """Take away everything in a directory that is not in the tree (a tmpfs after a reboot)."""
        if self.holds(directory):
            return
        for name in os.listdir(self._root + directory):
            place = f"{self._root}{directory}/{name}"
            if f"{directory}/{name}" in self.tree:
                continue
            if os.path.isdir(place) and not os.path.islink(place):
                shutil.rmtree(place)
            else:
                os.unlink(place)

    def _make_disk(self, tree: Tree) -> None:
        for path, entry in sorted(tree.items()):
            place = self._root + path
            if self.holds(path) or os.path.lexists(place):
                continue
            if isinstance(entry, Link):
                os.symlink(entry.text, place)
            else:
                os.makedirs(place)


class TreeFiles:
    """Reads of one tree, with the answers and errnos of ``RootedFiles`` over the files that it would be on a disk."""

    def __init__(
        self, tree: Tree, places: dict[str, str | int] | None = None, below: dict[str, list[str]] | None = None
    ) -> None:
        self.tree = tree
        self._places = {} if places is None else places
        self._below = {} if below is None else below

    def followed_by(self, tree: Tree) -> "TreeFiles":
        """Reads of the next tree; what is known already of where paths lead stays known if it is so still."""
        old = self.tree
        # A file that says something else leads nowhere else.
        is_alike = old.keys() == tree.keys() and all(
            entry is old[path] or entry == old[path] or type(entry) is type(old[path]) is File
            for path, entry in tree.items()
        )
        return TreeFiles(tree, self._places, self._below) if is_alike else TreeFiles(tree)

    def read(self, path: str) -> bytes:
        entry = self._at(path)
        if isinstance(entry, File):
            return entry.data
        raise _error(errno.EISDIR, path)

    def read_link(self, path: str) -> str:
        text = _text(self._named(path), path)
        if isinstance(text, str):
            return text
        raise text

    def exists(self, path: str) -> bool:
        try:
            return self._named(path) is not None
        except (FileNotFoundError, NotADirectoryError):
            return False

    def stat(self, path: str) -> os.stat_result:
        """Kind, mode and size; all else is 0."""
        entry = self._at(path)
        mode, size = (stat.S_IFREG | entry.mode, len(entry.data)) if isinstance(entry, File) else (stat.S_IFDIR, 0)
        return os.stat_result((mode, 0, 0, 0, 0, 0, size, 0, 0, 0))

    def list(self, path: str) -> Sequence[str]:
        if not isinstance(self._at(path), Directory):
            raise _error(errno.ENOTDIR, path)
        if not self._below:
            self._below.update(_children(self.tree))
        return self._below.get(self.resolve(path), [])

    def scan(self, path: str) -> Sequence[tuple[str, bool]]:
        names, real = self.list(path), self.resolve(path)
        return [(name, isinstance(self.tree[f"{real}/{name}"], Directory)) for name in names]

    def links(self, path: str, names: Sequence[str]) -> Mapping[str, str | OSError]:
        """Of these names in a directory."""
        real = self.resolve(path)
        return {name: _text(self.tree.get(f"{real}/{name}"), f"{path}/{name}") for name in names}

    def resolve(self, path: str) -> str:
        found = self._places.get(path)
        if found is None:
            found = self._places[path] = self._place(path)
        if isinstance(found, str):
            return found
        # A new one each time: an error that is raised keeps what it has come through.
        raise _error(found, path)

    def _place(self, path: str) -> str | int:
        """Where it leads, or the errno of following it. Paths of one directory follow the links above it once."""
        directory, _, name = path.rpartition("/")
        try:
            if directory and name not in ("", ".", ".."):
                place = f"{self.resolve(directory)}/{name}"
                if isinstance(self.tree.get(place), File | Directory):
                    return place
            return resolve(self.tree, path)
        except OSError as error:
            return error.errno or errno.EIO

    def _at(self, path: str) -> Entry:
        """What a path leads to."""
        return self.tree.get(self.resolve(path), DIRECTORY)

    def _named(self, path: str) -> Entry | None:
        """What has this name; a link that it is itself is not followed."""
        directory, _, name = path.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            return self._at(path)
        if not directory:
            return self.tree.get(f"/{name}")
        if not isinstance(self._at(directory), Directory):
            raise _error(errno.ENOTDIR, path)
        return self.tree.get(f"{self.resolve(directory)}/{name}")


def _children(tree: Tree) -> dict[str, list[str]]:
    """The names in each directory, sorted."""
    below = defaultdict(list)
    for path in tree:
        directory, _, name = path.rpartition("/")
        below[directory].append(name)
    for names in below.values():
        names.sort()
    return below


def _text(entry: Entry | None, path: str) -> str | OSError:
    if isinstance(entry, Link):
        return entry.text
    return _error(errno.ENOENT if entry is None else errno.EINVAL, path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
