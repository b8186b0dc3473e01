"""Running the system's tools with a deadline, so that each failure is one error that names what was being done."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.kernel.lab.errors import LabError

SYSTEM_PATHS = "/usr/sbin:/sbin"
SHOWN_CHARACTERS = 4000


def system_path() -> str:
    """PATH with the directories of system tools, which an ordinary user often lacks."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:{SYSTEM_PATHS}"


def run(command: list[str], *, what: str, seconds: float, directory: Path | None = None, show: bool = False) -> str:
    """The command's standard output. What it says on standard error becomes part of the error when it fails, or with
    `show` goes to ours at once. Raises LabError when the program is missing, fails, or is not done in time."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if show else subprocess.PIPE,
            timeout=seconds,
            check=False,
            text=True,
            errors="replace",
            cwd=directory,
            env=os.environ | {"PATH": system_path()},
        )
    except FileNotFoundError as error:
        raise LabError(f"{what}: {error.filename} is missing; run hack/kernel-lab-packages tools") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{what}: not done within {seconds:g} s: {' '.join(command)}") from error
    if done.returncode != 0:
        words = "" if show else f"\n{done.stdout}{done.stderr}"[-SHOWN_CHARACTERS:]
        raise LabError(f"{what}: {' '.join(command[:2])} ended with {done.returncode}{words}".rstrip())
    return done.stdout
