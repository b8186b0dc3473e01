"""Processes are ended surely, in time, and never a stranger's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.cluster.errors import ClusterError
from cli.cluster.run.launch import boot_id, start_ticks
from cli.cluster.run.processes import ProcessRecord, end_children, end_processes, is_running, read_record, spawn

ROOT = Path(__file__).parents[3]
SLEEPER = [sys.executable, "-IS", "-c", "import time; print('up', flush=True); time.sleep(600)"]
DEAF = [
    sys.executable,
    "-IS",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]


def eventually(true: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def ended(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], ProcessRecord]]]:
    """Starts a component and waits until it has said `up`."""
    children: list[subprocess.Popen[bytes]] = []

    def run(command: list[str], name: str = "part") -> tuple[subprocess.Popen[bytes], ProcessRecord]:
        output, record = tmp_path / f"{name}.log", tmp_path / f"{name}.json"
        child = spawn(command, output=output, record=record)
        children.append(child)
        eventually(lambda: "up" in output.read_text(), f"{name} is up")
        found = read_record(record)
        assert found is not None
        return child, found

    yield run
    for child in children:
        child.kill()
        child.wait()


Start = Callable[..., tuple[subprocess.Popen[bytes], ProcessRecord]]


def test_record_names_the_process_that_runs_the_program(start: Start) -> None:
    child, record = start(SLEEPER)
    assert record == ProcessRecord(child.pid, start_ticks(child.pid), boot_id())
    assert is_running(record)


def test_orderly_end_by_sigterm(start: Start) -> None:
    child, record = start(SLEEPER)
    end_processes([record], grace_seconds=20)
    assert child.wait(5) == -signal.SIGTERM
    assert not is_running(record)


def test_deaf_process_is_killed_after_its_time(start: Start) -> None:
    child, record = start(DEAF)
    began = time.monotonic()
    end_processes([record], grace_seconds=0.3)
    assert time.monotonic() - began >= 0.3
    assert child.wait(5) == -signal.SIGKILL


def test_several_share_one_grace_time(start: Start) -> None:
    parts = [start(DEAF, f"part-{number}") for number in range(3)]
    began = time.monotonic()
    end_processes([record for _, record in parts], grace_seconds=0.4)
    assert time.monotonic() - began < 1.2
    assert [child.wait(5) for child, _ in parts] == [-signal.SIGKILL] * 3


def test_children_are_ended_and_collected_whatever_state_they_are_in(start: Start) -> None:
    willing, deaf, gone, collected = (
        start(command, f"part-{number}")[0] for number, command in enumerate([SLEEPER, DEAF, SLEEPER, SLEEPER])
    )
    gone.kill()
    eventually(lambda: ended(gone.pid), "it has ended, and nobody has asked for its exit code")
    collected.kill()
    collected.wait()
    end_children([willing, deaf, gone, collected], grace_seconds=0.3)
    codes = [child.returncode for child in (willing, deaf, gone, collected)]
    assert codes == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGKILL, -signal.SIGKILL]


def test_process_that_took_over_the_pid_is_left_alone(start: Start) -> None:
    child, record = start(SLEEPER)
    earlier = ProcessRecord(record.pid, record.started - 1, record.boot)
    assert not is_running(earlier)
    end_processes([earlier], grace_seconds=0.1)
    assert child.poll() is None


def test_record_of_another_boot_is_left_alone(start: Start) -> None:
    child, record = start(SLEEPER)
    other = ProcessRecord(record.pid, record.started, "00000000-0000-0000-0000-000000000000")
    assert not is_running(other)
    end_processes([other], grace_seconds=0.1)
    assert child.poll() is None


def test_ended_process_does_not_run_even_before_it_is_reaped(start: Start) -> None:
    child, record = start(SLEEPER)
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: ended(child.pid), "the process has ended")
    assert not is_running(record)
    end_processes([record], grace_seconds=0.1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b"\xff\xfe",
        json.dumps({"pid": 5}).encode(),
        json.dumps({"pid": "5", "started": 1, "bootID": "x"}).encode(),
        json.dumps({"pid": 1, "started": 1, "bootID": "x"}).encode(),
        json.dumps({"pid": -1, "started": 1, "bootID": "x"}).encode(),
        json.dumps({"pid": True, "started": 1, "bootID": "x"}).encode(),
        json.dumps({"pid": 5, "started": 1, "bootID": None}).encode(),
        json.dumps({"pid": 5, "started": 1.5, "bootID": "x"}).encode(),
    ],
)
def test_damaged_record_names_no_process(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    assert read_record(path) is None


def test_absent_record_names_no_process(tmp_path: Path) -> None:
    assert read_record(tmp_path / "record.json") is None


def test_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    children: list[subprocess.Popen[bytes]] = []
    log = tmp_path / "log"
    thread = threading.Thread(target=lambda: children.append(spawn(SLEEPER, output=log)))
    thread.start()
    thread.join()
    eventually(lambda: "up" in log.read_text(), "the child is up after its starter's thread has ended")
    (child,) = children
    assert child.poll() is None
    child.kill()
    child.wait()


STARTER = """
import signal, sys, threading
from pathlib import Path
from cli.cluster.run.processes import spawn
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
directory = Path(sys.argv[1])
spawn(sys.argv[3:], output=directory / "log", record=directory / "part.json", die_with_starter=sys.argv[2] == "die")
print("started", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_starter_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    starter, record = _start_by_another_process(tmp_path, "die")
    starter.send_signal(number)
    starter.wait(10)
    eventually(lambda: ended(record.pid), "the component has ended, too")


def test_detached_process_outlives_its_starter_and_is_found_by_its_record(tmp_path: Path) -> None:
    starter, record = _start_by_another_process(tmp_path, "stay")
    starter.kill()
    starter.wait(10)
    assert is_running(record)
    end_processes([record], grace_seconds=10)
    assert not is_running(record)


def _start_by_another_process(directory: Path, fate: str) -> tuple[subprocess.Popen[bytes], ProcessRecord]:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(directory), fate, *SLEEPER],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert starter.stdout is not None
    with starter.stdout as said:
        assert said.readline() == b"started\n"
    record = read_record(directory / "part.json")
    assert record is not None
    eventually(lambda: "up" in (directory / "log").read_text(), "the component is up")
    return starter, record


def test_program_that_does_not_exist_ends_with_its_name_in_the_log(tmp_path: Path) -> None:
    child = spawn(["/nowhere/etcd"], output=tmp_path / "log", record=tmp_path / "etcd.json")
    assert child.wait(20) != 0
    assert "cannot run /nowhere/etcd: No such file or directory" in (tmp_path / "log").read_text()


def test_record_that_cannot_be_written_is_an_error_and_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="before it wrote"):
        spawn(SLEEPER, output=tmp_path / "log", record=tmp_path / "absent" / "part.json")
    assert "up" not in (tmp_path / "log").read_text()


def test_launcher_whose_starter_has_gone_runs_nothing(tmp_path: Path) -> None:
    """Killed between the fork and the wish to die with the parent: the kernel would never send that signal."""
    launcher = ROOT / "cli/cluster/run/launch.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(launcher), str(tmp_path / "part.json"), "999999999", "die", *SLEEPER],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert "the process that started this component has ended" in done.stderr
    assert done.stdout == ""
