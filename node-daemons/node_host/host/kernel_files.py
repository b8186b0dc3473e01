"""The host port over the files of a real kernel, below "/" or wherever the host's root is mounted."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from node_host.host import write_child
from node_host.host.protocol import Names, ToolResult, Uevent
from node_host.host.rooted import RootedFiles
from node_host.host.uevents import kernel_uevents

_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_MODPROBE_SECONDS = 60
_OUTPUT = 16 << 10
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # a daemon's own may lack the sbin part


def child_command(root: str, path: str, data: bytes) -> Names:
    """The child that does one write below ROOT: isolated and without site packages, so that it starts in
    milliseconds.
    """
    return [sys.executable, "-I", "-S", str(Path(write_child.__file__)), root, path, write_child.escape(data)]


class KernelFiles(RootedFiles):
    """``Host`` of a real kernel."""

    def write(self, path: str, data: bytes) -> None:
        write_child.write_attribute(self.root, path, data)

    def write_command(self, path: str, data: bytes) -> Names | None:
        return child_command(self.root, path, data)

    def load_module(self, name: str) -> None:
        """modprobe with the host's own program, configuration and module tree, hence inside the host's root.

        OSError: EINVAL for an impossible name, ENOPKG without a modprobe, ETIMEDOUT after a minute, EIO with
        modprobe's words.
        """
        if not _MODULE.fullmatch(name):
            raise OSError(errno.EINVAL, "not a module name", name)
        if self.exists(f"/sys/module/{name.replace('-', '_')}"):
            return
        command = ["modprobe", "--", name]
        if self._base:
            command = ["chroot", self.root, *command]
        program = shutil.which(command[0], path=_PATH)
        if program is None:
            raise OSError(errno.ENOPKG, f"no {command[0]} to load a module with", name)
        try:
            done = subprocess.run(
                [program, *command[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_MODPROBE_SECONDS,
                check=False,
                env={"PATH": _PATH, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            raise OSError(errno.ETIMEDOUT, f"modprobe did not end in {_MODPROBE_SECONDS} s", name) from None
        words = done.stderr.decode("utf-8", "replace").strip()
        if done.returncode == 0:
            return
        if "not found in directory" in words:
            raise FileNotFoundError(errno.ENOENT, f"the kernel {os.uname().release} has no such module", name)
        raise OSError(errno.EIO, f"modprobe failed: {words or f'exit status {done.returncode}'}", name)

    def run_tool(self, path: str, arguments: Sequence[str], *, inherit: Sequence[int] = ()) -> ToolResult:
        """Inside the host's root, in a session of its own: a vendor's tool that is ended half-way leaves a card without
        its driver, so no signal for the daemon's group reaches it.
        """
        program = self.resolve(path)
        command = [path, *arguments]
        if self._base:
            chroot = shutil.which("chroot", path=_PATH)
            if chroot is None:
                raise OSError(errno.ENOPKG, "no chroot to run the host's programs with", path)
            command = [chroot, self.root, program, *arguments]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            start_new_session=True,
            pass_fds=tuple(inherit),
            env={"PATH": _PATH, "LC_ALL": "C"},
        )
        return ToolResult(done.returncode, done.stdout[-_OUTPUT:].decode("utf-8", "replace"))

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[Uevent]]:
        return kernel_uevents()
