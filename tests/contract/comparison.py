"""Whether the contract holds: the same raw result on both machines, and a reason for each statement that one lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.contract.statement import Statement

# Statements in a hundred that the Linux guest need not show.
MAY_LACK_PERCENT: Final = 15


def faults(statements: Sequence[Statement], simulated: Mapping[str, str], linux: Mapping[str, str]) -> list[str]:
    """What is wrong with the recorded results, one sentence each; empty when the contract holds."""
    found: list[str] = []
    for one in statements:
        found += _faults(one, simulated.get(one.id), linux.get(one.id))
    known = {one.id for one in statements}
    for machine, results in (("simulated", simulated), ("linux", linux)):
        found += [f"{rule}: {machine} has a result, but there is no such statement" for rule in results.keys() - known]
    lacking = [one for one in statements if one.not_on_linux is not None]
    if 100 * len(lacking) > MAY_LACK_PERCENT * len(statements):
        found.append(
            f"{len(lacking)} of {len(statements)} statements are not shown on Linux: more than {MAY_LACK_PERCENT} %"
        )
    return sorted(found)


def _faults(one: Statement, simulated: str | None, linux: str | None) -> list[str]:
    if not one.is_shown:
        stray = [name for name, result in (("simulated", simulated), ("linux", linux)) if result is not None]
        return [f"{one.id}: {name} has a result, but nothing shows the statement" for name in stray]
    found = []
    if simulated is None:
        found.append(f"{one.id}: no result of the simulated kernel is recorded")
    if one.not_on_linux is not None:
        if linux is not None:
            found.append(f"{one.id}: Linux has a result, yet a reason says that it cannot show it")
    elif linux is None:
        found.append(f"{one.id}: no result of Linux is recorded, and no reason says why")
    elif simulated is not None and simulated != linux:
        found.append(f"{one.id}: the simulated kernel shows {simulated!r}, Linux {linux!r}")
    return found
