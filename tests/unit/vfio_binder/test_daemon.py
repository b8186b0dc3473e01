"""The daemon on an API server and a served simulated kernel: follows orders and events, reports, and ends cleanly."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from crds.models.node_state import NodeStateStatus
from node_host.evidence.checkpoint import UNKNOWN_SHAPE
from node_host.handover.entry import entry_digest
from node_host.handover.publisher_half import PublisherHalf
from runtime.process import Process
from runtime.resources import LEASES, NODES, NPU_NODE_STATES
from runtime.settings import Address, Settings
from simulated_node.description_files import parse_device
from simulated_node.kernel import SimulatedKernel
from simulated_node.server import SimulatedKernelServer
from tests.builders.binder import NODE_UID, NPU, TWIN, condition_of, host, npu, order, spec
from tests.builders.checkpoints import claim, write_checkpoint
from tests.builders.fake_api import FakeApi
from tests.builders.pod_resources import answering, pod_of
from tests.builders.waiting import until
from vfio_binder import daemon as daemon_module
from vfio_binder import service

NODE = "bench"
Object = dict[str, Any]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with SimulatedKernel(tmp_path / "root", host(npu(), npu(TWIN, 21))) as made, SimulatedKernelServer(made):
        yield made


def state_object(*entries: Object, node_uid: str = NODE_UID) -> Object:
    return {"metadata": {"name": NODE}, "spec": {"revision": "5d0f", "nodeUID": node_uid, "devices": list(entries)}}


class Cluster:
    """The API server with the node's objects, as a test sees and changes them."""

    def __init__(self, server: FakeApi) -> None:
        self.server = server
        server.objects.create(NODES, {"metadata": {"name": NODE, "uid": NODE_UID}})

    def create(self, *entries: Object, node_uid: str = NODE_UID) -> None:
        self.server.objects.create(NPU_NODE_STATES, state_object(*entries, node_uid=node_uid))

    def order(self, *entries: Object) -> None:
        self.server.objects.edit(NPU_NODE_STATES, NODE, spec=state_object(*entries)["spec"])

    @property
    def status(self) -> NodeStateStatus:
        return NodeStateStatus.model_validate(self.server.objects.get(NPU_NODE_STATES, NODE).get("status") or {})

    @property
    def generation(self) -> int:
        return int(self.server.objects.get(NPU_NODE_STATES, NODE)["metadata"]["generation"])

    def says(self, address: str, state: str, reason: str) -> bool:
        """Whether bindings say so for the present generation."""
        bindings = self.status.bindings
        return (
            bindings is not None
            and bindings.observed_generation == self.generation
            and any((one.address, one.state, one.reason) == (address, state, reason) for one in bindings.devices)
        )

    @property
    def status_writes(self) -> list[Object]:
        """Every status that was written, in order."""
        return [dict(request.body["status"]) for request in self.server.writes()]


@asynccontextmanager
async def daemon(kernel: SimulatedKernel, server: FakeApi, *, resync: float = 60.0) -> AsyncIterator[Process]:
    """The daemon in this process, until the block is left."""
    life = Process()
    settings = Settings(
        component="npufleet-vfio-binder",
        kubeconfig=server.kubeconfig(),
        listen=Address("127.0.0.1", 0),
        log_format="text",
        log_level="info",
        writes_per_second=1000,
        burst=1000,
        identity="test",
    )
    arguments = argparse.Namespace(host_root=kernel.root, node=NODE, resync_seconds=resync)
    work = asyncio.create_task(service.serve(life, settings, arguments))
    try:
        yield life
    finally:
        life.stop.set()
        await asyncio.wait_for(work, 20)
        await life._cancel_rest()
        assert life.failure is None


async def test_orders_are_followed_and_reported_and_a_restart_changes_nothing(kernel: SimulatedKernel) -> None:
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create(order())
        async with daemon(kernel, server):
            await until(lambda: cluster.says(NPU, "Ready", "Bound"))
            cluster.order(order(), order(TWIN))
            await until(lambda: cluster.says(TWIN, "Ready", "Bound"))
        assert kernel.host().read_link(f"/sys/bus/pci/devices/{NPU}/driver").endswith("vfio-pci")
        writes, api_writes = len(kernel.writes), len(server.writes())
        async with daemon(kernel, server):
            # A device that comes is what shows that the daemon is there and looking.
            await asyncio.to_thread(kernel.hot_add, _late())
            await until(lambda: "0000:2c:00.0" in _inventory(cluster))
        assert len(kernel.writes) == writes
        assert len(server.writes()) == api_writes + 1
        lease = server.objects.get(LEASES, f"npufleet-vfio-binder.{NODE}", "npufleet-system")
        assert lease["spec"]["holderIdentity"] == NODE
        assert lease["spec"]["leaseDurationSeconds"] == 900


