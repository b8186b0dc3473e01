"""Loading and unloading kernel modules in the guest."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 30.0
# VFIO drops its last reference to a driver a moment after the user has closed the device.
SETTLE_SECONDS = 10.0


class ModuleInUseError(RuntimeError):
    """The kernel refused to unload a module because somebody uses it."""


def is_loaded(name: str) -> bool:
    return Path("/sys/module", name, "initstate").exists()


def load(name: str, **parameters: int) -> None:
    """With what it depends on. Raises subprocess.CalledProcessError."""
    options = [f"{parameter}={value}" for parameter, value in parameters.items()]
    subprocess.run(["modprobe", name, *options], check=True, timeout=SECONDS)


def unload(name: str) -> None:
    """Leaves what it depended on. Raises ModuleInUseError."""
    done = subprocess.run(["rmmod", name], check=False, timeout=SECONDS, capture_output=True, text=True)
    if done.returncode != 0:
        raise ModuleInUseError(done.stderr.strip())


def unload_when_free(name: str) -> None:
    """Raises ModuleInUseError when its users do not go in time."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        try:
            return unload(name)
        except ModuleInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def loaded(name: str, **parameters: int) -> Iterator[None]:
    """The module, freshly loaded with these parameters, and gone afterwards."""
    if is_loaded(name):
        unload_when_free(name)
    load(name, **parameters)
    try:
        yield
    finally:
        if is_loaded(name):
            unload_when_free(name)


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """The module away for a while; afterwards as it was before."""
    there = is_loaded(name)
    if there:
        unload_when_free(name)
    try:
        yield
    finally:
        if there:
            load(name)


def mount_debugfs() -> None:
    """At /sys/kernel/debug, when nothing is there yet."""
    if not Path("/sys/kernel/debug/tracing").exists() and not any(Path("/sys/kernel/debug").iterdir()):
        subprocess.run(["mount", "-t", "debugfs", "debugfs", "/sys/kernel/debug"], check=True, timeout=SECONDS)
