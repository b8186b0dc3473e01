"""Devices that pods were prepared with, in this boot or before it: what the binder does with them, and what not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from node_host.evidence.checkpoint import CHECKPOINT, ClaimState
from node_host.handover.entry import entry_digest, shape_digest
from node_host.handover.publisher_half import PublisherHalf
from node_host.handover.token_files import HANDOVER
from simulated_node.in_process import InProcessHost
from tests.builders.binder import NPU, TWIN, Bench, audio, graphics, host, npu, order, report_of, spec, verdict
from tests.builders.checkpoints import EARLIER, claim, shapes, spoil_checkpoint, write_checkpoint
from tests.builders.fault_scenes import AUDIO, CARD, SRIOV_CARD, card, functions_of, sriov_card

Make = Callable[..., Bench]
Entry = dict[str, Any]
FIRST, SECOND = "0000:61:10.0", "0000:61:10.2"
LOADED = [{"name": "vfio_pci", "state": "Loaded"}]
CONTAINER = order(mode="Container")


def shape(entry: Entry) -> str:
    return shape_digest(spec(entry).devices[0])


def prepared(bench: Bench, entry: Entry, *addresses: str, boot_id: str | None = None, **more: Any) -> None:
    """A claim has the devices (its own if none is named) as the entry has them."""
    has = shapes(addresses or (entry["address"],), shape(entry))
    write_checkpoint(bench.host, claim(has, boot_id=boot_id or bench.kernel.boot_id, **more))


def offered(bench: Bench, entry: Entry, *addresses: str) -> None:
    """Pods could have the devices before the last boot."""
    write_checkpoint(bench.host, published=shapes(addresses or (entry["address"],), shape(entry)))


def users(done: Any, address: str = NPU) -> list[tuple[str, str, str]]:
    (device,) = (one for one in done.inventory.devices if one.address == address)
    return [(str(user.kind), user.name, user.detail) for user in device.used_by]


async def blocked(bench: Bench, reason: str, message: str, address: str = NPU) -> None:
    bench.mark()
    done = await bench.run()
    assert verdict(done, address) == ("Blocked", reason)
    assert message in report_of(done, address).message
    assert bench.sysfs_writes == []


@pytest.mark.parametrize("state", ClaimState)
async def test_a_device_of_a_claim_of_this_boot_is_in_use(make: Make, state: ClaimState) -> None:
    bench = make(host(npu()))
    detail = "is prepared for a pod"
    prepared(bench, CONTAINER, state=state)
    bench.order(order())
    await blocked(bench, "InUse", f"in use by claim team-a/vm-npu ({detail})")
    assert users(await bench.run()) == [("Claim", "claim team-a/vm-npu", detail)]
    write_checkpoint(bench.host)
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_a_claim_of_another_device_is_nothing_to_this_one(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    prepared(bench, order(TWIN, mode="Container"))
    bench.order(order(), order(TWIN))
    done = await bench.run()
    assert (verdict(done), verdict(done, TWIN)) == (("Ready", "Bound"), ("Blocked", "InUse"))


async def test_a_device_whose_claim_is_prepared_while_the_binder_works_is_not_changed(make: Make) -> None:
    bench = make(host(npu()))

    class PreparedLate(InProcessHost):
        looks = 0

        def read(self, path: str) -> bytes:
            if path == CHECKPOINT:
                self.looks += 1
                if self.looks == 2:  # the look under the locks
                    prepared(bench, CONTAINER)
            return super().read(path)

    bench.restart(host=PreparedLate(bench.kernel))
    bench.order(order())
    assert verdict(await bench.run()) == ("Blocked", "InUse")
    assert bench.sysfs_writes == []


async def test_after_a_reboot_a_claimed_device_is_bound_again_as_it_was(make: Make) -> None:
    """What a workload had before the boot it gets again, and nothing else has to be asked for."""
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    prepared(bench, order())
    bench.kernel.reboot()
    bench.restart()
    assert bench.driver() == "rebellions"
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert users(done) == [], "a user would have its orders held, and it waits for just these"


async def test_what_a_claim_of_this_boot_had_before_it_and_has_not_yet_is_bound_again(make: Make) -> None:
    """Of two drivers of a claim one is asked first: what waits for the other is in nobody's hands, and to be made."""
    bench = make(host(npu()))
    bench.order(order())
    has = claim(shapes((NPU,), shape(order())), boot_id=bench.kernel.boot_id)
    waits = replace(has, devices=tuple(replace(one, cdi_ids=(), is_earlier=True) for one in has.devices))
    write_checkpoint(bench.host, waits)
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert users(done) == []
    write_checkpoint(bench.host, has)
    assert [user for user, *_ in users(await bench.run())] == ["Claim"]


