"""The host contract on Linux itself: each statement's raw result is the one that the documents show."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from _pytest.mark import ParameterSet

from tests.contract.acts import as_found
from tests.contract.linux_machine import LinuxMachine
from tests.contract.results import LINUX, RELEASE, observe, read_results
from tests.contract.statement import Statement, all_statements
from tests.kernel.lab.guest_side import RESULTS, STATE

BEFORE = STATE / "contract-before-reboot"


def shown(*, over_reboot: bool) -> list[ParameterSet]:
    return [
        pytest.param(one, id=one.id)
        for one in all_statements()
        if one.is_shown and one.not_on_linux is None and (one.after is not None) is over_reboot
    ]


@pytest.fixture(scope="module")
def machine() -> Iterator[LinuxMachine]:
    made = LinuxMachine()
    yield made
    made.close()


@dataclass
class Found:
    """How the machine is found before a statement: taken down once, and again after one that left it otherwise."""

    state: dict[str, str] | None = None

    def is_left_by(self, machine: LinuxMachine) -> None:
        before, self.state = self.state, as_found(machine)
        assert self.state == before, "the machine is not left as it was found"


@pytest.fixture(scope="module")
def found(machine: LinuxMachine) -> Found:
    return Found(as_found(machine))


def judge(one: Statement, result: str) -> None:
    """Kept first: what differs can then be looked at, and recorded when it is the kernel that is right."""
    observe(RESULTS, RELEASE, os.uname().release)
    observe(RESULTS, one.id, result)
    expected = read_results(LINUX).get(one.id)
    assert result == expected, f"Linux shows another result for {one.phrase!r}"


@pytest.mark.parametrize("one", shown(over_reboot=False))
def test_linux_keeps(one: Statement, machine: LinuxMachine, found: Found) -> None:
    assert one.run is not None
    result = one.run(machine)
    found.is_left_by(machine)
    judge(one, result)


@pytest.mark.before_reboot
@pytest.mark.parametrize("one", shown(over_reboot=True))
def test_linux_is_prepared(one: Statement, machine: LinuxMachine) -> None:
    assert one.before is not None
    BEFORE.mkdir(exist_ok=True)
    (BEFORE / one.id).write_text(json.dumps(one.before(machine)))


@pytest.mark.after_reboot
@pytest.mark.parametrize("one", shown(over_reboot=True))
def test_linux_keeps_over_a_reboot(one: Statement, machine: LinuxMachine) -> None:
    assert one.after is not None
    judge(one, one.after(machine, json.loads((BEFORE / one.id).read_text())))
