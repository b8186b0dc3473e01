"""Putting a rendered tree below a root, step by step from the one before.

Each name changes by one rename: a reader sees the old content or the new, never a part; a device's directory comes
and goes whole. Names that stand for others (links) go first and come last, so that a link that is there leads
somewhere.
"""

import itertools
import posixpath
import shutil
from pathlib import Path

from simulated_node.tree.entries import Directory, Entry, File, Link, Tree


class Materialiser:
    """Owns the files of the kernel below ``root``. Not thread-safe: the kernel calls it under its own lock."""

    def __init__(self, root: Path, staging: Path) -> None:
        self._root = root
        self._staging = staging
        self._names = itertools.count()
        self._tree: Tree = {}
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)

    @property
    def tree(self) -> Tree:
        return self._tree

    def replace(self, tree: Tree) -> None:
        old, self._tree = self._tree, tree
        gone = [path for path in old if path not in tree or type(old[path]) is not type(tree[path])]
        changed = [path for path, entry in tree.items() if path in old and path not in gone and old[path] != entry]
        new = [path for path in tree if path not in old or path in gone]
        self._remove(gone, old)
        self._create(new, tree)
        for path in changed:
            self._put(path, tree[path])

    def empty(self, directory: str) -> None:
        """Take away everything in a directory that is not in the tree (a tmpfs after a reboot)."""
        for child in self._real(directory).iterdir():
            if f"{directory}/{child.name}" not in self._tree:
                self._discard(child)

    def _remove(self, gone: list[str], old: Tree) -> None:
        for path in gone:
            if isinstance(old[path], Link):
                self._real(path).unlink(missing_ok=True)
        lost = set(gone)
        for path in gone:
            if not isinstance(old[path], Link) and posixpath.dirname(path) not in lost:
                self._discard(self._real(path))

    def _create(self, new: list[str], tree: Tree) -> None:
        fresh = set(new)
        tops: dict[str, Path] = {}
        links = []
        for path in sorted(new):
            entry = tree[path]
            above = posixpath.dirname(path)
            top = next((known for known in tops if path.startswith(known + "/")), None)
            if top is not None:
                self._make(tops[top] / path[len(top) + 1 :], entry)
            elif isinstance(entry, Directory) and above not in fresh:
                tops[path] = self._stage()
                tops[path].mkdir()
            elif isinstance(entry, Link):
                links.append(path)
            else:
                self._put(path, entry)
        for path, staged in tops.items():
            self._settle(staged, self._real(path))
        for path in links:
            self._put(path, tree[path])

    def _settle(self, staged: Path, place: Path) -> None:
        """Move a new directory into place; where a directory of the disk is already, its contents join it."""
        if not place.exists():
            staged.rename(place)
            return
        for child in staged.iterdir():
            if child.is_dir() and not child.is_symlink():
                self._settle(child, place / child.name)
            else:
                child.rename(place / child.name)
        staged.rmdir()

    def _put(self, path: str, entry: Entry) -> None:
        if isinstance(entry, Directory):
            self._real(path).mkdir(exist_ok=True)
            return
        staged = self._stage()
        self._make(staged, entry)
        staged.rename(self._real(path))

    def _make(self, place: Path, entry: Entry) -> None:
        match entry:
            case Directory():
                place.mkdir()
            case File(data, mode, _):
                place.write_bytes(data)
                place.chmod(mode)
            case Link(text):
                place.symlink_to(text)

    def _discard(self, place: Path) -> None:
        trash = self._stage()
        place.rename(trash)
        if trash.is_dir() and not trash.is_symlink():
            shutil.rmtree(trash)
        else:
            trash.unlink()

    def _stage(self) -> Path:
        return self._staging / str(next(self._names))

    def _real(self, path: str) -> Path:
        return self._root / path[1:]
