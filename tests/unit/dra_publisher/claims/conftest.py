"""One machine for the tests of a file, as new for each."""

from collections.abc import Iterator

import pytest

from simulated_node.kernel import SimulatedKernel
from tests.builders.claims_world import World, machine, world_of


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedKernel]:
    with machine(tmp_path_factory.mktemp("claims")) as running:
        yield running


@pytest.fixture
def world(kernel: SimulatedKernel) -> Iterator[World]:
    """A node on which nothing was prepared yet; whatever happens to claims, nothing is written to the kernel."""
    found = world_of(kernel)
    found.wipe_tmpfs()
    found.wipe_disk()
    orders = len(kernel.writes)
    yield found
    assert len(kernel.writes) == orders, "the publisher never writes to the kernel"
    found.store.close()
