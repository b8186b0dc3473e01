"""A run notices at once when something that works beside it has died, and says what it knows of one that hangs."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from runtime.api import Api
from tests.builders.paper_binder import Card
from tests.cluster.faults.background import Background
from tests.cluster.faults.fleet import OURS, Fleet, node_name
from tests.cluster.faults.scenarios import all_answered

Object = dict[str, Any]


def fleet_on_paper(size: int = 2) -> Fleet:
    """Without an API server."""
    fleet = Fleet(cast(Api, None), seed=1, size=size)
    for number in range(size):
        fleet.cards[node_name(number)] = {OURS: Card()}
        fleet.states[node_name(number)] = state(generation=2, answered=2)
    return fleet


def state(*, generation: int, answered: int) -> Object:
    order = {"address": OURS, "mode": "Passthrough", "intent": "Apply"}
    bindings = {"observedGeneration": answered, "devices": [{"address": OURS, "state": "Ready"}]}
    return {
        "metadata": {"generation": generation},
        "spec": {"devices": [order]},
        "status": {"bindings": bindings, "rollout": {"admitted": "Waiting"}},
    }


async def fails() -> None:
    raise KeyError("metadata")


async def ends() -> None:
    return None


async def goes_on() -> None:
    await asyncio.Event().wait()


async def test_task_that_fails_is_told_with_its_error() -> None:
    background = Background()
    background.start(goes_on(), "another")
    await asyncio.wait({background.start(fails(), "the watch of npunodestates")})
    with pytest.raises(AssertionError, match=r"the watch of npunodestates, .* failed: KeyError: 'metadata'") as raised:
        background.check()
    assert isinstance(raised.value.__cause__, KeyError)
    await background.end()


async def test_task_that_ends_is_told_unless_it_may() -> None:
    background = Background()
    await asyncio.wait({background.start(ends(), "an answer", finite=True)})
    background.check()
    await asyncio.wait({background.start(ends(), "the end of pods")})
    with pytest.raises(AssertionError, match=r"the end of pods, .* ended though it should go on"):
        background.check()


async def test_tasks_that_are_ended_on_purpose_have_not_failed() -> None:
    background = Background()
    task = background.start(goes_on(), "a watch")
    await background.end()
    assert task.cancelled()
    background.check()


async def test_waiting_ends_at_once_when_what_it_waits_for_has_died() -> None:
    """Though nothing changes any more, since the very watch that would have told is dead."""
    background = Background()
    fleet = Fleet(DeadApi(), seed=1, size=1, background=background)  # type: ignore[arg-type]
    async with asyncio.timeout(20), fleet.followed():
        with pytest.raises(AssertionError, match=r"the watch of npunode.*KeyError"):
            await fleet.until(lambda: False, seconds=600)


class DeadApi:
    """Its lists are such that the reader of them dies."""

    async def list(self, *_: object) -> object:
        raise KeyError("items")


async def test_waiting_in_vain_tells_who_owes_an_answer_and_what_the_controller_said_last() -> None:
    fleet = fleet_on_paper()
    fleet.silent.add(node_name(1))
    fleet.states[node_name(1)] = state(generation=3, answered=2)
    fleet.also_told = lambda: "controller-1.log: it is not ready"
    with pytest.raises(AssertionError) as raised:
        await fleet.until(lambda: False, seconds=0.01, what="the limit is filled")
    assert str(raised.value) == (
        "not within 0.01 s: the limit is filled; flt-00: Passthrough Apply, Ready, Waiting; "
        "flt-01 silent: Passthrough Apply, Ready/to earlier orders, Waiting\ncontroller-1.log: it is not ready"
    )


def test_fleet_has_answered_when_every_binder_has_answered_its_newest_orders() -> None:
    fleet = fleet_on_paper()
    assert all_answered(fleet)
    fleet.states[node_name(1)] = state(generation=3, answered=2)
    assert not all_answered(fleet)
    del fleet.states[node_name(1)]
    assert not all_answered(fleet)
