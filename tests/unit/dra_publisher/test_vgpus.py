"""vGPUs for pods and VMs: what of a card is offered, what a change of its layout does to whoever has one."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.publisher_bench import said
from tests.builders.vgpu_publisher import VGPUNode, vgpu_node
from tests.builders.writer import CARD, FUNCTIONS, MIXED, OTHER, TWO, carries

FIRST, SECOND, THIRD = FUNCTIONS[:3]
NAMES = [f"vgpu-{one.replace(':', '-').replace('.', '-')}" for one in FUNCTIONS[:3]]
HAND_OVER = ("handover=HandOver",)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[VGPUNode]:
    async with vgpu_node(tmp_path / "host") as made:
        yield made


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


async def test_change_of_layout_waits_for_the_claim_and_goes_on_when_it_is_gone(node: VGPUNode) -> None:
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
