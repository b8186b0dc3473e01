"""One run of the lab: its directory under .kernel-lab, and the boots that share its state and disk."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.checkout import ROOT
from cli.cluster.locks import try_lock
from tests.kernel.lab.accelerator import choose
from tests.kernel.lab.commands import run
from tests.kernel.lab.extra_modules import ensure_modules
from tests.kernel.lab.guest_process import GuestProcess
from tests.kernel.lab.initramfs import ensure_initramfs
from tests.kernel.lab.kernel_packages import Kernel, prepare
from tests.kernel.lab.machine import Machine
from tests.kernel.lab.roles import ROUTE_ADDRESS, ROUTE_GATEWAY
from tests.kernel.lab.share import BootDirectory

RUNS = ROOT / ".kernel-lab"
STAGE2 = Path(__file__).with_name("stage2.sh")
KEPT_RUNS = 5
DISK_SIZE = "16M"


class LabRun:
    """`directory` is the share: boot-<n>/ per boot, state/ (lives over boots), results/, and the disk's image."""

    def __init__(self, base: Path = RUNS) -> None:
        self.kernel: Kernel = prepare(waiting=_say)
        self.modules = ensure_modules(self.kernel)
        self.initramfs = ensure_initramfs(self.kernel)
        self.accelerator = choose(self.kernel, self.initramfs)
        self.directory = new_run_directory(base)
        self._lock = try_lock(self.directory / "lock", "running the kernel lab")
        for name in ("state", "results"):
            (self.directory / name).mkdir()
        shutil.copy(STAGE2, self.directory / STAGE2.name)
        self.disk = self.directory / "disk.img"
        run(["mke2fs", "-q", "-F", "-t", "ext4", str(self.disk), DISK_SIZE], what="the guest's disk", seconds=60)

    def prepare_boot(
        self, number: int, command: Sequence[str], *, interactive: bool = False, wait_for_roles: bool = True
    ) -> BootDirectory:
        """What the guest's stage2 runs on this boot; files can be added to the directory before `start`. Without
        `wait_for_roles` the command starts beside the loading of drivers and looks for `share.READY` itself."""
        boot = BootDirectory(self.directory / f"boot-{number}")
        boot.calls.mkdir(parents=True)
        boot.command.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
        boot.command.chmod(0o755)
        settings = {
            "BOOT": boot.path.name,
            "RELEASE": self.kernel.release,
            "MODULES": str(self.modules.modules),
            "DIRECTORY": str(ROOT),
            "ROUTE_ADDRESS": ROUTE_ADDRESS,
            "ROUTE_GATEWAY": ROUTE_GATEWAY,
            "INTERACTIVE": str(int(interactive)),
            "WAIT_FOR_ROLES": str(int(wait_for_roles)),
            "CI": os.environ.get("CI", ""),
        }
        (self.directory / "boot.env").write_text(environment_file(settings))
        return boot

    def start(self, boot: BootDirectory, *, interactive: bool = False) -> GuestProcess:
        """Boot. Call it in the main thread."""
        machine = Machine(
            kernel=self.kernel.image,
            initramfs=self.initramfs,
            share=self.directory,
            disk=self.disk,
            serial=boot.serial,
            accelerator=self.accelerator,
            interactive=interactive,
        )
        return GuestProcess(machine, boot.path / "qemu.log")

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def environment_file(settings: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())


def new_run_directory(base: Path) -> Path:
    """A directory of our own; the newest few of ended runs stay, `latest` leads to this one."""
    base.mkdir(exist_ok=True)
    _forget_old_runs(base)
    directory = base / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    directory.mkdir()
    link = base / f"latest.{os.getpid()}"
    with contextlib.suppress(FileExistsError):
        link.symlink_to(directory.name)
    link.replace(base / "latest")
    return directory


def _forget_old_runs(base: Path) -> None:
    runs = sorted(path for path in base.iterdir() if path.is_dir() and not path.is_symlink())
    for old in runs[: max(len(runs) - KEPT_RUNS + 1, 0)]:
        lock = try_lock(old / "lock", "removing an old run") if (old / "lock").exists() else None
        if lock is not None:
            shutil.rmtree(old, ignore_errors=True)
            os.close(lock)


def _say(text: str) -> None:
    print(f"npufleet: the kernel lab waits for {text}", file=sys.stderr)
