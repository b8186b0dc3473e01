"""QEMU as a child of ours: started so that it dies with us, ended by its own handle, never by name."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cli.cluster.run import launch
from tests.kernel.lab.errors import LabError
from tests.kernel.lab.machine import PROGRAM, Machine, qemu_arguments
from tests.kernel.lab.monitor import Monitor

END_SECONDS = 10.0


def find_qemu() -> str:
    """Raises LabError when there is none."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise LabError(f"there is no {PROGRAM}; run hack/kernel-lab-packages tools")
    return found


class GuestProcess:
    """A running guest. `output`: where QEMU itself complains."""

    def __init__(self, machine: Machine, output: Path) -> None:
        """Start it from the process's main thread: the kernel ends the guest when the starting thread ends."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = qemu_arguments(replace(machine, monitor=theirs.fileno()), find_qemu())
            self.child = spawn(command, output, pass_on=theirs.fileno(), interactive=machine.interactive)
        self.monitor = Monitor(ours)
        self.output = output

    def status(self) -> int | None:
        """QEMU's exit status, or None while the guest runs."""
        return self.child.poll()

    def execute(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """A monitor command; see Monitor."""
        return self.monitor.execute(command, arguments)

    def wait(self, seconds: float) -> bool:
        """Whether the guest ended by itself within this time."""
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it at once, if it still runs."""
        end(self.child)
        self.monitor.close()


def spawn(
    command: list[str], output: Path, *, pass_on: int | None = None, interactive: bool = False
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own that ends with us. Raises LabError."""
    launcher = [sys.executable, "-I", "-S", launch.__file__, "-", str(os.getpid()), "die"]
    descriptors = () if pass_on is None else (pass_on,)
    try:
        with output.open("ab") as log:
            return subprocess.Popen(
                [*launcher, *command],
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=None if interactive else log,
                stderr=None if interactive else log,
                pass_fds=descriptors,
                start_new_session=not interactive,
            )
    except OSError as error:
        raise LabError(f"cannot start {command[0]}: {error.strerror}") from error


def end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(END_SECONDS)
