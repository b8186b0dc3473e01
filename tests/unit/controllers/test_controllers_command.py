"""`npufleet-controllers` from outside: help that teaches, clear refusals, children that never outlive their parent."""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controllers.node_policy import entry
from runtime.health import HealthServer, ListenError
from runtime.settings import Address, Settings
from tests.builders.waiting import eventually

CHILD = """
import os, signal, sys, time
path = sys.argv[1]
with open(path, "a") as out:
    out.write(f"{os.getpid()}\\n")
if sys.argv[2] == "end":
    sys.exit(5)
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(120)
"""
PARENT = """
import sys
from controllers.supervisor import supervise
sys.exit(supervise({name: [sys.executable, "-c", CHILD, PATH, how] for name, how in CHILDREN}, stop_seconds=1.0))
"""


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "controllers.main", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_list_names_every_controller() -> None:
    done = command("--list")
    assert (done.returncode, done.stdout) == (0, "node-policy\nprofile-map\n")


def test_help_teaches_how_to_start_one_and_all() -> None:
    text = command("--help").stdout
    for word in ("node-policy", "--kubeconfig", "--all --kubeconfig-dir DIR", "exit codes", "--list"):
        assert word in text
    text = command("node-policy", "--help").stdout
    for word in (
        "--listen",
        "--kubeconfig",
        "--settle-seconds",
        "--node-grace-seconds",
        "--drainer",
        "--writes-per-second",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "required"),
        (("nobody",), "there are: node-policy"),
        (("--all",), "--kubeconfig-dir"),
        (("--all", "--kubeconfig-dir", "/nowhere"), "/nowhere/npufleet-node-policy.kubeconfig"),
        (("node-policy", "--settle-seconds", "soon"), "'soon' is not a number of seconds"),
        (("node-policy", "--listen", "9440"), "HOST:PORT"),
    ],
)
def test_wrong_usage_is_told_with_what_would_be_right(words: tuple[str, ...], said: str) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_kubeconfig_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    done = command("node-policy", "--kubeconfig", str(tmp_path / "missing"), "--listen", "127.0.0.1:0")
    assert done.returncode == 3
    assert "missing" in done.stderr
    assert "Traceback" not in done.stderr


class Supervisor:
    """A supervisor in a process of its own, with children that write down their pids."""

    def __init__(self, directory: Path) -> None:
        self.pids_file = directory / "pids"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **children: str) -> None:
        code = f"CHILD = {CHILD!r}\nPATH = {str(self.pids_file)!r}\nCHILDREN = {list(children.items())!r}\n{PARENT}"
        self.process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)

    def pids(self) -> list[int]:
        return [int(line) for line in self.pids_file.read_text().split()] if self.pids_file.exists() else []

    def running(self) -> list[int]:
        return [pid for pid in self.pids() if alive(pid)]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    found = Supervisor(tmp_path)
    yield found
    if found.process is not None and found.process.poll() is None:
        found.process.kill()
        found.process.wait()
    for pid in found.running():
        os.kill(pid, signal.SIGKILL)


def test_children_end_with_the_supervisor_in_order(supervisor: Supervisor) -> None:
    supervisor.start(one="run", two="run")
    eventually(lambda: len(supervisor.pids()) == 2)
    assert supervisor.process is not None
    supervisor.process.terminate()
    assert supervisor.process.wait(10) == 0
    assert supervisor.running() == []


def test_stubborn_child_is_ended_by_force(supervisor: Supervisor) -> None:
    supervisor.start(one="stubborn")
    eventually(lambda: len(supervisor.pids()) == 1)
    assert supervisor.process is not None
    supervisor.process.send_signal(signal.SIGINT)
    assert supervisor.process.wait(10) == 0
    assert supervisor.running() == []


def test_children_do_not_outlive_a_supervisor_that_was_killed(supervisor: Supervisor) -> None:
    supervisor.start(one="run", two="run")
    eventually(lambda: len(supervisor.pids()) == 2)
    assert supervisor.process is not None
    supervisor.process.kill()
    supervisor.process.wait()
    eventually(lambda: supervisor.running() == [], seconds=10)


def test_child_that_ends_is_started_again_and_the_others_go_on(supervisor: Supervisor) -> None:
    supervisor.start(steady="run", flaky="end")
    eventually(lambda: len(supervisor.pids()) >= 4, seconds=20)
    assert len(supervisor.running()) == 1


def test_process_is_not_ready_before_its_feeds_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    entries = {"clusters": {"cluster": {"server": "http://127.0.0.1:9"}}, "users": {"user": {"token": "t"}}}
    context = {"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}], "current-context": "x"}
    named: dict[str, object] = {kind: [{"name": "x", **content}] for kind, content in entries.items()}
    kubeconfig.write_text(json.dumps(named | context))
    reasons: list[str | None] = []

    class Entered(HealthServer):
        async def __aenter__(self) -> HealthServer:
            reasons.extend(check() for check in self._readiness.values())
            raise ListenError("seen enough")

    monkeypatch.setattr(entry, "HealthServer", Entered)
    settings = Settings("npufleet-node-policy", kubeconfig, Address("127.0.0.1", 0), "text", "info", 20.0, 40, "one")
    parser = argparse.ArgumentParser()
    entry.add_arguments(parser)
    assert entry.run(settings, parser.parse_args([])) != 0
    assert [reason for reason in reasons if reason is not None]
