"""The write limit, on a clock that only moves when somebody waits."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.backoff import Backoff
from runtime.rate_limit import TokenBucket
from tests.builders.examples import at_least
from tests.builders.virtual_time import run_virtual


def bucket(rate: float, burst: int) -> TokenBucket:
    return TokenBucket(rate, burst, clock=asyncio.get_running_loop().time)


def test_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        limit, start, times = bucket(10, 3), loop.time(), []
        for _ in range(6):
            await limit.take()
            times.append(round(loop.time() - start, 6))
        return times

    assert run_virtual(main()) == [0, 0, 0, 0.1, 0.2, 0.3]


def test_urgent_takes_do_not_wait_but_those_behind_them_do() -> None:
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        limit = bucket(10, 1)
        await limit.take()
        start = loop.time()
        await limit.take(urgent=True)
        urgent = loop.time() - start
        await limit.take()
        return urgent, loop.time() - start

    urgent, after = run_virtual(main())
    assert urgent == 0 and after == pytest.approx(0.2)


def test_a_cancelled_wait_gives_its_place_back() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        limit = bucket(1, 1)
        await limit.take()
        waiting = [asyncio.create_task(limit.take()) for _ in range(50)]
        await asyncio.sleep(0.5)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        start = loop.time()
        await limit.take()
        return loop.time() - start

    assert run_virtual(main()) == pytest.approx(0.5)


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_limit_that_lets_nothing_pass_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="rate"):
        TokenBucket(rate, burst)


def test_no_window_ever_has_more_than_burst_plus_rate() -> None:
    with at_least(2000, "token bucket") as examples:

        @settings(max_examples=2100, deadline=None, database=None)
        @given(
            gaps=st.lists(st.floats(0, 2), min_size=1, max_size=25),
            rate=st.floats(0.5, 50),
            burst=st.integers(1, 10),
        )
        def check(gaps: list[float], rate: float, burst: int) -> None:
            examples.one()

            async def main() -> list[float]:
                loop, limit, times = asyncio.get_running_loop(), bucket(rate, burst), []

                async def writer(at: float) -> None:
                    await asyncio.sleep(at)
                    await limit.take()
                    times.append(loop.time())

                starts = [sum(gaps[:index]) for index in range(len(gaps))]
                await asyncio.gather(*map(writer, starts))
                return times

            times = sorted(run_virtual(main()))
            assert len(times) == len(gaps)
            for start in range(len(times)):
                for end in range(start, len(times)):
                    assert end - start + 1 <= burst + rate * (times[end] - times[start]) + 1e-6

        check()


def test_backoff_doubles_to_its_cap_and_starts_over() -> None:
    class Never:
        def random(self) -> float:
            return 0.0

    backoff = Backoff(0.5, 8, Never())  # type: ignore[arg-type]
    assert [backoff.next() for _ in range(6)] == [0.5, 1, 2, 4, 8, 8]
    backoff.reset()
    assert backoff.next() == 0.5
    backoff.failures = 10**9
    assert backoff.next() == 8
