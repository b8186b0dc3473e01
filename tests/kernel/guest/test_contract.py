"""The host contract on Linux itself: each statement's raw result is the one that the documents show."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from _pytest.mark import ParameterSet

from tests.contract.acts import are_standing, as_found, settle
from tests.contract.linux_machine import LinuxMachine
from tests.contract.results import LINUX, RELEASE, observe, read_results
from tests.contract.statement import Statement, all_statements
from tests.kernel.lab.guest_side import RESULTS, STATE

pytestmark = pytest.mark.guest("kernel")

SHARING = "vgpu"
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


class Found:
    """How the machine is found before a statement: taken down once, and again after one that left it otherwise.

    The VFs that statements about vGPUs share are no trace of one of them; before any other statement they go.
    """

    def __init__(self, machine: LinuxMachine) -> None:
        self.machine = machine
        self.states: dict[bool, dict[str, str]] = {False: as_found(machine)}

    def prepare(self, one: Statement) -> None:
        if one.area != SHARING:
            settle(self.machine)

    def is_left_by(self, one: Statement) -> None:
        sharing = one.area == SHARING and are_standing(self.machine)
        state = as_found(self.machine)
        before, self.states[sharing] = self.states.get(sharing, state), state
        assert state == before, "the machine is not left as it was found"


@pytest.fixture(scope="module")
def found(machine: LinuxMachine) -> Iterator[Found]:
    yield Found(machine)
    settle(machine)


@pytest.fixture(scope="module")
def settled(machine: LinuxMachine) -> LinuxMachine:
    """Before the first of several tests only: what they leave is for the reboot to forget."""
    settle(machine)
    return machine


def judge(one: Statement, result: str) -> None:
    """Kept first: what differs can then be looked at, and recorded when it is the kernel that is right."""
    observe(RESULTS, RELEASE, os.uname().release)
    observe(RESULTS, one.id, result)
    expected = read_results(LINUX).get(one.id)
    assert result == expected, f"Linux shows another result for {one.phrase!r}"


@pytest.mark.parametrize("one", shown(over_reboot=False))
def test_linux_keeps(one: Statement, machine: LinuxMachine, found: Found) -> None:
    assert one.run is not None
    found.prepare(one)
    result = one.run(machine)
    found.is_left_by(one)
    judge(one, result)


@pytest.mark.before_reboot
@pytest.mark.parametrize("one", shown(over_reboot=True))
def test_linux_is_prepared(one: Statement, settled: LinuxMachine) -> None:
    assert one.before is not None
    BEFORE.mkdir(exist_ok=True)
    (BEFORE / one.id).write_text(json.dumps(one.before(settled)))


@pytest.mark.after_reboot
@pytest.mark.parametrize("one", shown(over_reboot=True))
def test_linux_keeps_over_a_reboot(one: Statement, machine: LinuxMachine) -> None:
    assert one.after is not None
    judge(one, one.after(machine, json.loads((BEFORE / one.id).read_text())))
