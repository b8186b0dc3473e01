"""A run of the kernel lab whose guest is a process of this host: its own protocol and pytest plug-ins, no QEMU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kernel.lab.run_directory import RunDirectory
from tests.kernel.lab.share import GUEST_VARIABLE, BootDirectory


class PlayedGuest:
    """Runs a boot's command as the guest's stage2 would."""

    def __init__(self, boot: BootDirectory) -> None:
        boot.ready.touch()
        boot.dmesg.touch()
        boot.serial.write_text("kernel-lab: the played guest is up\n")
        with boot.output.open("wb") as output:
            self.child = subprocess.Popen(
                [boot.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {GUEST_VARIABLE: str(boot.path)},
                start_new_session=True,
            )

    def status(self) -> int | None:
        return self.child.poll()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.child.poll() is None:
                os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(10)

    def execute(self, command: str, arguments: Mapping[str, Any]) -> Any:
        return {"command": command, "arguments": dict(arguments)}


class PlayedRun:
    """What KernelLab takes for a run of the lab."""

    summary = "a played guest"

    def __init__(self, base: Path, *, failing_starts: int = 0) -> None:
        self.directory = RunDirectory(base)
        self.failing_starts = failing_starts

    def prepare_boot(self, number: int, command: Sequence[str], *, wait_for_roles: bool) -> BootDirectory:
        return self.directory.prepare_boot(number, command, {"WAIT_FOR_ROLES": str(int(wait_for_roles))})

    def start(self, boot: BootDirectory) -> PlayedGuest:
        if self.failing_starts:
            self.failing_starts -= 1
            boot.command.write_text("#!/bin/sh\nexit 1\n")
            guest = PlayedGuest(boot)
            boot.dmesg.unlink()
            return guest
        return PlayedGuest(boot)

    def close(self) -> None:
        self.directory.close()
