"""Prepare and Unprepare: what the kubelet is answered, and what it is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from crds.device_names import NamedKind
from dra_publisher.kubelet.service import ClaimRef
from node_host.handover.entry import entry_digest, shape_digest
from node_host.handover.publisher_half import PublisherHalf
from runtime.errors import Unreachable
from simulated_node.in_process import InProcessHost
from simulated_node.kernel import SimulatedKernel
from tests.builders.claims_world import (
    CARD,
    COMPANION,
    DRIVER,
    FIRST,
    NODE,
    OTHER_DRIVER,
    SECOND,
    World,
    offer,
    result,
    vfio,
)

NPU_NAME = "npu-0000-2b-00-0"


class WithIOMMUFD(InProcessHost):
    """The host with the module iommufd, which makes /dev/iommu."""

    def exists(self, path: str) -> bool:
        return path == "/dev/iommu" or super().exists(path)


async def test_a_vfio_device_is_answered_with_its_group_and_the_container_device(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    (device,) = await world.prepared(ref)
    assert (device.requests, device.pool, device.device, device.share_id) == (("npu",), NODE, vfio(FIRST), None)
    assert world.nodes_of([device]) == ["/dev/vfio/20", "/dev/vfio/vfio"]
    edits = world.cdi_devices()[device.cdi_ids[0]]
    assert edits["env"] == ["NPUFLEET_DEVICE_VFIO_0000_21_00_0=0000:21:00.0"]
    assert device.cdi_ids[0].startswith(f"k8s.npufleet.io/vfio={ref.uid}-")


async def test_a_container_device_is_answered_with_its_nodes_and_those_of_its_driver(world: World) -> None:
    ref = world.claim("pod", NPU_NAME)
    devices = await world.prepared(ref)
    assert world.nodes_of(devices) == ["/dev/rbln4", "/dev/rsd0"]
    assert devices[0].cdi_ids[0].startswith(f"k8s.npufleet.io/npu={ref.uid}-")


async def test_two_devices_of_a_group_list_its_node_once_and_each_alone_has_it(world: World) -> None:
    ref = world.claim("vm", result(vfio(CARD), "one"), result(vfio(COMPANION), "two"))
    one, two = await world.prepared(ref)
    nodes = [node["path"] for edits in world.cdi_devices().values() for node in edits.get("deviceNodes", ())]
    assert sorted(nodes) == ["/dev/vfio/24", "/dev/vfio/vfio"]
    for device in (one, two):
        assert world.nodes_of([device]) == ["/dev/vfio/24", "/dev/vfio/vfio"]


async def test_the_metadata_tells_kubevirt_the_pci_address(world: World) -> None:
    ref = world.claim("vm", result(vfio(FIRST), "npu/large"))
    (device,) = await world.prepared(ref)
    assert device.requests == ("npu",)
    mounts = [mount for name in device.cdi_ids for mount in world.cdi_devices()[name].get("mounts", ())]
    assert [mount["containerPath"] for mount in mounts] == [
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/vm/npu/npufleet.io-metadata.json"
    ]
    lines = [json.loads(line) for line in world.host.read(mounts[0]["hostPath"]).splitlines()]
    assert [line["apiVersion"] for line in lines] == [
        "metadata.resource.k8s.io/v1beta1",
        "metadata.resource.k8s.io/v1alpha1",
    ]
    assert lines[0]["metadata"] == {"name": "vm", "namespace": "team-a", "uid": ref.uid, "generation": 1}
    assert lines[0]["requests"] == [
        {
            "name": "npu/large",
            "devices": [
                {
                    "driver": DRIVER,
                    "pool": NODE,
                    "name": vfio(FIRST),
                    "attributes": {"resource.kubernetes.io/pciBusID": {"string": FIRST}},
                }
            ],
        }
    ]


async def test_the_metadata_of_a_template_claim_is_where_its_pod_looks(world: World) -> None:
    ref = world.claim("vm-npu-x7k", vfio(FIRST), annotations={"resource.kubernetes.io/pod-claim-name": "npu"})
    (device,) = await world.prepared(ref)
    mounts = world.cdi_devices()[device.cdi_ids[-1]]["mounts"]
    assert mounts[0]["containerPath"].endswith("/resourceclaimtemplates/npu/npu/npufleet.io-metadata.json")


async def test_claims_with_the_longest_names_are_prepared_and_taken_back(world: World) -> None:
    """Together with the namespace they are longer than the name of a file may be."""
    refs = [
        world.claim(f"{'c' * 252}{end}", vfio(one), namespace="n" * 63) for end, one in (("a", FIRST), ("b", SECOND))
    ]
    for ref in refs:
        await world.prepared(ref)
        mounts = [
            edits["mounts"][0] for name, edits in world.cdi_devices().items() if "mounts" in edits and ref.uid in name
        ]
        (path,) = [world.host.local(mount["hostPath"]) for mount in mounts]
        assert json.loads(path.read_bytes().splitlines()[0])["metadata"]["name"] == ref.name
        assert mounts[0]["containerPath"].split("/")[-3] == ref.name
    assert await world.unprepare(*refs) == {ref.uid: None for ref in refs}
    assert world.files() == [] and not world.record().claims


async def test_the_metadata_of_a_request_is_given_once_with_its_first_device(world: World) -> None:
    ref = world.claim("vm", result(vfio(FIRST), "pair"), result(vfio(SECOND), "pair"))
    first, second = await world.prepared(ref)
    assert f"npufleet.io/metadata={ref.uid}_pair" in first.cdi_ids
    assert not any("metadata" in name for name in second.cdi_ids)
    (path,) = [path for path in world.files() if path.endswith("metadata.json")]
    described = json.loads(Path(path).read_bytes().splitlines()[0])["requests"][0]["devices"]
    assert [one["name"] for one in described] == [vfio(FIRST), vfio(SECOND)]


async def test_iommufd_and_legacy_are_given_as_the_policy_says(world: World, kernel: SimulatedKernel) -> None:
    world.offer(offer(FIRST, passthrough={"iommu": "Legacy"}), offer(SECOND, passthrough={"iommu": "IOMMUFD"}))
    legacy, iommufd = world.claim("a", vfio(FIRST)), world.claim("b", vfio(SECOND))
    assert world.nodes_of(await world.prepared(legacy)) == ["/dev/vfio/20", "/dev/vfio/vfio"]
    assert "/dev/iommu does not exist; waits for the kernel to make it" in await world.refused(iommufd)
    world.restart(host=WithIOMMUFD(kernel))
    assert world.nodes_of(await world.prepared(iommufd)) == ["/dev/iommu", "/dev/vfio/devices/vfio1"]
    both = world.claim("c", vfio(CARD))
    assert world.nodes_of(await world.prepared(both)) == [
        "/dev/iommu",
        "/dev/vfio/24",
        "/dev/vfio/devices/vfio2",
        "/dev/vfio/vfio",
    ]


async def test_a_claim_chooses_the_interface_where_the_policy_says_auto(world: World) -> None:
    def config(iommu: str, source: str = "FromClaim", driver: str = DRIVER) -> dict[str, object]:
        parameters = {"apiVersion": "npufleet.io/v1alpha1", "kind": "VFIODeviceConfig", "iommu": iommu}
        return {"source": source, "requests": ["npu"], "opaque": {"driver": driver, "parameters": parameters}}

    ref = world.claim("a", vfio(FIRST), config=[config("Legacy"), config("IOMMUFD", "FromClass")])
    assert world.nodes_of(await world.prepared(ref)) == ["/dev/vfio/20", "/dev/vfio/vfio"]
    ref = world.claim("b", vfio(SECOND), config=[config("Legacy"), config("IOMMUFD")])
    assert "/dev/iommu does not exist" in await world.refused(ref)
    ref = world.claim("c", vfio(SECOND), config=[config("nonsense", driver="gpu.example.com")])
    assert isinstance((await world.prepare(ref))[ref.uid], tuple)
    ref = world.claim("d", NPU_NAME, config=[config("Legacy")])
    assert "VFIODeviceConfig is for VFIO devices" in await world.refused(ref)
    ref = world.claim("e", vfio(CARD), config=[config("legacy")])
    assert "did you mean Legacy?" in await world.refused(ref)


async def test_foreign_results_are_ignored_and_those_of_both_own_names_kept_apart(world: World) -> None:
    world.offer(offer(SECOND, driver=OTHER_DRIVER))
    ref = world.claim(
        "mixed",
        {"driver": "gpu.example.com", "pool": 7, "device": None},
        result(vfio(FIRST), "one"),
        result(vfio(SECOND), "two", driver=OTHER_DRIVER),
    )
    assert [device.device for device in await world.prepared(ref)] == [vfio(FIRST)]
    assert [device.device for device in await world.prepared(ref, OTHER_DRIVER)] == [vfio(SECOND)]
    assert world.ledger.drivers() == frozenset({DRIVER, OTHER_DRIVER})
    assert await world.unprepare(ref) == {ref.uid: None}
    assert world.ledger.drivers() == frozenset({OTHER_DRIVER})
    assert world.holders(SECOND) == ["claim team-a/mixed"]
    assert await world.unprepare(ref, driver=OTHER_DRIVER) == {ref.uid: None}
    assert world.files() == [] and world.ledger.drivers() == frozenset()


async def test_one_bad_claim_costs_the_others_of_the_call_nothing(world: World) -> None:
    good, gone = world.claim("good", vfio(FIRST)), ClaimRef("team-a", "gone", "0b0c")
    unknown, empty = world.claim("unknown", "vfio-0000-99-00-0"), world.claim("empty")
    hostile = ClaimRef("team-a", "x", "../../etc")
    found = await world.prepare(good, gone, unknown, empty, hostile, hostile)
    assert isinstance(found.pop(good.uid), tuple)
    texts = {uid: str(text) for uid, text in found.items()}
    assert "does not exist" in texts[gone.uid]
    assert "vfio-0000-99-00-0 is not offered by this node" in texts[unknown.uid]
    assert "nothing is allocated to it" in texts[empty.uid]
    assert "is no UID" in texts[hostile.uid]
    assert set(world.record().claims) == {good.uid}


async def test_an_api_server_that_fails_is_an_error_of_each_claim_and_of_no_other_call(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))

    def fault(when: str, verb: str) -> None:
        raise Unreachable(0, "", "connection refused")

    world.api.fault = fault
    assert "cannot be read: connection refused" in await world.refused(ref)
    assert await world.unprepare(ref) == {ref.uid: None}
    world.api.fault = lambda when, verb: None
    assert await world.prepared(ref)


async def test_t17_a_second_claim_is_refused_a_prepared_device_and_told_whose_it_is(world: World) -> None:
    first, second = world.claim("first", vfio(FIRST)), world.claim("second", vfio(FIRST))
    await world.prepared(first)
    assert f"is prepared for claim team-a/first (UID {first.uid})" in await world.refused(second)
    assert world.holders(FIRST) == ["claim team-a/first"]
    await world.unprepare(first)
    assert await world.prepared(second)


async def test_t17_of_two_claims_in_one_call_only_the_first_gets_the_device(world: World) -> None:
    first, second = world.claim("first", vfio(FIRST)), world.claim("second", vfio(FIRST))
    found = await world.prepare(first, second)
    assert isinstance(found[first.uid], tuple)
    assert "is prepared for claim team-a/first" in str(found[second.uid])


async def test_t17_the_same_device_under_another_driver_name_is_the_same_device(world: World) -> None:
    first = world.claim("first", vfio(FIRST))
    await world.prepared(first)
    world.offer(offer(FIRST, driver=OTHER_DRIVER))
    second = world.claim("second", result(vfio(FIRST), driver=OTHER_DRIVER))
    assert "is prepared for claim team-a/first" in await world.refused(second, OTHER_DRIVER)


async def test_t17_access_for_administration_takes_nothing_from_anybody(world: World) -> None:
    first = world.claim("first", vfio(FIRST))
    admin = world.claim("admin", result(vfio(FIRST), adminAccess=True))
    await world.prepared(first)
    assert await world.prepared(admin)
    await world.unprepare(first)
    second = world.claim("second", vfio(FIRST))
    assert await world.prepared(second)


async def test_t17_shares_fit_beside_each_other_up_to_the_capacity(world: World) -> None:
    world.offer(offer(FIRST, capacity={"memory": "16Gi"}))
    shares = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(3)]

    def share(name: str, number: int, memory: str) -> ClaimRef:
        return world.claim(name, result(vfio(FIRST), shareID=shares[number], consumedCapacity={"memory": memory}))

    (device,) = await world.prepared(share("a", 0, "8Gi"))
    assert device.share_id == shares[0]
    assert "is prepared for claim team-a/a" in await world.refused(share("same", 0, "1Gi"))
    assert await world.prepared(share("b", 1, "8Gi"))
    assert "has memory 16Gi" in await world.refused(share("c", 2, "1Gi"))
    assert "is prepared for claim" in await world.refused(world.claim("whole", vfio(FIRST)))


async def test_t18_a_claim_of_another_uid_is_refused(world: World) -> None:
    old = world.claim("vm", vfio(FIRST))
    world.delete(old)
    new = world.claim("vm", vfio(FIRST))
    assert f"its UID is '{new.uid}' now: it was deleted and made anew" in await world.refused(old)
    assert await world.prepared(new)


async def test_t18_a_prepare_that_comes_late_does_not_bring_back_what_was_taken_back(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    world.api.gate = asyncio.Event()
    late = asyncio.ensure_future(world.prepare(ref))
    await world.api.reading.wait()
    assert await world.unprepare(ref) == {ref.uid: None}
    world.delete(ref)
    world.api.gate.set()
    assert "was taken back while this call was waiting" in str((await late)[ref.uid])
    assert world.record().claims == {} and world.files() == []


async def test_a_claim_that_got_other_devices_waits_until_the_first_are_taken_back(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    world.allocate(ref, vfio(SECOND))
    assert f"was prepared with {vfio(FIRST)} before" in await world.refused(ref)
    await world.unprepare(ref)
    before = world.files()
    (device,) = await world.prepared(ref)
    assert device.device == vfio(SECOND) and before == []


async def test_names_in_cdi_never_mean_another_thing(world: World) -> None:
    ref = world.claim("vm", result(vfio(CARD), "one"), result(vfio(COMPANION), "two"))
    first = await _given(world, ref)
    await world.unprepare(ref)
    world.allocate(ref, result(vfio(CARD), "one"), result(vfio(FIRST), "two"))
    second = await _given(world, ref)
    vfio_names = {name for name in first if "/vfio=" in name}
    assert vfio_names and not vfio_names & set(second)


async def _given(world: World, ref: ClaimRef) -> dict[str, object]:
    devices = await world.prepared(ref)
    there = world.cdi_devices()
    return {name: there[name] for device in devices for name in device.cdi_ids}


async def test_a_device_that_is_being_handed_over_is_refused_until_that_is_over(world: World) -> None:
    half = PublisherHalf(world.host)
    ref = world.claim("vm", vfio(FIRST))
    entry = offer(FIRST).entry
    half.offer(FIRST, world.boot_id, entry_digest(entry))
    assert "is being handed over for a change" in await world.refused(ref)
    assert world.record().claims == {}
    assert half.withdraw(FIRST)
    assert await world.prepared(ref)


async def test_whoever_hands_over_keeps_claims_from_being_prepared_meanwhile(world: World) -> None:
    half = PublisherHalf(world.host)
    ref = world.claim("vm", vfio(FIRST))
    async with world.claims.serialized():
        call = asyncio.ensure_future(world.prepare(ref))
        for _ in range(50):
            await asyncio.sleep(0)
        assert world.holders(FIRST) == [] and not call.done()
        half.offer(FIRST, world.boot_id, entry_digest(offer(FIRST).entry))
    assert "is being handed over" in str((await call)[ref.uid])


async def test_the_record_says_the_shape_that_was_ordered(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    (device,) = world.record().claims[ref.uid].devices
    assert device.shape == shape_digest(offer(FIRST).entry)
    assert (device.address, device.nodes) == (FIRST, ("/dev/vfio/20", "/dev/vfio/vfio"))


async def test_another_device_at_the_address_is_refused(world: World) -> None:
    strange = offer(FIRST, identity={"vendor": "10de", "device": "26b9"})
    world.offer(strange)
    assert "is a device 1eff:1250, not the 10de:26b9 that was ordered" in await world.refused(
        world.claim("vm", vfio(FIRST))
    )


async def test_a_container_device_on_a_vfio_driver_is_refused(world: World) -> None:
    world.offer(offer(FIRST, NamedKind.NPU))
    text = await world.refused(world.claim("pod", "npu-0000-21-00-0"))
    assert "is on vfio-pci, not on its vendor's driver" in text


async def test_a_full_disk_is_an_error_of_the_claim_and_leaves_it_to_the_next_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = world.claim("vm", vfio(FIRST))
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> int:
            raise OSError(28, "No space left on device")

        patch.setattr("node_host.whole_file.os.write", full)
        assert "No space left on device" in await world.refused(ref)
    assert await world.prepared(ref)
    with monkeypatch.context() as patch:
        patch.setattr("node_host.whole_file.os.unlink", full)
        text = (await world.unprepare(ref))[ref.uid]
        assert text is not None and "No space left on device" in text
    assert world.holders(FIRST) == ["claim team-a/vm"]
    assert await world.unprepare(ref) == {ref.uid: None}


async def test_whoever_waits_for_claims_to_go_is_told(world: World) -> None:
    ref = world.claim("vm", vfio(FIRST))
    await world.prepared(ref)
    assert world.changes == 0, "nobody waits for a claim to come"
    await world.unprepare(ref)
    assert world.changes == 1
    await world.prepared(ref)
    world.delete(ref)
    for _ in range(2):
        await world.claims.collector.round()
        world.now += 61
    assert world.changes == 2
