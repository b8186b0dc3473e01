"""The host's pytest says of each guest test what the guest's pytest said of it, and of a lost one why it was lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]
CONFTEST = """
from pathlib import Path
from tests.builders.played_guest import PlayedRun
from tests.kernel.conftest import MARKERS
from tests.kernel.lab.errors import LabError
from tests.kernel.lab.host_plugin import KernelLab
from tests.kernel.lab.share import guest_directory

HERE = Path(__file__).parent

def new_run(name):
    if (HERE / "unusable").exists():
        raise LabError("there is no kernel")
    if (HERE / "full").exists():
        raise OSError(28, "No space left on device", "/cache/kernel-lab")
    failing = HERE / "failing-starts"
    return PlayedRun(HERE / "runs", failing_starts=int(failing.read_text()) if failing.exists() else 0)

def pytest_configure(config):
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if guest_directory() is None:
        config.pluginmanager.register(KernelLab(config, new_run, HERE / "guest"))
"""
HEAD = """
import os
import time
from pathlib import Path
import pytest
from tests.kernel.lab.guest_side import ask_host
STATE = Path(os.environ.get("NPUFLEET_LAB_GUEST", "/nowhere")).parent / "state"
"""


@dataclass
class Done:
    """A finished run of the host's pytest. `outcomes`: by test name."""

    status: int
    output: str
    outcomes: dict[str, str]
    boots: list[str]


