"""The runtime's client against a real API server: what it relies on holds there, and the fake server behaves alike."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from cli.cluster.run.control_plane import ControlPlane
from runtime.api import Api, ApiError, Conflict, NotFound, TooManyRequests
from runtime.event_recorder import EventRecorder
from runtime.resources import (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    NODES,
    NPU_NODE_POLICIES,
    NPU_NODE_STATES,
    PODS,
    Resource,
)
from runtime.status_writer import StatusWriter
from tests.builders.fake_api import FakeApi
from tests.builders.fake_objects import Object

DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", namespaced=True)


@pytest_asyncio.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    kubeconfig = control_plane.admin_kubeconfig
    async with Api.connect(kubeconfig=kubeconfig, component="npufleet-test", writes_per_second=500, burst=500) as found:
        yield found


@pytest_asyncio.fixture
async def namespace(api: Api) -> AsyncIterator[str]:
    name = f"runtime-{uuid.uuid4().hex[:8]}"
    await api.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    await api.delete(NAMESPACES, name)


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


async def test_an_identical_apply_writes_nothing(api: Api, namespace: str) -> None:
    first = await api.apply(CONFIG_MAPS, config_map("m", a="1"), namespace=namespace)
    again = await api.apply(CONFIG_MAPS, config_map("m", a="1"), namespace=namespace)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    changed = await api.apply(CONFIG_MAPS, config_map("m", b="2"), namespace=namespace)
    assert changed["data"] == {"b": "2"}, "what this manager applied before and applies no longer goes away"


async def test_apply_with_a_version_is_a_compare_and_swap(api: Api, namespace: str) -> None:
    first = await api.apply(CONFIG_MAPS, config_map("m", a="1"), namespace=namespace)
    await api.patch(CONFIG_MAPS, "m", {"data": {"c": "3"}}, namespace)
    body = config_map("m", a="2")
    body["metadata"]["resourceVersion"] = first["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await api.apply(CONFIG_MAPS, body, namespace=namespace)
    assert (await api.get(CONFIG_MAPS, "m", namespace))["data"] == {"a": "1", "c": "3"}


async def test_a_list_is_paged_and_of_one_snapshot(api: Api, namespace: str) -> None:
    for number in range(25):
        await api.create(CONFIG_MAPS, config_map(f"m{number:02}"), namespace)

    def name(item: Object) -> str:
        return str(item["metadata"]["name"])

    listing = await api.list(CONFIG_MAPS, namespace, page=10, convert=name)
    assert [found for found in listing.items if found.startswith("m")] == [f"m{number:02}" for number in range(25)]
    assert int(listing.resource_version) > 0


async def test_a_watch_tells_changes_and_sends_a_bookmark_when_it_was_asked_to(api: Api, namespace: str) -> None:
    listing = await api.list(CONFIG_MAPS, namespace)
    await api.create(CONFIG_MAPS, config_map("m"), namespace)
    await api.delete(CONFIG_MAPS, "m", namespace)
    seen: list[str] = []
    bookmark = 0
    events = api.watch(CONFIG_MAPS, namespace, resource_version=listing.resource_version, timeout_seconds=12)
    async with aclosing(events):
        async for event in events:
            if event["type"] == "BOOKMARK":
                bookmark = int(event["object"]["metadata"]["resourceVersion"])
            elif event["object"]["metadata"]["name"] == "m":
                seen.append(event["type"])
    assert seen == ["ADDED", "DELETED"]
    assert bookmark > int(listing.resource_version)


async def test_a_watch_of_one_name_tells_of_no_other(api: Api, namespace: str) -> None:
    listing = await api.list(CONFIG_MAPS, namespace, field_selector="metadata.name=mine")
    assert listing.items == []
    await api.create(CONFIG_MAPS, config_map("other"), namespace)
    await api.create(CONFIG_MAPS, config_map("mine"), namespace)
    events = api.watch(
        CONFIG_MAPS, namespace, resource_version=listing.resource_version, field_selector="metadata.name=mine"
    )
    async with aclosing(events):
        assert (await anext(events))["object"]["metadata"]["name"] == "mine"


@pytest.mark.usefixtures("installed")
async def test_two_status_writers_keep_each_others_part_and_write_only_changes(api: Api) -> None:
    name = f"runtime-{uuid.uuid4().hex[:8]}"
    spec = {"revision": "", "nodeUID": "u", "devices": []}
    await api.create(NPU_NODE_STATES, {"metadata": {"name": name}, "spec": spec})
    binder = StatusWriter(api, NPU_NODE_STATES, "npufleet-vfio-binder", fields=("inventory", "bindings"))
    controller = StatusWriter(api, NPU_NODE_STATES, "npufleet-node-policy", fields=("rollout",))
    bindings = {"observedGeneration": 1, "bootID": "b", "devices": [], "conditions": []}
    try:
        await binder.write(await api.get(NPU_NODE_STATES, name), {"bindings": bindings})
        await controller.write(await api.get(NPU_NODE_STATES, name), {"rollout": {"admitted": "Admitted"}})
        observed = await api.get(NPU_NODE_STATES, name)
        assert observed["status"]["bindings"]["bootID"] == "b"
        assert observed["status"]["rollout"] == {"admitted": "Admitted"}
        assert await binder.write(observed, {"bindings": bindings}) is None
        await binder.write(observed, {"bindings": {**bindings, "bootID": "c"}})
        written = await api.get(NPU_NODE_STATES, name)
        assert written["status"]["bindings"]["bootID"] == "c" and "rollout" in written["status"]
        with pytest.raises(Conflict):
            await binder.write(observed, {"bindings": bindings}, compare_and_swap=True)
    finally:
        await api.delete(NPU_NODE_STATES, name)
    with pytest.raises(NotFound):
        await binder.write(written, {"bindings": bindings})
    await api.create(NPU_NODE_STATES, {"metadata": {"name": name}, "spec": spec})
    try:
        with pytest.raises(Conflict, match="another object now"):
            await binder.write(written, {"bindings": bindings})
        with pytest.raises(Conflict):
            await binder.write(written, {"bindings": {**bindings, "bootID": "d"}}, compare_and_swap=True)
    finally:
        await api.delete(NPU_NODE_STATES, name)


async def test_events_of_cluster_scoped_and_namespaced_objects_are_accepted(api: Api, namespace: str) -> None:
    node = await api.create(NODES, {"metadata": {"name": f"runtime-{uuid.uuid4().hex[:8]}"}})
    stored = await api.create(CONFIG_MAPS, config_map("m"), namespace)
    recorder = EventRecorder(api, component="npufleet-test", instance="pod-1")
    recorder.warning(NODES, node, "DeviceInUse", "ä" * 3000)
    recorder.normal(CONFIG_MAPS, stored, "Admitted", "fine")
    await recorder.drain(10)
    assert recorder.dropped == 0
    found = await api.list(EVENTS, namespace)
    assert [item["reason"] for item in found.items] == ["Admitted"]
    await api.delete(NODES, node["metadata"]["name"])


async def test_an_eviction_that_a_disruption_budget_forbids_is_reported_at_once(api: Api, namespace: str) -> None:
    labels = {"app": "x"}
    pod = {"metadata": {"name": "p", "labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}

    async def account() -> bool:
        try:
            await api.get(
                Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True), "default", namespace
            )
        except NotFound:
            return False
        return True

    await polled(account)
    uid = (await api.create(PODS, pod, namespace))["metadata"]["uid"]
    body: Object = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}}}
    await api.create(DISRUPTION_BUDGETS, body, namespace)

    async def counted() -> bool:
        found = await api.get(DISRUPTION_BUDGETS, "b", namespace)
        return bool((found.get("status") or {}).get("expectedPods"))

    await polled(counted)
    # A pod that was never ready may go unless the budget says otherwise, so this one is made ready.
    ready = [{"type": "Ready", "status": "True"}]
    await api.patch(PODS, "p", {"status": {"phase": "Running", "conditions": ready}}, namespace, subresource="status")
    with pytest.raises(TooManyRequests) as caught:
        await api.evict("p", namespace, uid=uid)
    assert [cause.reason for cause in caught.value.causes] == ["DisruptionBudget"]
    await api.delete(DISRUPTION_BUDGETS, "b", namespace)
    with pytest.raises(Conflict):
        await api.evict("p", namespace, uid="another")
    await api.evict("p", namespace, uid=uid)


async def polled(condition: Callable[[], Awaitable[bool]]) -> None:
    """Like `until`, for conditions that ask the server."""
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - what changes is on the server
            await asyncio.sleep(0.1)


async def outcomes(api: Api, namespace: str) -> list[Any]:
    """What a fixed sequence of calls leads to; must be the same for the real server and for the fake one."""
    seen: list[Any] = []

    async def note(call: Awaitable[Any], *path: str) -> Any:
        try:
            answer = await call
        except ApiError as error:
            seen.append((type(error).__name__, error.status, error.reason))
            return None
        value = answer
        for part in path:
            value = (value or {}).get(part)
        seen.append(value)
        return answer

    made = await note(api.create(CONFIG_MAPS, config_map("m", a="1"), namespace), "data")
    await note(api.create(CONFIG_MAPS, config_map("m"), namespace))
    await note(api.get(CONFIG_MAPS, "absent", namespace))
    await note(api.delete(CONFIG_MAPS, "absent", namespace))
    await note(api.create(CONFIG_MAPS, {"metadata": {}}, namespace))
    edited = await note(api.replace(CONFIG_MAPS, {**made, "data": {"b": "2"}}, namespace), "data")
    await note(api.replace(CONFIG_MAPS, made, namespace))
    same = await note(api.replace(CONFIG_MAPS, edited, namespace), "data")
    seen.append(same["metadata"]["resourceVersion"] == edited["metadata"]["resourceVersion"])
    await note(api.delete(CONFIG_MAPS, "m", namespace, uid="another"))
    await note(api.delete(CONFIG_MAPS, "m", namespace, resource_version=made["metadata"]["resourceVersion"]))
    await note(api.patch(CONFIG_MAPS, "m", {"data": {"b": None, "c": "3"}}, namespace), "data")
    await note(api.patch(CONFIG_MAPS, "m", [{"op": "test", "path": "/data/c", "value": "9"}], namespace))
    await note(api.patch(CONFIG_MAPS, "m", [{"op": "replace", "path": "/data/c", "value": "4"}], namespace), "data")
    first = await note(api.apply(CONFIG_MAPS, config_map("m", d="5"), field_manager="x", namespace=namespace), "data")
    again = await note(api.apply(CONFIG_MAPS, config_map("m", d="5"), field_manager="x", namespace=namespace), "data")
    seen.append(first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"])
    await note(api.apply(CONFIG_MAPS, config_map("m", e="6"), field_manager="y", namespace=namespace), "data")
    await note(api.apply(CONFIG_MAPS, config_map("m", f="7"), field_manager="x", namespace=namespace), "data")
    await note(api.apply(CONFIG_MAPS, config_map("new", g="8"), field_manager="x", namespace=namespace), "data")
    other = config_map("m", h="9")
    other["metadata"]["uid"] = "another"
    await note(api.apply(CONFIG_MAPS, other, namespace=namespace))
    for field in ("uid", "resourceVersion"):
        absent = config_map("absent")
        absent["metadata"][field] = "12345"
        await note(api.apply(CONFIG_MAPS, absent, namespace=namespace), "kind")
    await note(api.delete(CONFIG_MAPS, "m", namespace, uid=made["metadata"]["uid"]))
    await note(api.list(Resource("absent.example", "v1", "things", "Thing", namespaced=False)))
    node = await note(api.create(NODES, {"metadata": {"name": namespace}}), "status", "phase")
    if node:
        state = {"metadata": {"name": namespace}, "status": {"conditions": [{"type": "A", "status": "True"}]}}
        await note(api.apply(NODES, state, subresource="status", field_manager="x"), "kind")
        mixed = {**state, "status": {"conditions": [{"type": "B", "status": "True"}]}}
        answer = await api.apply(NODES, mixed, subresource="status", field_manager="y")
        seen.append([condition["type"] for condition in answer["status"]["conditions"]])
        ignored = await api.patch(NODES, namespace, {"status": {"conditions": []}})
        seen.append([condition["type"] for condition in ignored["status"]["conditions"]])
        state["metadata"] = {"name": namespace, "uid": "another"}
        await note(api.apply(NODES, state, subresource="status"), "kind")
        await note(api.delete(NODES, namespace))
    await note(api.apply(NODES, {"metadata": {"name": "absent"}, "status": {}}, subresource="status"))
    return seen


async def test_the_fake_server_of_the_unit_tests_answers_like_the_real_one(api: Api, namespace: str) -> None:
    real = await outcomes(api, namespace)
    async with FakeApi() as server, server.client() as fake:
        assert await outcomes(fake, namespace) == real


@pytest.mark.usefixtures("installed")
async def test_a_kind_that_is_not_served_is_told_from_an_object_that_is_missing(api: Api) -> None:
    with pytest.raises(NotFound) as caught:
        await api.get(NPU_NODE_POLICIES, "absent")
    assert not caught.value.not_served
    for missing in (
        Resource("npufleet.io", "v9", "npunodepolicies", "NPUNodePolicy", namespaced=False),
        Resource("npufleet.io", "v1alpha1", "absents", "Absent", namespaced=False),
        Resource("absent.example", "v1", "things", "Thing", namespaced=False),
    ):
        for call in (api.list(missing), api.get(missing, "x")):
            with pytest.raises(NotFound) as caught:
                await call
            assert caught.value.not_served, str(caught.value)
