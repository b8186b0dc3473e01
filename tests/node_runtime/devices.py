"""Device nodes of a simulated machine, as device nodes: there they are plain files, and no container gets those."""

from __future__ import annotations

import os
import stat
from pathlib import Path

# What stands behind each of them (misc devices, Documentation/admin-guide/devices.txt): FUSE. It opens without doing
# anything, and no container may open it that was not given it.
MAJOR, MINOR = 10, 229


class DeviceMirror:
    """Keeps `target` (a node's /dev) like `source` (the /dev of a simulated machine), node for node."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._made: set[str] = set()

    def update(self, target: Path) -> frozenset[str]:
        """Make what is missing, remove what is gone; the names below /dev that are there now."""
        wanted = _names(self._source)
        for name in sorted(self._made - wanted, reverse=True):
            (target / name).unlink(missing_ok=True)
        for name in sorted(wanted):
            node = target / name
            if not node.exists():
                node.parent.mkdir(parents=True, exist_ok=True)
                os.mknod(node, stat.S_IFCHR | 0o660, os.makedev(MAJOR, MINOR))
                self._made.add(name)
        self._made &= wanted
        return frozenset(wanted)

    def forget(self) -> None:
        """The node starts anew, with an empty /dev."""
        self._made.clear()


def _names(directory: Path) -> set[str]:
    found = set()
    for place, _, files in os.walk(directory):
        found |= {str(Path(place, file).relative_to(directory)) for file in files}
    return found
