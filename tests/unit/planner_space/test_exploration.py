"""Every plan for every small host: nothing is touched that may not be, and everything ends as ordered or says why."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.unit.planner_space.exploration import Exploration
from tests.unit.planner_space.spaces import SPACES, Space

# All spaces together; a space by itself has its own floor.
STATES = 330_000


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Nothing here is circular, and there are hundreds of thousands of values to look through."""
    gc.disable()
    yield
    gc.enable()


def _size(space: Space) -> int:
    return space.states + space.transitions


# The long ones first, so that workers who share them end together.
LONG_FIRST = sorted(SPACES, key=_size, reverse=True)


@pytest.mark.parametrize("space", LONG_FIRST, ids=str)
def test_every_host_ends_as_ordered_or_says_why(space: Space) -> None:
    exploration = Exploration()
    exploration.explore(space.hosts(), failures=space.failures)
    print(f"{space}: {exploration.states} states, {exploration.transitions} transitions")
    assert exploration.states >= space.states
    assert exploration.transitions >= space.transitions


def test_the_spaces_together_are_not_fewer_states_than_said() -> None:
    assert sum(space.states for space in SPACES) >= STATES
