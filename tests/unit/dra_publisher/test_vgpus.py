"""vGPUs for pods and VMs: what of a card is offered, what a change of its layout does to whoever has one."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node_host.evidence.checkpoint import PreparedClaim
from node_host.handover.entry import vgpu_shape
from tests.builders.checkpoints import claim
from tests.builders.publisher_bench import NODE, report, said
from tests.builders.vgpu_publisher import VGPUNode, vgpu_node
from tests.builders.writer import CARD, FUNCTIONS, MIXED, OTHER, TWO, carries

FIRST, SECOND, THIRD = FUNCTIONS[:3]
NAMES = [f"vgpu-{one.replace(':', '-').replace('.', '-')}" for one in FUNCTIONS[:3]]
HAND_OVER = ("handover=HandOver",)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[VGPUNode]:
    async with vgpu_node(tmp_path / "host") as made:
        yield made


def name_of(function: str) -> str:
    return f"vgpu-{function.replace(':', '-').replace('.', '-')}"


def prepared(name: str, function: str, profile: str, boot_id: str) -> PreparedClaim:
    """A claim whose pod was given a vGPU in a boot."""
    made = claim({function: vgpu_shape(profile)}, boot_id=boot_id, name=name)
    device = replace(made.devices[0], pool=NODE, device=name_of(function), profile=profile)
    return replace(made, namespace="team", devices=(device,))


def attributes(node: VGPUNode, name: str) -> dict[str, Any]:
    devices = [one for found in node.server.slices() for one in found["spec"].get("devices") or []]
    found = next(one for one in devices if one["name"] == name)
    return {key: next(iter(value.values())) for key, value in found["attributes"].items()} | {
        f"capacity/{key}": value["value"] for key, value in (found.get("capacity") or {}).items()
    }


async def test_each_typed_function_is_a_device_with_its_profile_and_the_card_is_none(node: VGPUNode) -> None:
    node.writing.order(carries(TWO))
    done = await node.settle()
    assert node.offered() == {NAMES[0]: (), NAMES[1]: ()}
    assert said(done, CARD) == ("Ready", "Published")
    told = attributes(node, NAMES[0])
    assert (told["type"], told["profile"], told["frameBufferMiB"]) == ("vgpu", "L40S-24Q", 24576)
    assert (told["parent"], told["resource.kubernetes.io/pciBusID"]) == (CARD, FIRST)
    assert told["productName"] == "L40S"
    assert told["vf"] is True
    assert told["capacity/memory"] == "24Gi" or told["capacity/memory"] == "24576Mi"
    assert node.listed() == [FIRST, SECOND]


async def test_nothing_is_offered_before_the_writer_has_verified_it(node: VGPUNode) -> None:
    node.writing.order(carries(TWO))
    done = await node.run()
    assert node.offered() == {}
    assert said(done, CARD) == ("Pending", "WaitsForBinding")


async def test_two_cards_and_two_sizes_are_told_apart(node: VGPUNode) -> None:
    node.writing.order(carries(TWO), carries(MIXED, OTHER))
    await node.settle()
    profiles = sorted(attributes(node, name)["profile"] for name in node.offered())
    assert profiles == ["L40S-12Q", "L40S-12Q", "L40S-24Q", "L40S-24Q", "L40S-24Q"]


async def test_type_that_no_layout_asks_for_is_not_offered(node: VGPUNode) -> None:
    node.writing.order(carries({"L40S-24Q": 1}))
    await node.settle()
    node.writing.set_type(SECOND, 1155)
    await node.settle()
    assert list(node.offered()) == [NAMES[0]], "one of 24 GB was asked for"


async def test_change_to_mixed_sizes_waits_for_every_claim_and_goes_on_when_it_is_gone(node: VGPUNode) -> None:
    node.writing.order(carries(TWO))
    await node.settle()
    node.allocate("vm", NAMES[0])
    node.writing.order(carries(MIXED))
    done = await node.settle()
    assert node.writing.profiles()[FIRST] == "L40S-24Q"
    assert said(done, CARD) == ("Pending", "HandOver")
    assert node.offered()[NAMES[0]] == HAND_OVER, "nobody new gets it"
    node.free("vm")
    done = await node.settle()
    assert sorted(node.writing.profiles().values()) == ["L40S-12Q", "L40S-12Q", "L40S-24Q"]
    assert said(done, CARD) == ("Ready", "Published")
    assert set(node.offered().values()) == {()}
    assert len(node.offered()) == 3


async def test_change_of_layout_leaves_claims_alone_whose_profile_stays(node: VGPUNode) -> None:
    node.writing.order(carries(MIXED))
    await node.settle()
    big = next(one for one, profile in node.writing.profiles().items() if profile == "L40S-24Q")
    node.allocate("vm", name_of(big))
    node.writing.order(carries(TWO, mixed=True))
    for _ in range(6):
        await node.bind()
        done = await node.run()
        assert node.offered()[name_of(big)] == (), "it is not even withheld"
        assert node.writing.profiles()[big] == "L40S-24Q"
    assert sorted(node.writing.profiles().values()) == ["L40S-24Q", "L40S-24Q"]
    assert said(done, CARD) == ("Ready", "Published")
    assert set(node.offered().values()) == {()}


async def test_vgpus_that_an_edit_takes_away_wait_for_their_claims_alone(node: VGPUNode) -> None:
    node.writing.order(carries(MIXED))
    await node.settle()
    small = [one for one, profile in sorted(node.writing.profiles().items()) if profile == "L40S-12Q"]
    big = next(one for one in node.writing.profiles() if one not in small)
    node.allocate("vm", name_of(small[0]))
    node.writing.order(carries(TWO, mixed=True, unassigned="Clear"))
    done = await node.settle()
    assert node.writing.profiles() == {big: "L40S-24Q", small[0]: "L40S-12Q"}
    offered = node.offered()
    assert offered.pop(name_of(big)) == ()
    assert set(offered.values()) == {HAND_OVER}
    assert said(done, CARD) == ("Pending", "HandOver")
    node.free("vm")
    done = await node.settle()
    assert sorted(node.writing.profiles().values()) == ["L40S-24Q", "L40S-24Q"]
    assert said(done, CARD) == ("Ready", "Published")


async def test_shrinking_layout_offers_no_more_vgpus_than_it_asks_for(node: VGPUNode) -> None:
    node.writing.order(carries(TWO))
    await node.settle()
    node.writing.order(carries({"L40S-24Q": 1}, unassigned="Clear"))
    await node.run()
    assert set(node.offered().values()) == {HAND_OVER}, "which of them goes is not said yet"
    done = await node.settle()
    assert list(node.offered().values()) == [()]
    assert list(node.writing.profiles().values()) == ["L40S-24Q"]
    assert said(done, CARD) == ("Ready", "Published")


async def test_shrinking_layout_keeps_the_vgpu_that_a_claim_has(node: VGPUNode) -> None:
    node.writing.order(carries(TWO))
    await node.settle()
    node.allocate("vm", NAMES[1])
    node.prepare(prepared("vm", SECOND, "L40S-24Q", node.bench.kernel.boot_id))
    node.writing.order(carries({"L40S-24Q": 1}, unassigned="Clear"))
    done = await node.settle()
    assert node.offered() == {NAMES[1]: ()}
    assert node.writing.profiles() == {SECOND: "L40S-24Q"}
    assert said(done, CARD) == ("Ready", "Published")


async def test_surplus_vgpu_that_is_left_typed_is_not_offered(node: VGPUNode) -> None:
    node.writing.order(carries(TWO))
    await node.settle()
    node.writing.order(carries({"L40S-24Q": 1}))
    await node.settle()
    assert len(node.writing.profiles()) == 2
    assert list(node.offered().values()) == [()]


async def test_claims_get_their_vgpus_back_after_a_reboot(node: VGPUNode) -> None:
    node.writing.order(carries(MIXED))
    await node.settle()
    before = node.writing.profiles()
    for function in before:
        node.allocate(f"vm-{function[-1]}", name_of(function))
    boot_id = node.bench.kernel.boot_id
    node.prepare(*(prepared(f"vm-{one[-1]}", one, profile, boot_id) for one, profile in before.items()))
    node.bench.kernel.reboot()
    node.writing.restart()
    await node.restart()
    done = await node.settle()
    assert node.writing.profiles() == before
    assert set(node.offered().values()) == {()}
    assert said(done, CARD) == ("Ready", "Published")


async def test_edit_over_a_reboot_leaves_what_a_claim_waits_for_as_it_was(node: VGPUNode) -> None:
    node.writing.order(carries(MIXED))
    await node.settle()
    small = max(one for one, profile in node.writing.profiles().items() if profile == "L40S-12Q")
    node.allocate("vm", name_of(small))
    node.prepare(prepared("vm", small, "L40S-12Q", node.bench.kernel.boot_id))
    node.bench.kernel.reboot()
    node.writing.restart()
    await node.restart()
    node.writing.order(carries({"L40S-12Q": 4}))
    done = await node.settle()
    assert node.writing.profiles()[small] == "L40S-12Q"
    assert sorted(node.writing.profiles().values()) == ["L40S-12Q"] * 4
    assert node.offered()[name_of(small)] == ()
    assert said(done, CARD) == ("Ready", "Published")


async def test_function_that_cannot_be_typed_costs_the_others_nothing(node: VGPUNode) -> None:
    node.writing.order(carries(MIXED))
    await node.settle()
    before = node.writing.profiles()
    lost = max(one for one, profile in before.items() if profile == "L40S-12Q")
    node.writing.set_type(lost, 0)
    for function in node.writing.functions():
        path = f"/sys/bus/pci/devices/{function}/nvidia/current_vgpu_type"
        node.bench.kernel.fail_next(path, "EIO", None)
    done = await node.settle()
    kept = {one: profile for one, profile in before.items() if one != lost}
    assert node.writing.profiles() == kept
    offered = node.offered()
    assert {one: offered[name_of(one)] for one in kept} == dict.fromkeys(kept, ())
    assert said(done, CARD) == ("Pending", "WaitsForBinding")
    assert report(done, CARD).message.startswith("npufleet-profile-writer: TypeFailed")


async def test_answer_to_an_older_order_offers_nothing(node: VGPUNode) -> None:
    node.writing.order(carries(TWO))
    await node.settle()
    node.writing.order(carries({"L40S-24Q": 1}))
    await node.run()
    assert set(node.offered().values()) == {HAND_OVER}
    done = await node.run()
    assert set(node.offered().values()) == {HAND_OVER}
    assert said(done, CARD)[0] == "Pending"


async def test_function_that_somebody_has_cleared_leaves_and_comes_back_repaired(node: VGPUNode) -> None:
    node.writing.order(carries(TWO))
    await node.settle()
    node.writing.set_type(SECOND, 0)
    await node.run()
    assert node.offered().get(NAMES[1]) != (), "nobody new gets what is not there"
    await node.settle()
    assert node.offered() == {NAMES[0]: (), NAMES[1]: ()}


async def test_after_a_reboot_the_same_functions_are_offered_once_they_are_typed_again(node: VGPUNode) -> None:
    node.writing.order(carries(TWO))
    await node.settle()
    node.bench.kernel.reboot()
    node.writing.restart()
    await node.restart()
    await node.run()
    assert all(taints for taints in node.offered().values())
    done = await node.settle()
    assert node.offered() == {NAMES[0]: (), NAMES[1]: ()}
    assert said(done, CARD) == ("Ready", "Published")


async def test_released_card_leaves_the_slices_before_its_types_go(node: VGPUNode) -> None:
    node.writing.order(carries(TWO))
    await node.settle()
    node.allocate("vm", NAMES[0])
    node.writing.order(carries(TWO, intent="Release"))
    await node.settle()
    assert node.writing.profiles().get(FIRST) == "L40S-24Q", "a claim has it"
    node.free("vm")
    await node.settle()
    await node.settle()
    assert node.offered() == {}
    assert node.writing.profiles() == {}


async def test_second_round_writes_nothing(node: VGPUNode) -> None:
    node.writing.order(carries(TWO), carries(MIXED, OTHER))
    await node.settle()
    node.writes()
    node.writing.mark()
    await node.settle()
    assert node.writes() == []
    assert node.writing.writes == []


async def test_resource_of_a_device_plugin_for_the_profile_keeps_the_card_from_claims(node: VGPUNode) -> None:
    node.advertised = {"nvidia.com/L40S-24Q": "2"}
    node.writing.order(carries(TWO))
    done = await node.settle()
    assert node.offered() == {}
    assert said(done, CARD) == ("Blocked", "OtherPlugin")
