"""The daemon before an API server, a kubelet and a served simulated kernel: all parts wired as in the DaemonSet."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from crds.models.node_state import DaemonReport, NodeStateStatus
from dra_publisher import service
from dra_publisher.kubelet.service import ClaimRef
from node_host.handover.entry import entry_digest
from node_host.handover.publisher_half import PublisherHalf
from runtime.process import Process
from runtime.resources import EVENTS, LEASES, NODES, NPU_NODE_STATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from runtime.settings import Address, Settings
from simulated_node.kernel import SimulatedKernel
from simulated_node.server import SimulatedKernelServer
from tests.builders.binder import NODE_UID, NPU, TWIN, condition_of, host, npu, order, spec
from tests.builders.fake_kubelet import FakeKubelet
from tests.builders.slice_server import SliceServer
from tests.builders.waiting import until
from tests.builders.workloads import allocation, claim

NODE, DRIVER = "bench", "npufleet.io"
A_NPU, B_NPU = "npu-0000-23-00-0", "npu-0000-24-00-0"
Object = dict[str, Any]
CONTAINERS = (order(mode="Container"), order(TWIN, mode="Container"))


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with SimulatedKernel(tmp_path / "root", host(npu(), npu(TWIN, 21))) as made, SimulatedKernelServer(made):
        yield made


class Cluster:
    """The API server with the node's objects; the binder's word is given by the test."""

    def __init__(self, server: SliceServer, kernel: SimulatedKernel) -> None:
        self.server = server
        self.kernel = kernel
        server.objects.create(NODES, {"metadata": {"name": NODE, "uid": NODE_UID}})

    def order(self, *entries: Object, ready: bool = True) -> None:
        content = {"revision": "5d0f", "nodeUID": NODE_UID, "devices": list(entries)}
        if self.server.objects.find(NPU_NODE_STATES, NODE) is None:
            self.server.objects.create(NPU_NODE_STATES, {"metadata": {"name": NODE}, "spec": content})
        else:
            self.server.objects.edit(NPU_NODE_STATES, NODE, spec=content)
        if ready:
            self.bind(*entries)

    def bind(self, *entries: Object, state: str = "Ready", reason: str = "NativeDriver") -> None:
        """What the binder says of them."""
        found = self.server.objects.get(NPU_NODE_STATES, NODE)
        bindings = {
            "observedGeneration": found["metadata"]["generation"],
            "bootID": self.kernel.boot_id,
            "devices": [{"address": one["address"], "state": state, "reason": reason} for one in entries],
        }
        self.server.objects.edit(NPU_NODE_STATES, NODE, status={**(found.get("status") or {}), "bindings": bindings})

    def advertise(self, amount: str) -> None:
        """What the Node says of a device plugin's resource."""
        status = {"allocatable": {"cpu": "8", "rebellions.ai/ATOM": amount}}
        self.server.objects.edit(NODES, NODE, status=status)

    @property
    def publication(self) -> DaemonReport:
        status = self.server.objects.get(NPU_NODE_STATES, NODE).get("status") or {}
        return NodeStateStatus.model_validate(status).publication or DaemonReport()

    def says(self, address: str, state: str, reason: str) -> bool:
        return any((one.address, one.state, one.reason) == (address, state, reason) for one in self.publication.devices)

    def offered(self) -> dict[str, list[str]]:
        devices = [one for piece in self.server.slices() for one in piece["spec"].get("devices") or []]
        return {one["name"]: [taint["key"] for taint in one.get("taints") or []] for one in devices}

    def events(self) -> list[tuple[str, str]]:
        return [(one["type"], one["reason"]) for one in self.server.objects.items(EVENTS)]

    def allocate(self, name: str, device: str) -> ClaimRef:
        made = self.server.objects.create(RESOURCE_CLAIMS, claim(name, namespace="team"), "team")
        status = allocation([device], pool=NODE)
        self.server.objects.edit(RESOURCE_CLAIMS, name, "team", status=status)
        return ClaimRef("team", name, made["metadata"]["uid"])


@asynccontextmanager
async def daemon(
    kernel: SimulatedKernel, server: SliceServer, *, pod_uid: str | None = None, fails: str | None = None
) -> AsyncIterator[Process]:
    """The daemon in this process, until the block is left; ``fails`` is the word with which it is to end by itself."""
    life = Process()
    settings = Settings(
        component="npufleet-dra-publisher",
        kubeconfig=server.kubeconfig(),
        listen=Address("127.0.0.1", 0),
        log_format="text",
        log_level="info",
        writes_per_second=1000,
        burst=1000,
        identity="test",
    )
    arguments = argparse.Namespace(host_root=kernel.root, node=NODE, resync_seconds=60.0, pod_uid=pod_uid)
    work = asyncio.create_task(service.serve(life, settings, arguments))
    try:
        yield life
    finally:
        if fails is None:
            life.stop.set()
        await asyncio.wait_for(work, 20)
        await life._cancel_rest()
        assert (life.failure is None) is (fails is None), life.failure
        assert (fails or "") in (life.failure or "")


