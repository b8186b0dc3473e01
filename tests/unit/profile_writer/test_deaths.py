"""A writer that dies after any change of the host leaves a host that the next one brings to its layout."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from node_host.host import HostWithTools, ToolResult
from tests.builders.deaths import Died
from tests.builders.writer import MIXED, TWO, WriterBench, carries, stand


class Dying:
    """A host port whose process dies at a moment: 2n is right before its n-th change (from 0), 2n + 1 right after it.

    Between the one and the other of two changes it has written its record, or has not.
    """

    def __init__(self, host: HostWithTools, at: int | None) -> None:
        self._host = host
        self._at = at
        self.moments = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def write(self, path: str, data: bytes) -> None:
        self._moment()
        self._host.write(path, data)
        self._moment()

    def run_tool(self, path: str, arguments: Sequence[str], *, inherit: Sequence[int] = ()) -> ToolResult:
        if "-q" in arguments:
            return self._host.run_tool(path, arguments, inherit=inherit)
        self._moment()
        result = self._host.run_tool(path, arguments, inherit=inherit)
        self._moment()
        return result

    def _moment(self) -> None:
        self.moments += 1
        if self.moments - 1 == self._at:
            raise Died


async def a_life(bench: WriterBench, at: int | None) -> int:
    """A writer until that moment, or to the end of its pass; how many moments it had."""
    port = Dying(bench.kernel.host(), at)
    bench.restart(port)
    if at is None:
        await bench.run()
    else:
        with pytest.raises(Died):
            await bench.run()
    bench.restart()
    return port.moments


@pytest.mark.parametrize("layout", [TWO, MIXED, {"L40S-6Q": 8}], ids=["two", "mixed", "eight"])
async def test_a_death_after_any_change_of_the_boot_sequence(
    make: Callable[..., WriterBench], layout: dict[str, int]
) -> None:
    whole = make()
    whole.order(carries(layout))
    number = await a_life(whole, None)
    assert number >= 6
    for at in range(number):
        bench = make()
        bench.order(carries(layout))
        await a_life(bench, at)
        done = await bench.settled()
        assert stand(done)[0] == "Ready", (at, done.profiles)
        assert bench.profiles() == whole.profiles(), at
        # What died had done its part: the layout is made by as many changes as without a death.
        assert bench.writes == whole.writes, at


async def test_a_death_after_any_change_from_one_layout_to_another(make: Callable[..., WriterBench]) -> None:
    async def changed(at: int | None) -> int:
        bench = make()
        bench.order(carries(TWO))
        await bench.run()
        bench.order(carries(MIXED))
        number = await a_life(bench, at)
        done = await bench.settled()
        assert stand(done)[0] == "Ready", (at, done.profiles)
        assert sorted(bench.profiles().values()) == ["L40S-12Q", "L40S-12Q", "L40S-24Q"]
        return number

    for at in range(await changed(None)):
        await changed(at)


async def test_a_death_after_any_change_of_a_release(make: Callable[..., WriterBench]) -> None:
    async def released(at: int | None) -> int:
        bench = make()
        bench.order(carries(TWO))
        await bench.run()
        bench.order(carries(TWO, intent="Release"))
        number = await a_life(bench, at)
        done = await bench.settled()
        assert stand(done) == ("Released", "Released"), (at, done.profiles)
        assert bench.functions() == []
        assert bench.record().entries == {}
        return number

    number = await released(None)
    assert number == 6
    for at in range(number):
        await released(at)
