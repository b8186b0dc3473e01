"""Restarts, reboots, lost files and lost records: the claims of a node go on as they were."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_publisher.checkpoint.store import CheckpointStore
from dra_publisher.claims.lock import ClaimLock
from dra_publisher.claims.stale import Gone
from node_host.boot import read_boot_id
from node_host.evidence.checkpoint import Checkpoint, ClaimState, decode, encode
from node_host.evidence.prepared import read_prepared
from node_host.handover.publisher_half import PublisherHalf
from runtime.errors import ApiError, Unreachable
from simulated_node.kernel import SimulatedKernel
from tests.builders.claims_world import (
    ALL_VFIO,
    CARD,
    COMPANION,
    DRIVER,
    FIRST,
    NATIVE,
    SECOND,
    World,
    machine,
    offer,
    result,
    vfio,
    world_of,
)
from tests.builders.hosts import DRIVERS, give_to_vfio


@pytest.fixture
def own_kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    """A machine of the test's own, to be changed and rebooted."""
    with machine(tmp_path) as running:
        yield running


async def test_the_same_claim_again_gives_the_same_answer_and_writes_nothing(world: World) -> None:
    ref = world.claim("vm", vfio(CARD), vfio(COMPANION))
    first = await world.prepared(ref)
    await world.claims.complete()
    before = {path: Path(path).stat().st_mtime_ns for path in [*world.files(), str(world.checkpoint_path)]}
    world.offers.clear()  # whatever is offered now: in one boot the answer stands
    assert await world.prepared(ref) == first
    world.restart()
    await world.claims.start()
    assert await world.prepared(ref) == first
    assert {path: Path(path).stat().st_mtime_ns for path in before} == before


