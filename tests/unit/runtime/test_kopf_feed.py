"""kopf beside the main loop: its events feed the store, our lists heal what it does not tell, its end is our end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import kopf
import pytest

from runtime.api import Api
from runtime.kopf_feed import KopfFeed
from runtime.kopf_operator import KopfEnded, read_only_settings, run_kopf
from runtime.metrics import Metrics
from runtime.resources import NPU_NODE_POLICIES, VNPU_QUOTAS
from runtime.store import Store
from tests.builders.fake_api import FakeApi
from tests.builders.fake_objects import Object
from tests.builders.waiting import until


def policy(name: str, priority: int = 100) -> Object:
    return {"metadata": {"name": name}, "spec": {"priority": priority}}


async def short_sleep(seconds: float) -> None:
    await asyncio.sleep(min(seconds, 0.02))


class Running:
    """A feed and kopf, as a controller runs them."""

    def __init__(self, api: Api, **options: Any) -> None:
        self.registry = kopf.OperatorRegistry()
        self.store: Store[Any] = Store(lambda item: item.get("spec"))
        options = {"sleep": short_sleep, **options}
        self.feed = KopfFeed(api, NPU_NODE_POLICIES, self.store, self.registry, **options)
        self.stop = asyncio.Event()
        settings = read_only_settings()
        settings.networking.error_backoffs = [0.05, 0.05]
        settings.watching.reconnect_backoff = 0.05
        self.lists = asyncio.create_task(self.feed.run())
        self.kopf = asyncio.create_task(
            run_kopf(self.registry, credentials=api.credentials, stop=self.stop, feeds=[self.feed], settings=settings)
        )

    def names(self) -> list[str]:
        return [key.name for key, _ in self.store.items()]


@asynccontextmanager
async def running(api: Api, **options: Any) -> AsyncIterator[Running]:
    found = Running(api, **options)
    try:
        yield found
    finally:
        found.stop.set()
        found.lists.cancel()
        await asyncio.gather(found.lists, found.kopf, return_exceptions=True)


def kopf_watches(server: FakeApi) -> int:
    return len(server.calls("WATCH", NPU_NODE_POLICIES))


async def test_kopf_feeds_the_store_and_writes_nothing() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_POLICIES, policy("a"))
        async with running(api) as it:
            await until(lambda: kopf_watches(server))
            assert it.feed.synced and it.feed.healthy()
            server.objects.create(NPU_NODE_POLICIES, policy("b"))
            await until(lambda: it.names() == ["a", "b"])
            server.objects.edit(NPU_NODE_POLICIES, "a", spec={"priority": 7})
            await until(lambda: it.store.get("a") == {"priority": 7})
            server.objects.delete(NPU_NODE_POLICIES, "a")
            await until(lambda: it.names() == ["b"])
            it.stop.set()
            await it.kopf
        assert server.writes() == []
        left = server.objects.get(NPU_NODE_POLICIES, "b")["metadata"]
        assert "annotations" not in left and "finalizers" not in left


async def test_case_1_an_object_deleted_while_kopf_lists_again_is_gone() -> None:
    """kopf alone keeps it for ever: after 410 it tells of what it lists, never of what is missing."""
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_POLICIES, policy("a"))
        server.objects.create(NPU_NODE_POLICIES, policy("ghost"))
        async with running(api) as it:
            await until(lambda: kopf_watches(server))
            await until(lambda: it.names() == ["a", "ghost"])
            server.silence_watches()
            server.objects.delete(NPU_NODE_POLICIES, "ghost")
            server.expire_watches()
            await until(lambda: it.names() == ["a"])


async def test_case_1_an_empty_list_is_healed_by_the_periodic_one() -> None:
    """When nothing is left kopf delivers not a single event."""
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_POLICIES, policy("ghost"))
        async with running(api, resync_seconds=1.0) as it:
            await until(lambda: kopf_watches(server))
            await until(lambda: it.names() == ["ghost"])
            server.silence_watches()
            server.objects.delete(NPU_NODE_POLICIES, "ghost")
            server.expire_watches()
            await until(lambda: it.names() == [])


async def test_a_list_of_kopf_costs_one_list_of_ours_however_many_objects_it_had() -> None:
    async with FakeApi() as server, server.client() as api:
        for number in range(30):
            server.objects.create(NPU_NODE_POLICIES, policy(f"p{number:02}"))

        async def debounce(seconds: float) -> None:
            await asyncio.sleep(0.5)

        async with running(api, sleep=debounce) as it:
            await until(lambda: kopf_watches(server))
            await until(lambda: it.feed.lists == 2)
            server.objects.create(NPU_NODE_POLICIES, policy("last"))
            await until(lambda: it.store.get("last"))
            assert it.feed.lists <= 3


async def test_nothing_is_synced_and_kopf_waits_until_the_kind_is_served() -> None:
    served = (VNPU_QUOTAS, *(one for one in FakeApi().served if one not in {NPU_NODE_POLICIES, VNPU_QUOTAS}))
    async with FakeApi(served=served) as server, server.client() as api, running(api) as it:
        await until(lambda: "is its CRD installed" in it.feed.state)
        assert not it.feed.synced and not it.feed.healthy() and not it.kopf.done()
        server.served.add(NPU_NODE_POLICIES)
        await until(lambda: kopf_watches(server))
        server.objects.create(NPU_NODE_POLICIES, policy("a"))
        await until(lambda: it.names() == ["a"])


async def test_case_2_a_kind_that_is_refused_ends_kopf_and_keeps_the_store() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_POLICIES, policy("a"))
        async with running(api) as it:
            await until(lambda: kopf_watches(server))
            server.fail("*", NPU_NODE_POLICIES, code=403, reason="Forbidden", message="no")
            server.expire_watches()
            with pytest.raises(KopfEnded):
                async with asyncio.timeout(60):
                    await it.kopf
            assert it.names() == ["a"]


@pytest.mark.parametrize("code", [500, 410])
async def test_case_2_errors_of_the_stream_that_kopf_does_not_survive_end_the_process(code: int) -> None:
    async with FakeApi() as server, server.client() as api, running(api) as it:
        await until(lambda: kopf_watches(server))
        server.fail("WATCH", NPU_NODE_POLICIES, code=code, reason="Expired" if code == 410 else "InternalError")
        server.break_watches()
        with pytest.raises(KopfEnded):
            async with asyncio.timeout(60):
                await it.kopf


async def test_case_2_lists_that_fail_turn_the_feed_unhealthy_within_its_bound() -> None:
    metrics = Metrics("npufleet-test")
    now = 0.0

    def gauge() -> float | None:
        labels = {"component": "npufleet-test", "resource": NPU_NODE_POLICIES.full_name}
        return metrics.registry.get_sample_value("npufleet_feed_healthy", labels)

    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_POLICIES, policy("a"))
        on_health = metrics.feed(NPU_NODE_POLICIES.full_name)
        options = {"clock": lambda: now, "resync_seconds": 0.2, "on_health": on_health}
        async with running(api, **options) as it:
            await until(lambda: kopf_watches(server) and gauge() == 1)
            fault = server.fail("LIST", NPU_NODE_POLICIES, code=403, reason="Forbidden", message="no")
            await until(lambda: "grant list and watch" in it.feed.state)
            assert it.feed.healthy()
            now = 91.0
            assert not it.feed.healthy() and "grant list and watch" in str(it.feed.reason())
            await until(lambda: gauge() == 0)
            assert it.names() == ["a"]
            server.heal(fault)
            await until(it.feed.healthy)
            assert gauge() == 1


async def test_a_rotated_token_is_used_by_kopf_after_a_refusal(tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    async with FakeApi() as server:
        server.tokens = {"first"}
        kubeconfig = server.kubeconfig(token_file=token)
        async with server.client(kubeconfig=kubeconfig) as api, running(api) as it:
            await until(lambda: kopf_watches(server))
            token.write_text("second")
            server.tokens = {"second"}
            server.break_watches()
            await until(lambda: server.calls("WATCH")[-1].headers.get("Authorization") == "Bearer second")
            server.objects.create(NPU_NODE_POLICIES, policy("a"))
            await until(lambda: it.names() == ["a"])
            assert not it.kopf.done()


async def test_stop_before_the_first_list_starts_no_kopf() -> None:
    async with FakeApi() as server, server.client() as api:
        server.fail("LIST", NPU_NODE_POLICIES, code=500)
        async with running(api) as it:
            it.stop.set()
            async with asyncio.timeout(5):
                await it.kopf
        assert kopf_watches(server) == 0


async def test_a_malformed_event_leads_to_a_list() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_POLICIES, policy("a"))
        registry = kopf.OperatorRegistry()
        store: Store[Any] = Store(lambda item: item.get("spec"))
        feed = KopfFeed(api, NPU_NODE_POLICIES, store, registry, sleep=short_sleep)
        task = asyncio.create_task(feed.run())
        await feed.wait_synced()
        feed.take("MODIFIED", {"metadata": {"name": "a"}})
        await until(lambda: feed.lists == 2)
        assert len(store) == 1
        task.cancel()
