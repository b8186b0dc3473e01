"""The exploration is worth something: a planner with a bug does not get through a small part of it."""

from __future__ import annotations

import time

import pytest

from tests.unit.planner_space.exploration import Exploration
from tests.unit.planner_space.seeded_bugs import SEEDED_BUGS, SeededBug
from tests.unit.planner_space.spaces import small_space

# What a small exploration may take; the planner without a bug gets through in less.
SECONDS = 30
STATES = 5_000
BUGS = 20


def test_the_planner_itself_gets_through_the_small_space() -> None:
    exploration = Exploration()
    exploration.explore(small_space(), failures=True)
    print(f"small space: {exploration.states} states, {exploration.transitions} transitions")
    assert exploration.states >= STATES
    assert len(SEEDED_BUGS) >= BUGS


@pytest.mark.parametrize("bug", SEEDED_BUGS, ids=str)
def test_a_seeded_bug_is_found(bug: SeededBug, monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    bug.sow(monkeypatch)
    exploration = Exploration(stop=False, each_plan=bug.each_plan)
    found = False
    for host in small_space():
        exploration.explore([host], failures=bug.failures)
        found = any(bug.found_as in what for what in exploration.violations)
        if found:
            break
    print(f"{bug}: found after {exploration.states} states, with {sorted(exploration.violations)}")
    assert found, sorted(exploration.violations)
    assert time.monotonic() - started < SECONDS
