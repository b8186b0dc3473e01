"""Keeps property tests honest: a run that tried fewer examples than its floor fails and says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Examples:
    """Counts the examples of one property."""

    def __init__(self) -> None:
        self.count = 0

    def one(self) -> None:
        self.count += 1


@contextmanager
def at_least(floor: int, what: str) -> Iterator[Examples]:
    """Run a property inside; prints how many examples it tried and fails below `floor`."""
    examples = Examples()
    yield examples
    print(f"{what}: {examples.count} examples")
    assert examples.count >= floor, f"{what}: only {examples.count} examples were tried, the floor is {floor}"
