"""The first process of a node's namespaces: makes what the node sees of the machine, then waits for orphans to end.

Run as `python -I -S init.py SPECIFICATION`, the path of a JSON file, by `unshare`, with mount, cgroup, network, UTS and
PID namespaces new; imports nothing of ours. When all is made it writes the file that the specification names; what
fails is a traceback on stderr and exit code 1. With this process all others of the node end.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from typing import Any

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_SHARED = 2, 4, 8, 4096, 16384, 1 << 20
MNT_DETACH = 2
_LIBC = ctypes.CDLL(None, use_errno=True)
_DIRECTORIES = ("/run/lock", "/run/netns", "/run/containerd", "/var/log/pods")

# As devtmpfs and udev have them: name, major, minor, permissions.
_NODES = (
    ("null", 1, 3, 0o666),
    ("zero", 1, 5, 0o666),
    ("full", 1, 7, 0o666),
    ("random", 1, 8, 0o666),
    ("urandom", 1, 9, 0o666),
    ("kmsg", 1, 11, 0o644),
    ("tty", 5, 0, 0o666),
    ("fuse", 10, 229, 0o666),
)
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None)
    if _LIBC.mount(arguments[0], arguments[1], arguments[2], ctypes.c_ulong(arguments[3]), arguments[4]) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {kind or 'bind'} {source}: {os.strerror(code)}", target)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - pathlib would double the start-up time
        specification: dict[str, Any] = json.load(file)
    mount("none", "/", flags=MS_REC | MS_SHARED)
    # By descriptor, because some may lie where the node sees something else from now on.
    binds = [(os.open(source, os.O_PATH), target) for source, target in specification["binds"]]
    files = [(os.open(source, os.O_PATH), target) for source, target in specification["files"]]
    mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    _make_var()
    _make_devices()
    _make_cgroups(specification["hierarchies"], specification["unifiedOnly"])
    for directory in _DIRECTORIES:
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103
    for descriptor, target in binds:
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
        _bind(descriptor, target)
    for descriptor, target in files:
        if os.path.exists(target):  # noqa: PTH110 - a kernel without this setting has nothing to hide
            _bind(descriptor, target)
    socket.sethostname(specification["hostname"])
    _make_network(specification["busybox"], specification["bridge"], specification["address"])
    _announce(specification["ready"])
    _reap()


def _bind(descriptor: int, target: str) -> None:
    mount(f"/proc/self/fd/{descriptor}", target, flags=MS_BIND)
    os.close(descriptor)


def _make_var() -> None:
    """/var as it is, and what the node writes there is gone with it."""
    for name in ("upper", "work"):
        os.makedirs(f"/run/.var/{name}")  # noqa: PTH103
    mount("overlay", "/var", "overlay", 0, "lowerdir=/var,upperdir=/run/.var/upper,workdir=/run/.var/work")


def _make_devices() -> None:
    """A /dev without the machine's own devices: a pod of the node gets at none of them."""
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=0755")
    os.umask(0)
    for name, major, minor, mode in _NODES:
        os.mknod(f"/dev/{name}", stat.S_IFCHR | mode, os.makedev(major, minor))
    os.umask(0o022)
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(f"/dev/{name}")  # noqa: PTH102
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    mount("mqueue", "/dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.symlink("pts/ptmx", "/dev/ptmx")  # noqa: PTH211
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")  # noqa: PTH211


def _make_cgroups(hierarchies: list[dict[str, str]], unified_only: bool) -> None:
    """The machine's layout, seen from the node's own cgroup as its root."""
    root = "/sys/fs/cgroup"
    # What is mounted there would only lie below the new mounts, and be read in the list of mounts all the same.
    _LIBC.umount2(root.encode(), MNT_DETACH)
    if unified_only:
        mount("cgroup2", root, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        os.mkdir(f"{root}/runtime")  # noqa: PTH102
        _write(f"{root}/runtime/cgroup.procs", "0")
        with open(f"{root}/cgroup.controllers", encoding="ascii") as file:  # noqa: PTH123
            _write(f"{root}/cgroup.subtree_control", " ".join(f"+{name}" for name in file.read().split()))
        return
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755")
    for one in hierarchies:
        name, controllers = one["name"], one["controllers"]
        os.mkdir(f"{root}/{name}")  # noqa: PTH102
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
        if not controllers:
            mount("cgroup2", f"{root}/{name}", "cgroup2", flags)
            continue
        options = f"none,{controllers}" if controllers.startswith("name=") else controllers
        mount("cgroup", f"{root}/{name}", "cgroup", flags, options)
        for controller in controllers.split(","):
            if controller != name and not controller.startswith("name="):
                os.symlink(name, f"{root}/{controller}")  # noqa: PTH211


def _make_network(busybox: str, bridge: str, address: str) -> None:
    """A bridge for the pods that carries the node's own address; no way to anywhere else."""
    for command in (
        ("ip", "link", "set", "lo", "up"),
        ("brctl", "addbr", bridge),
        ("ip", "addr", "add", address, "dev", bridge),
        ("ip", "link", "set", bridge, "up"),
        ("ip", "route", "add", "default", "dev", bridge),
    ):
        subprocess.run([busybox, *command], check=True, stdin=subprocess.DEVNULL)


def _announce(path: str) -> None:
    _write(f"{path}.new", "ready\n")
    os.replace(f"{path}.new", path)  # noqa: PTH105


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(text)


def _reap() -> None:
    """Whatever loses its parent becomes a child of this process, and ends as nobody's zombie."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait({signal.SIGCHLD})


if __name__ == "__main__":
    main()
