"""The test accelerator as a test uses it: its calls, and its own account of all calls."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kernel.modules import sim_accel_abi as abi

DEBUGFS = Path("/sys/kernel/debug/accel")
NODES = Path("/dev/accel")


@dataclass(frozen=True, slots=True)
class Count:
    """Calls of one process and kind that have returned, and the time they took in all."""

    succeeded: int
    failed: int
    nanoseconds: int


class AccelFile:
    """An open node. Each call raises OSError with the errno of the driver."""

    def __init__(self, node: Path) -> None:
        self.descriptor = os.open(node, os.O_RDWR | os.O_CLOEXEC)

    def submit(self, jobs: int = 1, busy_us: int = 0) -> None:
        fcntl.ioctl(self.descriptor, abi.SUBMIT, abi.SUBMIT_LAYOUT.pack(jobs, busy_us))

    def alloc(self, size: int) -> int:
        """The new object's handle."""
        answer = fcntl.ioctl(self.descriptor, abi.ALLOC, abi.ALLOC_LAYOUT.pack(size, 0, 0))
        return int(abi.ALLOC_LAYOUT.unpack(answer)[1])

    def free(self, handle: int) -> None:
        fcntl.ioctl(self.descriptor, abi.FREE, abi.FREE_LAYOUT.pack(handle, 0))

    def wait(self, point: int, seconds: float) -> None:
        """Until the device's timeline is at `point`, at most `seconds`; 0 does not sleep."""
        deadline = time.monotonic_ns() + int(seconds * 1e9)
        fcntl.ioctl(self.descriptor, abi.WAIT, abi.WAIT_LAYOUT.pack(point, deadline))

    def release(self, steps: int = 1) -> int:
        """Where the timeline stands now."""
        answer = fcntl.ioctl(self.descriptor, abi.RELEASE, abi.RELEASE_LAYOUT.pack(steps, 0))
        return int(abi.RELEASE_LAYOUT.unpack(answer)[1])

    def fail(self, error: int) -> None:
        fcntl.ioctl(self.descriptor, abi.FAIL, abi.FAIL_LAYOUT.pack(error, 0))

    def close(self) -> None:
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def node_below(device: Path) -> Path | None:
    """/dev/accel/accel<n> of a device in sysfs, or None while it has none."""
    found = next(iter(sorted((device / "accel").glob("accel*"))), None)
    return None if found is None else NODES / found.name


def calls(device: str) -> Mapping[tuple[int, str], Count]:
    """By (process id, kind), for a device's name in sysfs. Kinds are those of `sim_accel_abi.CALLS`, OTHER, FOREIGN."""
    counts = {}
    for line in (DEBUGFS / device / "calls").read_text().splitlines():
        pid, kind, *numbers = line.split()
        counts[int(pid), kind] = Count(*map(int, numbers))
    return counts


def state(device: str) -> Mapping[str, int]:
    """`jobs`, `bytes` of live objects, `point` of the timeline, `waiting` calls."""
    lines = (DEBUGFS / device / "state").read_text().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}
