"""Following a boot: every report counts, a guest that hangs or dies is ended and explained, questions are answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.lab.errors import LabError
from tests.kernel.lab.monitor import MonitorError
from tests.kernel.lab.share import BootDirectory, CallRefusedError, MessageWriter, call
from tests.kernel.lab.watch import Watch, evidence, tail


class PlayedGuest:
    """A guest that does what the test says."""

    def __init__(self) -> None:
        self.ended: int | None = None
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def status(self) -> int | None:
        return self.ended

    def kill(self) -> None:
        if self.ended is None:
            self.ended = -9

    def execute(self, command: str, arguments: Mapping[str, Any]) -> Any:
        self.asked.append((command, arguments))
        if command == "device_del":
            raise MonitorError("Device 'nobody' not found")
        return {"present": True}


class Stage:
    """A watch on a played guest under a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        self.now = 100.0
        self.guest = PlayedGuest()
        self.directory = BootDirectory(path)
        self.writer = MessageWriter(self.directory.messages)
        self.watch = Watch(
            self.guest, self.directory, {"a": 5.0, "b": 60.0}, lambda: self.now, start_seconds=30, end_seconds=20
        )

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.watch.step()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_reports_are_collected_by_test_and_the_end_is_no_failure(stage: Stage) -> None:
    stage.writer.write("start", id="a")
    stage.writer.write("report", id="a", data={"when": "setup"})
    stage.writer.write("report", id="a", data={"when": "call"})
    stage.later(1)
    assert stage.watch.reports == {"a": [{"when": "setup"}, {"when": "call"}]}
    assert "a" not in stage.watch.finished
    stage.writer.write("finish", id="a")
    stage.writer.write("end", status=0)
    stage.guest.ended = 0
    stage.later(1)
    assert (stage.watch.finished, stage.watch.verdict, stage.watch.over) == ({"a"}, "", True)


def test_a_test_beyond_its_own_deadline_ends_the_guest(stage: Stage) -> None:
    stage.writer.write("start", id="a")
    stage.later(0)
    stage.later(4.9)
    assert stage.guest.status() is None
    stage.later(0.2)
    assert stage.guest.status() == -9
    assert stage.watch.verdict == "a did not end within 5 s; the guest was ended"
    stage.later(0.1)
    assert stage.watch.over


def test_each_test_has_a_deadline_of_its_own(stage: Stage) -> None:
    for name, seconds in (("a", 4.0), ("b", 59.0)):
        stage.writer.write("start", id=name)
        stage.later(0)
        stage.later(seconds)
        stage.writer.write("finish", id=name)
        stage.later(0)
    assert stage.guest.status() is None


def test_a_guest_that_never_starts_a_test_is_ended(stage: Stage) -> None:
    stage.later(29)
    assert stage.guest.status() is None
    stage.later(2)
    assert stage.watch.verdict == "no test started within 30 s of the boot; the guest was ended"


def test_silence_between_tests_has_a_deadline_too(stage: Stage) -> None:
    stage.writer.write("start", id="a")
    stage.writer.write("finish", id="a")
    stage.later(0)
    stage.later(21)
    assert stage.watch.verdict == "nothing happened for 20 s after a; the guest was ended"


def test_a_guest_that_dies_is_named_as_the_reason(stage: Stage) -> None:
    stage.writer.write("start", id="a")
    stage.guest.ended = 1
    stage.later(0)
    assert stage.watch.over
    assert stage.watch.verdict == "the guest ended (QEMU's status 1) before its tests had"
    assert stage.watch.running == "a"


def lose_the_timer(stage: Stage) -> None:
    stage.directory.serial.write_bytes(b"rcu: \tPossible timer handling issue on cpu=1 timer-softirq=7\r\n")


def test_a_guest_that_lost_its_timer_is_ended_when_nothing_happens(stage: Stage) -> None:
    stage.writer.write("start", id="b")
    stage.later(0)
    lose_the_timer(stage)
    stage.later(1)
    stage.later(29)
    assert stage.guest.status() is None
    stage.later(2)
    assert stage.guest.status() == -9
    assert stage.watch.lost_its_timer
    said = "its kernel had said that a processor's timer no longer fires"
    assert stage.watch.verdict == f"nothing happened for 30 s; {said}; the guest was ended"


def test_a_guest_that_lost_its_timer_and_goes_on_is_left_alone(stage: Stage) -> None:
    lose_the_timer(stage)
    for _ in range(4):
        stage.writer.write("start", id="b")
        stage.writer.write("finish", id="b")
        stage.later(19)
    stage.writer.write("end", status=0)
    stage.guest.ended = 0
    stage.later(1)
    assert (stage.watch.verdict, stage.watch.lost_its_timer, stage.watch.over) == ("", False, True)


