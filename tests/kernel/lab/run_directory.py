"""The directory of one run under .kernel-lab: the share of its guest, and afterwards what people read."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.checkout import ROOT
from cli.cluster.locks import try_lock
from tests.kernel.lab.roles import ROUTE_ADDRESS, ROUTE_GATEWAY
from tests.kernel.lab.share import BootDirectory

RUNS = ROOT / ".kernel-lab"
STAGE2 = Path(__file__).with_name("stage2.sh")
KEPT_RUNS = 8


class RunDirectory:
    """`path` holds boot-<n>/ per boot, state/ (lives over boots) and results/. Locked while the run lasts, so that no
    other run takes it for an old one."""

    def __init__(self, base: Path = RUNS, name: str = "") -> None:
        self.path = _new(base, f"-{name}" if name else "")
        self._lock = try_lock(self.path / "lock", "running the kernel lab")
        for name in ("state", "results"):
            (self.path / name).mkdir()
        shutil.copy(STAGE2, self.path / STAGE2.name)

    def prepare_boot(self, number: int, command: Sequence[str], settings: Mapping[str, str]) -> BootDirectory:
        """What the guest's stage2 runs on this boot, with its settings; files can be added before the guest starts."""
        boot = BootDirectory(self.path / f"boot-{number}")
        boot.calls.mkdir(parents=True)
        boot.command.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
        boot.command.chmod(0o755)
        fixed = {
            "BOOT": boot.path.name,
            "DIRECTORY": str(ROOT),
            "ROUTE_ADDRESS": ROUTE_ADDRESS,
            "ROUTE_GATEWAY": ROUTE_GATEWAY,
            "CI": os.environ.get("CI", ""),
        }
        (self.path / "boot.env").write_text(environment_file({**fixed, **settings}))
        return boot

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def environment_file(settings: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())


def _new(base: Path, suffix: str) -> Path:
    """A directory of our own; the newest few of ended runs stay, `latest<suffix>` leads to this one."""
    base.mkdir(exist_ok=True)
    _forget_old_runs(base)
    directory = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), suffix=suffix, dir=base))
    directory.chmod(0o755)
    link = base / f"latest{suffix}.{os.getpid()}"
    with contextlib.suppress(FileExistsError):
        link.symlink_to(directory.name)
    link.replace(base / f"latest{suffix}")
    return directory


def _forget_old_runs(base: Path) -> None:
    runs = sorted(path for path in base.iterdir() if path.is_dir() and not path.is_symlink())
    for old in runs[: max(len(runs) - KEPT_RUNS + 1, 0)]:
        lock = try_lock(old / "lock", "removing an old run") if (old / "lock").exists() else None
        if lock is not None:
            shutil.rmtree(old, ignore_errors=True)
            os.close(lock)