@asynccontextmanager
async def stage(kernel: SimulatedKernel) -> AsyncIterator[tuple[Cluster, FakeKubelet]]:
    async with SliceServer() as server, FakeKubelet(kernel.root) as kubelet:
        yield Cluster(server, kernel), kubelet


async def test_devices_are_published_prepared_and_reported_and_a_restart_writes_nothing(
    kernel: SimulatedKernel,
) -> None:
    async with stage(kernel) as (cluster, kubelet):
        cluster.order(*CONTAINERS)
        async with daemon(kernel, cluster.server):
            await until(lambda: cluster.says(TWIN, "Ready", "Published"))
            await until(lambda: condition_of(cluster.publication, "Registered")[0] == "True")  # type: ignore[arg-type]
            assert cluster.offered() == {A_NPU: [], B_NPU: []}
            trainer = cluster.allocate("trainer", A_NPU)
            await kubelet.registered(DRIVER)
            answer = await kubelet.prepare(DRIVER, trainer)
            assert A_NPU in str(answer[trainer.uid])
            await until(lambda: ("Normal", "DevicePublished") in cluster.events())
        lease = cluster.server.objects.get(LEASES, f"npufleet-dra-publisher.{NODE}", "npufleet-system")
        assert lease["spec"]["holderIdentity"] == NODE
        before = len(cluster.server.writes())
        async with daemon(kernel, cluster.server):
            await kubelet.registered(DRIVER)
            again = await kubelet.prepare(DRIVER, trainer)
            assert again == answer
        assert [one.resource.plural for one in cluster.server.writes()[before:]] == []


async def test_one_that_starts_without_the_api_server_takes_claims_back(kernel: SimulatedKernel) -> None:
    async with stage(kernel) as (cluster, kubelet):
        cluster.order(*CONTAINERS)
        async with daemon(kernel, cluster.server):
            await until(lambda: cluster.says(TWIN, "Ready", "Published"))
            trainer = cluster.allocate("trainer", A_NPU)
            await kubelet.registered(DRIVER)
            await kubelet.prepare(DRIVER, trainer)
        await kubelet.gone(DRIVER)
        faults = [cluster.server.fail("LIST", one) for one in (RESOURCE_SLICES, NPU_NODE_STATES, RESOURCE_CLAIMS)]
        async with daemon(kernel, cluster.server):
            await kubelet.registered(DRIVER)
            assert await kubelet.unprepare(DRIVER, trainer) == {trainer.uid: ""}
            for fault in faults:
                cluster.server.heal(fault)
            await until(lambda: cluster.says(TWIN, "Ready", "Published"))
        assert cluster.offered() == {A_NPU: [], B_NPU: []}


async def test_a_device_whose_orders_change_is_handed_over_when_its_claim_is_taken_back(
    kernel: SimulatedKernel,
) -> None:
    async with stage(kernel) as (cluster, kubelet):
        cluster.order(*CONTAINERS)
        async with daemon(kernel, cluster.server):
            await until(lambda: cluster.says(NPU, "Ready", "Published"))
            trainer = cluster.allocate("trainer", A_NPU)
            await kubelet.registered(DRIVER)
            await kubelet.prepare(DRIVER, trainer)
            cluster.order(order(), CONTAINERS[1], ready=False)
            cluster.bind(order(), state="Blocked", reason="Published")
            await until(lambda: cluster.says(NPU, "Pending", "HandOver"))
            assert cluster.offered()[A_NPU] == ["npufleet.io/handover"]
            half = PublisherHalf(kernel.host())
            assert half.prepare_refused(NPU) is None
            cluster.server.objects.edit(RESOURCE_CLAIMS, "trainer", "team", status={})
            assert await kubelet.unprepare(DRIVER, trainer) == {trainer.uid: ""}
            await until(lambda: cluster.says(NPU, "Pending", "HandedOver"))
            assert half.tokens(NPU).offered[NPU].entry == entry_digest(spec(order()).devices[0])
            late = cluster.allocate("late", A_NPU)
            refused = (await kubelet.prepare(DRIVER, late))[late.uid]
            assert "handed over" in str(refused)


