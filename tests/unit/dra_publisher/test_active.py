"""Which of two publishers of a node publishes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dra_publisher.active import Active
from node_host.acting.locks import LOCKS
from node_host.host import KernelFiles


async def test_the_second_one_waits_until_the_first_one_lets_go(tmp_path: Path) -> None:
    host, woken, naps = KernelFiles(tmp_path), asyncio.Event(), 0
    first = Active(host, owner="the first")

    async def sleep(_: float) -> None:
        nonlocal naps
        naps += 1
        if naps == 3:
            first.release()

    second = Active(host, owner="the second", wake=woken.set, sleep=sleep)
    assert first.take()
    assert first.take(), "it has it already"
    assert not second.take()
    assert "the first" in (second.waits or "")
    assert second.problem is None
    await asyncio.wait_for(second.run(), 5)
    assert (second.is_held, first.is_held, naps, woken.is_set()) == (True, False, 3, True)
    assert second.waits is None
    second.release()
    assert first.take()
    first.release()


def test_a_lock_that_nobody_can_take_is_a_problem(tmp_path: Path) -> None:
    place = tmp_path / LOCKS.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text("a file in the directory's place")
    active = Active(KernelFiles(tmp_path), owner="me")
    assert not active.take()
    assert "publisher.lock" in (active.problem or "")
    place.unlink()
    assert active.take()
    assert active.problem is None
    active.release()
