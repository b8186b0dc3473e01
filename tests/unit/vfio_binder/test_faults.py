"""What goes wrong while a device is changed costs that device, and is put right by the next pass."""

import asyncio
import itertools
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.journal import JOURNAL, Journal
from node_host.acting.locks import Locks
from node_host.pci.device import DEVICES, DRIVERS, DRIVERS_PROBE
from node_host.view import HostView
from tests.builders.binder import NPU, TWIN, Bench, audio, condition_of, graphics, host, npu, order, report_of, verdict
from tests.builders.waiting import until

Make = Callable[..., Bench]

CARD, AUDIO = "0000:25:00.0", "0000:25:00.1"


class Crash(BaseException):
    """The process dies here: nothing of the program runs after it."""


class CrashingWriter(BoundedWriter):
    """Dies after its n-th write has reached the kernel."""

    def __init__(self, bench: Bench, writes: int) -> None:
        super().__init__(bench.host)
        self._left = writes

    async def write(self, path: str, data: bytes, locks: Locks) -> None:
        await super().write(path, data, locks)
        self._left -= 1
        if self._left == 0:
            raise Crash


async def crashes_after(bench: Bench, writes: int) -> bool:
    """Whether a binder that dies after that many writes got there at all."""
    bench.restart(writer=CrashingWriter(bench, writes))
    try:
        await bench.run()
    except Crash:
        return True
    return False


async def test_a_binder_that_dies_after_any_write_of_a_bind_is_followed_by_one_that_finishes(make: Make) -> None:
    writes = 0
    crashed = True
    while crashed:
        writes += 1
        bench = make(host(graphics(), audio()))
        bench.order(order(CARD, vendor="10de", device="26b1", companions="Bind"))
        crashed = await crashes_after(bench, writes)
        bench.restart()
        done = await bench.run()
        assert verdict(done, CARD) == ("Ready", "Bound"), writes
        assert verdict(done, AUDIO) == ("Ready", "Companion")
        assert {name: entry.former_driver for name, entry in bench.journal().entries.items()} == {
            CARD: "nvidia",
            AUDIO: "snd_hda_intel",
        }
        bench.mark()
        assert (await bench.run()).planned.is_empty
        assert bench.writes == []
    assert writes == 7


async def test_a_binder_that_dies_after_any_write_of_a_return_is_followed_by_one_that_finishes(make: Make) -> None:
    writes = 0
    crashed = True
    while crashed:
        writes += 1
        bench = make(host(graphics(), audio()))
        bench.order(order(CARD, vendor="10de", device="26b1", companions="Bind"))
        await bench.run()
        bench.order(order(CARD, vendor="10de", device="26b1", intent="Release"))
        crashed = await crashes_after(bench, writes)
        bench.restart()
        assert verdict(await bench.run(), CARD) == ("Released", "Released"), writes
        assert (bench.driver(CARD), bench.driver(AUDIO)) == ("nvidia", "snd_hda_intel")
        assert (bench.override(CARD), bench.override(AUDIO)) == ("(null)", "(null)")
        assert bench.journal().entries == {}
        bench.mark()
        assert (await bench.run()).planned.is_empty
        assert bench.writes == []
    assert writes == 7


async def test_a_binder_that_dies_in_a_bind_that_nobody_wants_any_more_is_undone(make: Make) -> None:
    for writes in (1, 2, 3):
        bench = make(host(npu()))
        bench.order(order())
        assert await crashes_after(bench, writes)
        bench.order(order(intent="Release"))
        bench.restart()
        assert verdict(await bench.run()) == ("Released", "Released")
        assert (bench.driver(), bench.override()) == ("rebellions", "(null)")
        assert bench.journal().entries == {}


@pytest.mark.parametrize(
    ("path", "step"),
    [
        (f"{DEVICES}/{NPU}/driver_override", "driver_override"),
        (f"{DRIVERS}/rebellions/unbind", "unbind from rebellions"),
        (DRIVERS_PROBE, "drivers_probe"),
    ],
)
async def test_a_step_that_the_kernel_refuses_is_named_with_its_errno_and_rolled_back(
    make: Make, path: str, step: str
) -> None:
    bench = make(host(npu()))
    bench.kernel.fail_next(path, "ENOMEM")
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Failed", "BindFailed")
    assert report_of(done).message == f"{step}: ENOMEM (Cannot allocate memory); rolled back to rebellions"
    assert (bench.driver(), bench.override()) == ("rebellions", "(null)")
    assert bench.journal().entries == {}
    bench.clock.advance(10)
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_a_rollback_that_fails_too_keeps_the_journal_and_is_put_right_later(make: Make) -> None:
    bench = make(host(npu()))
    bench.kernel.fail_next(f"probe:*:{NPU}", "EIO", times=4)
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Failed", "BindFailed")
    assert "not rolled back to rebellions: bind to rebellions: EIO" in report_of(done).message
    assert bench.driver() is None
    assert bench.journal().entries[NPU].former_driver == "rebellions"
    bench.clock.advance(10)
    assert verdict(await bench.run()) == ("Ready", "Bound")
    bench.order(order(intent="Release"))
    assert verdict(await bench.run()) == ("Released", "Released")
    assert bench.driver() == "rebellions"


