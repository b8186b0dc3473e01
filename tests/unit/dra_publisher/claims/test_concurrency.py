"""Many claims from many callers at once: the effects are those of one after the other, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

import pytest

from crds.device_names import NamedKind, device_name
from dra_publisher.checkpoint.store import CheckpointStore
from dra_publisher.kubelet.service import AnsweredDevice, ClaimRef
from node_host.boot import read_boot_id
from node_host.evidence.checkpoint import Checkpoint, ClaimState
from simulated_node.description_files import parse_description
from simulated_node.kernel import SimulatedKernel
from tests.builders.claims_world import DRIVER, ClaimsApi, World, offer
from tests.builders.fake_objects import Objects
from tests.builders.hosts import give_to_vfio

CALLERS, CLAIMS, SECONDS = 8, 64, 60
ADDRESSES = [f"0000:{0x30 + number:02x}:00.0" for number in range(CLAIMS)]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedKernel]:
    bridge = '{address: "0000:20:01.0", parent: "pci0000:20", vendor: "8086", device: "2030", class: "060400"}'
    devices = "\n".join(
        f'  - {{address: "{address}", parent: "0000:20:01.0", vendor: "1eff", device: "1250", class: "120000", '
        f"iommuGroup: {100 + number}}}"
        for number, address in enumerate(ADDRESSES)
    )
    description = parse_description(f"name: many\ndevices:\n  - {bridge}\n{devices}\n")
    with SimulatedKernel(tmp_path_factory.mktemp("many") / "host", description, in_memory=True) as running:
        for address in ADDRESSES:
            give_to_vfio(running.host(), address)
        yield running


@pytest.fixture
def world(kernel: SimulatedKernel) -> World:
    host = kernel.host()
    found = World(host, ClaimsApi(Objects()), read_boot_id(host))
    found.offer(*(offer(address) for address in ADDRESSES))
    found.wipe_tmpfs()
    found.wipe_disk()
    # Answers of the API server come in any order.
    delays = itertools.cycle([0.0, 0.004, 0.001, 0.003])
    found.api.delay = lambda: next(delays)
    return found


Answers = dict[str, tuple[AnsweredDevice, ...] | str]


async def test_64_claims_of_8_callers_are_all_prepared_and_taken_back(world: World) -> None:
    await world.claims.start()
    refs = [
        world.claim(f"vm-{number}", device_name(NamedKind.VFIO, address)) for number, address in enumerate(ADDRESSES)
    ]
    shares = [refs[number::CALLERS] for number in range(CALLERS)]
    took: list[float] = []

    async def one_by_one(share: list[ClaimRef]) -> Answers:
        found: Answers = {}
        for ref in share:
            began = time.perf_counter()
            found |= await world.prepare(ref)
            took.append(time.perf_counter() - began)
        return found

    async with asyncio.timeout(SECONDS):
        answers = await asyncio.gather(*(one_by_one(share) for share in shares))
    found = {uid: answer for part in answers for uid, answer in part.items()}
    names = [device.device for answer in found.values() if not isinstance(answer, str) for device in answer]
    assert sorted(names) == sorted(device_name(NamedKind.VFIO, address) for address in ADDRESSES)
    await world.claims.complete()
    record = world.record()
    assert {claim.state for claim in record.claims.values()} == {ClaimState.COMPLETED}
    assert sorted(device.address for claim in record.claims.values() for device in claim.devices) == ADDRESSES
    took.sort()
    print(f"prepare: p50 {took[31] * 1e3:.1f} ms, p99 {took[63] * 1e3:.1f} ms with {CALLERS} callers")

    async with asyncio.timeout(SECONDS):
        ended = await asyncio.gather(*(world.unprepare(*share) for share in shares))
    assert {uid: fault for part in ended for uid, fault in part.items()} == dict.fromkeys(found)
    assert world.record().claims == {} and world.files() == []


async def test_callers_that_wait_for_one_another_share_the_write_to_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.claims.start()
    world.api.delay = lambda: 0.0
    refs = [
        world.claim(f"vm-{number}", device_name(NamedKind.VFIO, address)) for number, address in enumerate(ADDRESSES)
    ]
    writes: list[int] = []
    real = CheckpointStore.write

    def write(store: CheckpointStore, checkpoint: Checkpoint, *, durable: bool = True) -> None:
        writes.append(len(checkpoint.claims))
        real(store, checkpoint, durable=durable)

    monkeypatch.setattr(CheckpointStore, "write", write)
    answers = await asyncio.gather(*(world.prepare(ref) for ref in refs))
    assert all(isinstance(answer, tuple) for part in answers for answer in part.values())
    assert len(writes) <= 8 and writes[-1] == CLAIMS
    writes.clear()
    assert await asyncio.gather(*(world.unprepare(ref) for ref in refs)) == [{ref.uid: None} for ref in refs]
    assert len(writes) <= 8 and writes[-1] == 0


async def test_8_callers_who_want_the_same_devices_get_each_once(world: World) -> None:
    """Every caller has a claim for each of 8 devices, asks for them in an order of its own, and one gets each."""
    await world.claims.start()
    wanted = ADDRESSES[:8]
    refs = {
        (caller, address): world.claim(f"c-{caller}-{number}", device_name(NamedKind.VFIO, address))
        for caller in range(CALLERS)
        for number, address in enumerate(wanted)
    }

    async def caller(number: int) -> Answers:
        order = wanted[number:] + wanted[:number]
        found: Answers = {}
        for address in order:
            found |= await world.prepare(refs[number, address])
        return found

    async with asyncio.timeout(SECONDS):
        answers = await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    won = {uid: answer for part in answers for uid, answer in part.items() if not isinstance(answer, str)}
    assert len(won) == 8
    assert sorted(device.address for claim in world.record().claims.values() for device in claim.devices) == wanted
    lost = [answer for part in answers for answer in part.values() if isinstance(answer, str)]
    assert len(lost) == 56 and all("is prepared for claim team-a/c-" in text for text in lost)


async def test_two_processes_that_serve_at_once_do_not_give_a_device_twice(world: World) -> None:
    old = world.claims
    new = world.restart()
    refs = [world.claim(f"c-{number}", device_name(NamedKind.VFIO, ADDRESSES[number // 2])) for number in range(32)]

    async with asyncio.timeout(SECONDS):
        answers = await asyncio.gather(
            *((old, new)[number % 2].prepare(DRIVER, [ref]) for number, ref in enumerate(refs))
        )
    won = [uid for part in answers for uid, answer in part.items() if not isinstance(answer, str)]
    assert len(won) == 16 and set(world.record().claims) == set(won)
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*((old, new)[number // 2 % 2].unprepare(DRIVER, [ref]) for number, ref in enumerate(refs)))
    assert world.record().claims == {} and world.files() == []


async def test_a_caller_that_gives_up_leaves_nothing_half_done(world: World) -> None:
    refs = [
        world.claim(f"vm-{number}", device_name(NamedKind.VFIO, address))
        for number, address in enumerate(ADDRESSES[:8])
    ]
    for turns in range(0, 40, 3):
        calls = [asyncio.ensure_future(world.prepare(ref)) for ref in refs]
        for _ in range(turns):
            await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        async with asyncio.timeout(SECONDS):
            assert all(isinstance(answer, tuple) for answer in (await world.prepare(*refs)).values())
            await world.unprepare(*refs)
        assert world.record().claims == {} and world.files() == []
