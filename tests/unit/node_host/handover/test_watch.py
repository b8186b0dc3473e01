"""Whoever waits for a token hears of it within a second, and of nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from node_host.bounded_call import BoundedCalls
from node_host.handover.binder_half import BinderHalf
from node_host.handover.publisher_half import PublisherHalf
from node_host.handover.token_files import HANDOVER, TokenFiles
from node_host.handover.watch import EVERY_SECONDS, watch_handover
from node_host.host import Host, KernelFiles
from tests.builders.checkpoints import claim, write_checkpoint
from tests.builders.inline import InlineCalls

CARD = "0000:23:00.0"
BOOT = "0b5c8f6e-0f57-4b1e-9d5e-7a0c4f1b2d3e"
ONE, TWO = "1" * 64, "2" * 64


async def woken(
    host: Host, *acts: Callable[[], object], calls: BoundedCalls | None = None, claim_looks: int | None = None
) -> list[bool]:
    """For each act whether it woke, between two looks of the watch."""
    wakes = 0
    todo = list(acts)
    found: list[bool] = []
    before = 0

    def wake() -> None:
        nonlocal wakes
        wakes += 1

    async def sleep(seconds: float) -> None:
        nonlocal before
        assert seconds == EVERY_SECONDS
        if len(found) < len(acts) - len(todo):
            found.append(wakes > before)
        if not todo:
            raise asyncio.CancelledError
        before = wakes
        todo.pop(0)()

    sleeper: Callable[[float], Awaitable[None]] = sleep
    try:
        await watch_handover(host, calls or InlineCalls(), wake, claim_looks=claim_looks, sleep=sleeper)
    except asyncio.CancelledError:
        return found
    raise AssertionError


async def test_everything_that_happens_to_a_token_or_to_the_note_wakes(tmp_path: Path) -> None:
    host = KernelFiles(tmp_path)
    publisher, binder = PublisherHalf(host), BinderHalf(TokenFiles(host))
    assert await woken(
        host,
        lambda: None,
        lambda: publisher.write_published({CARD}, BOOT),
        lambda: publisher.offer(CARD, BOOT, ONE),
        lambda: publisher.offer(CARD, BOOT, TWO),
        lambda: None,
        lambda: binder.take(CARD, BOOT, {TWO}),
        lambda: publisher.write_published([], BOOT),
        lambda: publisher.finish(CARD, locks=["group-20"]),
        lambda: publisher.withdraw(CARD),
        lambda: None,
    ) == [False, True, True, True, False, True, True, True, False, False]


async def test_what_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    host = KernelFiles(tmp_path)
    PublisherHalf(host).write_published([], BOOT)
    place = tmp_path / HANDOVER[1:]
    assert await woken(host, lambda: place.write_text("no directory"), lambda: None, place.unlink) == [
        True,
        False,
        True,
    ]


async def test_a_claim_that_is_prepared_or_taken_back_wakes(tmp_path: Path) -> None:
    host = KernelFiles(tmp_path)
    acts = (
        lambda: write_checkpoint(host),
        lambda: None,
        lambda: write_checkpoint(host, claim({CARD: ONE}, boot_id=BOOT)),
        lambda: write_checkpoint(host),
    )
    assert await woken(host, *acts, claim_looks=1) == [True, False, True, True]
    assert await woken(host, *acts) == [False] * 4, "for who writes it, it is no news"


async def test_claims_that_come_by_the_dozen_wake_once_in_a_while(tmp_path: Path) -> None:
    host = KernelFiles(tmp_path)
    acts = [lambda: write_checkpoint(host, claim({CARD: ONE}, boot_id=BOOT))] * 11
    assert await woken(host, *acts, claim_looks=5) == [False] * 4 + [True] + [False] * 4 + [True, False]


async def test_what_came_before_the_first_look_is_not_lost_to_whoever_looked_still_earlier(tmp_path: Path) -> None:
    host, wakes = KernelFiles(tmp_path), 0

    def wake() -> None:
        nonlocal wakes
        wakes += 1

    async def sleep(seconds: float) -> None:
        raise asyncio.CancelledError

    for claim_looks in (None, 5):
        write_checkpoint(host, claim({CARD: ONE}, boot_id=BOOT))
        with pytest.raises(asyncio.CancelledError):
            await watch_handover(host, InlineCalls(), wake, claim_looks=claim_looks, sleep=sleep)
    assert wakes == 2
