"""The controller as it runs: on an API server over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from controllers.profile_map.controller import ProfileMapController
from runtime.metrics import Metrics
from runtime.process import Process
from runtime.resources import NODES, NPU_NODE_STATES, VGPU_PROFILE_MAPS
from tests.builders import objects
from tests.builders.fake_api import FakeApi
from tests.builders.vgpu_fleet import BOOT, card_order, card_report, node_with, vgpu
from tests.builders.waiting import until

A, V4, V5 = "0000:21:00.0", "0000:21:00.4", "0000:21:00.5"
ORDER = card_order(A, {"L40S-24Q": 2})
THERE = [card_report(A, [vgpu(V4, "L40S-24Q"), vgpu(V5, "L40S-24Q")])]


@asynccontextmanager
async def replica(server: FakeApi, name: str = "replica-1") -> AsyncIterator[ProfileMapController]:
    metrics = Metrics("npufleet-profile-map")
    async with server.client(metrics=metrics) as api:
        life = Process()
        controller = ProfileMapController(api, metrics, identity=name, settle_seconds=0.01)
        running = asyncio.ensure_future(controller.run(life))
        try:
            yield controller
        finally:
            life.stop.set()
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(running, 20)


def add(server: FakeApi) -> None:
    server.objects.create(NODES, objects.node("n", uid="node-n", boot_id=BOOT))
    server.objects.create(VGPU_PROFILE_MAPS, objects.profile_map("halves"))
    server.objects.create(NPU_NODE_STATES, node_with("n", [ORDER], THERE))


def reason(server: FakeApi) -> str:
    found = server.objects.find(VGPU_PROFILE_MAPS, "halves") or {}
    conditions = (found.get("status") or {}).get("conditions", [])
    return next((one["reason"] for one in conditions if one["type"] == "Ready"), "")


async def test_status_follows_the_reports_and_a_restart_writes_nothing() -> None:
    async with FakeApi() as server:
        add(server)
        async with replica(server):
            await until(lambda: reason(server) == "AllTyped")
            server.objects.edit(NODES, "n", status={"nodeInfo": {"bootID": "boot-2"}})
            await until(lambda: reason(server) == "Rebooted")
            again = node_with("n", [ORDER], THERE, boot_id="boot-2")["status"]
            server.objects.edit(NPU_NODE_STATES, "n", status=again)
            await until(lambda: reason(server) == "AllTyped")
        before = [write for write in server.writes() if write.resource == VGPU_PROFILE_MAPS]
        async with replica(server, "replica-2") as second:
            await until(lambda: second._election.leading and second._queue.idle, seconds=30)
            await asyncio.sleep(0.1)
            await until(lambda: second._queue.idle)
        assert [write for write in server.writes() if write.resource == VGPU_PROFILE_MAPS] == before


async def test_map_that_goes_and_comes_back_gets_its_status_again() -> None:
    async with FakeApi() as server:
        add(server)
        async with replica(server):
            await until(lambda: reason(server) == "AllTyped")
            server.objects.delete(VGPU_PROFILE_MAPS, "halves")
            server.objects.create(VGPU_PROFILE_MAPS, objects.profile_map("halves"))
            await until(lambda: reason(server) == "AllTyped")