async def test_an_unknown_claim_is_taken_back_without_the_api_server(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    world.delete(ref)
    world.api.calls.clear()
    assert await world.unprepare(ref) == {ref.uid: None}
    assert world.api.calls == [] and not world.checkpoint_path.exists()


# T12 and T13, the publisher's side of them.


async def test_t12_a_group_with_a_member_on_a_host_driver_is_refused_with_the_member(
    own_kernel: SimulatedKernel,
) -> None:
    world, host = world_of(own_kernel), own_kernel.host()
    host.write(f"/sys/bus/pci/devices/{COMPANION}/driver_override", b"\n")
    host.write(f"{DRIVERS}/vfio-pci/unbind", COMPANION.encode())
    host.write("/sys/bus/pci/drivers_probe", COMPANION.encode())
    orders = len(own_kernel.writes)
    text = await world.refused(world.claim("vm", vfio(CARD)))
    assert f"IOMMU group 24 of {CARD} is not viable: {COMPANION} is on rebellions" in text
    assert "waits for npufleet-vfio-binder" in text
    assert len(own_kernel.writes) == orders


async def test_t13_a_device_that_is_taken_back_stays_on_its_driver(own_kernel: SimulatedKernel) -> None:
    """What it goes back to, and when, is the policy's business; nothing is written to the kernel here."""
    world = world_of(own_kernel)
    orders = len(own_kernel.writes)
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    await world.unprepare(ref)
    assert world.host.read_link(f"/sys/bus/pci/devices/{FIRST}/driver").endswith("/vfio-pci")
    assert len(own_kernel.writes) == orders


async def test_t13_a_device_that_is_not_on_vfio_is_not_given_as_one(own_kernel: SimulatedKernel) -> None:
    world = world_of(own_kernel)
    world.offer(offer(NATIVE))
    text = await world.refused(world.claim("vm", vfio(NATIVE)))
    assert f"{NATIVE} is on rebellions, not on a VFIO driver, in this boot" in text


async def test_t14_after_a_reboot_prepare_waits_until_the_device_is_realised_again(
    own_kernel: SimulatedKernel,
) -> None:
    world = world_of(own_kernel)
    vm, pod = world.claim("vm", vfio(FIRST)), world.claim("pod", "npu-0000-2b-00-0")
    before = {ref.uid: await world.prepared(ref) for ref in (vm, pod)}
    offers = dict(world.offers)

    world.store.close()
    own_kernel.reboot()
    world.wipe_tmpfs()
    world.boot_id = read_boot_id(world.host)
    world.offers.clear()  # nothing is published before the binder has reported
    world.restart()
    await world.claims.start()
    assert not world.cdi_devices(), "files of another boot are not made again before Prepare"
    text = await world.refused(vm)
    assert f"{FIRST} is on rebellions, not on a VFIO driver, in this boot; waits for npufleet-vfio-binder" in text
    assert world.holders(FIRST) == ["claim team-a/vm"], "the device stays the claim's"

    assert await world.prepared(pod) == before[pod.uid], "what the host gives by itself needs nobody"

    for address in ALL_VFIO:
        give_to_vfio(world.host, address)
    assert await world.prepared(vm) == before[vm.uid], "before it is offered again: it is this claim's"
    world.offers = offers
    assert await world.prepared(vm) == before[vm.uid]
    assert world.nodes_of(before[vm.uid]) == ["/dev/vfio/20", "/dev/vfio/vfio"]
    assert world.record().claims[vm.uid].boot_id == world.boot_id


async def test_t14_a_process_that_outlives_the_boot_answers_nothing_of_before(own_kernel: SimulatedKernel) -> None:
    world = world_of(own_kernel)
    vm = world.claim("vm", vfio(FIRST))
    before = await world.prepared(vm)
    own_kernel.reboot()
    world.wipe_tmpfs()
    await world.claims.rebooted(read_boot_id(world.host))
    assert "not on a VFIO driver, in this boot" in await world.refused(vm)
    give_to_vfio(world.host, FIRST)
    assert await world.prepared(vm) == before and world.nodes_of(before)


async def test_t14_after_a_reboot_a_device_that_nobody_offers_goes_to_no_other_claim(
    own_kernel: SimulatedKernel,
) -> None:
    world = world_of(own_kernel)
    mine, other = world.claim("mine", vfio(FIRST)), world.claim("other", vfio(FIRST))
    await world.prepared(mine)
    world.boot_id = "00000000-0000-4000-8000-000000000000"
    world.restart()
    assert "is prepared for claim team-a/mine" in await world.refused(other)
    world.offers.clear()
    assert "is not offered by this node" in await world.refused(other)


async def test_t14_the_part_of_another_driver_is_not_taken_for_realised(own_kernel: SimulatedKernel) -> None:
    world = world_of(own_kernel)
    world.offer(offer(SECOND, driver="npu.rebellions.ai"))
    ref = world.claim("mixed", result(vfio(FIRST), "a"), result(vfio(SECOND), "b", driver="npu.rebellions.ai"))
    first = await world.prepared(ref)
    second = await world.prepared(ref, "npu.rebellions.ai")
    world.store.close()
    own_kernel.reboot()
    world.wipe_tmpfs()
    world.boot_id = read_boot_id(world.host)
    world.restart()
    give_to_vfio(world.host, FIRST)
    assert await world.prepared(ref) == first
    assert "not on a VFIO driver" in await world.refused(ref, "npu.rebellions.ai")
    prepared = read_prepared(world.host)
    assert [len(prepared.users(one, world.boot_id)) for one in (FIRST, SECOND)] == [1, 0], "the binder is to bind it"
    assert prepared.awaited(SECOND, world.boot_id, ()) is not None
    assert prepared.is_to_come("team-a/mixed", SECOND, world.boot_id)
    give_to_vfio(world.host, SECOND)
    assert await world.prepared(ref, "npu.rebellions.ai") == second
    prepared = read_prepared(world.host)
    assert [len(prepared.users(one, world.boot_id)) for one in (FIRST, SECOND)] == [1, 1]


async def test_t15_a_lost_cdi_file_is_made_again_by_prepare(world: World) -> None:
    ref = world.claim("vm", vfio(CARD), vfio(COMPANION))
    devices = await world.prepared(ref)
    files = {path: Path(path).read_bytes() for path in world.files()}
    for path in files:
        Path(path).unlink()
        assert await world.prepared(ref) == devices
        assert {path: Path(path).read_bytes() for path in world.files()} == files
    world.cdi.joinpath(Path(next(iter(files))).name).write_bytes(b"")
    assert await world.prepared(ref) == devices
    assert {path: Path(path).read_bytes() for path in world.files()} == files


async def test_t15_all_files_are_made_again_at_start_without_the_api_server(world: World) -> None:
    refs = [world.claim("vm", vfio(CARD), vfio(COMPANION)), world.claim("pod", "npu-0000-2b-00-0")]
    for ref in refs:
        await world.prepared(ref)
    files = {path: Path(path).read_bytes() for path in world.files()}
    for path in files:
        Path(path).unlink()
    world.api.calls.clear()
    world.restart()
    await world.claims.start()
    assert {path: Path(path).read_bytes() for path in world.files()} == files
    assert world.api.calls == []


async def test_t15_files_that_are_lost_while_the_plugin_serves_are_made_again(world: World) -> None:
    """The kubelet starts containers of a pod anew without asking for its claims."""
    await world.prepared(world.claim("vm", vfio(FIRST)))
    before = {path: Path(path).read_bytes() for path in world.files()}
    world.wipe_tmpfs()
    assert not world.cdi_devices()
    world.api.fault = _unreachable
    await _round(world)
    world.api.fault = lambda when, verb: None
    assert {path: Path(path).read_bytes() for path in world.files()} == before


async def test_t15_the_directory_of_cdi_files_may_be_gone_or_none(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    devices = await world.prepared(ref)
    world.wipe_tmpfs()
    world.cdi.parent.mkdir(parents=True)
    world.cdi.write_bytes(b"no directory")
    assert "its files cannot be written" in await world.refused(ref)
    world.restart()
    await world.claims.start()
    world.cdi.unlink()
    assert await world.prepared(ref) == devices and world.nodes_of(devices)


def _newer(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "version": 2, "minReader": 2}).encode()


@pytest.mark.parametrize(
    "broken",
    [lambda data: b"", lambda data: data[:40], lambda data: data.replace(b"team-a", b"team-b"), _newer],
    ids=["empty", "cut", "changed", "newer"],
)
async def test_t16_a_corrupt_record_is_set_aside_and_its_devices_withheld_until_it_is_made_again(
    world: World,
    broken: object,
) -> None:
    assert callable(broken)
    mine, free = world.claim("mine", vfio(FIRST)), world.claim("free", vfio(SECOND))
    answer = await world.prepared(mine)
    PublisherHalf(world.host).write_published([FIRST, SECOND], world.boot_id)
    whole = world.checkpoint_path.read_bytes()
    world.checkpoint_path.write_bytes(broken(whole))
    kept = world.checkpoint_path.read_bytes()

    offers, world.offers = world.offers, {}  # before the first look at the node
    world.restart()
    await world.claims.start()
    aside = list(world.checkpoint_path.parent.glob("checkpoint.json.corrupt-*"))
    assert [path.read_bytes() for path in aside] == [kept]
    ((reason, message),) = world.told
    assert reason == "CheckpointLost" and aside[0].name in message
    assert world.ledger.doubt() is not None and world.ledger.drivers() is None, "nothing is handed over"
    assert decode(world.checkpoint_path.read_bytes()).doubt is not None
    for ref in (mine, free):
        assert "waits until the claims of this node were read from the API server" in await world.refused(ref)

    world.api.fault = _unreachable
    await _round(world)
    assert world.ledger.doubt() is not None, "the API server did not answer"
    world.api.fault = lambda when, verb: None
    await _round(world)
    assert world.ledger.doubt() is None
    record = world.record()
    assert set(record.claims) == {mine.uid, free.uid}, "both are allocated, so both may have been prepared"
    assert set(record.published) == {FIRST, SECOND}
    world.offers = offers
    thief = world.claim("thief", vfio(FIRST))
    assert "is prepared for claim team-a/mine" in await world.refused(thief)
    assert await world.prepared(mine) == answer
    assert len(world.told) == 1


async def test_t16_what_no_container_can_have_in_this_boot_is_not_recorded_again(own_kernel: SimulatedKernel) -> None:
    """Else whoever makes the device so again would wait for the claim, and the claim for it."""
    world = world_of(own_kernel)
    vm, pod = world.claim("vm", vfio(FIRST)), world.claim("pod", "npu-0000-2b-00-0")
    await world.prepared(vm)
    await world.prepared(pod)
    world.store.close()
    own_kernel.reboot()
    world.wipe_tmpfs()
    world.boot_id = read_boot_id(world.host)
    world.checkpoint_path.write_bytes(b"{")
    world.offers.clear()  # before the first look at the node
    world.restart()
    await world.claims.start()
    await world.claims.collector.round()
    assert world.ledger.doubt() is None
    assert set(world.record().claims) == {pod.uid}, "on its vendor's driver a container may have it"
    give_to_vfio(world.host, FIRST)
    world.offer(offer(FIRST))
    assert await world.prepared(vm)


def _unreachable(when: str, verb: str) -> None:
    raise Unreachable(0, "", "connection refused")


async def _round(world: World) -> None:
    try:
        await world.claims.collector.round()
    except ApiError:
        return


async def test_t16_it_becomes_corrupt_while_the_plugin_serves(world: World) -> None:
    mine = world.claim("mine", vfio(FIRST))
    answer = await world.prepared(mine)
    world.checkpoint_path.write_bytes(b"\xff" * 10)
    assert "waits until the claims" in await world.refused(mine)
    assert await world.unprepare(world.claim("other", vfio(SECOND))) != {}, "it stays up"
    await world.claims.collector.round()
    assert await world.prepared(mine) == answer
    # A second time, beside the first file.
    world.checkpoint_path.write_bytes(b"\xfe" * 20)
    assert "waits until the claims" in await world.refused(mine)
    assert len(list(world.checkpoint_path.parent.glob("*.corrupt-*"))) == 2


async def test_t16_a_record_that_cannot_be_opened_is_an_error_and_stays_where_it_is(world: World) -> None:
    mine = world.claim("mine", vfio(FIRST))
    world.checkpoint_path.mkdir(parents=True)
    await world.claims.start()
    assert world.told and "checkpoint.json" in world.told[0][1]
    assert "checkpoint.json" in await world.refused(mine)
    assert "checkpoint.json" in str((await world.unprepare(mine))[mine.uid])
    assert world.ledger.doubt() is not None
    world.checkpoint_path.rmdir()
    assert await world.prepared(mine)


async def test_t18_an_entry_whose_claim_is_gone_is_collected_once_nobody_has_the_device(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    world.delete(ref)
    world.users[FIRST] = "qemu (pid 7)"
    await world.claims.collector.round()
    assert world.holders(FIRST), "its container may still run"
    world.now += 61
    await world.claims.collector.round()
    assert world.holders(FIRST), "somebody has it open"
    world.users.clear()
    world.users_fail = True
    await world.claims.collector.round()
    assert world.holders(FIRST), "who uses it cannot be told"
    world.users_fail = False
    await world.claims.collector.round()
    assert world.holders(FIRST) == [] and world.files() == []


async def test_t18_nothing_is_kept_of_an_entry_that_the_kubelet_takes_back_meanwhile(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    gone = Gone()
    gone.due(world.record().claims, [], world.now, world.boot_id)
    await world.unprepare(ref)
    gone.keep(world.record().claims.keys())
    assert gone.since == {}


@pytest.mark.parametrize("how", ["deleted", "made anew", "deallocated", "allocated elsewhere"])
async def test_t18_every_way_to_be_gone_is_seen(world: World, how: str) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    if how in ("deleted", "made anew"):
        world.delete(ref)
    if how == "made anew":
        world.claim("vm", vfio(FIRST))
    if how == "deallocated":
        world.allocate(ref)
    if how == "allocated elsewhere":
        world.allocate(ref, result(vfio(FIRST), pool="node-other"))
    for _ in range(2):
        await world.claims.collector.round()
        world.now += 61
    assert world.record().claims == {}


async def test_t18_an_entry_is_kept_while_the_api_server_does_not_say(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    world.delete(ref)
    world.api.fault = _unreachable
    for _ in range(3):
        await world.claims.collector.round()
        world.now += 61
    assert world.holders(FIRST) == ["claim team-a/vm"]
    world.api.fault = lambda when, verb: None
    await world.claims.collector.round()
    assert world.holders(FIRST) == ["claim team-a/vm"], "seen to be gone for the first time"


async def test_t18_an_entry_of_another_boot_is_collected_at_once(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    world.delete(ref)
    world.boot_id = "00000000-0000-4000-8000-000000000000"
    world.users_fail = True
    world.restart()
    await world.claims.collector.round()
    assert world.record().claims == {} and world.files() == []


async def test_t18_a_claim_that_comes_back_meanwhile_is_not_collected(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    world.allocate(ref)
    await world.claims.collector.round()
    world.allocate(ref, vfio(FIRST))
    world.now += 61
    await world.claims.collector.round()
    world.allocate(ref)
    await world.claims.collector.round()
    assert world.holders(FIRST) == ["claim team-a/vm"], "the time starts anew"


async def test_a_second_process_sees_what_the_first_has_prepared(world: World) -> None:
    """Two pods of an update serve the kubelet: whichever is asked knows the claims of the other."""
    old, old_store, old_ledger = world.claims, world.store, world.ledger
    ref, other = world.claim("vm", vfio(FIRST)), world.claim("other", vfio(FIRST))
    answer = await world.prepared(ref)
    new = world.restart()
    assert await world.prepared(ref) == answer
    assert "is prepared for claim team-a/vm" in await world.refused(other)
    await new.unprepare(DRIVER, [ref])
    assert old_ledger.holders(FIRST) == ()
    assert isinstance((await old.prepare(DRIVER, [other]))[other.uid], tuple)
    assert world.holders(FIRST) == ["claim team-a/other"]
    old_store.close()


async def test_a_process_that_holds_the_lock_for_long_is_an_error_of_the_call(world: World) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    other = CheckpointStore(world.host)
    world.restart(lock=ClaimLock(world.store, sleep=sleep))
    ref = world.claim("vm", vfio(FIRST))
    with other.locked():
        assert "is locked by another publisher" in await world.refused(ref)
        assert "is locked by another publisher" in str((await world.unprepare(ref))[ref.uid])
    assert 25 <= sum(waited) / 2 <= 26
    assert await world.prepared(ref)


async def test_what_pods_may_have_is_remembered_beside_the_claims(world: World) -> None:
    shape = "ab" * 32
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    async with world.claims.serialized():
        world.store.note_published({FIRST: shape, SECOND: shape})
    await world.unprepare(ref)
    async with world.claims.serialized():
        world.store.forget_published([SECOND])
    assert world.record() == Checkpoint({}, {FIRST: shape})


async def test_what_was_begun_and_not_completed_is_prepared_anew(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    answer = await world.prepared(ref)
    record = world.record()
    started = replace(record.claims[ref.uid], state=ClaimState.STARTED)
    world.checkpoint_path.write_bytes(encode(Checkpoint({ref.uid: started}, {})))
    world.restart()
    await world.claims.start()
    assert await world.prepared(ref) == answer, "it was begun, and nobody was told: it is prepared anew"
    await world.claims.complete()
    assert world.record().claims[ref.uid].state is ClaimState.COMPLETED


async def test_a_look_that_hangs_is_an_error_and_holds_nobody_else_up(own_kernel: SimulatedKernel) -> None:
    world = world_of(own_kernel)
    block = own_kernel.block(f"read:*/{FIRST}/vendor")
    try:
        sick, well = world.claim("sick", vfio(FIRST)), world.claim("well", vfio(SECOND))
        found = await world.prepare(sick, well)
        assert "no answer within 2 s" in str(found[sick.uid])
        assert isinstance(found[well.uid], tuple)
        assert "no answer" in await world.refused(sick)
    finally:
        block.release()
    for _ in range(100):  # the reads that hung come back in their own time
        if isinstance((await world.prepare(sick))[sick.uid], tuple):
            break
        await asyncio.sleep(0.05)
    assert set(world.record().claims) == {sick.uid, well.uid}