async def test_a_companion_that_a_vm_opened_before_the_rest_of_the_group_failed_is_left_to_it(make: Make) -> None:
    bench = make(host(graphics(), audio()))
    bench.order(order(CARD, vendor="10de", device="26b1", companions="Bind"))
    bench.kernel.fail_next(f"probe:*:{CARD}", "EIO", times=9)

    class VMOpens(BoundedWriter):
        """A VM opens the group as soon as the card is off its driver."""

        async def write(self, path: str, data: bytes, locks: Locks) -> None:
            await super().write(path, data, locks)
            if path.endswith("nvidia/unbind"):
                bench.kernel.open_device("/dev/vfio/24", comm="qemu", pid=4711)

    bench.restart(writer=VMOpens(bench.host))
    done = await bench.run()
    texts = {outcome.address: outcome.message for outcome in done.outcomes}
    for address, former in ((CARD, "nvidia"), (AUDIO, "snd_hda_intel")):
        says = f"not rolled back to {former}, because it is in use by qemu (pid 4711 has /dev/vfio/24 open)"
        assert says in texts[address]
        assert bench.journal().entries[address].former_driver == former
    assert (bench.driver(CARD), bench.driver(AUDIO)) == (None, "vfio-pci")
    assert bench.sysfs_writes[-1] == ("vfio-pci/bind", CARD)


async def test_a_device_that_a_vm_opened_before_its_bind_was_found_wanting_is_left_to_it(make: Make) -> None:
    bench = make(host(npu(), kernel={"vfioNodes": "Group"}))
    bench.order(order(iommu="IOMMUFD"))

    class VMOpens(BoundedWriter):
        async def write(self, path: str, data: bytes, locks: Locks) -> None:
            await super().write(path, data, locks)
            if path == DRIVERS_PROBE:
                bench.kernel.open_device("/dev/vfio/20", comm="qemu", pid=4711)

    bench.restart(writer=VMOpens(bench.host))
    done = await bench.run()
    assert [str(outcome.reason) for outcome in done.outcomes] == ["VerifyFailed"]
    assert "not rolled back to rebellions, because it is in use by qemu" in done.outcomes[0].message
    assert (bench.driver(), bench.journal().entries[NPU].former_driver) == ("vfio-pci", "rebellions")
    bench.kernel.close_device("/dev/vfio/20", pid=4711)
    bench.restart()
    bench.order(order(intent="Release"))
    assert verdict(await bench.run()) == ("Released", "Released")
    assert bench.driver() == "rebellions"


async def test_a_stuck_unbind_marks_its_group_alone_and_is_picked_up_when_it_ends(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)), deadline_seconds=0.3)
    bench.move(TWIN, None)
    block = bench.kernel.block(f"{DRIVERS}/rebellions/unbind")
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Failed", "WriteStuck")
    assert report_of(done).message == f"writing {NPU!r} to {DRIVERS}/rebellions/unbind has not come back"
    bench.mark()
    bench.order(order(), order(TWIN))
    done = await bench.run()
    assert verdict(done) == ("Failed", "WriteStuck")
    assert verdict(done, TWIN) == ("Ready", "Bound")
    assert NPU not in {data for _, data in bench.writes}
    block.release()
    await until(lambda: bench.unstuck == 1)
    bench.mark()
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert report_of(done).former_driver == "rebellions"
    assert bench.writes == [("drivers_probe", NPU)]


async def test_a_group_that_a_dead_binder_s_stuck_write_still_holds_is_locked_for_the_next_one(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)), deadline_seconds=0.3)
    block = bench.kernel.block(f"{DRIVERS}/rebellions/unbind")
    bench.order(order())
    await bench.run()
    for _ in range(2):
        bench.restart()
        bench.mark()
        done = await bench.run()
        # Blocked would say that it was not touched, and the next node would be taken.
        assert verdict(done) == ("Failed", "WriteStuck")
        assert "group-20 is locked by npufleet-vfio-binder (pid " in report_of(done).message
        assert report_of(done).message.endswith(": a change that was begun has not come back")
        assert bench.writes == []
    bench.clock.advance(100)
    assert verdict(await bench.run()) == ("Failed", "WriteStuck")
    block.release()
    # The lock is free a moment after the kernel has come back.
    await until(lambda: bench.unstuck == 1)
    bench.clock.advance(10)
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_a_stuck_write_to_a_companion_is_told_of_the_device_that_it_is_for(make: Make) -> None:
    bench = make(host(graphics(), audio()), deadline_seconds=0.3)
    block = bench.kernel.block(f"{DRIVERS}/snd_hda_intel/unbind")
    bench.order(order(CARD, vendor="10de", device="26b1", companions="Bind"))
    assert verdict(await bench.run(), CARD) == ("Failed", "WriteStuck")
    assert bench.journal().entries.keys() == {AUDIO}
    bench.restart()
    assert verdict(await bench.run(), CARD) == ("Failed", "WriteStuck")
    block.release()
    await until(lambda: bench.unstuck == 1)
    bench.clock.advance(100)
    assert verdict(await bench.run(), CARD) == ("Ready", "Bound")


