"""A vGPU is given to a claim only while its function has the profile that was promised."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from crds.device_names import NamedKind
from crds.models.modes import IOMMUBackend
from dra_publisher.claims.shape import NotRealisedError, Wanted, nodes_of
from tests.builders.writer import FUNCTIONS, TWO, TYPES, WriterBench, carries


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WriterBench]:
    found = WriterBench(tmp_path)
    yield found
    found.close()


def vgpu(function: str, profile: str | None = "L40S-24Q") -> Wanted:
    return Wanted(function, NamedKind.VGPU, IOMMUBackend.LEGACY, profile=profile)


async def typed(bench: WriterBench) -> str:
    """A function that the writer gave the profile L40S-24Q."""
    bench.order(carries(TWO))
    await bench.settled()
    return min(one for one, profile in bench.profiles().items() if profile == "L40S-24Q")


async def test_a_function_with_the_promised_profile_is_given_through_its_group(bench: WriterBench) -> None:
    function = await typed(bench)
    assert nodes_of(bench.host, vgpu(function)) == tuple(sorted((bench.group(function), "/dev/vfio/vfio")))


async def test_a_function_with_another_profile_is_refused_with_both_named(bench: WriterBench) -> None:
    function = await typed(bench)
    with pytest.raises(NotRealisedError, match="profile L40S-24Q, not L40S-12Q"):
        nodes_of(bench.host, vgpu(function, "L40S-12Q"))


async def test_a_function_without_a_type_is_refused_until_it_has_it_again(bench: WriterBench) -> None:
    function = await typed(bench)
    bench.set_type(function, 0)
    with pytest.raises(NotRealisedError, match=re.escape("none (it has no vGPU type)")):
        nodes_of(bench.host, vgpu(function))
    bench.set_type(function, TYPES["L40S-24Q"])
    assert bench.group(function) in nodes_of(bench.host, vgpu(function))


async def test_a_function_of_which_no_profile_was_promised_is_given_to_nobody(bench: WriterBench) -> None:
    function = await typed(bench)
    with pytest.raises(NotRealisedError, match="nobody knows which vGPU profile"):
        nodes_of(bench.host, vgpu(function, None))


async def test_a_function_that_is_gone_is_waited_for(bench: WriterBench) -> None:
    with pytest.raises(NotRealisedError, match="no PCI device"):
        nodes_of(bench.host, vgpu(FUNCTIONS[0]))
