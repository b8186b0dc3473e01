"""A binder on a simulated host for each test that asks for one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulated_node.description import HostDescription
from tests.builders.binder import Bench


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Builds benches on hosts of a description and closes them in the end."""
    benches: list[Bench] = []

    def build(description: HostDescription, deadline_seconds: float = 5, read_seconds: float = 5) -> Bench:
        root = tmp_path / f"host{len(benches)}"
        bench = Bench(root, description, deadline_seconds=deadline_seconds, read_seconds=read_seconds)
        benches.append(bench)
        return bench

    yield build
    for bench in benches:
        bench.close()
