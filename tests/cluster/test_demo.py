"""The demo as a person runs it: ends cleanly when interrupted, and leaves nothing behind even when it is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.waiting import eventually


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`npufleet demo` that has started its nodes and controllers."""
    command = [str(Path(sys.executable).parent / "npufleet"), "demo", "--directory", str(tmp_path / "demo")]
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        eventually(
            lambda: process.poll() is not None or len(running_below(tmp_path)) >= 16,
            seconds=120,
            what="control plane, nodes, controllers and daemons run",
        )
        assert process.poll() is None, (tmp_path / "output").read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def running_below(directory: Path) -> list[str]:
    """Command lines of living processes, other than the demo itself, that name the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line and " demo " not in line and int(entry.name) != os.getpid():
            found.append(line)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_stops_everything_it_started(
    demo: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    demo.send_signal(number)
    assert demo.wait(60) == 130
    assert running_below(tmp_path) == []
    assert "Everything stopped" in (tmp_path / "output").read_text()


def test_killed_demo_leaves_no_process_behind(demo: subprocess.Popen[bytes], tmp_path: Path) -> None:
    demo.kill()
    demo.wait()
    eventually(lambda: not running_below(tmp_path), what="the processes end with the demo")
