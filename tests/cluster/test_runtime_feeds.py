"""Feeds and Leases on a real API server, under the identities that run them."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import kopf
import pytest

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.run.control_plane import ControlPlane
from runtime.api import Api
from runtime.kopf_feed import KopfFeed
from runtime.kopf_operator import run_kopf
from runtime.lease import Heartbeat, LeaderElection
from runtime.list_watch import ListWatch
from runtime.resources import LEASES, NAMESPACE, NODES, NPU_NODE_POLICIES
from runtime.store import Store
from tests.builders.waiting import until

CONTROLLER = "npufleet-node-policy"


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


async def ended(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_list_and_watch_follow_a_real_server(control_plane: ControlPlane) -> None:
    async with Api.connect(kubeconfig=control_plane.admin_kubeconfig, component="npufleet-test") as api:
        store: Store[Any] = Store(lambda item: item["metadata"].get("labels") or {})
        feed = ListWatch(api, NODES, store, page=2)
        task = asyncio.create_task(feed.run())
        await asyncio.wait_for(feed.wait_synced(), 30)
        name = unique("runtime")
        first = await api.create(NODES, {"metadata": {"name": name, "labels": {"a": "1"}}})
        await until(lambda: store.get(name) is not None, seconds=30)
        await api.patch(NODES, name, {"metadata": {"labels": {"a": "2"}}})
        await until(lambda: (store.get(name) or {}).get("a") == "2", seconds=30)
        await api.delete(NODES, name, uid=first["metadata"]["uid"])
        second = await api.create(NODES, {"metadata": {"name": name}})
        await until(lambda: second["metadata"]["uid"] in {entry.uid for entry in store.entries()}, seconds=30)
        assert first["metadata"]["uid"] not in {entry.uid for entry in store.entries()}
        await api.delete(NODES, name)
        await until(lambda: store.get(name) is None, seconds=30)
        assert feed.healthy() and feed.lists == 1
        await ended(task)


@pytest.mark.usefixtures("installed")
async def test_kopf_feeds_the_store_under_the_controllers_identity_and_writes_nothing(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    kubeconfig = service_account_kubeconfig(control_plane, NAMESPACE, CONTROLLER, tmp_path / "kubeconfig")
    name = unique("runtime")
    body: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"matchLabels": {"npufleet.test/none": "none"}},
            "devices": [{"name": "all", "match": {"vendors": ["1eff"]}, "mode": "Unmanaged"}],
        },
    }
    async with (
        Api.connect(kubeconfig=control_plane.admin_kubeconfig, component="npufleet-test") as admin,
        Api.connect(kubeconfig=kubeconfig, component=CONTROLLER) as api,
    ):
        registry = kopf.OperatorRegistry()
        store: Store[Any] = Store(lambda item: item["spec"].get("priority", 100))
        # Neither its own list nor anything else but kopf brings the edit below: the next list is minutes away.
        feed = KopfFeed(api, NPU_NODE_POLICIES, store, registry, debounce_seconds=0.1)
        stop = asyncio.Event()
        lists = asyncio.create_task(feed.run())
        operator = asyncio.create_task(run_kopf(registry, credentials=api.credentials, stop=stop, feeds=[feed]))
        await asyncio.wait_for(feed.wait_synced(), 30)
        await admin.create(NPU_NODE_POLICIES, body)
        await until(lambda: store.get(name) == 100, seconds=30)
        lists_before = feed.lists
        await admin.patch(NPU_NODE_POLICIES, name, {"spec": {"priority": 7}})
        await until(lambda: store.get(name) == 7, seconds=30)
        assert feed.lists == lists_before
        found = await admin.get(NPU_NODE_POLICIES, name)
        assert "annotations" not in found["metadata"] and "finalizers" not in found["metadata"]
        assert {entry["manager"] for entry in found["metadata"]["managedFields"]} == {"npufleet-test"}
        await admin.delete(NPU_NODE_POLICIES, name)
        await until(lambda: store.get(name) is None, seconds=30)
        stop.set()
        await asyncio.wait_for(operator, 30)
        await ended(lists)


@pytest.mark.usefixtures("installed")
async def test_a_lease_passes_from_one_elector_to_the_next(control_plane: ControlPlane) -> None:
    name = unique("runtime-election")
    async with Api.connect(kubeconfig=control_plane.admin_kubeconfig, component="npufleet-test") as api:

        def elector(identity: str) -> LeaderElection:
            return LeaderElection(api, name, identity, lease_seconds=4, renew_deadline=3, retry_seconds=0.5)

        first, second, third = elector("first"), elector("second"), elector("third")
        stops = [asyncio.Event() for _ in range(3)]
        one = asyncio.create_task(first.run(stops[0]))
        await asyncio.wait_for(first.acquired.wait(), 20)
        two = asyncio.create_task(second.run(stops[1]))
        await until(lambda: second.state == "held by first", seconds=20)
        assert [first.leading, second.leading] == [True, False]
        stops[0].set()
        await one
        await asyncio.wait_for(second.acquired.wait(), 20)
        assert [first.leading, second.leading] == [False, True]
        three = asyncio.create_task(third.run(stops[2]))
        two.cancel()  # crashes: its Lease stays until it expires
        await asyncio.wait_for(third.acquired.wait(), 20)
        assert not second.leading
        spec = (await api.get(LEASES, name, NAMESPACE))["spec"]
        assert spec["holderIdentity"] == "third" and spec["leaseTransitions"] == 2
        stops[2].set()
        await three
        await api.delete(LEASES, name, NAMESPACE)


@pytest.mark.usefixtures("installed")
async def test_a_heartbeat_creates_and_renews_its_lease(control_plane: ControlPlane) -> None:
    node = unique("node")
    async with Api.connect(kubeconfig=control_plane.admin_kubeconfig, component="npufleet-test") as api:
        heartbeat = Heartbeat(api, "npufleet-test", node)
        await heartbeat.renew()
        first = await api.get(LEASES, heartbeat.name, NAMESPACE)
        await heartbeat.renew()
        second = await api.get(LEASES, heartbeat.name, NAMESPACE)
        assert second["spec"]["holderIdentity"] == node
        assert second["spec"]["renewTime"] > first["spec"]["renewTime"]
        await api.delete(LEASES, heartbeat.name, NAMESPACE)
