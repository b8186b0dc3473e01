"""Putting a rendered tree below a root, step by step from the one before.

Each name changes by one rename: a reader sees the old content or the new, never a part; a device's directory comes and
goes whole. Links from elsewhere to what comes or goes are removed first and made last, so that a link that is there
leads somewhere.
"""
# A machine has some hundred files, made anew at every boot: pathlib would take as long as the file system.
# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH110, PTH112, PTH114, PTH208, PTH211

import errno
import itertools
import os
import shutil
from pathlib import Path

from simulated_node.tree.entries import Directory, Entry, File, Link, Tree

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Materialiser:
    """Owns the files of the kernel below ``root``. Not thread-safe: the kernel calls it under its own lock."""

    def __init__(self, root: Path, staging: Path) -> None:
        self._root = str(root)
        self._staging = str(staging)
        self._names = itertools.count()
        self._tree: Tree = {}
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)

    @property
    def tree(self) -> Tree:
        return self._tree

    def replace(self, tree: Tree) -> None:
        old, self._tree = self._tree, tree
        gone = [path for path, entry in old.items() if type(tree.get(path)) is not type(entry)]
        new = [path for path, entry in tree.items() if type(old.get(path)) is not type(entry)]
        fresh = set(new)
        changed = [
            path
            for path, entry in tree.items()
            if old.get(path) is not entry and path not in fresh and old[path] != entry
        ]
        self._remove(gone, old)
        self._create(new, tree)
        for path in changed:
            self._put(path, tree[path])

    def empty(self, directory: str) -> None:
        """Take away everything in a directory that is not in the tree (a tmpfs after a reboot)."""
        for name in os.listdir(self._root + directory):
            if f"{directory}/{name}" not in self._tree:
                self._discard(f"{self._root}{directory}/{name}")

    def _remove(self, gone: list[str], old: Tree) -> None:
        lost = set(gone)
        # What lies in a directory that goes, goes with it.
        tops = [path for path in gone if path.rpartition("/")[0] not in lost]
        for path in sorted(tops, key=lambda path: not isinstance(old[path], Link)):
            self._discard(self._root + path)

    def _create(self, new: list[str], tree: Tree) -> None:
        # Where the parts of a directory that comes as a whole are staged, by their paths in the tree.
        staged: dict[str, str] = {}
        tops: list[str] = []
        links: list[str] = []
        for path in sorted(new):
            entry = tree[path]
            parent, _, name = path.rpartition("/")
            if parent in staged:
                place = f"{staged[parent]}/{name}"
                _make(place, entry)
                if isinstance(entry, Directory):
                    staged[path] = place
            elif isinstance(entry, Directory):
                staged[path] = self._stage()
                os.mkdir(staged[path])
                tops.append(path)
            elif isinstance(entry, Link):
                links.append(path)
            else:
                self._put(path, entry)
        for path in tops:
            self._settle(staged[path], self._root + path)
        for path in links:
            self._put(path, tree[path])

    def _settle(self, staged: str, place: str) -> None:
        """Move a new directory into place; where a directory of the disk is already, its contents join it."""
        if not os.path.exists(place):
            os.rename(staged, place)
            return
        for name in os.listdir(staged):
            child = f"{staged}/{name}"
            if os.path.isdir(child) and not os.path.islink(child):
                self._settle(child, f"{place}/{name}")
            else:
                os.rename(child, f"{place}/{name}")
        os.rmdir(staged)

    def _put(self, path: str, entry: Entry) -> None:
        staged = self._stage()
        _make(staged, entry)
        os.rename(staged, self._root + path)

    def _discard(self, place: str) -> None:
        trash = self._stage()
        os.rename(place, trash)
        if os.path.isdir(trash) and not os.path.islink(trash):
            shutil.rmtree(trash)
        else:
            os.unlink(trash)

    def _stage(self) -> str:
        return f"{self._staging}/{next(self._names)}"


def _make(place: str, entry: Entry) -> None:
    match entry:
        case Directory():
            os.mkdir(place)
        case File(data, mode, _):
            descriptor = os.open(place, _NEW, mode)
            try:
                if os.write(descriptor, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place)
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
        case Link(text):
            os.symlink(text, place)
