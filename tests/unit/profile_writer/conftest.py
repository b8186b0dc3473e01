"""A profile writer on a simulated host for each test that asks for one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simulated_node.description import HostDescription
from tests.builders.writer import WriterBench


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., WriterBench]]:
    """Builds benches and closes them in the end."""
    benches: list[WriterBench] = []

    def build(description: HostDescription | None = None, **settings: Any) -> WriterBench:
        bench = WriterBench(tmp_path / f"host{len(benches)}", description, **settings)
        benches.append(bench)
        return bench

    yield build
    for bench in benches:
        bench.close()


@pytest.fixture
def bench(make: Callable[..., WriterBench]) -> WriterBench:
    """The node of the demo."""
    return make()
