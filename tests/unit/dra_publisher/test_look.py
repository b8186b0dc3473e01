"""Looks of the publisher on a host with its binder: what is published, withheld, handed over and reported."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from crds.models.node_state import DesiredDevice
from dra_publisher.checkpoint.store import CheckpointError, CheckpointStore
from dra_publisher.look import ABSENCE_SECONDS
from node_host.evidence.checkpoint import UNKNOWN_SHAPE, ClaimState
from node_host.evidence.publication import PUBLISHED
from node_host.handover.entry import shape_digest
from runtime.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.builders.binder import NPU, TWIN, npu, order, spec
from tests.builders.checkpoints import claim as prepared_claim
from tests.builders.checkpoints import spoil_checkpoint, write_checkpoint
from tests.builders.fault_scenes import SRIOV_CARD, functions_of, sriov_card
from tests.builders.publisher_bench import DRIVER, NODE, PublisherBench, publisher_bench, report, said

A_VM, A_NPU = "vfio-0000-23-00-0", "npu-0000-23-00-0"
B_VM, B_NPU = "vfio-0000-24-00-0", "npu-0000-24-00-0"
PUBLISHED_READY = ("Ready", "Published")
OTHER_UID = "11111111-2f5e-4a0b-9f57-2f6f8f1f9c10"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[PublisherBench]:
    """Two NPUs in groups of their own, on their own driver."""
    async with publisher_bench(tmp_path / "host", npu(), npu(TWIN, 21)) as made:
        yield made


def entry(**given: object) -> DesiredDevice:
    return spec(order(**given)).devices[0]  # type: ignore[arg-type]


async def published(node: PublisherBench, mode: str = "Container") -> None:
    node.bench.order(order(mode=mode), order(TWIN, mode=mode))
    await node.rounds(2)


async def test_what_is_ready_is_published_and_the_next_look_and_the_next_publisher_write_nothing(
    node: PublisherBench,
) -> None:
    node.bench.order(order(), order(TWIN, mode="Container"))
    done = await node.run()
    assert said(done, NPU) == ("Pending", "WaitsForBinding")
    assert node.offered() == {}
    done = await node.rounds(2)
    assert node.offered() == {A_VM: (), B_NPU: ()}
    assert [said(done, one) for one in (NPU, TWIN)] == [PUBLISHED_READY] * 2
    assert node.listed() == [NPU, TWIN]
    assert dict(node.store.checkpoint().published) == {
        NPU: shape_digest(entry()),
        TWIN: shape_digest(entry(address=TWIN, mode="Container")),
    }
    node.writes()
    before = node.publication
    note = node.bench.kernel.host().stat(PUBLISHED).st_ino
    await node.run()
    await node.restart()
    await node.run()
    assert node.writes() == []
    assert node.publication == before
    assert node.bench.kernel.host().stat(PUBLISHED).st_ino == note


async def test_slices_are_made_for_a_driver_without_devices_and_go_with_it(node: PublisherBench) -> None:
    node.bench.order({**order(), "driverName": "npu.rebellions.ai"})
    await node.run()
    assert [one["spec"]["driver"] for one in node.server.slices()] == ["npu.rebellions.ai"]
    node.bench.order()
    await node.run()
    assert node.server.slices() == []


async def test_a_device_changes_hands_once_no_claim_has_it(node: PublisherBench) -> None:
    await published(node)
    node.allocate("trainer", A_NPU)
    node.bench.order(order(), order(TWIN))
    done = await node.rounds()
    assert said(done, NPU) == ("Pending", "HandOver")
    assert report(done, NPU).message == "withheld; waits for claim team/trainer"
    assert done.waits == {NPU: ("claim team/trainer",)}
    assert node.offered() == {A_NPU: ("handover=HandOver",), B_VM: ()}
    assert node.bench.driver() == "rebellions"
    assert node.look.offered(DRIVER, A_NPU) is not None, "who has it is prepared still"
    node.free("trainer")
    done = await node.run()
    assert said(done, NPU) == ("Pending", "HandedOver")
    done = await node.rounds(2)
    assert said(done, NPU) == PUBLISHED_READY
    assert node.offered() == {A_VM: (), B_VM: ()}
    assert node.look.offered(DRIVER, A_NPU) is None


async def test_a_claim_that_is_prepared_holds_a_device_though_the_api_has_forgotten_it(node: PublisherBench) -> None:
    await published(node)
    node.prepare(prepared_claim({NPU: "1" * 64}, boot_id=node.bench.kernel.boot_id))
    node.bench.order(order(), order(TWIN))
    done = await node.rounds()
    assert said(done, NPU) == ("Pending", "HandOver")
    assert "demo" in report(done, NPU).message or "team" in report(done, NPU).message
    assert node.bench.driver() == "rebellions"
    node.prepare()
    await node.rounds()
    assert node.offered() == {A_VM: (), B_VM: ()}


async def test_nothing_is_handed_over_while_slices_or_claims_cannot_be_reached(node: PublisherBench) -> None:
    await published(node)
    node.bench.order(order(), order(TWIN))
    await node.bind()
    fault = node.server.fail("PUT", RESOURCE_SLICES)
    done = await node.run()
    assert "the slices were not written" in (done.problem or "")
    assert node.bench.kernel.host().exists("/run/npufleet/handover") is False
    node.server.heal(fault)
    fault = node.server.fail("LIST", RESOURCE_CLAIMS)
    done = await node.run()
    assert "claims cannot be listed" in (done.problem or "")
    assert said(done, NPU) == ("Pending", "HandOver")
    assert node.offered() == {A_NPU: ("handover=HandOver",), B_NPU: ("handover=HandOver",)}
    assert node.bench.kernel.host().exists("/run/npufleet/handover") is False
    node.server.heal(fault)
    await node.rounds()
    assert node.offered() == {A_VM: (), B_VM: ()}


async def test_another_driver_name_waits_for_claims_under_the_former_one(node: PublisherBench) -> None:
    await published(node)
    node.allocate("trainer", A_NPU)
    renamed = [{**order(one, mode="Container"), "driverName": "npu.rebellions.ai"} for one in (NPU, TWIN)]
    node.bench.order(*renamed)
    done = await node.rounds()
    by_driver = {
        one["spec"]["driver"]: [device["name"] for device in one["spec"].get("devices") or []]
        for one in node.server.slices()
    }
    assert by_driver == {DRIVER: [A_NPU], "npu.rebellions.ai": [B_NPU]}
    assert said(done, NPU) == ("Pending", "HandOver")
    node.free("trainer")
    done = await node.rounds(1)
    assert [said(done, one) for one in (NPU, TWIN)] == [PUBLISHED_READY] * 2
    assert [one["spec"]["driver"] for one in node.server.slices()] == ["npu.rebellions.ai"]
    assert node.bench.touched() == set()


async def test_a_full_disk_keeps_new_devices_out_of_the_slices_and_withholds_others_all_the_same(
    node: PublisherBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.bench.order(order(mode="Container"), order(TWIN))
    await node.rounds(2)
    assert node.offered() == {A_NPU: (), B_VM: ()}
    node.bench.order(order(mode="Container"))
    node.seconds += ABSENCE_SECONDS
    await node.rounds()
    node.seconds += ABSENCE_SECONDS
    await node.rounds()
    assert node.offered() == {A_NPU: ()}

    def full(*_: object, **__: object) -> None:
        raise CheckpointError("No space left on device")

    node.bench.order(order(), order(TWIN))
    await node.bind()
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "write", full)
        done = await node.run()
        assert done.problem == "No space left on device"
        assert node.offered() == {A_NPU: ("handover=HandOver",)}
        await node.rounds()
        assert node.offered() == {}, "what it has become cannot be noted either"
    await node.rounds()
    assert node.offered() == {A_VM: (), B_VM: ()}


@pytest.mark.parametrize("keeps_taints", [True, False])
async def test_another_driver_name_waits_for_a_claim_that_the_slices_no_longer_tell_of(
    tmp_path: Path, keeps_taints: bool
) -> None:
    """A kubelet that starts wipes the slices; without taints what is withheld is in none."""
    async with publisher_bench(tmp_path / "host", npu(), npu(TWIN, 21), keeps_taints=keeps_taints) as node:
        await published(node)
        node.allocate("trainer", A_NPU)
        shape = shape_digest(entry(mode="Container"))
        held = prepared_claim({NPU: shape}, boot_id=node.bench.kernel.boot_id)
        node.prepare(replace(held, devices=(replace(held.devices[0], device=A_NPU),)))
        node.bench.order(*({**order(one, mode="Container"), "driverName": "npu.rebellions.ai"} for one in (NPU, TWIN)))
        await node.rounds()
        node.wipe()
        await node.restart()
        done = await node.rounds(1)
        assert node.offered() == {B_NPU: ()}
        assert said(done, NPU) == ("Pending", "HandOver")
        node.prepare()
        node.free("trainer")
        await node.rounds(1)
        assert node.offered() == {A_NPU: (), B_NPU: ()}


@pytest.mark.parametrize("why", ["no state", "another node", "not understood", "no node"])
async def test_orders_that_are_not_followed_change_nothing_and_slices_still_come_back(
    node: PublisherBench, why: str
) -> None:
    await published(node)
    before, offered = node.publication, node.offered()
    orders = node.bench.orders
    node.bench.order(order(), order(TWIN))
    changes = {
        "no state": {"spec": None},
        "another node": {"node_uid": OTHER_UID},
        "not understood": {"unreadable": "spec.devices: is a text"},
        "no node": {"node_uid": None},
    }
    node.bench.orders = replace(node.bench.orders, **changes[why])  # type: ignore[arg-type]
    node.node_uid = node.bench.orders.node_uid
    done = await node.look.run(node.orders(), active=True)
    assert done.held is not None
    assert node.offered() == offered
    assert done.devices == before.devices
    if why != "no node":
        node.wipe()
        await node.until(lambda: node.wakes)
        await node.look.run(node.orders(), active=True)
        assert node.offered() == offered
    node.node_uid = orders.node_uid
    node.bench.orders = orders
    done = await node.run()
    assert (done.held, done.problem) == (None, None)
    assert node.offered() == offered


async def test_slices_belong_to_the_node_of_now(node: PublisherBench) -> None:
    await published(node)
    node.bench.order(order(mode="Container"), order(TWIN, mode="Container"), node_uid=OTHER_UID)
    node.node_uid = OTHER_UID
    await node.run()
    assert [one["metadata"]["ownerReferences"][0]["uid"] for one in node.server.slices()] == [OTHER_UID]
    assert node.offered() == {A_NPU: (), B_NPU: ()}


async def test_a_held_device_stays_as_it_is_without_a_taint(node: PublisherBench) -> None:
    await published(node)
    node.allocate("trainer", A_NPU)
    node.bench.order(order(), order(TWIN, mode="Container"))
    await node.rounds(2)
    assert node.offered()[A_NPU] == ("handover=HandOver",)
    node.bench.order(order(intent="Hold"), order(TWIN, mode="Container"))
    done = await node.rounds(2)
    assert node.offered() == {A_NPU: (), B_NPU: ()}
    assert said(done, NPU) == PUBLISHED_READY


async def test_devices_that_are_given_back_leave_the_slices_and_the_memory(node: PublisherBench) -> None:
    await published(node, "Passthrough")
    node.allocate("vm", A_VM)
    node.bench.order(order(intent="Release"), order(TWIN, intent="Release"))
    done = await node.rounds()
    assert node.offered() == {A_VM: ("handover=HandOver",)}
    assert said(done, TWIN) == ("Released", "Withdrawn")
    assert said(done, NPU) == ("Pending", "HandOver")
    assert node.bench.driver() == "vfio-pci"
    assert node.bench.driver(TWIN) == "rebellions"
    node.free("vm")
    done = await node.rounds()
    assert said(done, NPU) == ("Released", "Withdrawn")
    assert node.listed() == []
    assert dict(node.store.checkpoint().published) == {}
    assert node.bench.driver() == "rebellions"


async def test_absence_is_no_order_until_it_lasts(node: PublisherBench) -> None:
    await published(node)
    node.bench.order(order(mode="Container"))
    await node.rounds(2)
    assert node.offered() == {A_NPU: (), B_NPU: ()}
    node.seconds += ABSENCE_SECONDS
    await node.rounds(2)
    assert node.offered() == {A_NPU: ()}
    assert node.listed() == [NPU]


async def test_t14_after_a_reboot_a_device_is_published_again_when_it_is_as_before(node: PublisherBench) -> None:
    """Claims of before hold nothing up: their pods wait for the device as it was."""
    await published(node, "Passthrough")
    node.allocate("vm", A_VM)
    node.bench.kernel.reboot()
    await node.restart()
    done = await node.run()
    assert node.offered() == {}, "it is on its own driver, and nobody is to get it as a VM's"
    assert said(done, NPU) == ("Pending", "WaitsForBinding")
    assert node.listed() == [], "the binder needs no token to make it as it was"
    done = await node.rounds(2)
    assert node.offered() == {A_VM: (), B_VM: ()}
    assert said(done, NPU) == PUBLISHED_READY


async def test_after_a_reboot_with_other_orders_a_claim_of_before_is_waited_for(node: PublisherBench) -> None:
    await published(node)
    node.allocate("trainer", A_NPU)
    node.bench.kernel.reboot()
    await node.restart()
    node.bench.order(order(), order(TWIN))
    done = await node.rounds()
    assert said(done, NPU) == ("Pending", "HandOver")
    assert node.bench.driver() == "rebellions"
    assert node.offered() == {B_VM: ()}
    node.free("trainer")
    await node.rounds()
    assert node.offered() == {A_VM: (), B_VM: ()}


async def test_t20_a_driver_that_somebody_changes_is_seen_and_made_good(node: PublisherBench) -> None:
    await published(node, "Passthrough")
    node.bench.move(NPU, "rebellions")
    await node.run()
    assert node.offered()[A_VM] == ("driver-changed=DriverChanged",)
    await node.rounds()
    assert node.offered() == {A_VM: (), B_VM: ()}
    assert node.bench.driver() == "vfio-pci"


async def test_a_user_outside_kubernetes_keeps_new_users_away(node: PublisherBench) -> None:
    await published(node)
    node.bench.kernel.open_device("/dev/rbln0", pid=4711, comm="solver")
    done = await node.run()
    assert node.offered() == {A_NPU: ("in-use=UsedOutside",), B_NPU: ()}
    assert said(done, NPU) == ("Blocked", "UsedOutside")
    assert "solver" in report(done, NPU).message
    node.bench.kernel.close_device("/dev/rbln0")
    await node.run()
    assert node.offered() == {A_NPU: (), B_NPU: ()}


async def test_a_pod_with_a_claim_is_no_user_outside(node: PublisherBench) -> None:
    await published(node)
    uid = "5f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c11"
    node.prepare(prepared_claim({NPU: "1" * 64}, boot_id=node.bench.kernel.boot_id, state=ClaimState.COMPLETED))
    node.bench.kernel.open_device("/dev/rbln0", pid=4711, comm="trainer", pod_uid=uid)
    await node.run()
    assert node.offered() == {A_NPU: (), B_NPU: ()}
    node.prepare()
    await node.run()
    assert node.offered()[A_NPU] == ("in-use=UsedOutside",), "it has no claim any more"


async def test_t16_a_lost_checkpoint_withholds_everything_and_hands_nothing_over(node: PublisherBench) -> None:
    await published(node)
    spoil_checkpoint(node.bench.kernel.host())
    node.bench.order(order(), order(TWIN, mode="Container"))
    await node.bind()
    done = await node.run()
    assert node.offered() == {A_NPU: ("handover=HandOver",), B_NPU: ("in-use=UsedOutside",)}
    assert said(done, TWIN) == ("Blocked", "UsedOutside")
    assert "is not known" in report(done, TWIN).message
    await node.rounds()
    assert node.bench.driver() == "rebellions"


async def test_t16_after_a_lost_checkpoint_and_a_reboot_a_claimed_device_is_bound_again(node: PublisherBench) -> None:
    """The claims were read from the API server, which does not know in what shape they have their devices."""
    await published(node, "Passthrough")
    lost = prepared_claim({NPU: UNKNOWN_SHAPE}, boot_id=node.bench.kernel.boot_id)
    write_checkpoint(node.bench.kernel.host(), lost, published=dict.fromkeys((NPU, TWIN), UNKNOWN_SHAPE))
    await node.run()
    node.bench.kernel.reboot()
    node.bench.restart()
    await node.restart()
    done = await node.rounds(2)
    assert [said(done, one) for one in (NPU, TWIN)] == [PUBLISHED_READY] * 2
    assert node.bench.driver() == "vfio-pci"


async def test_a_note_that_cannot_be_read_is_written_anew_with_all_that_pods_may_have(node: PublisherBench) -> None:
    await published(node)
    node.bench.kernel.host().local(PUBLISHED).write_text("{")
    done = await node.run()
    assert done.problem is None
    assert node.listed() == [NPU, TWIN]
    assert node.offered() == {A_NPU: (), B_NPU: ()}


async def test_what_another_plugin_serves_is_left_to_it(node: PublisherBench) -> None:
    node.others = {DRIVER: "another plugin has npufleet.io at /var/lib/kubelet/plugins/npufleet.io/other.sock"}
    node.bench.order(order(mode="Container"), {**order(TWIN, mode="Container"), "driverName": "npu.rebellions.ai"})
    done = await node.rounds(2)
    assert node.offered() == {B_NPU: ()}
    assert said(done, NPU) == ("Blocked", "OtherPlugin")
    assert "other.sock" in report(done, NPU).message


async def test_what_a_device_plugin_advertises_is_left_to_it(node: PublisherBench) -> None:
    """The kubelet of this node does not say which devices a plugin serves: then it is any of the vendor's, as it is."""
    node.advertised = {"rebellions.ai/ATOM": "2", "cpu": "8"}
    node.bench.order(order(), order(TWIN, mode="Container"))
    done = await node.rounds()
    assert node.offered() == {A_VM: ()}, "the resource says nothing of VMs"
    assert said(done, TWIN) == ("Blocked", "OtherPlugin")
    assert "rebellions.ai/ATOM" in report(done, TWIN).message
    node.advertised = {"rebellions.ai/ATOM": "0"}
    await node.run()
    assert node.offered() == {A_VM: (), B_NPU: ()}


