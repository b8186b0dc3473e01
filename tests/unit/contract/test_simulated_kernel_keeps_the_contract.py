"""The host contract on the simulated kernel: each statement's raw result is the one that the documents show."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.contract.acts import as_found, settle
from tests.contract.recording import show_simulated
from tests.contract.results import SIMULATED, read_results
from tests.contract.simulated_machine import SimulatedMachine
from tests.contract.statement import Statement, all_statements

SHOWN = [one for one in all_statements() if one.is_shown]
IN_ONE_BOOT = [one for one in SHOWN if one.run is not None]


def rows(statements: list[Statement]) -> list[ParameterSet]:
    return [pytest.param(one, id=one.id) for one in statements]


@pytest.mark.parametrize("one", rows(SHOWN))
def test_the_simulated_kernel_keeps(one: Statement, tmp_path: Path) -> None:
    assert show_simulated(one, tmp_path) == read_results(SIMULATED).get(one.id)


def test_statements_leave_the_machine_as_they_found_it_in_any_order(tmp_path: Path) -> None:
    recorded = read_results(SIMULATED)
    seed = random.randrange(1_000_000)
    print(f"order of seed {seed}")
    order = random.Random(seed).sample(IN_ONE_BOOT, len(IN_ONE_BOOT))
    with SimulatedMachine(tmp_path) as machine:
        found = as_found(machine)
        for one in order:
            assert one.run is not None
            assert (one.id, one.run(machine)) == (one.id, recorded.get(one.id))
            settle(machine)
            assert as_found(machine) == found, f"{one.id} leaves the machine as another one"
