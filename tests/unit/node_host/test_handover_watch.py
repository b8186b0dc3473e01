"""Whoever waits for a token hears of it within a second, and of nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from node_host.bounded_call import BoundedCalls
from node_host.handover.binder_half import BinderHalf
from node_host.handover.publisher_half import PublisherHalf
from node_host.handover.token_files import HANDOVER, TokenFiles
from node_host.handover.watch import EVERY_SECONDS, watch_handover
from node_host.host import Host, KernelFiles
from tests.builders.inline import InlineCalls

CARD = "0000:23:00.0"
BOOT = "0b5c8f6e-0f57-4b1e-9d5e-7a0c4f1b2d3e"
ONE, TWO = "1" * 64, "2" * 64


async def woken(host: Host, *acts: Callable[[], object], calls: BoundedCalls | None = None) -> list[bool]:
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
        await watch_handover(host, calls or InlineCalls(), wake, sleep=sleeper)
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
