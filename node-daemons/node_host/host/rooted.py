"""Reading a host's files below the place where its root is mounted.

The part of the host port that both kernels share: /sys, /proc and /dev of a real host, or the plain files of a
simulated one.
"""
# A path here is a host path below a root, and pathlib would follow its links out of the root.
# ruff: noqa: PTH100, PTH115, PTH116, PTH123, PTH208

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from node_host.host.protocol import Names
from node_host.host.write_child import resolve_in_root


class RootedFiles:
    """The reading half of ``Host``; links never lead out of the root."""

    def __init__(self, root: str | Path) -> None:
        self.root = os.path.abspath(root)
        self._base = self.root.rstrip("/")
        # Below "/" the kernel follows the links, and none leads out; elsewhere they are followed here, name by name.
        self._no_follow = os.O_NOFOLLOW if self._base else 0

    def read(self, path: str) -> bytes:
        descriptor = os.open(self._real(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | self._no_follow)
        with open(descriptor, "rb", buffering=0) as file:
            return file.readall()

    def read_link(self, path: str) -> str:
        return os.readlink(self._entry(path))

    def resolve(self, path: str) -> str:
        return resolve_in_root(self.root, path)

    def exists(self, path: str) -> bool:
        try:
            return os.path.lexists(self._entry(path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def stat(self, path: str) -> os.stat_result:
        return os.stat(self._real(path), follow_symlinks=not self._no_follow)

    def local(self, path: str) -> Path:
        return Path(self._base + resolve_in_root(self.root, path, strict=False))

    def scan(self, path: str) -> Sequence[tuple[str, bool]]:
        with os.scandir(self._real(path)) as entries:
            return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)

    def links(self, path: str) -> Mapping[str, str | OSError]:
        names, directory = self.list(path), self._real(path)
        return {name: _text_of(f"{directory}/{name}") for name in names}

    def list(self, path: str) -> Names:
        return sorted(os.listdir(self._real(path)))

    def _real(self, path: str) -> str:
        if self._base:
            return self._base + resolve_in_root(self.root, path)
        if not path.startswith("/") or "\0" in path:
            raise OSError(errno.EINVAL, "not an absolute host path", path)
        return path

    def _entry(self, path: str) -> str:
        """The real path of a name whose own link is not followed."""
        directory, _, name = path.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            return self._real(path)
        return f"{self._real(directory or '/').rstrip('/')}/{name}"


def _text_of(link: str) -> str | OSError:
    try:
        return os.readlink(link)
    except OSError as error:
        return error