async def test_a_dead_binder_s_stuck_return_has_failed_for_the_next_one(make: Make) -> None:
    bench = make(host(npu()), deadline_seconds=0.3)
    bench.order(order())
    await bench.run()
    block = bench.kernel.block(f"{DRIVERS}/vfio-pci/unbind")
    bench.order(order(intent="Release"))
    assert verdict(await bench.run()) == ("Failed", "WriteStuck")
    bench.restart()
    assert verdict(await bench.run()) == ("Failed", "WriteStuck")
    block.release()
    # The lock is free a moment after the kernel has come back.
    await until(lambda: bench.unstuck == 1)
    bench.clock.advance(100)
    assert verdict(await bench.run()) == ("Released", "Released")


async def test_a_group_that_somebody_else_has_locked_is_blocked_where_nothing_was_begun(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.order(order(TWIN))
    await bench.run()
    bench.order(order(), order(TWIN, intent="Release"))
    with Locks(bench.host, ["group-20", "group-21"], owner="another"):
        done = await bench.run()
    assert verdict(done) == verdict(done, TWIN) == ("Blocked", "GroupLocked")


async def test_a_move_that_was_cut_short_is_not_untouched_while_somebody_else_has_the_lock(make: Make) -> None:
    bench = make(host(npu()), deadline_seconds=0.3)
    block = bench.kernel.block(f"{DRIVERS}/rebellions/unbind")
    bench.order(order())
    await bench.run()
    block.release()
    await until(lambda: bench.unstuck == 1)
    bench.restart()
    with Locks(bench.host, ["group-20"], owner="another"):
        done = await bench.run()
    assert verdict(done) == ("Failed", "GroupLocked")


async def test_a_fault_of_the_program_is_its_own_reason_and_the_rest_of_the_group_is_taken_back(make: Make) -> None:
    bench = make(host(graphics(), audio(), npu()))
    bench.order(order(CARD, vendor="10de", device="26b1", companions="Bind"), order())

    class Faulty(BoundedWriter):
        async def write(self, path: str, data: bytes, locks: Locks) -> None:
            if path.endswith("nvidia/unbind"):
                raise RuntimeError("an oversight")
            await super().write(path, data, locks)

    bench.restart(writer=Faulty(bench.host))
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert verdict(done, CARD) == ("Failed", "InternalError")
    assert "RuntimeError: an oversight" in report_of(done, CARD).message
    assert bench.driver(AUDIO) == "snd_hda_intel"
    assert bench.journal().entries.keys() == {NPU, CARD}
    bench.restart()
    assert verdict(await bench.run(), CARD) == ("Ready", "Bound")


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyError("0000:23:00.0")])
async def test_what_was_reached_before_a_fault_is_told_and_no_fault_is_called_a_lock(
    make: Make, error: Exception
) -> None:
    bench = make(host(graphics(), audio()))
    bench.order(order(CARD, vendor="10de", device="26b1", companions="Bind"))
    await bench.run()
    observer = bench.binder._executor._observer
    again, looks = observer.again, itertools.count()

    async def fails_later(addresses: Collection[str]) -> HostView:
        if next(looks):
            raise error
        return await again(addresses)

    observer.again = fails_later  # type: ignore[method-assign]
    bench.order(order(CARD, vendor="10de", device="26b1", intent="Release"))
    done = await bench.run()
    found = {outcome.address: (str(outcome.result), str(outcome.reason)) for outcome in done.outcomes}
    assert found == {CARD: ("Done", "Released"), AUDIO: ("Failed", "InternalError")}


