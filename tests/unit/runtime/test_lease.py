"""Leader election and heartbeats, in virtual time: never two leaders, and never none for long."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.api import Unreachable
from runtime.lease import Heartbeat, LeaderElection, LeadershipLost, daemon_lease_name
from runtime.resources import LEASES, NAMESPACE
from tests.builders.examples import at_least
from tests.builders.fake_objects import Object, Objects
from tests.builders.memory_api import MemoryApi
from tests.builders.virtual_time import VirtualTimeLoop, run_virtual

NAME = "npufleet-node-policy"


def elector(api: MemoryApi, identity: str, *, clock_offset: float = 0.0, wall: str = "2026-05-01") -> LeaderElection:
    loop = asyncio.get_running_loop()
    start = datetime.fromisoformat(wall).replace(tzinfo=UTC)
    return LeaderElection(
        api,
        NAME,
        identity,
        clock=lambda: loop.time() + clock_offset,
        now=lambda: start + timedelta(seconds=loop.time()),
        jitter=random.Random(identity),
    )


def lease(objects: Objects) -> Object:
    return objects.get(LEASES, NAME, NAMESPACE)


async def start(election: LeaderElection) -> tuple[asyncio.Task[None], asyncio.Event]:
    stop = asyncio.Event()
    return asyncio.create_task(election.run(stop)), stop


def test_the_first_one_leads_and_renews_and_the_second_waits() -> None:
    async def main() -> None:
        objects = Objects()
        first, second = elector(MemoryApi(objects), "first"), elector(MemoryApi(objects), "second")
        first_task, first_stop = await start(first)
        await first.acquired.wait()
        second_task, second_stop = await start(second)
        acquired = lease(objects)["spec"]["acquireTime"]
        for _ in range(60):
            await asyncio.sleep(1)
            assert first.leading and not second.leading
        spec = lease(objects)["spec"]
        assert spec["holderIdentity"] == "first" and spec["leaseDurationSeconds"] == 15
        assert spec["acquireTime"] == acquired and spec["renewTime"] > acquired and spec["leaseTransitions"] == 0
        assert second.state == "held by first"
        first_stop.set()
        second_stop.set()
        await asyncio.gather(first_task, second_task)

    run_virtual(main())


def test_stopping_releases_so_that_the_next_one_leads_at_its_next_look() -> None:
    async def main() -> None:
        objects, loop = Objects(), asyncio.get_running_loop()
        first, second = elector(MemoryApi(objects), "first"), elector(MemoryApi(objects), "second")
        first_task, first_stop = await start(first)
        await first.acquired.wait()
        _, second_stop = await start(second)
        await asyncio.sleep(30)
        first_stop.set()
        await first_task
        assert not first.leading and lease(objects)["spec"]["holderIdentity"] == ""
        released = loop.time()
        await second.acquired.wait()
        assert loop.time() - released <= 2.5
        assert lease(objects)["spec"]["leaseTransitions"] == 1
        second_stop.set()

    run_virtual(main())


def test_a_crashed_leader_is_followed_after_its_lease_and_not_before() -> None:
    async def main() -> None:
        objects, loop = Objects(), asyncio.get_running_loop()
        first, second = elector(MemoryApi(objects), "first"), elector(MemoryApi(objects), "second")
        first_task, _ = await start(first)
        await start(second)
        await first.acquired.wait()
        await asyncio.sleep(30)
        first_task.cancel()
        crashed = loop.time()
        await second.acquired.wait()
        assert 13 <= loop.time() - crashed <= 15 + 2 * 2.4 + 0.1

    run_virtual(main())


def test_wall_clocks_that_are_years_apart_do_not_matter() -> None:
    async def main() -> None:
        objects = Objects()
        first = elector(MemoryApi(objects), "first", wall="2020-01-01")
        second = elector(MemoryApi(objects), "second", wall="2031-01-01", clock_offset=1e6)
        first_task, _ = await start(first)
        await first.acquired.wait()
        await start(second)
        for _ in range(60):
            await asyncio.sleep(1)
            assert first.leading and not second.leading
        first_task.cancel()
        await asyncio.sleep(25)
        assert second.leading

    run_virtual(main())


def test_a_leader_that_cannot_renew_stops_leading_before_anybody_else_can_start() -> None:
    async def main() -> None:
        objects, loop = Objects(), asyncio.get_running_loop()
        api = MemoryApi(objects)
        first, second = elector(api, "first"), elector(MemoryApi(objects), "second")
        first_task, _ = await start(first)
        await first.acquired.wait()
        await start(second)
        await asyncio.sleep(20)

        def down(when: str, verb: str) -> None:
            raise Unreachable(0, "ConnectionFailed", "no route")

        api.fault = down
        cut = loop.time()
        with pytest.raises(LeadershipLost, match="no route"):
            await first_task
        assert loop.time() - cut <= 10 and first.lost.is_set() and not first.leading and not second.leading
        await second.acquired.wait()
        assert loop.time() - cut >= 13

    run_virtual(main())


def test_a_call_that_hangs_does_not_outlast_the_renew_deadline() -> None:
    async def main() -> None:
        objects, loop = Objects(), asyncio.get_running_loop()
        api = MemoryApi(objects)
        first = elector(api, "first")
        task, _ = await start(first)
        await first.acquired.wait()
        await asyncio.sleep(20)
        api.delay = lambda: 10_000.0
        cut = loop.time()
        with pytest.raises(LeadershipLost):
            await task
        assert loop.time() - cut <= 10

    run_virtual(main())


def test_a_process_that_was_frozen_does_not_lead_when_it_wakes() -> None:
    async def main() -> None:
        objects, loop = Objects(), asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        first = elector(MemoryApi(objects), "first")
        task, _ = await start(first)
        await first.acquired.wait()
        before = first.leading
        loop.advance(60)
        assert before and not first.leading, "asked before any task could run"
        with pytest.raises(LeadershipLost):
            await task

    run_virtual(main())


def test_a_lost_answer_and_a_deleted_lease_are_survived() -> None:
    async def main() -> None:
        objects = Objects()
        api = MemoryApi(objects)
        first = elector(api, "first")
        lost = 0

        def lose_answers(when: str, verb: str) -> None:
            nonlocal lost
            if when == "after" and verb in {"create", "replace"} and lost < 3:
                lost += 1
                raise Unreachable(0, "AnswerLost", "connection reset")

        api.fault = lose_answers
        task, stop = await start(first)
        await first.acquired.wait()
        assert lost == 3
        objects.delete(LEASES, NAME, NAMESPACE)
        await asyncio.sleep(5)
        assert first.leading and lease(objects)["spec"]["holderIdentity"] == "first"
        stop.set()
        await task

    run_virtual(main())


def test_a_lease_that_somebody_else_took_ends_the_leadership_at_once() -> None:
    async def main() -> None:
        objects = Objects()
        first = elector(MemoryApi(objects), "first")
        task, _ = await start(first)
        await first.acquired.wait()
        spec = {**lease(objects)["spec"], "holderIdentity": "intruder"}
        objects.edit(LEASES, NAME, NAMESPACE, spec=spec)
        with pytest.raises(LeadershipLost, match="intruder"):
            await task
        assert lease(objects)["spec"]["holderIdentity"] == "intruder"

    run_virtual(main())


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        {"holderIdentity": None},
        {"holderIdentity": "x"},
        {"holderIdentity": "x", "leaseDurationSeconds": "15", "leaseTransitions": "many"},
        {"holderIdentity": "x", "leaseDurationSeconds": -3, "renewTime": "yesterday"},
    ],
)
def test_a_lease_with_strange_content_is_taken_over_in_time(spec: Any) -> None:
    async def main() -> None:
        objects = Objects()
        body = {"metadata": {"name": NAME}} if spec is None else {"metadata": {"name": NAME}, "spec": spec}
        objects.create(LEASES, body, NAMESPACE)
        first = elector(MemoryApi(objects), "first")
        task, stop = await start(first)
        async with asyncio.timeout(20):
            await first.acquired.wait()
        assert isinstance(lease(objects)["spec"]["leaseTransitions"], int)
        stop.set()
        await task

    run_virtual(main())


def test_an_election_whose_times_cannot_be_safe_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="renew_deadline < lease_seconds"):
            LeaderElection(MemoryApi(Objects()), NAME, "x", lease_seconds=10, renew_deadline=10)

    run_virtual(main())


def test_there_are_never_two_leaders_and_soon_one_after_the_faults_end() -> None:
    with at_least(2000, "election") as examples:

        @settings(max_examples=2050, deadline=None, database=None)
        @given(
            seed=st.integers(0, 2**32),
            replicas=st.integers(1, 3),
            loss=st.sampled_from((0.0, 0.2, 0.6)),
            slow=st.sampled_from((0.0, 1.0, 8.0)),
            seconds=st.integers(10, 30),
        )
        def check(seed: int, replicas: int, loss: float, slow: float, seconds: int) -> None:
            examples.one()
            run_virtual(faulty_election(random.Random(seed), replicas, loss, slow, seconds))

        check()


async def faulty_election(dice: random.Random, replicas: int, loss: float, slow: float, seconds: int) -> None:
    objects = Objects()
    elections: dict[int, LeaderElection] = {}
    faulty = True

    def client() -> MemoryApi:
        api = MemoryApi(objects, delay=lambda: dice.uniform(0, slow) if faulty else 0.0)

        def fault(when: str, verb: str) -> None:
            if faulty and dice.random() < loss / 2:
                raise Unreachable(0, "AnswerLost", "injected")

        api.fault = fault
        return api

    async def replica(number: int) -> None:
        life = 0
        while True:  # like a Deployment: a process that ended is started anew, under a new identity
            life += 1
            elections[number] = elector(client(), f"replica-{number}-{life}")
            stop = asyncio.Event()
            task = asyncio.create_task(elections[number].run(stop))
            try:
                if faulty and dice.random() < 0.3:
                    await asyncio.sleep(dice.uniform(0, 30))
                    if faulty and dice.random() < 0.5:
                        stop.set()
                    elif faulty:
                        task.cancel()
                await task
            except (LeadershipLost, asyncio.CancelledError):
                current = asyncio.current_task()
                if current is not None and current.cancelling():
                    raise
            await asyncio.sleep(dice.uniform(0, 3))

    def leaders() -> int:
        return sum(election.leading for election in elections.values())

    tasks = [asyncio.create_task(replica(number)) for number in range(replicas)]
    for _ in range(seconds):
        await asyncio.sleep(1)
        assert leaders() <= 1
    faulty = False
    for _ in range(40):
        await asyncio.sleep(1)
        assert leaders() <= 1
    assert leaders() == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def beat(api: MemoryApi) -> Heartbeat:
    start = datetime(2026, 5, 1, tzinfo=UTC)
    loop = asyncio.get_running_loop()
    return Heartbeat(
        api,
        "npufleet-vfio-binder",
        "node-atom",
        now=lambda: start + timedelta(seconds=loop.time()),
        jitter=random.Random(3),
    )


def test_a_heartbeat_creates_and_renews_the_lease_of_its_daemon() -> None:
    async def main() -> None:
        objects = Objects()
        api = MemoryApi(objects)
        task = asyncio.create_task(beat(api).run())
        await asyncio.sleep(1)
        found = objects.get(LEASES, "npufleet-vfio-binder.node-atom", NAMESPACE)
        assert found["spec"]["holderIdentity"] == "node-atom" and found["spec"]["leaseDurationSeconds"] == 900
        await asyncio.sleep(3600)
        assert 12 <= api.calls.count("replace") <= 14, "about every five minutes"
        assert api.calls[:2] == ["get", "create"] and api.calls.count("get") == 1
        again = objects.get(LEASES, "npufleet-vfio-binder.node-atom", NAMESPACE)
        assert again["spec"]["renewTime"] > found["spec"]["renewTime"]
        task.cancel()

    run_virtual(main())


def test_a_heartbeat_outlives_an_outage_well_within_its_duration() -> None:
    async def main() -> None:
        api = MemoryApi(Objects())

        def down(when: str, verb: str) -> None:
            raise Unreachable(0, "ConnectionFailed", "no route")

        task = asyncio.create_task(beat(api).run())
        await asyncio.sleep(250)
        api.fault = down
        await asyncio.sleep(400)
        assert len(api.calls) < 20, "an outage is not hammered"
        api.fault = lambda when, verb: None
        calls = len(api.calls)
        await asyncio.sleep(61)
        assert len(api.calls) > calls
        task.cancel()

    run_virtual(main())


def test_a_heartbeat_survives_a_deleted_and_a_changed_lease() -> None:
    async def main() -> None:
        objects = Objects()
        heartbeat = beat(MemoryApi(objects))
        await heartbeat.renew()
        objects.edit(LEASES, heartbeat.name, NAMESPACE, metadata_labels={"a": "b"})
        await heartbeat.renew()
        objects.delete(LEASES, heartbeat.name, NAMESPACE)
        await heartbeat.renew()
        assert objects.get(LEASES, heartbeat.name, NAMESPACE)["spec"]["holderIdentity"] == "node-atom"

    run_virtual(main())


@pytest.mark.parametrize("length", [1, 200, 232, 233, 240, 253, 300])
@pytest.mark.parametrize("letter", ["a", ".", "-"])
def test_names_of_daemon_leases_are_legal_and_distinct(length: int, letter: str) -> None:
    node = "n" + letter * length
    name = daemon_lease_name("npufleet-vfio-binder", node)
    other = daemon_lease_name("npufleet-vfio-binder", node + "x")
    assert len(name) <= 253 and name != other
    if len(f"npufleet-vfio-binder.{node}") <= 253:
        assert name == f"npufleet-vfio-binder.{node}"
    else:
        assert name[-11] == "-" and name[-12] not in ".-"