def test_a_lost_timer_is_the_reason_also_at_the_deadline_of_a_test(stage: Stage) -> None:
    stage.writer.write("start", id="a")
    stage.later(0)
    lose_the_timer(stage)
    stage.later(1)
    stage.later(5)
    assert (stage.guest.status(), stage.watch.lost_its_timer) == (-9, True)


def test_a_hang_without_the_kernels_words_is_none_of_a_timer(stage: Stage) -> None:
    stage.writer.write("start", id="a")
    stage.directory.serial.write_bytes(b"rcu: INFO: rcu_preempt self-detected stall on CPU\r\n")
    stage.later(0)
    stage.later(6)
    assert (stage.guest.status(), stage.watch.lost_its_timer) == (-9, False)


def test_a_guest_that_hangs_after_its_end_has_lost_nothing(stage: Stage) -> None:
    stage.writer.write("end", status=0)
    lose_the_timer(stage)
    for _ in range(3):
        stage.later(31)
    assert (stage.watch.verdict, stage.watch.lost_its_timer) == ("", False)


def test_what_ended_in_a_try_before_counts(tmp_path: Path) -> None:
    kept = {"a": [{"when": "call"}]}
    watch = Watch(PlayedGuest(), BootDirectory(tmp_path), {"b": 60.0}, lambda: 0.0, earlier=kept)
    assert (watch.reports, watch.finished) == (kept, {"a"})


def test_what_a_guest_wrote_before_it_ended_counts(stage: Stage) -> None:
    stage.guest.ended = 0
    stage.writer.write("finish", id="a")
    stage.writer.write("end", status=0)
    stage.later(0)
    assert (stage.watch.finished, stage.watch.verdict) == ({"a"}, "")


def test_a_guest_that_does_not_switch_itself_off_is_ended_without_a_failure(stage: Stage) -> None:
    stage.writer.write("end", status=0)
    stage.later(0)
    stage.later(21)
    assert stage.guest.status() == -9
    assert stage.watch.verdict == ""


def test_half_a_message_waits_for_its_other_half(stage: Stage) -> None:
    line = json.dumps({"kind": "finish", "id": "ü"}).encode() + b"\n"
    with stage.directory.messages.open("ab") as file:
        file.write(line[:9])
        file.flush()
        stage.later(0)
        assert stage.watch.finished == set()
        file.write(line[9:])
    stage.later(0)
    assert stage.watch.finished == {"ü"}


@pytest.mark.parametrize("line", [b"[1]\n", b"no JSON\n", b'{"kind": "song"}\n'])
def test_a_message_that_nobody_can_read_is_an_error(stage: Stage, line: bytes) -> None:
    stage.directory.messages.write_bytes(line)
    with pytest.raises((ValueError, LabError)):
        stage.watch.step()


def answered(stage: Stage, name: str, arguments: Mapping[str, Any]) -> Any:
    """What the guest's side gets when the host's side steps meanwhile."""
    results: list[Any] = []

    def ask() -> None:
        try:
            results.append(call(stage.directory, name, arguments, seconds=20))
        except CallRefusedError as refused:
            results.append(refused)

    guest = threading.Thread(target=ask)
    guest.start()
    while guest.is_alive():
        stage.watch.step()
        guest.join(0.01)
    return results[0]


def test_a_question_is_answered_once(stage: Stage) -> None:
    assert answered(stage, "query-kvm", {"x": 1}) == {"present": True}
    stage.later(1)
    assert stage.guest.asked == [("query-kvm", {"x": 1})]


def test_a_refusal_reaches_the_guest_in_words(stage: Stage) -> None:
    refused = answered(stage, "device_del", {"id": "nobody"})
    assert isinstance(refused, CallRefusedError)
    assert str(refused) == "Device 'nobody' not found"


def test_a_question_without_answer_ends_in_time(stage: Stage) -> None:
    with pytest.raises(TimeoutError, match=r"no answer from the host to stop within 0\.1 s"):
        call(stage.directory, "stop", {}, seconds=0.1)


def test_a_damaged_question_is_refused_and_the_watch_goes_on(stage: Stage) -> None:
    stage.directory.calls.mkdir()
    (stage.directory.calls / "x.json").write_text("{")
    stage.later(0)
    assert "error" in json.loads((stage.directory.calls / "x.answer").read_text())
    assert stage.guest.status() is None


def test_the_evidence_shows_the_end_of_each_log_and_where_it_is(stage: Stage) -> None:
    stage.directory.serial.write_bytes(b"first\r\n" + b"more\r\n" * 100 + b"Kernel panic \xff\r\n")
    stage.directory.dmesg.write_text("BUG: soft lockup\n")
    text = evidence(stage.directory)
    assert "Kernel panic" in text and "BUG: soft lockup" in text and str(stage.directory.serial) in text
    assert "first" not in text


def test_the_tail_of_a_missing_log_says_so(tmp_path: Path) -> None:
    assert tail(tmp_path / "none") == "(No such file or directory)"