async def test_what_a_device_plugin_advertises_is_withdrawn_and_comes_back_when_the_node_says_so(
    kernel: SimulatedKernel,
) -> None:
    """Long before the next slow look, and before the Node would be read again."""
    async with stage(kernel) as (cluster, _):
        cluster.order(*CONTAINERS)
        async with daemon(kernel, cluster.server):
            await until(lambda: cluster.says(NPU, "Ready", "Published"))
            for _ in range(2):
                cluster.advertise("2")
                await until(lambda: cluster.says(NPU, "Blocked", "OtherPlugin") and cluster.offered() == {})
                assert any("rebellions.ai/ATOM" in one.message for one in cluster.publication.devices)
                cluster.advertise("0")
                await until(lambda: cluster.says(NPU, "Ready", "Published"))
                assert cluster.offered() == {A_NPU: [], B_NPU: []}


async def test_a_node_that_may_not_be_followed_is_read_at_the_start_all_the_same(kernel: SimulatedKernel) -> None:
    async with stage(kernel) as (cluster, _):
        cluster.order(*CONTAINERS)
        cluster.advertise("2")
        cluster.server.fail("LIST", NODES, code=403, reason="Forbidden")
        async with daemon(kernel, cluster.server):
            await until(lambda: cluster.says(NPU, "Blocked", "OtherPlugin"))


async def test_t19_slices_that_are_wiped_come_back(kernel: SimulatedKernel) -> None:
    async with stage(kernel) as (cluster, _):
        cluster.order(*CONTAINERS)
        async with daemon(kernel, cluster.server):
            await until(lambda: cluster.says(TWIN, "Ready", "Published"))
            for one in cluster.server.slices():
                cluster.server.objects.delete(RESOURCE_SLICES, one["metadata"]["name"])
            await until(lambda: set(cluster.offered()) == {A_NPU, B_NPU})


async def test_of_two_publishers_one_publishes_and_the_other_takes_over(kernel: SimulatedKernel) -> None:
    async with stage(kernel) as (cluster, kubelet):
        cluster.order(*CONTAINERS)
        async with daemon(kernel, cluster.server, pod_uid="old"):
            await until(lambda: cluster.says(TWIN, "Ready", "Published"))
            async with daemon(kernel, cluster.server, pod_uid="new") as new:
                await until(lambda: len(list((kernel.root / "var/lib/kubelet/plugins_registry").iterdir())) == 2)
                cluster.order(CONTAINERS[0], order(TWIN, mode="Container", intent="Hold"))
                await until(
                    lambda: (
                        cluster.publication.observed_generation
                        == cluster.server.objects.get(NPU_NODE_STATES, NODE)["metadata"]["generation"]
                    )
                )
                assert not new.stop.is_set()
        await kubelet.gone(DRIVER)


async def test_it_ends_when_the_host_is_booted_under_it(kernel: SimulatedKernel) -> None:
    async with stage(kernel) as (cluster, _):
        cluster.order(*CONTAINERS)
        async with daemon(kernel, cluster.server, fails="booted under this process") as life:
            await until(lambda: cluster.says(TWIN, "Ready", "Published"))
            await asyncio.to_thread(kernel.reboot)
            await asyncio.wait_for(life.stop.wait(), 20)


async def test_orders_that_go_leave_everything_as_it_is(kernel: SimulatedKernel) -> None:
    async with stage(kernel) as (cluster, _):
        cluster.order(*CONTAINERS)
        async with daemon(kernel, cluster.server):
            await until(lambda: cluster.says(TWIN, "Ready", "Published"))
            cluster.server.objects.delete(NPU_NODE_STATES, NODE)
            before = len(cluster.server.slice_writes())
            await asyncio.to_thread(kernel.write, f"/sys/bus/pci/devices/{NPU}/driver_override", b"\n")
            cluster.order(*CONTAINERS)
            await until(lambda: cluster.says(TWIN, "Ready", "Published"))
            assert len(cluster.server.slice_writes()) == before
            assert cluster.offered() == {A_NPU: [], B_NPU: []}


async def test_orders_that_cannot_be_understood_are_held_and_not_answered(kernel: SimulatedKernel) -> None:
    async with stage(kernel) as (cluster, _):
        cluster.order(*CONTAINERS)
        async with daemon(kernel, cluster.server):
            await until(lambda: cluster.says(TWIN, "Ready", "Published"))
            answered = cluster.publication.observed_generation
            content = {"revision": "5d0f", "nodeUID": NODE_UID, "devices": [{"address": "nonsense"}]}
            cluster.server.objects.edit(NPU_NODE_STATES, NODE, spec=content)
            await until(lambda: _ready(cluster)[:2] == ("Unknown", "OrdersHeld"))
            assert "cannot be understood" in _ready(cluster)[2]
            assert cluster.publication.observed_generation == answered
            assert cluster.offered() == {A_NPU: [], B_NPU: []}


def _ready(cluster: Cluster) -> tuple[str, str, str]:
    return condition_of(cluster.publication)  # type: ignore[arg-type]