async def test_the_first_status_is_the_inventory_alone(kernel: SimulatedKernel) -> None:
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create(order())
        async with daemon(kernel, server):
            await until(lambda: cluster.says(NPU, "Ready", "Bound"))
        first, last = cluster.status_writes[0], cluster.status_writes[-1]
        assert set(first) == {"inventory"}
        assert set(last) == {"inventory", "bindings"}
        assert [device["driver"] for device in first["inventory"]["devices"]] == ["rebellions", "rebellions"]
        assert [device["driver"] for device in last["inventory"]["devices"]] == ["vfio-pci", "rebellions"]


async def test_t20_a_device_that_somebody_else_rebinds_shows_at_once_not_at_the_next_resync(
    kernel: SimulatedKernel,
) -> None:
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create()
        async with daemon(kernel, server, resync=3600):
            await until(lambda: _inventory(cluster).get(TWIN) == "rebellions")
            kernel.load_module("vfio_pci")
            kernel.write(f"/sys/bus/pci/devices/{TWIN}/driver_override", b"vfio-pci")
            kernel.write("/sys/bus/pci/drivers/rebellions/unbind", TWIN.encode())
            await until(lambda: _inventory(cluster).get(TWIN, "?") is None)
            kernel.write("/sys/bus/pci/drivers_probe", TWIN.encode())
            await until(lambda: _inventory(cluster).get(TWIN) == "vfio-pci")
            await asyncio.to_thread(kernel.hot_remove, NPU)
            await until(lambda: NPU not in _inventory(cluster))


async def test_lost_events_cost_a_look_and_nothing_else(kernel: SimulatedKernel) -> None:
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create()
        async with daemon(kernel, server, resync=3600):
            await until(lambda: _inventory(cluster).get(TWIN) == "rebellions")
            await until(lambda: kernel.listeners == 1)
            kernel.lose_events()
            kernel.write("/sys/bus/pci/drivers/rebellions/unbind", TWIN.encode())
            await until(lambda: _inventory(cluster).get(TWIN, "?") is None)


async def test_a_reboot_of_the_host_under_the_daemon_binds_anew(kernel: SimulatedKernel) -> None:
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create(order())
        async with daemon(kernel, server, resync=3600):
            await until(lambda: cluster.says(NPU, "Ready", "Bound"))
            boot_id = kernel.reboot()
            await until(
                lambda: (
                    (bindings := cluster.status.bindings) is not None
                    and bindings.boot_id == boot_id
                    and cluster.says(NPU, "Ready", "Bound")
                )
            )


async def test_orders_that_are_deleted_or_for_another_node_write_nothing(kernel: SimulatedKernel) -> None:
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create(order())
        async with daemon(kernel, server, resync=1) as life:
            await until(lambda: cluster.says(NPU, "Ready", "Bound"))
            writes = len(kernel.writes)
            server.objects.delete(NPU_NODE_STATES, NODE)
            await until(lambda: server.objects.find(NPU_NODE_STATES, NODE) is None)
            cluster.create(order(intent="Release"), node_uid="another")
            await until(lambda: cluster.says(NPU, "Pending", "Held"))
            bindings = cluster.status.bindings
            assert bindings is not None
            assert condition_of(bindings)[:2] == ("Unknown", "OrdersHeld")
            assert len(kernel.writes) == writes
            assert not life.stop.is_set()


async def test_a_node_that_cannot_be_read_holds_and_goes_on_when_it_can(kernel: SimulatedKernel) -> None:
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create(order())
        fault = server.fail("GET", NODES, code=403, reason="Forbidden")
        async with daemon(kernel, server, resync=1):
            await until(lambda: cluster.says(NPU, "Pending", "Held"))
            assert kernel.writes == []
            server.heal(fault)
            await until(lambda: cluster.says(NPU, "Ready", "Bound"))


async def test_orders_that_cannot_be_understood_are_held_and_said_to_be_so(kernel: SimulatedKernel) -> None:
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create(order())
        async with daemon(kernel, server):
            await until(lambda: cluster.says(NPU, "Ready", "Bound"))
            writes = len(kernel.writes)
            cluster.order(order(intent="Release") | {"mode": "Teleport"})
            await until(lambda: cluster.says(NPU, "Pending", "Held"))
            bindings = cluster.status.bindings
            assert bindings is not None
            assert "spec.devices[0].mode: " in condition_of(bindings)[2]
            assert len(kernel.writes) == writes
            cluster.order(order(intent="Release"))
            await until(lambda: cluster.says(NPU, "Released", "Released"))


async def test_a_status_that_cannot_be_written_is_written_later_and_the_host_is_served_meanwhile(
    kernel: SimulatedKernel,
) -> None:
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create(order())
        fault = server.fail("PATCH", NPU_NODE_STATES, code=500)
        async with daemon(kernel, server, resync=1):
            await until(lambda: any(record.path.endswith("drivers_probe") for record in kernel.writes), seconds=30)
            server.heal(fault)
            await until(lambda: cluster.says(NPU, "Ready", "Bound"), seconds=30)