class Nested:
    """A small project with guest tests of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "guest").mkdir()
        (path / "conftest.py").write_text(CONFTEST)
        (path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -ra --strict-markers\n")

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(HEAD + dedent(text))

    def run(self, *arguments: str) -> Done:
        junit = self.path / "junit.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={junit}", *arguments],
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        cases = ElementTree.parse(junit).getroot().iter("testcase") if junit.exists() else ()
        outcomes: dict[str, str] = {}
        for case in cases:
            inner = [child.tag for child in case if child.tag in {"failure", "error", "skipped"}]
            outcomes[case.attrib["name"]] = " and ".join(inner) or "passed"
        boots = sorted(path.parent.name for path in (self.path / "runs").glob("2*/boot-*/request.json"))
        return Done(done.returncode, done.stdout + done.stderr, outcomes, boots)


@pytest.fixture
def nested(tmp_path: Path) -> Nested:
    return Nested(tmp_path)


def test_each_outcome_is_the_guests_with_its_output(nested: Nested) -> None:
    nested.write(
        "guest/test_some.py",
        """
        @pytest.fixture
        def broken():
            raise RuntimeError("no fixture today")

        @pytest.fixture
        def leaky():
            yield
            raise RuntimeError("cannot clean up")

        def test_runs_in_the_guest(): assert "NPUFLEET_LAB_GUEST" in os.environ
        def test_fails():
            print("said before it failed")
            assert 40 + 2 == 41
        def test_cannot_start(broken): pass
        def test_cannot_end(leaky): pass
        @pytest.mark.skip(reason="not on this machine")
        def test_is_skipped(): pass
        @pytest.mark.xfail(strict=True)
        def test_is_known_to_fail(): assert False
        @pytest.mark.parametrize("size", ["a b", "\\u00fc::[x]"])
        def test_takes(size): assert size
        def test_asks(): assert ask_host("query", {"x": 1}) == {"command": "query", "arguments": {"x": 1}}
        """,
    )
    nested.write("test_on_the_host.py", "def test_stays_here(): assert 'NPUFLEET_LAB_GUEST' not in os.environ")
    done = nested.run()
    takes = {name: outcome for name, outcome in done.outcomes.items() if name.startswith("test_takes")}
    assert list(takes.values()) == ["passed", "passed"]
    assert {name: outcome for name, outcome in done.outcomes.items() if name not in takes} == {
        "test_stays_here": "passed",
        "test_runs_in_the_guest": "passed",
        "test_fails": "failure",
        "test_cannot_start": "error",
        "test_cannot_end": "error",
        "test_is_skipped": "skipped",
        "test_is_known_to_fail": "skipped",
        "test_asks": "passed",
    }
    assert "1 failed, 6 passed, 1 skipped, 1 xfailed, 2 errors in" in done.output
    for shown in ("said before it failed", "assert (40 + 2) == 41", "no fixture today", "not on this machine"):
        assert shown in done.output
    assert done.boots == ["boot-1"]
    assert done.status == 1


def test_only_selected_tests_run_in_the_guest(nested: Nested) -> None:
    nested.write(
        "guest/test_some.py",
        """
        def test_wanted(): (STATE / "wanted").touch()
        def test_other(): (STATE / "other").touch()
        """,
    )
    done = nested.run("-k", "wanted")
    assert done.outcomes == {"test_wanted": "passed"}
    [state] = nested.path.glob("runs/2*/state")
    assert [entry.name for entry in state.iterdir()] == ["wanted"]
    assert list(nested.path.glob("runs/latest/boot-1/junit.xml"))


def test_tests_after_the_reboot_run_last_in_a_boot_of_their_own(nested: Nested) -> None:
    nested.write(
        "guest/test_first.py",
        """
        @pytest.mark.after_reboot
        def test_reads():
            assert (STATE / "note").read_text() == "boot-1"
            assert os.environ["NPUFLEET_LAB_GUEST"].endswith("boot-2")
        """,
    )
    nested.write(
        "guest/test_second.py",
        """
        def test_writes(): (STATE / "note").write_text(os.environ["NPUFLEET_LAB_GUEST"][-6:])
        """,
    )
    done = nested.run()
    assert (done.outcomes, done.boots) == ({"test_reads": "passed", "test_writes": "passed"}, ["boot-1", "boot-2"])


def test_a_run_without_guest_tests_boots_nothing(nested: Nested) -> None:
    nested.write("test_on_the_host.py", "def test_stays_here(): pass")
    done = nested.run()
    assert (done.status, done.boots) == (0, [])


def test_a_hanging_test_is_ended_and_shown_with_its_stack_and_the_others_with_the_reason(nested: Nested) -> None:
    nested.write(
        "guest/test_some.py",
        """
        def test_before(): pass
        @pytest.mark.guest_deadline(2)
        def test_hangs(): time.sleep(600)
        def test_behind(): pass
        """,
    )
    done = nested.run()
    assert done.outcomes == {"test_before": "passed", "test_hangs": "failure", "test_behind": "error"}
    assert "test_hangs did not end within 2 s; the guest was ended" in done.output
    assert "the played guest is up" in done.output
    assert 'test_some.py", line 11 in test_hangs' in done.output
    assert "did not run: " in done.output


def test_a_guest_that_dies_fails_its_test_and_the_rest_and_the_next_boot_still_runs(nested: Nested) -> None:
    nested.write(
        "guest/test_some.py",
        """
        def test_dies(): os._exit(3)
        def test_behind(): pass
        @pytest.mark.after_reboot
        def test_later(): pass
        """,
    )
    done = nested.run()
    assert done.outcomes == {"test_dies": "failure", "test_behind": "error", "test_later": "passed"}
    assert "the guest ended (QEMU's status 3) before its tests had" in done.output


def test_a_file_that_only_the_guest_cannot_read_fails_with_its_error(nested: Nested) -> None:
    nested.write(
        "guest/test_some.py",
        """
        if "NPUFLEET_LAB_GUEST" in os.environ:
            raise RuntimeError("only in the guest")
        def test_lost(): pass
        """,
    )
    done = nested.run()
    assert done.outcomes == {"test_lost": "error"}
    assert "only in the guest" in done.output


@pytest.mark.parametrize(
    ("why", "words"),
    [("unusable", "there is no kernel"), ("full", "[Errno 28] No space left on device: '/cache/kernel-lab'")],
)
def test_a_lab_that_cannot_run_fails_every_test_with_the_reason(nested: Nested, why: str, words: str) -> None:
    (nested.path / why).touch()
    nested.write("guest/test_some.py", "def test_a(): pass\ndef test_b(): pass\n")
    done = nested.run()
    assert done.outcomes == {"test_a": "error", "test_b": "error"}
    assert done.output.count(f"the kernel lab cannot run: {words}") >= 2


def test_stopping_at_the_first_failure_ends_the_guest(nested: Nested) -> None:
    nested.write(
        "guest/test_some.py",
        """
        def test_fails(): assert False
        def test_hangs(): time.sleep(600)
        """,
    )
    done = nested.run("-x")
    assert done.outcomes == {"test_fails": "failure"}


def test_a_start_that_fails_is_repeated_and_said_to_have_been(nested: Nested) -> None:
    (nested.path / "failing-starts").write_text("1")
    nested.write("guest/test_some.py", "def test_runs(): pass")
    done = nested.run()
    assert done.outcomes == {"test_runs": "passed"}
    assert "kernel lab: a start was repeated" in done.output


def test_starts_that_all_fail_fail_the_tests(nested: Nested) -> None:
    (nested.path / "failing-starts").write_text("9")
    nested.write("guest/test_some.py", "def test_runs(): pass")
    done = nested.run()
    assert done.outcomes == {"test_runs": "error"}
    assert "before its tests had" in done.output


LOSES_ITS_TIMER = """
        def lose_the_timer(times):
            boot = Path(os.environ["NPUFLEET_LAB_GUEST"])
            tries = STATE / f"{boot.name}-tries"
            tries.touch()
            with tries.open("a") as file:
                file.write("x")
            if len(tries.read_text()) <= times:
                with (boot / "serial.log").open("a") as serial:
                    serial.write("rcu: Possible timer handling issue on cpu=1 timer-softirq=7\\n")
                time.sleep(600)