async def test_the_standby_writes_nothing_and_knows_what_is_offered(node: PublisherBench) -> None:
    await published(node)
    node.writes()
    node.active = False
    await node.restart()
    node.bench.order(order(), order(TWIN))
    await node.bind()
    done = await node.run()
    assert node.writes() == []
    assert done.drivers == {DRIVER}
    assert node.look.offered(DRIVER, A_NPU) is not None
    node.active = True
    await node.rounds()
    assert node.offered() == {A_VM: (), B_VM: ()}


async def test_a_server_without_taints_is_offered_no_withheld_device(tmp_path: Path) -> None:
    async with publisher_bench(tmp_path / "host", npu(), npu(TWIN, 21), keeps_taints=False) as node:
        await published(node)
        node.allocate("trainer", A_NPU)
        node.bench.order(order(), order(TWIN, mode="Container"))
        done = await node.rounds()
        assert node.offered() == {B_NPU: ()}
        assert said(done, NPU) == ("Pending", "HandOver")
        assert node.look.offered(DRIVER, A_NPU) is not None, "who has it is prepared still"
        node.free("trainer")
        await node.rounds()
        assert node.offered() == {A_VM: (), B_NPU: ()}


async def test_a_device_that_the_server_refuses_costs_no_other_one(node: PublisherBench) -> None:
    node.server.refuses = lambda device: [("", "is not wanted")] if device["name"] == A_NPU else []
    await published(node)
    done = await node.run()
    assert node.offered() == {B_NPU: ()}
    assert said(done, NPU) == ("Blocked", "InvalidDevice")
    assert "is not wanted" in report(done, NPU).message


