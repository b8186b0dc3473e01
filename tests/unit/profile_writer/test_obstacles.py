"""What keeps the writer from changing a card or a function, and that it costs nothing else."""

from collections.abc import Callable

import pytest

from node_host.acting.locks import Locks
from node_host.evidence.publication import PUBLISHED
from node_host.handover.entry import entry_digest
from node_host.handover.token_files import HANDOVER
from node_host.handover.tokens import Token, encode_token, offer_name, taken_name
from profile_writer.record import RECORD
from tests.builders.writer import (
    CARD,
    FUNCTIONS,
    MIXED,
    OTHER,
    TWO,
    WriterBench,
    card_of,
    carries,
    l40s,
    stand,
)

TOOL = "tool:/usr/lib/nvidia/sriov-manage"


def publish(bench: WriterBench, *addresses: str) -> None:
    """What the publisher notes of devices that pods can have."""
    names = ", ".join(f'"{one}"' for one in addresses)
    path = bench.kernel.host().local(PUBLISHED)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"version": 1, "bootID": "{bench.kernel.boot_id}", "addresses": [{names}]}}\n')


def hand_over(bench: WriterBench, address: str) -> None:
    """The publisher's token of a function for the present order of its card."""
    assert bench.orders.spec is not None
    token = Token(address, bench.kernel.boot_id, entry_digest(bench.orders.spec.devices[0]))
    directory = bench.kernel.host().local(HANDOVER)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / offer_name(address)).write_bytes(encode_token(token))


