"""Keeps property tests honest: a run that tried fewer examples than its floor fails and says so."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
FACTOR_VARIABLE = "NPUFLEET_FUZZ_FACTOR"


def times(count: int) -> int:
    """So many examples, or as many times more as $NPUFLEET_FUZZ_FACTOR says, for a run of hours."""
    return count * max(1, int(os.environ.get(FACTOR_VARIABLE, "1")))


class Examples:
    """Counts the examples of one property."""

    def __init__(self) -> None:
        self.count = 0

    def one(self) -> None:
        self.count += 1


class Digits:
    """Choices read off one drawn number: a draw per choice costs more time than all that is tested."""

    def __init__(self, number: int) -> None:
        self.rest = number

    def pick(self, choices: Sequence[T]) -> T:
        self.rest, index = divmod(self.rest, len(choices))
        return choices[index]


@contextmanager
def at_least(floor: int, what: str) -> Iterator[Examples]:
    """Run a property inside; prints how many examples it tried and fails below `floor`."""
    examples = Examples()
    yield examples
    print(f"{what}: {examples.count} examples")
    assert examples.count >= floor, f"{what}: only {examples.count} examples were tried, the floor is {floor}"
