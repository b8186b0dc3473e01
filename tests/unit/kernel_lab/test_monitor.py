"""The monitor's protocol: greeting, answers between events, refusals, and an end that is an error and not a wait."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kernel.lab.monitor import Monitor, MonitorError


class PlayedQemu:
    """The other end: greets, then answers each command with the next of `answers` (lines)."""

    def __init__(self, answers: list[list[dict[str, Any]]]) -> None:
        ours, self.theirs = socket.socketpair()
        self.monitor = Monitor(ours, seconds=5)
        self.asked: list[dict[str, Any]] = []
        self._answers = answers
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def _play(self) -> None:
        with self.theirs, self.theirs.makefile("rwb") as stream:
            stream.write(b'{"QMP": {"version": {}}}\r\n')
            stream.flush()
            for lines in [[{"return": {}}], *self._answers]:
                asked = stream.readline()
                if not asked:
                    return
                self.asked.append(json.loads(asked))
                for line in lines:
                    stream.write(json.dumps(line).encode() + b"\r\n")
                stream.flush()

    def close(self) -> None:
        self.monitor.close()
        self._thread.join(10)


@pytest.fixture
def played() -> Iterator[list[PlayedQemu]]:
    all_played: list[PlayedQemu] = []
    yield all_played
    for qemu in all_played:
        qemu.close()


def test_events_between_command_and_answer_are_passed_over(played: list[PlayedQemu]) -> None:
    qemu = PlayedQemu([[{"event": "RTC_CHANGE"}, {"return": {"enabled": False}}], [{"return": {}}]])
    played.append(qemu)
    assert qemu.monitor.execute("query-kvm") == {"enabled": False}
    assert qemu.monitor.execute("device_del", {"id": "pf"}) == {}
    assert qemu.asked == [
        {"execute": "qmp_capabilities", "arguments": {}},
        {"execute": "query-kvm", "arguments": {}},
        {"execute": "device_del", "arguments": {"id": "pf"}},
    ]


def test_a_refusal_is_an_error_in_qemus_words(played: list[PlayedQemu]) -> None:
    qemu = PlayedQemu([[{"error": {"class": "DeviceNotFound", "desc": "Device 'x' not found"}}]])
    played.append(qemu)
    with pytest.raises(MonitorError, match="Device 'x' not found"):
        qemu.monitor.execute("device_del", {"id": "x"})


def test_a_machine_that_ends_is_an_error(played: list[PlayedQemu]) -> None:
    qemu = PlayedQemu([])
    played.append(qemu)
    with pytest.raises(MonitorError, match=r"has ended|does not listen|is gone"):
        qemu.monitor.execute("query-kvm")


def test_a_machine_that_says_nothing_is_an_error_in_time() -> None:
    ours, theirs = socket.socketpair()
    with theirs, ours, pytest.raises(MonitorError, match=r"no answer from the machine's monitor within 0\.1 s"):
        Monitor(ours, seconds=0.1).execute("query-kvm")
