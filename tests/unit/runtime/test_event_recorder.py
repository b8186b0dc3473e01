"""Events: told once, in the background, and never at the caller's expense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from runtime.api import Api
from runtime.event_recorder import EventRecorder
from runtime.resources import EVENTS, NPU_NODE_POLICIES, VNPU_QUOTAS
from tests.builders.fake_api import FakeApi
from tests.builders.fake_objects import Object
from tests.builders.waiting import until

POLICY: Object = {"metadata": {"name": "all-atoms", "uid": "u1", "resourceVersion": "7"}}


async def no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


@asynccontextmanager
async def recorder(api: Api, **options: Any) -> AsyncIterator[EventRecorder]:
    found = EventRecorder(api, component="npufleet-node-policy", instance="pod-1", sleep=no_sleep, **options)
    task = asyncio.create_task(found.run())
    try:
        yield found
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_event_has_all_that_the_api_wants() -> None:
    async with FakeApi() as server, server.client() as api, recorder(api) as events:
        events.warning(NPU_NODE_POLICIES, POLICY, "DeviceInUse", "0000:23:00.0 is open in qemu")
        quota = {"metadata": {"name": "q", "namespace": "team-a", "uid": "u2"}}
        events.normal(VNPU_QUOTAS, quota, "Admitted", "pod x admitted")
        await until(lambda: len(server.calls("POST", EVENTS)) == 2)
        first, second = (request.body for request in server.calls("POST", EVENTS))
        assert first["metadata"]["namespace"] == "default", "where events of cluster-scoped objects belong"
        assert first["regarding"] == {
            "apiVersion": "npufleet.io/v1alpha1",
            "kind": "NPUNodePolicy",
            "name": "all-atoms",
            "uid": "u1",
            "resourceVersion": "7",
        }
        assert (first["type"], first["reason"], first["note"]) == (
            "Warning",
            "DeviceInUse",
            "0000:23:00.0 is open in qemu",
        )
        assert first["action"] and first["reportingInstance"] == "pod-1"
        assert first["reportingController"] == "npufleet.io/npufleet-node-policy"
        assert first["eventTime"].endswith("Z") and len(first["eventTime"]) == len("2026-05-01T00:00:00.000000Z")
        assert second["metadata"]["namespace"] == "team-a" and second["type"] == "Normal"


async def test_the_same_event_is_posted_once_a_window_and_again_after_it() -> None:
    now = 0.0
    async with FakeApi() as server, server.client() as api, recorder(api, clock=lambda: now) as events:
        for _ in range(50):
            events.warning(NPU_NODE_POLICIES, POLICY, "R", "same")
        events.warning(NPU_NODE_POLICIES, POLICY, "R", "other text")
        events.warning(NPU_NODE_POLICIES, {"metadata": {"name": "x", "uid": "u9"}}, "R", "same")
        await until(lambda: len(server.calls("POST", EVENTS)) == 3)
        now = 601.0
        events.warning(NPU_NODE_POLICIES, POLICY, "R", "same")
        await until(lambda: len(server.calls("POST", EVENTS)) == 4)


async def test_a_refusing_or_absent_server_costs_events_only() -> None:
    async with FakeApi() as server, server.client() as api, recorder(api) as events:
        server.fail("POST", EVENTS, code=403, reason="Forbidden", times=1)
        events.warning(NPU_NODE_POLICIES, POLICY, "R", "refused")
        await until(lambda: events.dropped == 1)
        server.fail("POST", EVENTS, drop=True, times=2)
        events.warning(NPU_NODE_POLICIES, POLICY, "R", "retried")
        await until(lambda: len(list(server.objects.items(EVENTS))) == 1)
        assert events.dropped == 1


async def test_a_flood_is_bounded_and_the_newest_are_kept() -> None:
    async with FakeApi() as server, server.client() as api:
        events = EventRecorder(api, component="c", instance="i", capacity=10)
        for number in range(1000):
            events.warning(NPU_NODE_POLICIES, POLICY, "R", f"message {number}")
        assert events.dropped == 990
        assert len(events._recent) <= 161
        await events.drain(5)
        notes = [request.body["note"] for request in server.calls("POST", EVENTS)]
        assert notes == [f"message {number}" for number in range(990, 1000)]


async def test_draining_at_shutdown_is_bounded() -> None:
    async with FakeApi() as server, server.client() as api:
        server.fail("POST", EVENTS, hang=True)
        events = EventRecorder(api, component="c", instance="i")
        events.warning(NPU_NODE_POLICIES, POLICY, "R", "one")
        events.warning(NPU_NODE_POLICIES, POLICY, "R", "two")
        async with asyncio.timeout(3):
            await events.drain(0.1)
        assert events.dropped >= 1
        server.heal()


async def test_long_texts_and_names_are_cut_to_what_the_api_takes() -> None:
    async with FakeApi() as server, server.client() as api, recorder(api) as events:
        events.warning(NPU_NODE_POLICIES, {"metadata": {"name": "n" * 253, "uid": "u"}}, "R" * 300, "ä" * 5000)
        await until(lambda: server.calls("POST", EVENTS))
        body = server.calls("POST", EVENTS)[0].body
        assert len(body["metadata"]["name"]) <= 253
        assert len(body["note"].encode()) in {1023, 1024} and len(body["reason"]) == 128
        assert body["note"].endswith("ä...")
