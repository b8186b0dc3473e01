"""Whoever waits sees what is going on: a moving line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io

import pytest

from cli.progress import Progress, duration


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.0 s"), (7.26, "7.3 s"), (60, "1m00s"), (258.9, "4m18s"), (3600, "60m00s")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_log_gets_a_line_at_the_start_every_interval_and_at_the_end() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress(stream, clock=clock, quiet_seconds=20).step("building x", "x built") as step:
        for _ in range(50):
            clock.now += 1
            step.tick("downloading y")
    assert stream.getvalue().splitlines() == [
        "building x ...",
        "building x: 20.0 s, downloading y",
        "building x: 40.0 s, downloading y",
        "x built in 50.0 s",
    ]


def test_terminal_gets_one_moving_line_that_is_gone_at_the_end() -> None:
    clock, stream = Clock(), Terminal()
    with Progress(stream, clock=clock).step("building x", "x built") as step:
        for _ in range(3):
            clock.now += 1
            step.tick()
    assert stream.getvalue() == (
        "\r\x1b[Kbuilding x: 1.0 s\r\x1b[Kbuilding x: 2.0 s\r\x1b[Kbuilding x: 3.0 s\r\x1b[Kx built in 3.0 s\n"
    )


def test_failed_step_does_not_say_that_it_is_done() -> None:
    stream = io.StringIO()
    with pytest.raises(ValueError, match="boom"), Progress(stream).step("building x", "x built"):
        raise ValueError("boom")
    assert stream.getvalue() == "building x ...\n"


def test_waiting_is_shown_from_its_first_tick_on_and_not_without_one() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, clock=clock, quiet_seconds=20)
    progress.waiting("waiting for z")
    assert stream.getvalue() == ""
    waiting = progress.waiting("waiting for z")
    waiting.tick("process 7")
    waiting.tick("process 7")
    clock.now += 20
    waiting.tick("process 7")
    assert stream.getvalue().splitlines() == ["waiting for z: 0.0 s, process 7", "waiting for z: 20.0 s, process 7"]


def test_stderr_is_looked_up_at_each_use(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.say("hello")
    assert capsys.readouterr().err == "hello\n"
