"""Status writes: exactly one's own part, and nothing when nothing changed."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.api import Conflict, NotFound
from runtime.resources import NPU_NODE_POLICIES, NPU_NODE_STATES
from runtime.status_writer import StatusWriter
from tests.builders.fake_api import FakeApi
from tests.builders.fake_objects import Object


def ready(status: str, time: str = "2026-05-01T00:00:00Z", **fields: Any) -> Object:
    return {"type": "Ready", "status": status, "reason": "R", "message": "", "lastTransitionTime": time, **fields}


async def test_an_unchanged_status_is_not_written() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_POLICIES, {"metadata": {"name": "p"}, "spec": {"priority": 1}})
        writer = StatusWriter(api, NPU_NODE_POLICIES, "npufleet-node-policy")
        status = {"observedGeneration": 1, "conditions": [ready("True")], "nodes": {"matched": 2}, "unset": None}
        written = await writer.write(server.objects.get(NPU_NODE_POLICIES, "p"), status)
        assert written is not None and written["status"]["nodes"] == {"matched": 2}
        assert "unset" not in written["status"] and written["spec"] == {"priority": 1}
        assert await writer.write(server.objects.get(NPU_NODE_POLICIES, "p"), status) is None
        assert len(server.writes()) == 1


async def test_a_changed_and_a_withdrawn_field_are_written() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_POLICIES, {"metadata": {"name": "p"}})
        writer = StatusWriter(api, NPU_NODE_POLICIES, "npufleet-node-policy")
        await writer.write(server.objects.get(NPU_NODE_POLICIES, "p"), {"a": 1, "blockers": [{"node": "n"}]})
        await writer.write(server.objects.get(NPU_NODE_POLICIES, "p"), {"a": 2})
        assert server.objects.get(NPU_NODE_POLICIES, "p")["status"] == {"a": 2}


async def test_each_writer_keeps_to_its_own_fields() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_STATES, {"metadata": {"name": "n"}})
        binder = StatusWriter(api, NPU_NODE_STATES, "npufleet-vfio-binder", fields=("inventory", "bindings"))
        publisher = StatusWriter(api, NPU_NODE_STATES, "npufleet-dra-publisher", fields=("publication",))
        await binder.write(server.objects.get(NPU_NODE_STATES, "n"), {"bindings": {"bootID": "b"}})
        await publisher.write(server.objects.get(NPU_NODE_STATES, "n"), {"publication": {"slices": 1}})
        observed = server.objects.get(NPU_NODE_STATES, "n")
        assert observed["status"] == {"bindings": {"bootID": "b"}, "publication": {"slices": 1}}
        assert await binder.write(observed, {"bindings": {"bootID": "b"}}) is None
        await binder.write(observed, {})
        assert server.objects.get(NPU_NODE_STATES, "n")["status"] == {"publication": {"slices": 1}}
        with pytest.raises(ValueError, match="publication"):
            await binder.write(observed, {"publication": {}})


async def test_a_status_for_an_object_that_was_deleted_or_replaced_is_reported() -> None:
    async with FakeApi() as server, server.client() as api:
        old = server.objects.create(NPU_NODE_STATES, {"metadata": {"name": "n"}})
        writer = StatusWriter(api, NPU_NODE_STATES, "m")
        server.objects.delete(NPU_NODE_STATES, "n")
        with pytest.raises(NotFound):
            await writer.write(old, {"a": 1})
        server.objects.create(NPU_NODE_STATES, {"metadata": {"name": "n"}})
        with pytest.raises(Conflict):
            await writer.write(old, {"a": 1}, compare_and_swap=True)
        assert "status" not in server.objects.get(NPU_NODE_STATES, "n")
        with pytest.raises(Conflict, match="another object now"):
            await writer.write(old, {"a": 1})
        new = server.objects.get(NPU_NODE_STATES, "n")
        assert await writer.write(new, {"a": 2}) is not None


async def test_compare_and_swap_refuses_when_anything_changed() -> None:
    async with FakeApi() as server, server.client() as api:
        observed = server.objects.create(NPU_NODE_STATES, {"metadata": {"name": "n"}})
        writer = StatusWriter(api, NPU_NODE_STATES, "m")
        server.objects.edit(NPU_NODE_STATES, "n", spec={"revision": "2"})
        with pytest.raises(Conflict):
            await writer.write(observed, {"a": 1}, compare_and_swap=True)
        assert await writer.write(observed, {"a": 1}) is not None


async def test_a_copy_that_lags_behind_our_own_write_does_not_bring_an_old_wish_back() -> None:
    """Wish A, then B, then A again while the caller still sees A: the server has B, so A must be written."""
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_STATES, {"metadata": {"name": "n"}})
        writer = StatusWriter(api, NPU_NODE_STATES, "m")
        await writer.write(server.objects.get(NPU_NODE_STATES, "n"), {"a": "A"})
        lagging = server.objects.get(NPU_NODE_STATES, "n")
        await writer.write(lagging, {"a": "B"})
        assert await writer.write(lagging, {"a": "B"}) is None
        await writer.write(lagging, {"a": "A"})
        assert server.objects.get(NPU_NODE_STATES, "n")["status"] == {"a": "A"}
        assert len(server.writes()) == 3


async def test_what_somebody_else_changed_in_our_part_is_set_right() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_STATES, {"metadata": {"name": "n"}})
        writer = StatusWriter(api, NPU_NODE_STATES, "m")
        await writer.write(server.objects.get(NPU_NODE_STATES, "n"), {"a": "A"})
        server.objects.edit(NPU_NODE_STATES, "n", status={"a": "wrong"})
        assert await writer.write(server.objects.get(NPU_NODE_STATES, "n"), {"a": "A"}) is not None
        assert server.objects.get(NPU_NODE_STATES, "n")["status"] == {"a": "A"}
