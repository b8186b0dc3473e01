"""Callers that wait for one another share a turn, in the order in which they came, and each answers for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dra_publisher.claims.together import Call, Together
from dra_publisher.kubelet.service import ClaimRef


def prepare(*uids: str, driver: str = "npufleet.io") -> Call:
    return Call("prepare", driver, {uid: ClaimRef("team-a", f"claim-{uid}", uid) for uid in uids})


def unprepare(*uids: str) -> Call:
    return Call("unprepare", "npufleet.io", prepare(*uids).refs)


class Turns:
    """A lock, and work that is told of and goes on when the test says so."""

    def __init__(self) -> None:
        self.done: list[list[str]] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.fault: Callable[[Sequence[Call]], Exception | None] = lambda calls: None
        self.together = Together(self.held, self.work)
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        async with self._lock:
            yield

    async def work(self, calls: Sequence[Call]) -> list[Mapping[str, Any]]:
        assert self._lock.locked()
        self.done.append([f"{call.method[0]}{uid}" for call in calls for uid in call.refs])
        await self.goes_on.wait()
        if (fault := self.fault(calls)) is not None:
            raise fault
        return [{uid: f"{call.method} {uid}" for uid in call.refs} for call in calls]

    async def all(self, *calls: Call) -> list[Any]:
        """The answers or errors; the first call is at work when the others come."""
        self.goes_on.clear()
        asked = [asyncio.ensure_future(self.together.do(call)) for call in calls]
        await asyncio.sleep(0)
        self.goes_on.set()
        answers: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
        return answers


async def test_those_that_wait_are_done_at_once_and_each_gets_its_own_answer() -> None:
    turns = Turns()
    answers = await turns.all(prepare("1"), prepare("2", "3"), prepare("4"))
    assert turns.done == [["p1"], ["p2", "p3", "p4"]]
    assert answers == [
        {"1": "prepare 1"},
        {"2": "prepare 2", "3": "prepare 3"},
        {"4": "prepare 4"},
    ]


async def test_nobody_is_done_before_one_of_another_kind_that_came_before() -> None:
    turns = Turns()
    await turns.all(prepare("1"), prepare("2"), unprepare("3"), unprepare("4"), prepare("5"), prepare("6"))
    assert turns.done == [["p1"], ["p2"], ["u3", "u4"], ["p5", "p6"]]
    await turns.all(prepare("1"), prepare("2"), prepare("3", driver="other.example.com"), prepare("4"))
    assert turns.done[4:] == [["p1"], ["p2"], ["p3"], ["p4"]]


async def test_who_asks_of_the_same_claim_has_a_turn_of_its_own() -> None:
    turns = Turns()
    answers = await turns.all(prepare("1"), prepare("2"), prepare("2"), prepare("3"))
    assert turns.done == [["p1"], ["p2"], ["p2", "p3"]]
    assert answers[1] == answers[2] == {"2": "prepare 2"}


async def test_a_turn_that_fails_is_the_fault_of_its_caller_alone() -> None:
    turns = Turns()
    turns.fault = lambda calls: OSError("disk") if len(calls) > 1 else None
    answers = await turns.all(prepare("1"), prepare("2"), prepare("3"), prepare("4"))
    assert turns.done == [["p1"], ["p2", "p3", "p4"], ["p3", "p4"], ["p4"]]
    assert [type(answer) for answer in answers] == [dict, OSError, OSError, dict]


async def test_a_caller_that_gives_up_in_its_turn_leaves_the_others_to_theirs() -> None:
    turns = Turns()
    turns.goes_on.clear()
    first, second, third, fourth = (asyncio.ensure_future(turns.together.do(prepare(uid))) for uid in "1234")
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    turns.goes_on.set()
    assert await second == {"2": "prepare 2"}
    assert await fourth == {"4": "prepare 4"}
    assert turns.done == [["p1"], ["p2", "p4"]]
    for one in (first, third):
        with pytest.raises(asyncio.CancelledError):
            await one
