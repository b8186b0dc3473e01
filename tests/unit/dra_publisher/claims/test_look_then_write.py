"""A look that hangs may be given up, what is being written may not."""

import asyncio
import threading

import pytest

from dra_publisher.claims.work import look_then_write
from node_host.bounded_call import HungError
from tests.builders.waiting import until


class Play:
    """A look and a write that end when they are let."""

    def __init__(self) -> None:
        self.look_ends, self.write_ends, self.writes = threading.Event(), threading.Event(), threading.Event()
        self.written: list[str] = []
        self.looked = threading.Event()

    def look(self) -> str:
        assert self.look_ends.wait(20)
        self.looked.set()
        return "seen"

    def write(self, seen: str) -> str:
        self.writes.set()
        assert self.write_ends.wait(20)
        self.written.append(seen)
        return f"{seen} and written"

    def start(self, seconds: float) -> "asyncio.Task[str]":
        return asyncio.create_task(look_then_write(self.look, self.write, seconds=seconds))


async def test_what_is_seen_is_written_and_both_may_fail() -> None:
    play = Play()
    play.look_ends.set()
    play.write_ends.set()
    assert await play.start(20) == "seen and written"

    def fails(*_: object) -> str:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await look_then_write(fails, play.write, seconds=20)
    with pytest.raises(OSError, match="no"):
        await look_then_write(play.look, fails, seconds=20)
    assert play.written == ["seen"]


async def test_after_a_look_that_hangs_nothing_is_written() -> None:
    play = Play()
    play.write_ends.set()
    with pytest.raises(HungError, match=r"no answer within 0.05 s"):
        await play.start(0.05)
    thread = next(one for one in threading.enumerate() if one.name == "claims")
    play.look_ends.set()
    await asyncio.to_thread(thread.join, 20)
    assert (play.looked.is_set(), play.written) == (True, [])


async def test_after_a_caller_that_is_cancelled_while_it_looks_nothing_is_written() -> None:
    play = Play()
    play.write_ends.set()
    asked = play.start(20)
    await until(lambda: any(one.name == "claims" for one in threading.enumerate()))
    thread = next(one for one in threading.enumerate() if one.name == "claims")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    play.look_ends.set()
    await asyncio.to_thread(thread.join, 20)
    assert (play.looked.is_set(), play.written) == (True, [])


@pytest.mark.parametrize("seconds", [20, 0.05], ids=["before-the-deadline", "after-the-deadline"])
async def test_what_is_being_written_is_waited_for_by_a_caller_that_is_cancelled(seconds: float) -> None:
    play = Play()
    play.look_ends.set()
    asked = play.start(seconds)
    await asyncio.to_thread(play.writes.wait, 20)
    if seconds < 1:
        await asyncio.wait({asked}, timeout=2 * seconds)
    asked.cancel()
    await asyncio.wait({asked}, timeout=0.05)
    assert not asked.done() and not play.written
    play.write_ends.set()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert play.written == ["seen"]
