"""One run of the lab: what its guests are made of, and starting them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kernel.lab.accelerator import choose
from tests.kernel.lab.commands import run
from tests.kernel.lab.extra_modules import ensure_modules
from tests.kernel.lab.guest_process import GuestProcess
from tests.kernel.lab.initramfs import ensure_initramfs
from tests.kernel.lab.kernel_packages import Kernel, prepare
from tests.kernel.lab.machine import Machine
from tests.kernel.lab.python_image import ensure_python_image
from tests.kernel.lab.run_directory import RUNS, RunDirectory
from tests.kernel.lab.share import BootDirectory

DISK_SIZE = "16M"


class LabRun:
    """The boots of one run share state and disk."""

    def __init__(self, name: str = "", base: Path = RUNS) -> None:
        """Gets ready whatever is not in the cache yet. `name`: of the guest, one of several. Raises LabError."""
        self.kernel: Kernel = prepare(waiting=_say)
        self.modules = ensure_modules(self.kernel)
        self.python = ensure_python_image()
        self.initramfs = ensure_initramfs(self.kernel)
        self.accelerator = choose(self.kernel, self.initramfs)
        self.directory = RunDirectory(base, name)
        self.disk = self.directory.path / "disk.img"
        run(["mke2fs", "-q", "-F", "-t", "ext4", str(self.disk), DISK_SIZE], what="the guest's disk", seconds=60)

    @property
    def summary(self) -> str:
        return f"{self.kernel.release} under {self.accelerator}; logs in {self.directory.path}"

    def prepare_boot(
        self, number: int, command: Sequence[str], *, interactive: bool = False, wait_for_roles: bool = True
    ) -> BootDirectory:
        """See RunDirectory. Without `wait_for_roles` the command starts beside the loading of drivers and looks for
        `BootDirectory.ready` itself."""
        settings = {
            "RELEASE": self.kernel.release,
            "MODULES": str(self.modules.modules),
            **{f"PYTHON_{name.upper()}": str(folder) for name, folder in self.python.folders.items()},
            "INTERACTIVE": str(int(interactive)),
            "WAIT_FOR_ROLES": str(int(wait_for_roles)),
        }
        return self.directory.prepare_boot(number, command, settings)

    def start(self, boot: BootDirectory, *, interactive: bool = False) -> GuestProcess:
        """Boot. Call it in the main thread."""
        machine = Machine(
            kernel=self.kernel.image,
            initramfs=self.initramfs,
            share=self.directory.path,
            disk=self.disk,
            python=self.python.path,
            serial=boot.serial,
            accelerator=self.accelerator,
            interactive=interactive,
            one_more_card=boot.number > 1,
        )
        return GuestProcess(machine, boot.path / "qemu.log")

    def close(self) -> None:
        self.directory.close()


def _say(text: str) -> None:
    print(f"npufleet: the kernel lab waits for {text}", file=sys.stderr)
