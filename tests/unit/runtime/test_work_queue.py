"""The work queue: nothing lost, nothing done twice at once, failures spaced out."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.api import TooManyRequests
from runtime.metrics import Metrics
from runtime.work_queue import Retry, WorkQueue
from tests.builders.examples import at_least
from tests.builders.virtual_time import run_virtual

Reconcile = Callable[[str], Awaitable[float | None]]


def queue(**options: Any) -> WorkQueue[str]:
    return WorkQueue("test", clock=asyncio.get_running_loop().time, jitter=random.Random(7), **options)


async def drained(work: WorkQueue[str], reconcile: Reconcile, seconds: float, workers: int = 2) -> None:
    """Run the queue for `seconds` of virtual time."""
    task = asyncio.create_task(work.run(workers, reconcile))
    await asyncio.sleep(seconds)
    work.stop()
    await task


def test_case_4_an_update_during_a_running_reconcile_is_reconciled_again() -> None:
    async def main() -> list[tuple[int, int]]:
        spec, seen = 1, []
        work = queue()

        async def reconcile(key: str) -> None:
            nonlocal spec
            read = spec
            if read == 1:
                spec = 2  # edited after this reconcile has read it, before it is done
                work.add(key)
            await asyncio.sleep(1)
            seen.append((read, spec))

        work.add("policy")
        await drained(work, reconcile, 10)
        return seen

    assert run_virtual(main()) == [(1, 2), (2, 2)]


def test_a_key_added_many_times_while_waiting_runs_once() -> None:
    async def main() -> list[str]:
        work, seen = queue(), []

        async def reconcile(key: str) -> None:
            seen.append(key)

        for _ in range(5):
            work.add("a")
            work.add("b")
        assert work.depth == 2
        await drained(work, reconcile, 10)
        return seen

    assert run_virtual(main()) == ["a", "b"]


def test_a_key_taken_back_while_waiting_does_not_run_but_one_with_a_time_does() -> None:
    async def main() -> tuple[list[str], int]:
        work, seen = queue(), []

        async def reconcile(key: str) -> None:
            seen.append(key)
            work.discard("c")  # nobody works on it yet
            work.discard(key)  # too late
            work.discard("never added")

        for key in "abc":
            work.add(key)
        work.discard("b")
        work.add_after("later", 1)
        work.discard("later")
        depth = work.depth
        await drained(work, reconcile, 10, workers=1)
        return seen, depth

    assert run_virtual(main()) == (["a", "later"], 2)


def test_a_key_taken_back_while_it_is_worked_on_still_runs_again() -> None:
    async def main() -> int:
        work, runs = queue(), 0

        async def reconcile(key: str) -> None:
            nonlocal runs
            runs += 1
            if runs == 1:
                work.add(key)
                work.discard(key)

        work.add("a")
        await drained(work, reconcile, 10)
        return runs

    assert run_virtual(main()) == 2


def test_of_several_times_the_earliest_holds_and_now_beats_them_all() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        start, work, seen = loop.time(), queue(), []

        async def reconcile(key: str) -> None:
            seen.append((key, round(loop.time() - start, 3)))

        work.add_after("late", 30)
        work.add_after("late", 10)
        work.add_after("late", 20)
        work.add_after("now", 5)
        work.add("now")
        work.add_after("zero", 0)
        await drained(work, reconcile, 100)
        return seen

    assert run_virtual(main()) == [("now", 0), ("zero", 0), ("late", 10)]


def test_failures_are_retried_with_growing_pauses_and_success_forgets_them() -> None:
    async def main() -> tuple[list[float], int, int]:
        loop = asyncio.get_running_loop()
        work, times = queue(base_delay=1, max_delay=8), []

        async def reconcile(key: str) -> None:
            times.append(loop.time())
            if len(times) <= 6:
                raise RuntimeError("no luck")

        work.add("a")
        task = asyncio.create_task(work.run(1, reconcile))
        await asyncio.sleep(2)
        during = work.failures("a")
        await asyncio.sleep(100)
        work.stop()
        await task
        return times, during, work.failures("a")

    times, during, after = run_virtual(main())
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(gaps) == 6
    for gap, pause in zip(gaps, (1, 2, 4, 8, 8, 8), strict=True):
        assert pause / 2 <= gap <= pause
    assert during >= 1 and after == 0


def test_a_wish_to_run_again_and_a_retry_after_are_kept() -> None:
    async def main() -> dict[str, list[float]]:
        loop = asyncio.get_running_loop()
        start, work = loop.time(), queue(base_delay=1, max_delay=2)
        times: dict[str, list[float]] = {}

        async def reconcile(key: str) -> float | None:
            runs = times.setdefault(key, [])
            runs.append(round(loop.time() - start, 3))
            if len(runs) > 1:
                return None
            if key == "wish":
                return 42.0
            if key == "retry":
                raise Retry("not yet", 17.0)
            raise TooManyRequests(429, "TooManyRequests", "slow down", retry_after=33.0)

        for key in ("wish", "retry", "throttled"):
            work.add(key)
        await drained(work, reconcile, 100)
        return times

    assert run_virtual(main()) == {"wish": [0, 42], "retry": [0, 17], "throttled": [0, 33]}


def test_stop_lets_running_reconciles_finish_and_starts_no_other() -> None:
    async def main() -> tuple[list[str], list[str]]:
        work, started, finished = queue(), [], []

        async def reconcile(key: str) -> None:
            started.append(key)
            await asyncio.sleep(5)
            finished.append(key)

        for key in ("a", "b", "c"):
            work.add(key)
        await drained(work, reconcile, 1, workers=2)
        return started, finished

    assert run_virtual(main()) == (["a", "b"], ["a", "b"])


def test_a_cancellation_inside_a_reconcile_costs_no_worker() -> None:
    async def main() -> list[str]:
        work, seen = queue(base_delay=1, max_delay=1), []

        async def reconcile(key: str) -> None:
            seen.append(key)
            if len(seen) == 1:
                inner = asyncio.get_running_loop().create_future()
                inner.cancel()
                await inner

        work.add("a")
        await drained(work, reconcile, 10, workers=1)
        return seen

    assert run_virtual(main()) == ["a", "a"]


def test_cancelling_the_queue_cancels_what_runs() -> None:
    async def main() -> list[str]:
        work, ends = queue(), []

        async def reconcile(key: str) -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                ends.append(key)
                raise

        work.add("a")
        task = asyncio.create_task(work.run(1, reconcile))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ends

    assert run_virtual(main()) == ["a"]


def test_numbers_are_reported() -> None:
    metrics = Metrics("npufleet-test")

    async def main() -> None:
        work = queue(base_delay=5, observer=metrics.queue("node-policy"))

        async def reconcile(key: str) -> float | None:
            await asyncio.sleep(2)
            if key == "bad":
                raise RuntimeError("bug")
            return 100.0 if key == "again" else None

        for key in ("good", "bad", "again"):
            work.add(key)
        assert value("npufleet_queue_depth") == 3
        await drained(work, reconcile, 7, workers=3)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"controller": "node-policy", **labels})

    run_virtual(main())
    assert value("npufleet_queue_depth") == 0
    assert value("npufleet_reconcile_total", result="success") == 1
    assert value("npufleet_reconcile_total", result="requeue") == 1
    assert (value("npufleet_reconcile_total", result="error") or 0) >= 1
    assert (value("npufleet_reconcile_seconds_sum") or 0) >= 6


def test_a_queue_without_workers_is_refused() -> None:
    async def main() -> None:
        async def reconcile(key: str) -> None: ...

        with pytest.raises(ValueError, match="at least one worker"):
            await queue().run(0, reconcile)

    run_virtual(main())


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("add", "after", "retry")),
        st.sampled_from("abc"),
        st.floats(0, 5),  # pause before the step
        st.floats(0, 5),  # delay asked for
    ),
    max_size=15,
)


def test_no_key_is_ever_lost_and_none_is_worked_on_twice_at_once() -> None:
    """However reconciles take time, fail or ask for more: each wish is followed by a whole run."""
    with at_least(2000, "work queue") as examples:

        @settings(max_examples=2100, deadline=None, database=None)
        @given(
            steps=STEPS,
            durations=st.lists(st.floats(0, 3), min_size=1, max_size=6),
            outcomes=st.lists(st.sampled_from(("ok", "ok", "fail", "again", "retry")), min_size=1, max_size=8),
            workers=st.integers(1, 3),
        )
        def check(
            steps: list[tuple[str, str, float, float]], durations: list[float], outcomes: list[str], workers: int
        ) -> None:
            examples.one()
            run_virtual(scenario(steps, durations, outcomes, workers))

        check()


async def scenario(
    steps: list[tuple[str, str, float, float]], durations: list[float], outcomes: list[str], workers: int
) -> None:
    loop = asyncio.get_running_loop()
    work = queue(base_delay=0.5, max_delay=4)
    running: set[str] = set()
    violations: list[str] = []
    runs: dict[str, list[tuple[float, float]]] = {key: [] for key in "abc"}
    wishes: list[tuple[str, float, float]] = []  # key, when asked, when it is due at the latest
    count = 0

    async def reconcile(key: str) -> float | None:
        nonlocal count
        if key in running or len(running) >= workers:
            violations.append(f"{key} beside {sorted(running)} with {workers} workers")  # raised, it would be retried
        running.add(key)
        started, number = loop.time(), count
        count += 1
        try:
            await asyncio.sleep(durations[number % len(durations)])
            outcome = outcomes[number] if number < len(outcomes) else "ok"
            if outcome != "ok":
                wishes.append((key, loop.time(), loop.time() + 4))
            if outcome == "fail":
                raise RuntimeError("no luck")
            if outcome == "retry":
                raise Retry("not yet", 2.0)
            return 3.0 if outcome == "again" else None
        finally:
            running.discard(key)
            runs[key].append((started, loop.time()))

    task = asyncio.create_task(work.run(workers, reconcile))
    for action, key, pause, delay in steps:
        await asyncio.sleep(pause)
        due = loop.time()
        if action == "add":
            work.add(key)
        elif action == "after":
            work.add_after(key, delay)
            due += delay
        else:
            due += work.retry(key)
        wishes.append((key, loop.time(), due))
    await asyncio.sleep(200)
    assert not violations
    assert work.idle
    work.stop()
    await task
    busy = sum(end - start for spans in runs.values() for start, end in spans)
    for key, asked, due in wishes:
        after = [start for start, _ in runs[key] if start >= asked]
        assert after, f"{key}, asked for at {asked}, never ran"
        assert min(after) <= due + busy + 1e-6, f"{key} ran too late"
    for spans in runs.values():
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end <= start