"""


def test_a_boot_that_loses_its_timer_is_repeated_with_the_tests_that_had_not_ended(nested: Nested) -> None:
    nested.write(
        "guest/test_some.py",
        dedent(LOSES_ITS_TIMER)
        + dedent(
            """
            def test_before():
                assert not (STATE / "before").exists()
                (STATE / "before").touch()
            @pytest.mark.before_reboot
            def test_runs_last_before_the_reboot():
                assert (STATE / "behind").exists()
                (STATE / "last").touch()
            @pytest.mark.guest_deadline(2)
            def test_is_hit():
                lose_the_timer(1)
            def test_behind():
                assert not (STATE / "last").exists()
                (STATE / "behind").touch()
            @pytest.mark.after_reboot
            @pytest.mark.guest_deadline(2)
            def test_later():
                assert (STATE / "last").exists()
                assert os.environ["NPUFLEET_LAB_GUEST"].endswith("boot-2")
                lose_the_timer(2)
            """
        ),
    )
    done = nested.run()
    assert set(done.outcomes.values()) == {"passed"}, done.output
    assert len(done.outcomes) == 5
    assert done.boots == ["boot-1", "boot-1-lost-1", "boot-2", "boot-2-lost-1", "boot-2-lost-2"]
    assert done.output.count("kernel lab: a guest's kernel lost its timer") == 3
    [request] = nested.path.glob("runs/2*/boot-1/request.json")
    asked = [test["id"].partition("::")[2] for test in json.loads(request.read_text())["tests"]]
    assert asked == ["test_is_hit", "test_behind", "test_runs_last_before_the_reboot"]


def test_a_boot_that_always_loses_its_timer_fails_its_test_in_the_end(nested: Nested) -> None:
    nested.write(
        "guest/test_some.py",
        dedent(LOSES_ITS_TIMER)
        + dedent(
            """
            def test_before(): pass
            @pytest.mark.guest_deadline(2)
            def test_is_hit(): lose_the_timer(9)
            def test_behind(): pass
            """
        ),
    )
    done = nested.run()
    assert done.outcomes == {"test_before": "passed", "test_is_hit": "failure", "test_behind": "error"}
    assert done.boots == ["boot-1", "boot-1-lost-1", "boot-1-lost-2"]
    assert "its kernel had said that a processor's timer no longer fires; the guest was ended" in done.output


def test_guests_run_side_by_side_and_each_reboots_when_it_is_through(nested: Nested) -> None:
    nested.write(
        "guest/test_one.py",
        """
        HERE = Path(__file__).parent

        def wait_for(name):
            deadline = time.monotonic() + 30
            while not (HERE / name).exists():
                assert time.monotonic() < deadline, name
                time.sleep(0.01)

        def test_waits_for_the_others_second_boot():
            (HERE / "one is up").touch()
            wait_for("other has rebooted")
        """,
    )
    nested.write(
        "guest/test_other.py",
        """
        from test_one import HERE, wait_for
        pytestmark = pytest.mark.guest("other")

        def test_waits_for_the_first_guest():
            wait_for("one is up")
            STATE.joinpath("kept").touch()

        @pytest.mark.after_reboot
        def test_goes_on_by_itself():
            assert STATE.joinpath("kept").exists()
            (HERE / "other has rebooted").touch()
        """,
    )
    (nested.path / "guest" / "conftest.py").write_text("import sys\nsys.path.insert(0, __file__.rpartition('/')[0])\n")
    done = nested.run()
    assert set(done.outcomes.values()) == {"passed"}
    assert len(done.outcomes) == 3
    assert done.boots == ["boot-1", "boot-1", "boot-2"]
