"""The node's own part of the machine's cgroups: what its pods use is counted and limited there, its kubelet takes the
root of it for the machine's, and nothing of it is left when the node has ended.

Knows the three layouts: cgroup v1, v1 with the unified hierarchy beside it, and cgroup v2 alone (cgroups(7)).
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.cluster.run.launch import boot_id, start_ticks
from cli.cluster.run.processes import ProcessRecord, is_running
from tests.node_runtime.errors import NodeRuntimeError

_PREFIX = "npufleet-node"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-(\d+)-\d+")
_REMOVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One tree of cgroups. `controllers` as in /proc/self/cgroup, empty for cgroup v2; `mount_point` as seen by this
    process, whose own cgroup there is `own`."""

    controllers: str
    mount_point: Path
    own: Path

    @property
    def unified(self) -> bool:
        return not self.controllers


def hierarchies(mountinfo: str, membership: str) -> list[Hierarchy]:
    """From the texts of /proc/self/mountinfo and /proc/self/cgroup. A tree that is mounted twice is named once."""
    paths = {
        controllers: path
        for controllers, _, path in (line.partition(":")[2].partition(":") for line in membership.splitlines())
    }
    found: dict[str, Hierarchy] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, mount_point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            controllers = ""
        elif kind == "cgroup":
            given = set(options.split(","))
            controllers = next((name for name in paths if name and set(name.split(",")) <= given), "?")
        else:
            continue
        if controllers in paths and controllers not in found:
            relative = os.path.relpath(paths[controllers], root)
            inside = not relative.startswith("..")
            own = Path(mount_point, relative) if inside else Path(mount_point)
            found[controllers] = Hierarchy(controllers, Path(mount_point), own)
    return list(found.values())


def read_hierarchies() -> list[Hierarchy]:
    """Of this process. Raises NodeRuntimeError where there are none."""
    found = hierarchies(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    if not found:
        raise NodeRuntimeError("no cgroups are mounted below /sys/fs/cgroup: a kubelet cannot run here")
    return found


class Cgroup:
    """One cgroup of the same name in every hierarchy."""

    def __init__(self, name: str, trees: list[Hierarchy]) -> None:
        self.name = name
        self.hierarchies = trees
        # Alone, cgroup v2 hands controllers to children of the root and of cgroups without processes only.
        self.unified_only = len(trees) == 1 and trees[0].unified
        self.directories = [(tree.mount_point if self.unified_only else tree.own) / name for tree in trees]

    @classmethod
    def create(cls, *, number: int = 0) -> Cgroup:
        """Make it, for this process to use; what killed processes have left is removed first.

        Raises NodeRuntimeError where cgroups cannot be made.
        """
        trees = read_hierarchies()
        sweep(trees)
        made = cls(f"{_PREFIX}-{os.getpid()}-{start_ticks(os.getpid())}-{number}", trees)
        try:
            for directory in made.directories:
                directory.mkdir()
                for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cgroup of v1, and then nobody may enter
                    if not made.unified_only and (directory / name).exists():
                        (directory / name).write_text((directory.parent / name).read_text())
        except OSError as error:
            made.remove()
            raise NodeRuntimeError(
                f"{error.filename}: {error.strerror}; a node needs cgroups of its own, so run this as root where "
                "/sys/fs/cgroup can be written"
            ) from error
        return made

    @property
    def doors(self) -> list[Path]:
        """The files that a process writes itself into."""
        return [directory / "cgroup.procs" for directory in self.directories]

    @property
    def service_doors(self) -> list[Path]:
        """The same for the node's services, which cgroup v2 wants beside the pods, not above them."""
        if self.unified_only:
            return [directory / "runtime" / "cgroup.procs" for directory in self.directories]
        return self.doors

    def remove(self) -> None:
        """Remove it with all below. Its processes must have ended. Raises NodeRuntimeError when one has not."""
        for directory in self.directories:
            _remove_tree(directory, time.monotonic() + _REMOVE_SECONDS)


def sweep(trees: list[Hierarchy]) -> None:
    """Remove the cgroups of nodes whose starter has ended without doing so."""
    for tree in trees:
        for directory in _of_nodes(tree.mount_point):
            match = _NAME.fullmatch(directory.name)
            if match is None or is_running(ProcessRecord(int(match[1]), int(match[2]), boot_id())):
                continue
            try:
                _remove_tree(directory, time.monotonic())
            except NodeRuntimeError:
                continue  # its last process is about to end; the next start finds it again


def _of_nodes(root: Path) -> Iterator[Path]:
    for place, names, _ in os.walk(root):
        ours = [name for name in names if name.startswith(_PREFIX)]
        yield from (Path(place, name) for name in ours)
        names[:] = [name for name in names if name not in ours]


def _remove_tree(directory: Path, deadline: float) -> None:
    while True:
        try:
            for place, _, _ in os.walk(directory, topdown=False):
                Path(place).rmdir()
            return
        except FileNotFoundError:
            continue
        except OSError as error:
            # A cgroup stays busy for a moment after its last process.
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise NodeRuntimeError(f"{error.filename}: {error.strerror}; processes of the node live on") from error
        time.sleep(0.02)
