"""A real guest never outlives its use: not when it hangs, and not when its starter is told to stop or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.checkout import ROOT
from tests.builders.waiting import eventually
from tests.kernel.lab.boot import start_up
from tests.kernel.lab.machine import PROGRAM
from tests.kernel.lab.run import LabRun
from tests.kernel.lab.watch import Watch, evidence

# Longer than the test takes, shorter than anybody waits for.
NEVER = "600"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LabRun]:
    lab = LabRun(base=tmp_path / "runs")
    yield lab
    lab.close()


def test_a_guest_that_hangs_is_ended_and_its_serial_line_shown(run: LabRun) -> None:
    directory, guest, _ = start_up(run, 1, {}, ["sleep", NEVER])
    try:
        assert guest.execute("query-status", {})["running"] is True
        eventually(lambda: "root mounted" in directory.serial.read_text(errors="replace"), seconds=120)
        watch = Watch(guest, directory, {}, time.monotonic, start_seconds=0)

        def step() -> bool:
            watch.step()
            return watch.over

        eventually(step, seconds=20, what="the end of the guest")
        assert watch.verdict == "no test started within 0 s of the boot; the guest was ended"
        assert "root mounted" in evidence(directory)
        assert guest.status() is not None
    finally:
        guest.kill()


def guests_of(pid: int) -> list[int]:
    """The guests that this process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if int(fields[1]) == pid and Path(os.fsdecode(words[0])).name == PROGRAM:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_guest_ends_with_the_process_that_booted_it(how: signal.Signals, tmp_path: Path) -> None:
    lab = subprocess.Popen(
        [sys.executable, "-m", "tests.kernel.lab", "boot", f"--logs={tmp_path}", "--", "sleep", NEVER],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: guests_of(lab.pid), seconds=60, what="the guest")
        [guest] = guests_of(lab.pid)
        lab.send_signal(how)
        assert lab.wait(30) != 0
        eventually(lambda: not is_alive(guest), seconds=20, what="the end of the guest")
    finally:
        lab.kill()
        lab.wait(10)


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that has ended and waits for init does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