async def test_a_function_in_use_keeps_its_type_and_its_user_is_named(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    bench.kernel.open_device(bench.group(FUNCTIONS[0]), comm="qemu-kvm")
    bench.order(carries({"L40S-12Q": 4}))
    done = await bench.settled()
    assert bench.profiles()[FUNCTIONS[0]] == "L40S-24Q"
    assert stand(done)[0] == "Blocked"
    assert "qemu-kvm" in card_of(done).message
    (held,) = [one for one in card_of(done).vgpus if one.address == FUNCTIONS[0]]
    assert held.users == ("qemu-kvm",)
    bench.kernel.close_device(bench.group(FUNCTIONS[0]))
    assert stand(await bench.settled()) == ("Ready", "Typed")
    assert list(bench.profiles().values()) == ["L40S-12Q"] * 4


@pytest.mark.parametrize("errno", ["EIO", "EBUSY"])
async def test_a_function_that_refuses_costs_the_others_nothing(bench: WriterBench, errno: str) -> None:
    bench.kernel.fail_next(f"/sys/bus/pci/devices/{FUNCTIONS[0]}/nvidia/current_vgpu_type", errno, None)
    bench.order(carries(TWO), carries(TWO, OTHER))
    done = await bench.run()
    assert stand(done) == ("Ready", "Typed")
    assert bench.profiles() == {FUNCTIONS[1]: "L40S-24Q", FUNCTIONS[2]: "L40S-24Q"}
    assert stand(done, OTHER) == ("Ready", "Typed")
    before = len(bench.kernel.writes)
    await bench.run()
    assert len(bench.kernel.writes) == before


async def test_a_write_that_is_swallowed_is_found_out(bench: WriterBench) -> None:
    bench.kernel.swallow_next(f"/sys/bus/pci/devices/{FUNCTIONS[0]}/nvidia/current_vgpu_type", None)
    bench.order(carries(TWO))
    assert stand(await bench.run()) == ("Ready", "Typed")
    assert sorted(bench.profiles()) == [FUNCTIONS[1], FUNCTIONS[2]]


async def test_a_function_whose_type_cannot_be_read_is_one_entry(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    bench.kernel.fail_next(f"read:/sys/bus/pci/devices/{FUNCTIONS[5]}/nvidia/current_vgpu_type", "EIO", None)
    bench.mark()
    done = await bench.run()
    assert {one.address: str(one.reason) for one in card_of(done).vgpus} == {
        FUNCTIONS[0]: "Typed",
        FUNCTIONS[1]: "Typed",
        FUNCTIONS[5]: "DeviceUnreadable",
    }
    assert bench.writes == []


async def test_a_program_that_says_0_and_makes_nothing_is_found_out(bench: WriterBench) -> None:
    bench.kernel.swallow_next(TOOL, None)
    bench.order(carries(TWO))
    done = await bench.run()
    assert stand(done) == ("Failed", "FunctionsFailed")
    assert bench.writes == [("sriov-manage", f"-e {CARD}")]


async def test_a_lock_that_passes_is_waited_for(bench: WriterBench) -> None:
    bench.kernel.fail_next(TOOL, "EBUSY", 3)
    bench.order(carries(TWO))
    assert stand(await bench.run()) == ("Ready", "Typed")
    assert [path for path, _ in bench.writes].count("sriov-manage") == 4


async def test_a_lock_that_stays_is_told(bench: WriterBench) -> None:
    bench.kernel.fail_next(TOOL, "EBUSY", None)
    bench.order(carries(TWO))
    done = await bench.run()
    assert stand(done) == ("Failed", "FunctionsFailed")
    assert "unbindLock" in card_of(done).message
    assert len(bench.writes) == 5


async def test_a_card_that_a_program_left_without_driver_gets_it_back(bench: WriterBench) -> None:
    bench.kernel.fail_next("/sys/bus/pci/drivers/nvidia/bind", "EIO", 1)
    bench.order(carries(TWO))
    done = await bench.settled()
    assert stand(done) == ("Ready", "Typed")


async def test_without_the_program_the_kernel_is_asked_for_functions(make: Callable[..., WriterBench]) -> None:
    """This driver makes none by itself, which is told."""
    bench = make(l40s().model_copy(update={"tools": ()}))
    bench.order(carries(TWO))
    done = await bench.run()
    assert stand(done) == ("Failed", "FunctionsFailed")
    assert bench.writes == [(f"{CARD}/sriov_numvfs", "16")]


async def test_a_card_with_a_live_vgpu_is_never_toggled(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    bench.kernel.open_device(bench.group(FUNCTIONS[1]))
    bench.mark()
    for layout in ({"L40S-48Q": 1}, MIXED, {"L40S-6Q": 8}):
        bench.order(carries(layout, unassigned="Clear"))
        await bench.settled()
        assert bench.profiles()[FUNCTIONS[1]] == "L40S-24Q"
    bench.order(carries(TWO, intent="Release"))
    done = await bench.settled()
    assert stand(done) == ("Blocked", "InUse")
    assert bench.profiles() == {FUNCTIONS[1]: "L40S-24Q"}
    assert not [write for write in bench.writes if write[0] in ("sriov-manage", "nvidia-smi")]


async def test_a_card_in_use_is_not_enabled(bench: WriterBench) -> None:
    bench.kernel.open_device("/dev/nvidia0", comm="python3")
    bench.order(carries(TWO))
    done = await bench.run()
    assert stand(done) == ("Blocked", "InUse")
    assert "python3" in card_of(done).message
    assert bench.writes == []


async def test_a_card_in_another_mode_is_not_written(bench: WriterBench) -> None:
    bench.kernel.write(f"/sys/bus/pci/devices/{CARD}/driver_override", b"vfio-pci")
    bench.kernel.write("/sys/bus/pci/drivers/nvidia/unbind", CARD.encode())
    bench.kernel.load_module("vfio-pci")
    bench.kernel.write("/sys/bus/pci/drivers_probe", CARD.encode())
    bench.mark()
    bench.order(carries(TWO))
    assert stand(await bench.run()) == ("Blocked", "DriverMissing")
    assert bench.writes == []


async def test_mig_mode_is_waited_out(bench: WriterBench) -> None:
    bench.kernel.set_mig(CARD, True)
    bench.order(carries(TWO))
    assert stand(await bench.run()) == ("Blocked", "MIGEnabled")
    assert bench.writes == []
    bench.kernel.set_mig(CARD, False)
    assert stand(await bench.run()) == ("Ready", "Typed")


async def test_another_card_than_ordered_is_not_touched(bench: WriterBench) -> None:
    bench.order(carries(TWO, device="2330"))
    assert stand(await bench.run()) == ("Blocked", "IdentityMismatch")
    assert bench.writes == []


async def test_sizes_that_may_not_be_mixed_are_not(bench: WriterBench) -> None:
    bench.order(carries(MIXED, mixed=False))
    assert stand(await bench.run()) == ("Blocked", "MixedSizesForbidden")
    assert bench.profiles() == {}


async def test_a_published_function_is_changed_only_with_its_token(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    publish(bench, FUNCTIONS[0], FUNCTIONS[1])
    bench.mark()
    bench.order(carries({"L40S-24Q": 1}, unassigned="Clear"))
    done = await bench.run()
    assert bench.writes == []
    assert "Published" in {str(one.reason) for one in card_of(done).vgpus}
    (other,) = [one.address for one in card_of(done).vgpus if str(one.reason) == "Published"]
    hand_over(bench, other)
    assert stand(await bench.run()) == ("Ready", "Typed")
    assert bench.writes == [(other, "0")]
    assert bench.kernel.host().exists(f"{HANDOVER}/{taken_name(other)}")
    assert not bench.kernel.host().exists(f"{HANDOVER}/{offer_name(other)}")


async def test_a_release_gives_back_what_was_there_before(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    bench.order(carries(TWO, intent="Release"))
    assert stand(await bench.settled()) == ("Released", "Released")
    assert bench.functions() == []
    assert bench.record().entries == {}


async def test_a_boot_gives_nothing_to_functions_that_were_cleared_before_it(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    bench.kernel.open_device(bench.group(FUNCTIONS[1]))
    bench.order(carries({"L40S-24Q": 1}, unassigned="Clear"))
    await bench.settled()
    assert bench.profiles() == {FUNCTIONS[1]: "L40S-24Q"}
    bench.kernel.reboot()
    bench.restart()
    await bench.settled()
    assert bench.profiles() == {FUNCTIONS[1]: "L40S-24Q"}


async def test_a_release_that_leaves_forgets(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    bench.mark()
    bench.order(carries(TWO, intent="Release", on_release="Leave"))
    assert stand(await bench.run()) == ("Released", "Released")
    assert bench.writes == []
    assert bench.record().entries == {}


async def test_a_card_that_becomes_something_else_is_given_back(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    bench.order({**{k: v for k, v in carries(TWO).items() if k != "vgpu"}, "mode": "Passthrough"})
    await bench.settled()
    assert bench.functions() == []
    assert bench.record().entries == {}


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 40], ids=["empty", "no record", "no text"])
async def test_a_damaged_record_is_set_aside_and_told(bench: WriterBench, content: bytes) -> None:
    bench.order(carries(TWO))
    await bench.run()
    bench.kernel.host().local(RECORD).write_bytes(content)
    bench.mark()
    bench.restart()
    done = await bench.run()
    assert stand(done) == ("Ready", "Adopted")
    assert bench.writes == []
    (told,) = [one for one in done.profiles.conditions if one.type == "RecordIntact"]
    assert (str(told.status), told.reason) == ("False", "RecordUnreadable")


async def test_a_card_that_another_process_works_on_waits(bench: WriterBench) -> None:
    bench.order(carries(TWO), carries(TWO, OTHER))
    with Locks(bench.kernel.host(), [f"pf-{CARD}"], owner="somebody"):
        done = await bench.run()
        assert stand(done) == ("Blocked", "GroupLocked")
        assert stand(done, OTHER) == ("Ready", "Typed")
        assert bench.profiles(OTHER)
    assert stand(await bench.settled()) == ("Ready", "Typed")


async def test_a_write_that_does_not_come_back_blocks_its_card_alone(make: Callable[..., WriterBench]) -> None:
    bench = make(deadline_seconds=1.0)
    block = bench.kernel.block(f"/sys/bus/pci/devices/{FUNCTIONS[0]}/nvidia/current_vgpu_type")
    bench.order(carries(TWO), carries(TWO, OTHER))
    done = await bench.run()
    assert stand(done) == ("Failed", "WriteStuck")
    assert stand(done, OTHER) == ("Ready", "Typed")
    assert stand(await bench.run()) == ("Failed", "WriteStuck")
    block.release()


async def test_an_order_that_is_held_changes_nothing(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    bench.orders = bench.orders.__class__(bench.orders.spec, "00000000-0000-4000-8000-000000000000", 1)
    done = await bench.run()
    assert done.held is not None
    assert bench.writes == []
