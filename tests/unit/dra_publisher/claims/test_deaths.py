"""kill -9 at every step of Prepare and Unprepare, and what the next process makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dra_publisher.kubelet.service import ClaimRef
from node_host.evidence.checkpoint import ClaimState
from runtime.resources import RESOURCE_CLAIMS
from simulated_node.kernel import SimulatedKernel
from tests.builders.claims_world import (
    CARD,
    COMPANION,
    DRIVER,
    FIRST,
    NATIVE,
    OTHER_DRIVER,
    SECOND,
    World,
    machine,
    offer,
    result,
    vfio,
    world_of,
)
from tests.builders.deaths import Deaths, Died

UID = "6f0f7d1e-0000-4000-8000-000000000001"
OTHER = "6f0f7d1e-0000-4000-8000-000000000002"
_MOST = 120  # steps of one call; more would be a loop


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedKernel]:
    with machine(tmp_path_factory.mktemp("deaths")) as running:
        yield running


def fresh(kernel: SimulatedKernel) -> tuple[World, ClaimRef]:
    """A node that nothing was prepared on, and a claim of three devices: two in one group, one of another kind."""
    world = world_of(kernel)
    world.wipe_tmpfs()
    world.wipe_disk()
    ref = world.claim(
        "vm",
        result(vfio(CARD), "cards"),
        result(vfio(COMPANION), "cards"),
        result("npu-0000-2b-00-0", "helper"),
        uid=UID,
    )
    return world, ref


async def died(world: World, kernel: SimulatedKernel, at: int, torn: bool, act: Callable[[], Awaitable[object]]) -> str:
    """The step before which the process died; empty when it had done all before."""
    deaths = Deaths(Path(kernel.root), at=at, torn=torn)
    world.api.fault = deaths.api
    try:
        with deaths:
            await act()
    except (Died, BaseExceptionGroup):
        pass
    finally:
        world.api.fault = lambda when, verb: None
    world.store.close()
    return deaths.steps[at] if deaths.dead else ""


async def every_death(
    kernel: SimulatedKernel,
    before: Callable[[World, ClaimRef], Awaitable[object]],
    act: Callable[[World, ClaimRef], Awaitable[object]],
    check: Callable[[World, ClaimRef], Awaitable[None]],
) -> list[str]:
    """Die at each step of ``act`` once, whole and torn, restart, and check; the steps."""
    steps: list[str] = []
    for at in range(_MOST):
        for torn in (False, True):
            if torn and steps[at] != "write":
                continue
            world, ref = fresh(kernel)
            await world.claims.start()
            await before(world, ref)
            step = await died(world, kernel, at, torn, partial(act, world, ref))
            if not step:
                return steps
            steps[at:] = [step]
            world.restart()
            await world.claims.start()
            try:
                await check(world, ref)
            except AssertionError as error:
                raise AssertionError(f"after a death before step {at} ({step}{', torn' if torn else ''})") from error
    raise AssertionError(f"no end after {_MOST} steps: {steps[-5:]}")


async def nothing(world: World, ref: ClaimRef) -> None:
    pass


async def no_double(world: World) -> None:
    """Nobody else gets the devices of the claim."""
    for address in (CARD, COMPANION, NATIVE):
        name = "npu-0000-2b-00-0" if address == NATIVE else vfio(address)
        thief = world.claim(f"thief-{name}", name, uid=OTHER)
        assert "is prepared for claim team-a/vm" in await world.refused(thief)
        world.delete(thief)


async def all_gone(world: World, ref: ClaimRef) -> None:
    """Nothing is left of it, and its devices go to the next one."""
    assert await world.unprepare(ref) == {ref.uid: None}
    assert world.record().claims == {}
    assert world.files() == []
    heir = world.claim("heir", vfio(CARD), vfio(COMPANION), "npu-0000-2b-00-0", uid=OTHER)
    assert len(await world.prepared(heir)) == 3
    world.delete(heir)


async def test_killed_at_every_step_of_prepare_the_next_one_gives_the_same_answer(kernel: SimulatedKernel) -> None:
    world, ref = fresh(kernel)
    await world.claims.start()
    expected = await world.prepared(ref)
    files = {path: Path(path).read_bytes() for path in world.files()}

    async def check(world: World, ref: ClaimRef) -> None:
        assert await world.prepared(ref) == expected
        assert {path: Path(path).read_bytes() for path in world.files()} == files
        await world.claims.complete()
        assert world.record().claims[UID].state is ClaimState.COMPLETED
        await no_double(world)
        await all_gone(world, ref)

    steps = await every_death(kernel, nothing, lambda world, ref: world.prepare(ref), check)
    assert steps[:2] == ["before get", "after get"]
    assert steps.count("fsync") == 2, "one synced write for each call: the file and its directory"
    assert len(steps) >= 25


async def test_killed_before_the_answer_is_recorded_it_is_given_again_whatever_is_offered(
    kernel: SimulatedKernel,
) -> None:
    answers = {}

    async def answered(world: World, ref: ClaimRef) -> None:
        answers[UID] = await world.prepared(ref)

    async def check(world: World, ref: ClaimRef) -> None:
        world.offers.clear()
        assert world.nodes_of(answers[UID])
        assert await world.prepared(ref) == answers[UID]

    steps = await every_death(kernel, answered, lambda world, ref: world.claims.complete(), check)
    assert "fsync" in steps


async def test_killed_at_every_step_of_prepare_and_taken_back_nothing_is_left(kernel: SimulatedKernel) -> None:
    async def check(world: World, ref: ClaimRef) -> None:
        world.delete(ref)
        await all_gone(world, ref)

    await every_death(kernel, nothing, lambda world, ref: world.prepare(ref), check)


async def test_killed_at_every_step_of_prepare_and_forgotten_by_the_kubelet_it_is_collected(
    kernel: SimulatedKernel,
) -> None:
    async def check(world: World, ref: ClaimRef) -> None:
        world.delete(ref)
        await world.claims.collector.round()
        world.now += 61
        await world.claims.collector.round()
        assert world.record().claims == {}
        assert world.files() == []

    await every_death(kernel, nothing, lambda world, ref: world.prepare(ref), check)


async def test_killed_at_every_step_of_a_repeated_prepare_nothing_changes(kernel: SimulatedKernel) -> None:
    world, ref = fresh(kernel)
    await world.claims.start()
    expected = await world.prepared(ref)

    async def lost_files(world: World, ref: ClaimRef) -> None:
        assert await world.prepared(ref) == expected
        world.wipe_tmpfs()

    async def check(world: World, ref: ClaimRef) -> None:
        assert world.nodes_of(expected), "the start has made them again"
        assert await world.prepared(ref) == expected
        await no_double(world)

    await every_death(kernel, lost_files, lambda world, ref: world.prepare(ref), check)


async def test_killed_at_every_step_of_unprepare_the_next_one_ends_it(kernel: SimulatedKernel) -> None:
    async def prepared(world: World, ref: ClaimRef) -> None:
        await world.prepared(ref)
        world.delete(ref)

    steps = await every_death(kernel, prepared, lambda world, ref: world.unprepare(ref), all_gone)
    assert len(steps) >= 15
    assert not any("get" in step for step in steps), "from the record alone"


async def test_killed_at_every_step_of_unprepare_the_claim_may_be_prepared_again(kernel: SimulatedKernel) -> None:
    world, ref = fresh(kernel)
    await world.claims.start()
    expected = await world.prepared(ref)

    async def prepared(world: World, ref: ClaimRef) -> None:
        await world.prepared(ref)

    async def check(world: World, ref: ClaimRef) -> None:
        assert await world.prepared(ref) == expected
        assert world.nodes_of(expected)
        await no_double(world)

    await every_death(kernel, prepared, lambda world, ref: world.unprepare(ref), check)


async def test_killed_at_every_step_of_start_the_next_start_ends_it(kernel: SimulatedKernel) -> None:
    """Files to be made again, and a record that has to be set aside."""

    async def lost(world: World, ref: ClaimRef) -> None:
        await world.prepared(ref)
        world.wipe_tmpfs()

    async def check(world: World, ref: ClaimRef) -> None:
        assert len(world.cdi_devices()) == 6

    async def start(world: World, ref: ClaimRef) -> None:
        await world.restart().start()

    await every_death(kernel, lost, start, check)

    async def corrupt(world: World, ref: ClaimRef) -> None:
        await world.prepared(ref)
        world.checkpoint_path.write_bytes(b"{")

    async def check_record(world: World, ref: ClaimRef) -> None:
        assert world.ledger.doubt() is not None
        assert [path.read_bytes() for path in world.checkpoint_path.parent.glob("*.corrupt-*")] == [b"{"]
        await world.claims.collector.round()
        assert world.ledger.doubt() is None
        await no_double(world)

    await every_death(kernel, corrupt, start, check_record)


async def test_killed_at_every_step_of_the_second_driver_of_a_claim_the_first_keeps_its_part(
    kernel: SimulatedKernel,
) -> None:
    def mixed(world: World) -> ClaimRef:
        world.offer(offer(SECOND, driver=OTHER_DRIVER))
        return world.claim(
            "mixed",
            result(vfio(FIRST), "one"),
            result(vfio(SECOND), "two", driver=OTHER_DRIVER),
            uid=OTHER,
        )

    expected = {}

    async def first(world: World, ref: ClaimRef) -> None:
        expected[DRIVER] = await world.prepared(mixed(world))

    async def second(world: World, ref: ClaimRef) -> object:
        return await world.prepare(ClaimRef("team-a", "mixed", OTHER), driver=OTHER_DRIVER)

    async def check(world: World, ref: ClaimRef) -> None:
        both = ClaimRef("team-a", "mixed", OTHER)
        assert await world.prepared(both) == expected[DRIVER]
        assert len(await world.prepared(both, OTHER_DRIVER)) == 1
        assert await world.unprepare(both, driver=OTHER_DRIVER) == {OTHER: None}
        assert [device.driver for device in world.record().claims[OTHER].devices] == [DRIVER]
        assert await world.prepared(both) == expected[DRIVER]
        assert world.nodes_of(expected[DRIVER])

    await every_death(kernel, first, second, check)


async def test_killed_at_every_step_of_several_calls_no_answer_was_given_before_its_claim_was_on_disk(
    kernel: SimulatedKernel,
) -> None:
    """Those that wait for one another share a write; the answers of before the death are those of after it."""
    answered: dict[str, object] = {}
    others = [f"6f0f7d1e-0000-4000-8000-00000000000{number}" for number in (3, 4)]

    def refs_of(world: World, ref: ClaimRef) -> list[ClaimRef]:
        more = zip(others, (FIRST, SECOND), strict=True)
        return [ref, *(world.claim(f"vm-{uid[-1]}", vfio(address), uid=uid) for uid, address in more)]

    async def act(world: World, ref: ClaimRef) -> None:
        answered.clear()

        async def ask(one: ClaimRef) -> None:
            answered.update(await world.prepare(one))

        await asyncio.gather(*map(ask, refs_of(world, ref)))

    async def check(world: World, ref: ClaimRef) -> None:
        recorded = world.record().claims
        assert answered.keys() <= recorded.keys()
        refs = [ref, *(ClaimRef("team-a", f"vm-{uid[-1]}", uid) for uid in others)]
        for one in refs:
            if world.api.objects.find(RESOURCE_CLAIMS, one.name, one.namespace) is None:
                continue  # the death came before it was asked for
            answer = await world.prepared(one)
            assert answered.get(one.uid, answer) == answer
        assert await world.unprepare(*refs) == dict.fromkeys(one.uid for one in refs)
        assert world.record().claims == {} and world.files() == []

    steps = await every_death(kernel, nothing, act, check)
    assert 4 <= steps.count("fsync") < 6, "less than one synced write for each of three calls"