async def test_the_plan_of_a_look_writes_nothing(node: PublisherBench) -> None:
    await published(node)
    node.bench.order(order(), order(TWIN, mode="Container"))
    await node.bind()
    node.writes()
    situation, looked, seen = await node.look.plan(node.orders())
    assert {one: str(verdict.stage) for one, verdict in looked.verdicts.items()} == {NPU: "HandingOver", TWIN: "Kept"}
    assert situation.listed(NPU)
    assert not seen.barred and not any(seen.taints.values())
    assert node.writes() == []
    assert json.loads(node.bench.kernel.host().read(PUBLISHED))["addresses"] == [NPU, TWIN]
    assert NODE == "bench"


async def test_functions_are_published_for_their_card_and_handed_over_with_it(tmp_path: Path) -> None:
    async with publisher_bench(tmp_path / "host", sriov_card()) as node:
        node.bench.order(functions_of(2))
        done = await node.rounds(3)
        first, second = sorted(node.offered())
        assert node.offered() == {first: (), second: ()}
        assert (said(done, SRIOV_CARD), report(done, SRIOV_CARD).message) == (PUBLISHED_READY, "2 virtual functions")
        node.allocate("vm", second)
        node.bench.order(functions_of(1))
        done = await node.rounds(3)
        assert said(done, SRIOV_CARD) == ("Pending", "HandOver")
        assert "claim team/vm" in report(done, SRIOV_CARD).message
        assert node.offered() == {first: ("handover=HandOver",), second: ("handover=HandOver",)}
        node.free("vm")
        done = await node.rounds(4)
        assert (said(done, SRIOV_CARD), list(node.offered().values())) == (PUBLISHED_READY, [()])
