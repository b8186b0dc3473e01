"""A difference between the hosts, wherever it comes from, makes the check fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulated_node.model import binding
from tests.contract import __main__ as command
from tests.contract.comparison import MAY_LACK_PERCENT, faults
from tests.contract.recording import show_simulated
from tests.contract.results import LINUX, RELEASE, SIMULATED, read_results, write_results
from tests.contract.statement import STATEMENTS, Statement, all_statements

ROW = Statement("area.row", "a phrase", run=lambda _machine: "")
OTHER = Statement("area.other", "another phrase", run=lambda _machine: "")
LACKING = Statement("area.lacking", "a third", run=lambda _machine: "", not_on_linux="no such card")
UNSHOWN = Statement("area.unshown", "a fourth", not_on_linux="nobody has it")
MANY = [Statement(f"area.row-{number}", "a phrase", run=lambda _machine: "") for number in range(20)]
ALL = {one.id: "ok" for one in MANY}


def test_the_recorded_results_hold() -> None:
    linux = read_results(LINUX)
    linux.pop(RELEASE, None)
    assert faults(all_statements(), read_results(SIMULATED), linux) == []


def test_the_same_results_hold() -> None:
    assert faults([ROW, OTHER], {ROW.id: "ok", OTHER.id: "EBUSY"}, {ROW.id: "ok", OTHER.id: "EBUSY"}) == []


def test_a_difference_is_a_fault_that_tells_both() -> None:
    [fault] = faults([ROW], {ROW.id: "ok"}, {ROW.id: "EBUSY"})
    assert fault == "area.row: the simulated kernel shows 'ok', Linux 'EBUSY'"


@pytest.mark.parametrize(
    ("simulated", "linux", "said"),
    [
        ({}, {ROW.id: "ok"}, "no result of the simulated kernel"),
        ({ROW.id: "ok"}, {}, "no result of Linux is recorded"),
        ({ROW.id: "ok", "area.gone": "ok"}, {ROW.id: "ok"}, "no such statement"),
        ({ROW.id: "ok"}, {ROW.id: "ok", "area.gone": "ok"}, "no such statement"),
    ],
)
def test_a_missing_or_a_stray_result_is_a_fault(simulated: dict[str, str], linux: dict[str, str], said: str) -> None:
    [fault] = faults([ROW], simulated, linux)
    assert said in fault


def test_a_reason_excuses_linux_only_and_only_while_it_has_no_result() -> None:
    assert faults([*MANY, LACKING, UNSHOWN], ALL | {LACKING.id: "ok"}, ALL) == []
    assert "cannot show it" in faults([*MANY, LACKING], ALL | {LACKING.id: "ok"}, ALL | {LACKING.id: "ok"})[0]
    assert "of the simulated kernel" in faults([*MANY, LACKING], ALL, ALL)[0]
    assert "nothing shows" in faults([*MANY, UNSHOWN], ALL | {UNSHOWN.id: "ok"}, ALL)[0]


def test_too_many_reasons_are_a_fault() -> None:
    lacking = [Statement(f"area.not-{number}", "a phrase", not_on_linux="why") for number in range(4)]
    assert faults([*MANY, *lacking[:3]], ALL, ALL) == []
    assert f"more than {MAY_LACK_PERCENT} %" in faults([*MANY, *lacking], ALL, ALL)[0]


def test_the_command_fails_when_a_recorded_result_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "simulated.json"
    write_results(changed, read_results(SIMULATED) | {"bind.already-bound": "ok"})
    monkeypatch.setattr(command, "SIMULATED", changed)
    assert command.main(["--check"]) == 1
    assert "bind.already-bound: the simulated kernel shows 'ok', Linux 'EBUSY, still on igb'" in capsys.readouterr().err


def test_a_simulated_kernel_that_behaves_otherwise_shows_another_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = STATEMENTS["bind.no-match-by-override"]
    assert show_simulated(one, tmp_path / "right") == read_results(LINUX)[one.id]
    monkeypatch.setattr(binding, "matches", lambda _driver, _device: True)
    assert show_simulated(one, tmp_path / "wrong") != read_results(LINUX)[one.id]
