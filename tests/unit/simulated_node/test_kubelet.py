"""The simulated kubelet against an API server: its node, its Lease, its pods, and what it survives."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from node_host.evidence.pod_resources import DIRECTORY, PluginDevice, PluginDevices, read_plugin_devices
from node_host.host import open_host
from runtime.api import Api
from runtime.resources import LEASES, NODES, PODS
from simulated_node.kubelet.kubelet import SimulatedKubelet
from simulated_node.kubelet.objects import NodeFacts
from tests.builders import hosts
from tests.builders.fake_api import FakeApi
from tests.builders.waiting import until

NODE = "node-atom"


class Stage:
    """A kubelet whose heartbeats come when the test says so."""

    def __init__(self, server: FakeApi) -> None:
        self.server = server
        self.boot_id = "boot-1"
        self.now = datetime(2026, 11, 30, 12, tzinfo=UTC)
        self.pauses: list[float] = []
        self._beats = asyncio.Semaphore(0)
        self.kubelet: SimulatedKubelet

    def facts(self) -> NodeFacts:
        return NodeFacts(NODE, {"npufleet.io/pool": "atom"}, "6.8.0", self.boot_id, "2026-11-30T12:00:00Z")

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self._beats.acquire()
        self.now += timedelta(seconds=seconds)

    def beat(self) -> None:
        self._beats.release()

    def node(self) -> dict[str, Any]:
        return self.server.objects.get(NODES, NODE, None)

    def registered(self) -> bool:
        return any(item["metadata"]["name"] == NODE for item in self.server.objects.items(NODES))

    def pod(self, name: str) -> dict[str, Any] | None:
        return next((item for item in self.server.objects.items(PODS) if item["metadata"]["name"] == name), None)

    def renewed(self) -> str:
        leases = [item for item in self.server.objects.items(LEASES) if item["metadata"]["name"] == NODE]
        return str(leases[0]["spec"]["renewTime"]) if leases else ""

    def schedule(self, name: str, **metadata: Any) -> None:
        spec = {"nodeName": NODE, "containers": [{"name": "main", "image": "x"}], "initContainers": [{"name": "init"}]}
        body = {"metadata": {"name": name, "namespace": "default", **metadata}, "spec": spec, "status": {}}
        self.server.objects.create(PODS, body, "default")


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    async with FakeApi() as server:
        connection = Api.connect(
            kubeconfig=server.kubeconfig(),
            component="simulated-kubelet",
            writes_per_second=1000,
            burst=1000,
            timeout_seconds=0.5,
        )
        async with connection as api:
            played = Stage(server)
            played.kubelet = SimulatedKubelet(api, played.facts, now=lambda: played.now, sleep=played.sleep)
            task = asyncio.create_task(played.kubelet.run())
            try:
                yield played
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def test_node_is_registered_ready_with_labels_and_boot_id() -> None:
    async with stage() as played:
        await until(lambda: played.renewed(), what="the first heartbeat")
        node = played.node()
        assert node["metadata"]["labels"]["npufleet.io/pool"] == "atom"
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == NODE
        assert node["status"]["nodeInfo"]["bootID"] == "boot-1"
        assert node["status"]["nodeInfo"]["kernelVersion"] == "6.8.0"
        assert node["status"]["allocatable"]["pods"] == "110"
        conditions = {one["type"]: one["status"] for one in node["status"]["conditions"]}
        assert conditions["Ready"] == "True"
        lease = played.server.objects.get(LEASES, NODE, "kube-node-lease")
        assert lease["spec"]["holderIdentity"] == NODE
        owner = played.server.calls("PATCH", LEASES)[0].body["metadata"]["ownerReferences"][0]
        assert owner["uid"] == node["metadata"]["uid"]


async def test_lease_is_renewed_and_the_status_left_alone() -> None:
    async with stage() as played:
        await until(lambda: played.pauses)
        first, version = played.renewed(), played.node()["metadata"]["resourceVersion"]
        played.beat()
        await until(lambda: played.renewed() != first, what="the Lease is renewed")
        assert played.renewed() == "2026-11-30T12:00:10.000000Z"
        assert played.node()["metadata"]["resourceVersion"] == version
        played.now += timedelta(seconds=300)
        played.beat()
        await until(lambda: played.node()["metadata"]["resourceVersion"] != version, what="the status is reported")


async def test_reboot_is_told_at_once() -> None:
    async with stage() as played:
        await until(lambda: played.pauses)
        played.boot_id = "boot-2"
        played.kubelet.rebooted()
        await until(lambda: played.node()["status"]["nodeInfo"]["bootID"] == "boot-2", what="the new boot id")


async def test_deleted_node_stays_deleted_until_the_machine_starts_again() -> None:
    async with stage() as played:
        await until(lambda: played.pauses)
        first = played.node()["metadata"]["uid"]
        played.server.objects.delete(NODES, NODE, None)
        for count in range(2, 5):
            played.now += timedelta(seconds=400)
            played.beat()
            await until(lambda: len(played.pauses) >= count)  # noqa: B023 - awaited in the same round
        assert not played.registered()
        played.kubelet.rebooted()
        await until(played.registered, what="the node is registered anew")
        assert played.node()["metadata"]["uid"] != first


async def test_pod_of_the_node_becomes_running_and_ready() -> None:
    async with stage() as played:
        played.schedule("web")
        await until(lambda: (played.pod("web") or {})["status"].get("phase") == "Running", what="the pod runs")
        status = (played.pod("web") or {})["status"]
        assert {one["type"]: one["status"] for one in status["conditions"]}["Ready"] == "True"
        assert status["containerStatuses"][0]["state"]["running"]
        assert status["containerStatuses"][0]["ready"] is True
        assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
        assert status["podIP"] == status["podIPs"][0]["ip"]


async def test_running_pod_is_not_written_again() -> None:
    async with stage() as played:
        played.schedule("web")
        await until(lambda: (played.pod("web") or {})["status"].get("phase") == "Running")
        writes = len([one for one in played.server.writes() if one.resource == PODS])
        played.server.break_watches()
        played.schedule("other")
        await until(lambda: (played.pod("other") or {})["status"].get("phase") == "Running")
        assert len([one for one in played.server.writes() if one.resource == PODS]) == writes + 1


async def test_terminating_pod_is_deleted_for_good() -> None:
    async with stage() as played:
        played.schedule("old", deletionTimestamp="2026-11-30T12:00:00Z", deletionGracePeriodSeconds=30)
        await until(lambda: played.pod("old") is None, what="the pod is gone")
        call = played.server.calls("DELETE", PODS)[-1]
        assert call.body["gracePeriodSeconds"] == 0
        assert call.body["preconditions"]["uid"]


@pytest.mark.parametrize("fault", [{"drop": True}, {"hang": True}, {"code": 403, "reason": "Forbidden"}, {"code": 500}])
async def test_api_server_that_is_away_or_full_of_errors_is_survived(fault: dict[str, Any]) -> None:
    async with stage() as played:
        await until(lambda: played.pauses)
        played.server.fail("*", **fault)
        played.schedule("web")
        played.beat()
        await until(lambda: len(played.pauses) >= 2, seconds=20, what="the heartbeat that failed")
        assert played.pauses[1] < 10, "it tries again sooner than the next heartbeat"
        played.server.heal()
        played.beat()
        await until(lambda: played.renewed() != "2026-11-30T12:00:00.000000Z", seconds=20, what="the heartbeat")
        await until(
            lambda: (played.pod("web") or {})["status"].get("phase") == "Running", seconds=20, what="the pod runs"
        )


async def test_machine_with_a_kubeconfig_is_a_node_and_tells_its_reboot(tmp_path: Path) -> None:
    async with FakeApi() as server:

        def boot_id() -> str:
            node = server.objects.find(NODES, NODE) or {}
            return str(node.get("status", {}).get("nodeInfo", {}).get("bootID", ""))

        arguments = [
            "--node-name",
            NODE,
            "--kubeconfig",
            str(server.kubeconfig()),
            "--label",
            "pool=a",
            "--label",
            "b=",
        ]

        def start() -> Any:
            context = hosts.served(tmp_path, *arguments)
            return context, context.__enter__()

        context, machine = await asyncio.to_thread(start)
        try:
            await until(lambda: boot_id() == machine.said["bootID"], seconds=20, what="the node's boot id")
            labels = server.objects.get(NODES, NODE, None)["metadata"]["labels"]
            assert (labels["pool"], labels["b"]) == ("a", "")
            second = await asyncio.to_thread(machine.control.reboot)
            await until(lambda: boot_id() == second, seconds=20, what="the new boot id")
            assert await asyncio.to_thread(machine.stop) == 0
        finally:
            await asyncio.to_thread(context.__exit__, None, None, None)


async def test_the_kubelet_of_a_machine_is_stopped_and_started_and_says_what_it_is_told_to(tmp_path: Path) -> None:
    async with FakeApi() as server:
        arguments = ["--node-name", NODE, "--kubeconfig", str(server.kubeconfig())]

        def play() -> None:
            with hosts.served(tmp_path, *arguments) as machine:
                host = open_host(machine.root)

                def answers() -> bool:
                    return read_plugin_devices(host) == PluginDevices(frozenset({PluginDevice("a.example/b", "x")}))

                assert machine.control.wait_until(lambda: host.exists(f"{DIRECTORY}/kubelet.sock"), 20)
                machine.control.serve_plugin_devices("a.example/b", ["x"])
                assert machine.control.wait_until(answers, 20)
                machine.control.stop_kubelet()
                assert read_plugin_devices(host).unreadable is not None
                machine.control.start_kubelet()
                assert machine.control.wait_until(answers, 20)
                machine.control.serve_plugin_devices("a.example/b", [])
                assert read_plugin_devices(host) == PluginDevices()
                assert machine.stop() == 0

        await asyncio.to_thread(play)


def test_a_machine_that_is_no_node_has_no_kubelet_to_stop(tmp_path: Path) -> None:
    with hosts.served(tmp_path) as machine, pytest.raises(OSError, match="no kubelet"):
        machine.control.stop_kubelet()
