"""What the simulated kubelet does for pods with claims, and tells others of it, over the whole life of a pod."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from kubelet_api import pod_resources_v1_pb2 as pod_resources
from kubelet_api.pod_resources_v1_pb2_grpc import PodResourcesListerStub
from node_host.evidence.pod_resources import ClaimedDevice, PluginDevice, PodDevices, read_pod_resources
from node_host.host.kernel_files import KernelFiles
from runtime.api import Api
from runtime.resources import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from simulated_node.kubelet.dra.node_devices import NodeDevices
from simulated_node.kubelet.dra.paths import POD_RESOURCES, SocketPlace
from simulated_node.kubelet.kubelet import SimulatedKubelet
from simulated_node.kubelet.objects import NodeFacts
from tests.builders.dra_plugin import DRIVER, PlayedPlugin
from tests.builders.fake_api import FakeApi
from tests.builders.waiting import until

NODE = "node-atom"
OTHER = "npu.rebellions.ai"
AGAIN = 0.05


class Stage:
    """A node with a kubelet on a root of its own; ``start`` and ``stop`` are those of its kubelet."""

    def __init__(self, server: FakeApi, api: Api, root: Path) -> None:
        self.server = server
        self.root = root
        self.boot_id = "boot-1"
        self.slice_grace = 3600.0
        self._api = api
        self._uids = itertools.count(1)
        self._task: asyncio.Task[None] | None = None
        self.kubelet: SimulatedKubelet
        self.devices: NodeDevices

    def start(self) -> None:
        self.devices = NodeDevices(
            self._api, KernelFiles(self.root), NODE, lambda: self.boot_id, grace_seconds=self.slice_grace
        )
        self.kubelet = SimulatedKubelet(
            self._api, self._facts, self.devices, prepare_again_seconds=AGAIN, release_again_seconds=AGAIN
        )
        self._task = asyncio.create_task(self.kubelet.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def reboot(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self.kubelet.rebooted()

    def claim(self, name: str, *pods: str, drivers: tuple[str, ...] = (DRIVER,)) -> None:
        """An allocated claim, reserved for pods by their UIDs."""
        results = [
            {"driver": driver, "pool": NODE, "device": "vfio-0000-23-00-0", "request": "npu"} for driver in drivers
        ]
        status = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in pods],
        }
        body = {"metadata": {"name": name, "namespace": "default", "uid": f"uid-of-{name}"}, "status": status}
        self.server.objects.create(RESOURCE_CLAIMS, body, "default")

    def pod(self, name: str, *claims: str, uid: str | None = None, **more: Any) -> None:
        """A pod, bound to the node, whose container `main` uses all of its claims; its UID is its name."""
        spec = {
            "nodeName": NODE,
            "containers": [
                {"name": "main", "image": "x", "resources": {"claims": [{"name": claim} for claim in claims]}},
                {"name": "beside", "image": "x"},
            ],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
        }
        metadata = {"name": name, "namespace": "default", "uid": uid or name}
        body = {"metadata": metadata, "spec": spec | more.pop("spec", {}), "status": {}} | more
        self.server.objects.create(PODS, body, "default")

    def phase(self, name: str) -> str | None:
        pod = self.get(name)
        return None if pod is None else (pod.get("status") or {}).get("phase") or "Pending"

    def is_ready(self, name: str) -> bool:
        conditions = (self.get(name) or {}).get("status", {}).get("conditions") or []
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def get(self, name: str) -> dict[str, Any] | None:
        return next((item for item in self.server.objects.items(PODS) if item["metadata"]["name"] == name), None)

    def delete(self, name: str) -> None:
        """As a user does, with grace."""
        self.server.objects.delete(PODS, name, "default", graceful=True)

    def events(self) -> list[str]:
        return [item["note"] for item in self.server.objects.items(EVENTS)]

    def slices(self) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self.server.objects.items(RESOURCE_SLICES))

    def offer(self, name: str, *, driver: str = DRIVER, node: str = NODE) -> None:
        spec = {"driver": driver, "nodeName": node, "pool": {"name": node}}
        self.server.objects.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})

    def told(self) -> tuple[PodDevices, ...]:
        """What the kubelet tells of pods with devices."""
        found = read_pod_resources(KernelFiles(self.root))
        assert found.unreadable is None, found.unreadable
        return found.pods

    def _facts(self) -> NodeFacts:
        return NodeFacts(NODE, {}, "6.8.0", self.boot_id, "2026-11-30T12:00:00Z")


@asynccontextmanager
async def stage(root: Path, *, started: bool = True) -> AsyncIterator[Stage]:
    async with FakeApi() as server:
        connection = Api.connect(
            kubeconfig=server.kubeconfig(), component="simulated-kubelet", writes_per_second=1000, burst=1000
        )
        async with connection as api:
            played = Stage(server, api, root)
            if started:
                played.start()
            try:
                yield played
            finally:
                await played.stop()


async def test_a_pod_runs_once_its_claims_are_prepared_and_they_are_taken_back_after_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path) as plugin:
        played.claim("npu", "vm")
        played.pod("vm", "npu")
        await until(lambda: played.phase("vm") == "Running")
        assert plugin.prepared == ["default/npu"]
        claimed = frozenset({ClaimedDevice("default/npu", DRIVER, "node", "vfio-uid-of-npu")})
        told = await asyncio.to_thread(played.told)
        assert told == (PodDevices("default", "vm", claimed=claimed, uid="vm"),)
        played.delete("vm")
        await until(lambda: played.phase("vm") is None)
        assert plugin.unprepared == ["default/npu"]
        assert await asyncio.to_thread(played.told) == ()


async def test_a_pod_without_claims_asks_no_plugin(tmp_path: Path) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path) as plugin:
        played.pod("web")
        await until(lambda: played.phase("web") == "Running")
        played.delete("web")
        await until(lambda: played.phase("web") is None)
        assert (plugin.prepared, plugin.unprepared) == ([], [])


@pytest.mark.parametrize(
    ("pods", "drivers", "words"),
    [
        ((), (DRIVER,), "ResourceClaim default/npu is not reserved for pod default/vm (vm)"),
        (("vm",), (OTHER,), f"DRA driver {OTHER} is not registered"),
        (("vm",), (DRIVER, OTHER), f"DRA driver {OTHER} is not registered"),
    ],
)
async def test_a_pod_whose_claims_cannot_be_prepared_waits_and_says_why(
    tmp_path: Path, pods: tuple[str, ...], drivers: tuple[str, ...], words: str
) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path):
        played.claim("npu", *pods, drivers=drivers)
        played.pod("vm", "npu")
        await until(lambda: bool(played.events()), what="an Event")
        await until(lambda: any(words in event for event in played.events()), what=f"an Event with {words!r}")
        assert played.phase("vm") == "Pending"


async def test_a_claim_that_is_not_there_or_not_made_yet_is_waited_for(tmp_path: Path) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path):
        played.pod("vm", "npu")
        played.pod("made", spec={"resourceClaims": [{"name": "npu", "resourceClaimTemplateName": "template"}]})
        await until(lambda: len(played.events()) == 2, what="both are told of")
        assert sorted(played.events()) == [
            "Failed to prepare dynamic resources: ResourceClaim default/npu is not there",
            "Failed to prepare dynamic resources: the ResourceClaim of npu has not been made from its template yet",
        ]
        played.claim("npu", "vm")
        await until(lambda: played.phase("vm") == "Running")


async def test_what_a_plugin_refuses_is_told_with_its_words_and_asked_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path) as plugin:
        plugin.error = "the device is being handed over"
        played.claim("npu", "vm")
        played.pod("vm", "npu")
        await until(lambda: len(plugin.prepared) >= 3, what="it is asked again")
        text = (
            "Failed to prepare dynamic resources: NodePrepareResources failed for ResourceClaim default/npu: "
            "the device is being handed over"
        )
        assert played.events().count(text) == 1, "told once, however often it happens"
        assert played.phase("vm") == "Pending"
        plugin.error = ""
        await until(lambda: played.phase("vm") == "Running")


async def test_a_plugin_that_is_away_when_a_pod_ends_keeps_the_pod_until_it_is_back(tmp_path: Path) -> None:
    async with stage(tmp_path) as played:
        async with PlayedPlugin(tmp_path):
            played.claim("npu", "vm")
            played.pod("vm", "npu")
            await until(lambda: played.phase("vm") == "Running")
        played.delete("vm")
        await until(lambda: (played.get("vm") or {})["metadata"].get("deletionTimestamp") is not None)
        async with PlayedPlugin(tmp_path) as plugin:
            await until(lambda: played.phase("vm") is None)
            assert plugin.unprepared == ["default/npu"]


async def test_a_claim_of_two_pods_is_prepared_once_and_taken_back_after_the_last(tmp_path: Path) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path) as plugin:
        played.claim("npu", "one", "two")
        played.pod("one", "npu")
        played.pod("two", "npu")
        await until(lambda: played.phase("one") == played.phase("two") == "Running")
        assert plugin.prepared == ["default/npu"]
        played.delete("one")
        await until(lambda: played.phase("one") is None)
        assert plugin.unprepared == []
        played.delete("two")
        await until(lambda: played.phase("two") is None)
        assert plugin.unprepared == ["default/npu"]


async def test_a_claim_of_two_drivers_needs_both(tmp_path: Path) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path) as one, PlayedPlugin(tmp_path, OTHER) as other:
        other.error = "no"
        played.claim("npu", "vm", drivers=(DRIVER, OTHER))
        played.pod("vm", "npu")
        await until(lambda: len(other.prepared) >= 2)
        assert played.phase("vm") == "Pending"
        assert await asyncio.to_thread(played.told) == ()
        other.error = ""
        await until(lambda: played.phase("vm") == "Running")
        ((pod),) = await asyncio.to_thread(played.told)
        assert {device.driver for device in pod.claimed} == {DRIVER, OTHER}
        played.delete("vm")
        await until(lambda: played.phase("vm") is None)
        assert (one.unprepared, other.unprepared) == (["default/npu"], ["default/npu"])


async def test_a_pod_that_vanishes_or_is_replaced_gives_its_claims_back(tmp_path: Path) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path) as plugin:
        played.claim("npu", "first", "second")
        played.claim("other", "second")
        played.pod("vm", "npu", uid="first")
        await until(lambda: played.phase("vm") == "Running")
        played.server.objects.delete(PODS, "vm", "default")
        played.pod("vm", "other", uid="second")
        await until(lambda: plugin.unprepared == ["default/npu"])
        await until(lambda: played.phase("vm") == "Running")
        assert plugin.prepared == ["default/npu", "default/other"]


async def test_after_a_restart_of_the_kubelet_running_pods_are_left_alone_and_ended_ones_are_not(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path) as plugin:
        for name in ("stays", "goes"):
            played.claim(f"of-{name}", name)
            played.pod(name, f"of-{name}")
        await until(lambda: played.phase("stays") == played.phase("goes") == "Running")
        await played.stop()
        played.server.objects.delete(PODS, "goes", "default")
        plugin.prepared.clear()
        played.start()
        await until(lambda: plugin.unprepared == ["default/of-goes"])
        await until(lambda: played.devices.pod_resources is not None)
        assert [pod.name for pod in await asyncio.to_thread(played.told)] == ["stays"]
        assert plugin.prepared == []


async def test_after_a_reboot_all_claims_are_prepared_anew_and_pods_are_not_ready_until_then(tmp_path: Path) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path) as plugin:
        played.claim("npu", "vm")
        played.pod("vm", "npu")
        await until(lambda: played.is_ready("vm"))
        plugin.error = "the device is not on VFIO yet"
        played.reboot("boot-2")
        await until(lambda: len(plugin.prepared) >= 2)
        await until(lambda: not played.is_ready("vm"))
        assert [pod.name for pod in await asyncio.to_thread(played.told)] == ["vm"], "what it was given it remembers"
        assert plugin.told[1:] == [(True, "")], "it was registered anew"
        plugin.error = ""
        await until(lambda: played.is_ready("vm"))
        assert plugin.unprepared == []


async def test_a_machine_that_was_switched_off_prepares_anew_what_still_runs(tmp_path: Path) -> None:
    async with stage(tmp_path) as played:
        async with PlayedPlugin(tmp_path):
            played.claim("npu", "vm")
            played.pod("vm", "npu")
            await until(lambda: played.is_ready("vm"))
            await played.stop()
        played.boot_id = "boot-2"
        played.start()
        await until(lambda: not played.is_ready("vm"))
        async with PlayedPlugin(tmp_path) as plugin:
            await until(lambda: played.is_ready("vm"))
            assert plugin.prepared == ["default/npu"]


async def test_the_nodes_slices_go_when_the_kubelet_starts_and_no_others(tmp_path: Path) -> None:
    async with stage(tmp_path, started=False) as played:
        played.offer("ours")
        played.offer("another-driver", driver=OTHER)
        played.offer("another-node", node="node-rebel100")
        played.server.fail("DELETE", RESOURCE_SLICES, code=500, times=2)
        played.start()
        await until(lambda: played.slices() == ["another-node"])
        played.offer("ours")
        played.reboot("boot-2")
        await until(lambda: played.slices() == ["another-node"])


async def test_slices_of_a_driver_go_some_time_after_its_plugin_and_stay_when_it_comes_back(tmp_path: Path) -> None:
    async with stage(tmp_path, started=False) as played:
        played.slice_grace = 0.5
        played.start()
        async with PlayedPlugin(tmp_path):
            await until(lambda: played.devices._registry.is_connected(DRIVER))
            played.offer("ours")
            played.offer("another-driver", driver=OTHER)
        async with PlayedPlugin(tmp_path) as plugin:
            await until(lambda: bool(plugin.told) and played.devices._registry.is_connected(DRIVER))
            await asyncio.sleep(1.0)  # the time that is up if nobody took it back
            assert played.slices() == ["another-driver", "ours"]
        await until(lambda: played.slices() == ["another-driver"])


async def test_containers_are_told_what_they_use_and_plugin_devices_what_is_said(tmp_path: Path) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path):
        played.claim("npu", "vm")
        played.pod("vm", "npu")
        await until(lambda: played.phase("vm") == "Running")
        played.devices.pod_resources.plugin_devices = {"rebellions.ai/ATOM": ["rbln0", "rbln1"]}
        played.devices.pod_resources.given = {("default", "vm"): {"rebellions.ai/ATOM": ["rbln1"]}}
        with SocketPlace(played.root / POD_RESOURCES[1:] / "kubelet.sock") as place:
            async with grpc.aio.insecure_channel(place.address) as channel:
                stub = PodResourcesListerStub(channel)
                answer = await stub.List(pod_resources.ListPodResourcesRequest())
                served = await stub.GetAllocatableResources(pod_resources.AllocatableResourcesRequest())
                one = await stub.Get(pod_resources.GetPodResourcesRequest(pod_name="vm", pod_namespace="default"))
                with pytest.raises(grpc.aio.AioRpcError, match="pod ghost in namespace default not found"):
                    await stub.Get(pod_resources.GetPodResourcesRequest(pod_name="ghost", pod_namespace="default"))
        (pod,) = answer.pod_resources
        assert one.pod_resources == pod
        main, beside = pod.containers
        (claim,) = main.dynamic_resources
        assert claim.claim_resources[0].cdi_devices[0].name == f"k8s.{DRIVER}/claim=uid-of-npu"
        assert not beside.dynamic_resources
        assert [list(one.device_ids) for one in served.devices] == [["rbln0", "rbln1"]]
        (told,) = await asyncio.to_thread(played.told)
        assert told.plugin_devices == {PluginDevice("rebellions.ai/ATOM", "rbln1")}


async def test_the_claim_of_an_extended_resource_is_the_pods_as_well(tmp_path: Path) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path) as plugin:
        played.claim("vm-extended", "vm")
        mapping = {"containerName": "main", "resourceName": "npufleet.io/vfio", "requestName": "npu"}
        status = {"extendedResourceClaimStatus": {"resourceClaimName": "vm-extended", "requestMappings": [mapping]}}
        played.pod("vm", status=status)
        await until(lambda: played.phase("vm") == "Running")
        assert plugin.prepared == ["default/vm-extended"]
        (told,) = await asyncio.to_thread(played.told)
        assert {device.claim for device in told.claimed} == {"default/vm-extended"}


async def test_many_pods_at_once_are_prepared_each_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as played, PlayedPlugin(tmp_path) as plugin:
        began = datetime.now(UTC)
        for number in range(64):
            played.claim(f"claim-{number}", f"pod-{number}")
            played.pod(f"pod-{number}", f"claim-{number}")
        await until(lambda: all(played.phase(f"pod-{number}") == "Running" for number in range(64)), seconds=20)
        print(f"64 pods Running after {(datetime.now(UTC) - began).total_seconds():.2f} s")
        assert sorted(plugin.prepared) == sorted(f"default/claim-{number}" for number in range(64))
