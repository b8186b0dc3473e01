"""Rounds come when something may have changed, when the time is up, and leave most of the time to others; no wake is
lost, whenever it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from node_host.rounds import SETTLE_SECONDS, Wake, run_rounds
from tests.builders.virtual_time import run_virtual

RESYNC = 60.0
Act = Callable[[Wake], Awaitable[None]]


def began(*, takes: float, acts: Act, until: float, resync: float = RESYNC, busy: float = 1.0) -> list[float]:
    """When each round began in so many seconds, where each takes as long; ``busy`` is the share of processor time."""

    async def work() -> list[float]:
        clock = asyncio.get_running_loop().time
        start, found, wake, stop = clock(), [], Wake(), asyncio.Event()

        async def make() -> float:
            found.append(round(clock() - start, 3))
            await asyncio.sleep(takes)
            return resync

        async def end() -> None:
            await asyncio.sleep(until)
            stop.set()

        await asyncio.gather(
            run_rounds(make, stop, wake, settle_at_most=resync, given_up="", clock=clock, spent=lambda: busy * clock()),
            acts(wake),
            end(),
        )
        return found

    return run_virtual(work())


def at(*moments: float) -> Act:
    """Wakes at these seconds."""

    async def act(wake: Wake) -> None:
        passed = 0.0
        for moment in moments:
            await asyncio.sleep(moment - passed)
            passed = moment
            wake.set()

    return act


def test_a_round_comes_soon_after_a_wake_together_with_what_follows_it() -> None:
    assert began(takes=0.01, acts=at(10, 10.05, 10.1, 10.15), until=30) == [0, 10 + SETTLE_SECONDS]


def test_a_wake_during_a_round_is_answered_by_another_round() -> None:
    assert began(takes=2, acts=at(1), until=30) == [0, 10]


def test_a_wake_while_a_round_waits_for_what_follows_is_part_of_it() -> None:
    assert began(takes=0.01, acts=at(10, 10.1, 10.25), until=30) == [0, 10.2, 10.45]


def test_a_storm_of_wakes_costs_a_fifth_of_the_time() -> None:
    found = began(takes=2, acts=at(*(number / 10 for number in range(1000))), until=99)
    assert found == [float(10 * number) for number in range(10)]


def test_rounds_that_wait_for_a_slow_machine_rest_for_what_they_have_taken_of_it_alone() -> None:
    assert began(takes=10, acts=at(5, 15), until=25, busy=0.01) == [0, 10.4, 20.8]


def test_long_rounds_rest_once_and_not_again_after_a_quiet_time() -> None:
    """What happens long after a round is not kept waiting for the share of time that the round has paid by then."""
    assert began(takes=10, acts=at(55), until=100) == [0, 55 + SETTLE_SECONDS]
    assert began(takes=10, acts=at(30), until=60) == [0, 50]


def test_without_a_wake_rounds_are_no_further_apart_than_asked() -> None:
    assert began(takes=10, acts=at(), until=215) == [0, 70, 140, 210]
    assert began(takes=20, acts=at(), until=175) == [0, 80, 160]