def start(kernel: SimulatedKernel, server: FakeApi) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vfio_binder.main", "--node", NODE, "--host-root", str(kernel.root)]
    command += ["--kubeconfig", str(server.kubeconfig()), "--listen", "127.0.0.1:0", "--log-format", "text"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_sigterm_ends_the_process_at_once_and_unbinds_nothing(kernel: SimulatedKernel) -> None:
    async def scenario() -> None:
        async with FakeApi() as server:
            cluster = Cluster(server)
            cluster.create(order())
            process = start(kernel, server)
            assert process.stdout is not None
            listening = json.loads(await asyncio.to_thread(process.stdout.readline))["listening"]
            await until(lambda: cluster.says(NPU, "Ready", "Bound"), seconds=60)
            await until(lambda: cluster.server.watching == 1)
            ready = await asyncio.to_thread(_fetch, f"http://{listening}/readyz")
            metrics = await asyncio.to_thread(_fetch, f"http://{listening}/metrics")
            assert json.loads(ready)["ok"] is True
            assert f'npufleet_device_state{{address="{NPU}",reason="Bound",state="Ready"}} 1.0' in metrics
            assert 'npufleet_sysfs_writes_total{daemon="vfio-binder",result="ok"} 3.0' in metrics
            writes = len(kernel.writes)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
            assert len(kernel.writes) == writes
            assert cluster.says(NPU, "Ready", "Bound")

    asyncio.run(scenario())


async def test_a_pass_that_hangs_in_the_kernel_does_not_keep_the_daemon_from_ending(
    kernel: SimulatedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node_host.rounds.FINISH_SECONDS", 0.2)
    block = kernel.block("/sys/bus/pci/drivers/rebellions/unbind")
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create(order())
        async with daemon(kernel, server):
            assert await asyncio.to_thread(block.wait_until_blocked)
        block.release()
        await until(lambda: not kernel.sleeping)
        async with daemon(kernel, server):
            await until(lambda: cluster.says(NPU, "Ready", "Bound"))
        assert cluster.status.bindings is not None
        assert cluster.status.bindings.devices[0].former_driver == "rebellions"


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def _inventory(cluster: Cluster) -> dict[str, str | None]:
    inventory = cluster.status.inventory
    return {} if inventory is None else {device.address: device.driver for device in inventory.devices}


def _late() -> Any:
    return parse_device(npu("0000:2c:00.0", 31))


async def test_a_token_is_acted_on_when_it_comes_and_so_is_a_device_that_its_user_lets_go(
    kernel: SimulatedKernel,
) -> None:
    publisher = PublisherHalf(kernel.host())
    publisher.write_published({NPU}, kernel.boot_id)
    kernel.open_device("/dev/rbln1", pid=77, comm="python3")
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create(order(), order(TWIN))
        async with daemon(kernel, server, resync=3600):
            await until(lambda: cluster.says(NPU, "Blocked", "Published") and cluster.says(TWIN, "Blocked", "InUse"))
            publisher.offer(NPU, kernel.boot_id, entry_digest(spec(order()).devices[0]))
            await until(lambda: cluster.says(NPU, "Ready", "Bound"))
            kernel.close_device("/dev/rbln1", pid=77)
            await until(lambda: cluster.says(TWIN, "Ready", "Bound"))


async def test_a_device_that_is_let_go_shows_long_before_the_next_resync(
    kernel: SimulatedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_module, "USERS_SECONDS", 0.05)
    await asyncio.to_thread(kernel.open_device, "/dev/rbln0", pid=77, comm="train", pod_uid=NODE_UID)
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create(order(intent="Hold"))
        async with daemon(kernel, server, resync=600):
            await until(lambda: cluster.says(NPU, "Pending", "Held") and _users(cluster, NPU) == ["train"])
            await asyncio.to_thread(kernel.close_device, "/dev/rbln0", pid=77)
            await until(lambda: _users(cluster, NPU) == [])
            assert cluster.says(NPU, "Pending", "Held")


def _users(cluster: Cluster, address: str) -> list[str]:
    inventory = cluster.status.inventory
    assert inventory is not None
    return [user.name for device in inventory.devices if device.address == address for user in device.used_by]


async def test_a_claim_that_comes_to_a_device_shows_within_seconds_and_a_pod_without_one_at_the_resync(
    kernel: SimulatedKernel,
) -> None:
    """The publisher records a claim in a file that is looked at often; of a device plugin's pods nobody tells."""
    async with FakeApi() as server:
        cluster = Cluster(server)
        cluster.create(order())
        async with daemon(kernel, server, resync=3600):
            await until(lambda: cluster.says(NPU, "Ready", "Bound"))
            write_checkpoint(kernel.host(), claim({NPU: UNKNOWN_SHAPE}, boot_id=kernel.boot_id))
            await until(lambda: _users(cluster, NPU) == ["claim team-a/vm-npu"])
            write_checkpoint(kernel.host())
            await until(lambda: _users(cluster, NPU) == [])
        with answering(kernel.host()) as kubelet:
            async with daemon(kernel, server, resync=1):
                await until(lambda: kubelet.calls > 0)
                kubelet.pods = [pod_of("trainer", plugins={"rebellions.ai/ATOM": ["rbln1"]})]
                await until(lambda: _users(cluster, TWIN) == ["pod team-a/trainer"])
