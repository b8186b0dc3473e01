"""Recording what machines show: on purpose only, and read before it is committed."""

from __future__ import annotations

from pathlib import Path

from tests.contract.results import LINUX, SIMULATED, observed, read_results, write_results
from tests.contract.simulated_machine import SimulatedMachine
from tests.contract.statement import Statement, all_statements


def show_simulated(one: Statement, directory: Path) -> str:
    """A statement's raw result on a simulated machine of its own below ``directory``."""
    with SimulatedMachine(directory) as machine:
        if one.run is not None:
            return one.run(machine)
        assert one.before is not None
        assert one.after is not None
        before = one.before(machine)
        machine.reboot()
        return one.after(machine, before)


def record_simulated(directory: Path) -> None:
    shown = [one for one in all_statements() if one.is_shown]
    write_results(SIMULATED, {one.id: show_simulated(one, directory / one.id) for one in shown})


def record_linux(directory: Path) -> None:
    """What a run of the guest showed; statements that it did not run keep their results."""
    known = {one.id for one in all_statements()}
    kept = {rule: result for rule, result in read_results(LINUX).items() if rule in known}
    write_results(LINUX, kept | observed(directory))