@pytest.mark.parametrize("old", [CONTAINER, order(driver="vfio-pci")], ids=["mode", "settings"])
async def test_after_a_reboot_a_claimed_device_becomes_nothing_else(make: Make, old: Entry) -> None:
    bench = make(host(npu()))
    prepared(bench, old, boot_id=EARLIER)
    bench.order(order())
    await blocked(
        bench, "InUse", "claim team-a/vm-npu had it before the last boot, and is to get it again as it was then"
    )
    write_checkpoint(bench.host)
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_who_decided_and_the_driver_name_are_nothing_of_a_shape(make: Make) -> None:
    bench = make(host(npu()))
    other = order() | {"driverName": "npu.rebellions.ai", "decidedBy": {"policy": "others", "rule": "x"}}
    prepared(bench, other, boot_id=EARLIER)
    bench.order(order())
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_a_device_of_an_earlier_claim_is_not_given_back_either(make: Make) -> None:
    """Somebody prepared it before the boot, and it was bound in this one before the claim was known."""
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    prepared(bench, order(), boot_id=EARLIER)
    bench.order(order(intent="Release"))
    await blocked(bench, "InUse", "claim team-a/vm-npu had it before the last boot")


async def test_what_was_offered_before_the_boot_gets_its_shape_again_without_a_token(make: Make) -> None:
    bench = make(host(npu()))
    offered(bench, order())
    bench.order(order())
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_what_was_offered_before_the_boot_gets_another_shape_with_a_token_alone(make: Make) -> None:
    bench = make(host(npu()))
    offered(bench, CONTAINER)
    bench.order(order())
    await blocked(bench, "Published", "pods could have it before the last boot, in another shape")
    half = PublisherHalf(bench.kernel.host())
    half.offer(NPU, bench.kernel.boot_id, entry_digest(spec(order()).devices[0]))
    assert verdict(await bench.run()) == ("Ready", "Bound")
    assert [path.name for path in bench.host.local(HANDOVER).iterdir()] == [f"{NPU}.taken"]


async def test_what_is_offered_in_this_boot_needs_a_token_whatever_shape_it_gets(make: Make) -> None:
    bench = make(host(npu()))
    offered(bench, order())
    PublisherHalf(bench.kernel.host()).write_published([NPU], bench.kernel.boot_id)
    bench.order(order())
    await blocked(bench, "Published", "it is offered to pods")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (spoil_checkpoint, f"{CHECKPOINT}: not JSON"),
        (
            lambda host: write_checkpoint(host, doubt="an earlier one was lost"),
            f"{CHECKPOINT}: an earlier one was lost",
        ),
        (lambda host: host.local(CHECKPOINT).mkdir(parents=True), f"{CHECKPOINT}: Is a directory"),
    ],
    ids=["junk", "doubt", "directory"],
)
async def test_a_checkpoint_that_cannot_be_read_keeps_every_device_as_it_is(make: Make, spoil: Any, why: str) -> None:
    bench = make(host(npu()))
    spoil(bench.host)
    bench.order(order())
    await blocked(bench, "InUse", f"which pods were prepared with it cannot be read: {why}")
    assert [kind for kind, _, _ in users(await bench.run())] == ["Unreadable"]


async def test_a_companion_that_a_claim_has_keeps_the_whole_group(make: Make) -> None:
    bench = make(host(graphics(), audio()))
    wanted = card(companions="Bind")
    prepared(bench, card(mode="Container"), AUDIO)
    bench.order(wanted)
    await blocked(bench, "CompanionInUse", f"{AUDIO} of its IOMMU group: in use by claim team-a/vm-npu", CARD)


async def test_functions_that_a_claim_had_come_again_in_the_same_number_alone(make: Make) -> None:
    """After a boot the functions are not there, so what the claim had is told by the card that can make them."""
    bench = make(host(sriov_card(), modules=LOADED))
    prepared(bench, functions_of(2), SECOND, boot_id=EARLIER)
    for other in (functions_of(1), functions_of(None)):
        bench.order(other)
        text = f"{SECOND}, which goes along: claim team-a/vm-npu had it before the last boot"
        await blocked(bench, "InUse", text, SRIOV_CARD)
    bench.order(functions_of(2))
    assert verdict(await bench.run(), SRIOV_CARD) == ("Ready", "FunctionsBound")
    assert {bench.driver(address) for address in (FIRST, SECOND)} == {"vfio-pci"}


async def test_a_function_in_use_by_a_claim_keeps_the_number_of_its_card(make: Make) -> None:
    bench = make(host(sriov_card(), modules=LOADED))
    bench.order(functions_of(2))
    await bench.run()
    prepared(bench, functions_of(2), SECOND)
    bench.order(functions_of(1))
    await blocked(bench, "InUse", "in use by claim team-a/vm-npu", SRIOV_CARD)


async def test_a_claim_that_ends_is_noticed_without_a_pass_and_one_that_stays_is_not(make: Make) -> None:
    bench = make(host(npu()))
    prepared(bench, CONTAINER)
    bench.order(order())
    await bench.run()
    assert bench.binder.watches_users()
    assert not await bench.binder.is_let_go()
    write_checkpoint(bench.host)
    assert await bench.binder.is_let_go()