async def test_an_entry_is_forgotten_only_under_the_lock_of_its_group(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.order(order(intent="Release", on_release="Leave"))
    with Locks(bench.host, ["group-20"], owner="another"):
        done = await bench.run()
    assert verdict(done) == ("Blocked", "GroupLocked")
    assert "group-20 is locked by another" in report_of(done).message
    assert bench.journal().entries.keys() == {NPU}
    assert verdict(await bench.run()) == ("Released", "Released")
    assert bench.journal().entries == {}


async def test_an_entry_that_another_process_wrote_since_the_plan_is_not_forgotten(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    other = Journal(bench.host.local(JOURNAL))
    theirs = replace(other.load().entries[NPU], former_driver="theirs")
    bench.order(order(intent="Release", on_release="Leave"))

    async def another_process(_: object) -> None:
        other.put(NPU, theirs)

    done = await bench.binder.run(bench.orders, progress=another_process)
    assert [outcome.reason for outcome in done.outcomes] == ["Changed"]
    assert bench.journal().entries == {NPU: theirs}


async def test_a_device_that_is_pulled_out_while_it_is_bound_has_failed_until_nobody_wants_it(make: Make) -> None:
    for path in (f"{DEVICES}/{NPU}/driver_override", f"{DRIVERS}/rebellions/unbind", DRIVERS_PROBE):
        bench = make(host(npu(), npu(TWIN, 21)))
        block = bench.kernel.block(path)
        bench.order(order(), order(TWIN))
        running = asyncio.create_task(bench.run())
        assert await asyncio.to_thread(block.wait_until_blocked)
        await asyncio.to_thread(bench.kernel.hot_remove, NPU)
        block.release()
        done = await running
        assert verdict(done) == ("Failed", "DeviceMissing"), path
        assert verdict(done, TWIN) == ("Ready", "Bound")
        bench.restart()
        assert verdict(await bench.run()) == ("Failed", "DeviceMissing")
        bench.hot_add(npu())
        assert verdict(await bench.run()) == ("Ready", "Bound")
        await asyncio.to_thread(bench.kernel.hot_remove, NPU)
        assert verdict(await bench.run()) == ("Failed", "DeviceMissing")
        bench.order(order(intent="Release"), order(TWIN))
        assert verdict(await bench.run()) == ("Released", "Released")
        assert bench.journal().entries.keys() == {TWIN}


async def test_a_stuck_write_of_one_device_leaves_another_of_its_group_blocked_and_untouched(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 20)), deadline_seconds=0.3)
    bench.kernel.block(f"{DRIVERS}/rebellions/unbind")
    bench.order(order(), order(TWIN))
    done = await bench.run()
    assert verdict(done) == ("Failed", "WriteStuck")
    assert verdict(done, TWIN) == ("Blocked", "WriteStuck")
    assert bench.touched() == {NPU}


async def test_what_changed_since_the_plan_is_seen_right_before_the_first_write(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())

    async def somebody_opens_it(_: object) -> None:
        bench.kernel.open_device("/dev/rbln0", comm="vllm")

    done = await bench.binder.run(bench.orders, progress=somebody_opens_it)
    assert done.planned.actions
    assert verdict(done) == ("Blocked", "InUse")
    assert bench.sysfs_writes == []


async def test_another_device_that_came_to_the_address_since_the_plan_is_not_touched(make: Make) -> None:
    bench = make(host(npu(serial="001eff1250000001")))
    bench.order(order())

    async def somebody_swaps_it(_: object) -> None:
        bench.kernel.hot_remove(NPU)
        bench.hot_add(npu(serial="001eff1250000002"))

    done = await bench.binder.run(bench.orders, progress=somebody_swaps_it)
    assert [outcome.reason for outcome in done.outcomes] == ["IdentityMismatch"]
    assert bench.sysfs_writes == []


async def test_a_device_that_somebody_moved_since_the_plan_is_planned_again(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())

    async def somebody_unbinds_it(_: object) -> None:
        bench.move(NPU, None)

    done = await bench.binder.run(bench.orders, progress=somebody_unbinds_it)
    assert verdict(done) == ("Blocked", "Changed")
    assert bench.driver() is None
    bench.clock.advance(10)
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_a_host_without_a_former_driver_to_go_back_to_is_told_so_before_anything_is_written(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    real = bench.kernel.host()

    class WithoutDriver(type(real)):  # type: ignore[misc]
        def list(self, path: str) -> list[str]:
            names: list[str] = super().list(path)
            return [name for name in names if name != "rebellions"] if path == DRIVERS else names

    bench.restart(host=WithoutDriver(bench.kernel))
    bench.order(order(intent="Release"))
    bench.mark()
    done = await bench.run()
    assert verdict(done) == ("Blocked", "DriverMissing")
    assert bench.sysfs_writes == []
    assert condition_of(done.bindings)[:2] == ("False", "DevicesBlocked")


async def test_a_daemon_that_ends_begins_no_further_device(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.binder._executor._stopping = lambda: True
    bench.binder._stopping = lambda: False
    bench.order(order(), order(TWIN))
    done = await bench.run()
    assert bench.sysfs_writes == []
    assert verdict(done) == ("Pending", "Binding")
