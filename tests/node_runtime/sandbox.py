"""Namespaces that look like a machine of their own: another /dev, /run and /var, another network, processes and cgroups
that are gone when their first process is. Files below the rest of / are the real machine's.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.cluster.files import tail, write_private
from cli.cluster.run.launch import start_ticks
from cli.cluster.run.processes import spawn
from tests.node_runtime.cgroups import Cgroup
from tests.node_runtime.errors import NodeRuntimeError

INIT = Path(__file__).with_name("init.py")
BRIDGE = "cni0"
ADDRESS = "10.88.0.1"
NETWORK = "10.88.0.0/24"
_START_SECONDS = 30.0
_NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
# Enters the cgroups named before `--`, and becomes the command behind it.
_JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; exec "$@"'
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class View:
    """What the sandbox sees of the machine. `binds`: directories, by where they are seen; `files` the same for single
    files, whose targets may be missing (then nothing is hidden there)."""

    hostname: str
    binds: Mapping[str, Path] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


class Sandbox:
    """Running namespaces. `pid` is their first process, as this machine counts; all others in there end with it, and it
    ends with this process."""

    def __init__(self, directory: Path, cgroup: Cgroup, starter: subprocess.Popen[bytes]) -> None:
        self.directory = directory
        self.pid = 0
        self._started = 0
        self._cgroup = cgroup
        self._starter = starter

    @classmethod
    def start(cls, directory: Path, view: View, *, busybox: Path) -> Sandbox:
        """Make the namespaces; returns when the view is complete. `directory` keeps the log and small files.

        Raises NodeRuntimeError with what the first process said.
        """
        if os.geteuid() != 0:
            raise NodeRuntimeError("a node runs in namespaces with mounts of its own: run this as root")
        directory.mkdir(parents=True, exist_ok=True)
        ready, log = directory / "sandbox.ready", directory / "sandbox.log"
        ready.unlink(missing_ok=True)
        for source in (*view.binds.values(), *view.files.values()):
            if not source.exists():
                raise NodeRuntimeError(f"{source} does not exist: the node's view needs it")
        cgroup = Cgroup.create(number=next(_numbers))
        specification = directory / "sandbox.json"
        write_private(specification, json.dumps(_specification(view, cgroup, ready, busybox)))
        init = [sys.executable, "-I", "-S", str(INIT), str(specification)]
        unshare = [tool("unshare"), *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        try:
            starter = spawn(joining(cgroup.doors, [*unshare, *init]), output=log)
            sandbox = cls(directory, cgroup, starter)
        except BaseException:
            cgroup.remove()
            raise
        try:
            sandbox._await(ready, log)
        except BaseException:
            sandbox.stop()
            raise
        return sandbox

    @property
    def running(self) -> bool:
        return self._starter.poll() is None

    def path(self, inside: str) -> Path:
        """A path of the sandbox, for this process. Symbolic links on the way must be relative."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def command(self, arguments: Sequence[str], *, network: bool = True) -> list[str]:
        """The command that runs `arguments` inside; without `network` in there, but in this process's network."""
        namespaces = [one for one in _NAMESPACES if network or one != "--net"]
        return joining(
            self._cgroup.service_doors, [tool("nsenter"), f"--target={self.pid}", *namespaces, "--", *arguments]
        )

    def run(
        self, arguments: Sequence[str], *, seconds: float = 60.0, environment: Mapping[str, str] | None = None
    ) -> str:
        """Run a command inside to its end; its output. Raises NodeRuntimeError when it fails or takes too long."""
        try:
            done = subprocess.run(
                self.command(arguments),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                env=None if environment is None else dict(environment),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NodeRuntimeError(f"`{' '.join(arguments)}` did not end within {seconds:.0f} s in the node") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise NodeRuntimeError(f"`{' '.join(arguments)}` failed in the node (code {done.returncode}): {said}")
        return done.stdout

    def stop(self) -> None:
        """Power off: every process in there is killed at once. May be called again."""
        if self.running:
            # The starter kills the first process of the namespaces when it ends, and the kernel all others with that.
            self._starter.kill()
        self._starter.wait()
        if self.pid:
            _await_end(self.pid, self._started)
            self.pid = 0
        self._cgroup.remove()

    def _await(self, ready: Path, log: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists():
            if not self.running or time.monotonic() > deadline:
                raise NodeRuntimeError(f"the namespaces of a node were not made:\n{tail(log)}\nwhole log: {log}")
            time.sleep(0.01)
        children = children_of(self._starter.pid)
        if len(children) != 1:
            raise NodeRuntimeError(f"the first process of the namespaces ended at once:\n{tail(log)}")
        self.pid = children[0]
        self._started = start_ticks(self.pid)


def _specification(view: View, cgroup: Cgroup, ready: Path, busybox: Path) -> dict[str, object]:
    return {
        "hostname": view.hostname,
        "binds": [[str(source), target] for target, source in view.binds.items()],
        "files": [[str(source), target] for target, source in view.files.items()],
        "hierarchies": [
            {"name": tree.mount_point.name, "controllers": tree.controllers} for tree in cgroup.hierarchies
        ],
        "unifiedOnly": cgroup.unified_only,
        "busybox": str(busybox),
        "bridge": BRIDGE,
        "address": f"{ADDRESS}/{NETWORK.partition('/')[2]}",
        "ready": str(ready),
    }


def joining(doors: Iterable[Path], command: Sequence[str]) -> list[str]:
    """The command, run in the cgroups with these doors."""
    return ["/bin/sh", "-c", _JOIN, "join", *(str(door) for door in doors), "--", *command]


def children_of(pid: int) -> list[int]:
    """The living children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def tool(name: str) -> str:
    """The path of a program of the system. Raises NodeRuntimeError when it is not there."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise NodeRuntimeError(f"there is no {name}: run hack/node-runtime-packages")
    return found


def _await_end(pid: int, started: int) -> None:
    """Wait for a process that is not our child and is about to end."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if start_ticks(pid) != started or state == "Z":
                return
        except OSError:
            return
        time.sleep(0.01)
    raise NodeRuntimeError(f"process {pid} of the node did not end after SIGKILL: see /proc/{pid}/stack")


__all__ = ["ADDRESS", "BRIDGE", "NETWORK", "Sandbox", "View", "children_of", "joining", "tool"]
