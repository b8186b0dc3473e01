"""List and watch against a server that misbehaves: the copy heals, keeps what it has, and says why."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from runtime.api import Api, Listing
from runtime.list_watch import ListWatch, list_into
from runtime.metrics import Metrics
from runtime.resources import NODES, NPU_NODE_STATES, PODS, Resource
from runtime.store import Store
from tests.builders.fake_api import FakeApi
from tests.builders.fake_objects import Object
from tests.builders.waiting import until


async def short_sleep(seconds: float) -> None:
    """Backoffs are checked where they are computed; here they only cost time."""
    await asyncio.sleep(min(seconds, 0.02))


@asynccontextmanager
async def following(api: Api, resource: Resource = NODES, **options: Any) -> AsyncIterator[ListWatch[Object]]:
    store: Store[Object] = Store(lambda item: item.get("spec") or {})
    options = {"inactivity_seconds": 5.0, "sleep": short_sleep, **options}
    feed = ListWatch(api, resource, store, **options)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
        assert not task.done(), "the feed never ends by itself"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def node(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec}


def names(feed: ListWatch[Object]) -> list[str]:
    return [key.name for key, _ in feed.store.items()]


async def test_follows_creations_edits_and_deletions() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NODES, node("a"))
        async with following(api) as feed:
            await feed.wait_synced()
            assert names(feed) == ["a"]
            server.objects.create(NODES, node("b"))
            server.objects.edit(NODES, "a", spec={"x": 1})
            await until(lambda: names(feed) == ["a", "b"] and feed.store.get("a") == {"x": 1})
            server.objects.delete(NODES, "a")
            await until(lambda: names(feed) == ["b"])
            assert feed.lists == 1 and feed.healthy() and feed.reason() is None


async def test_case_1_what_was_deleted_while_the_watch_was_expired_is_gone_after_the_list() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NODES, node("a"))
        server.objects.create(NODES, node("ghost"))
        async with following(api) as feed:
            await until(lambda: server.watching)
            server.silence_watches()
            server.objects.delete(NODES, "ghost")
            server.objects.create(NODES, node("b"))
            server.expire_watches()
            await until(lambda: names(feed) == ["a", "b"])


async def test_case_3_a_silent_stream_is_left_and_the_missed_change_arrives() -> None:
    server = FakeApi(bookmark_seconds=0.05)
    async with server, server.client() as api, following(api, inactivity_seconds=0.3) as feed:
        await until(lambda: server.watching)
        server.silence_watches()
        server.objects.create(NODES, node("a"))
        await until(lambda: names(feed) == ["a"])
        assert feed.lists == 1, "a silent stream is resumed, not listed again"


async def test_bookmarks_keep_a_quiet_stream_open() -> None:
    server = FakeApi(bookmark_seconds=0.05)
    async with server, server.client() as api, following(api, inactivity_seconds=1.5) as feed:
        await until(lambda: server.watching)
        first = feed._contact or 0.0
        await until(lambda: (feed._contact or 0.0) - first > 2.0)
        assert len(server.calls("WATCH")) == 1


async def test_a_broken_stream_resumes_from_its_bookmark_without_a_list() -> None:
    async with FakeApi(bookmark_seconds=0.05) as server, server.client() as api, following(api) as feed:
        await until(lambda: server.watching)
        # Changes of another kind move the server on; only a bookmark tells this watch so.
        server.objects.create(PODS, {"metadata": {"name": "p", "namespace": "x"}})
        version = str(server.objects.version)
        await until(lambda: feed._version == version)
        server.objects.compact()
        server.break_watches()
        server.objects.create(NODES, node("a"))
        await until(lambda: names(feed) == ["a"])
        assert feed.lists == 1
        assert server.calls("WATCH")[-1].query["resourceVersion"] == version


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"code": 403, "reason": "Forbidden", "message": "no"}, "grant list and watch on nodes"),
        ({"code": 401, "reason": "Unauthorized", "message": "no"}, "credentials are not accepted"),
        ({"code": 404, "raw": b"404 page not found\n"}, "is its CRD installed"),
        ({"code": 500}, "injected"),
        ({"drop": True}, "nodes"),
        ({"code": 200, "raw": b"<html>"}, "not JSON"),
    ],
)
async def test_case_2_a_feed_that_is_refused_keeps_its_objects_says_why_and_turns_unhealthy(
    fault: dict[str, Any], text: str
) -> None:
    metrics = Metrics("npufleet-test")
    now = 1000.0

    def clock() -> float:
        return now

    def gauge() -> float | None:
        labels = {"component": "npufleet-test", "resource": "nodes"}
        return metrics.registry.get_sample_value("npufleet_feed_healthy", labels)

    async with FakeApi() as server, server.client(timeout_seconds=0.2) as api:
        server.objects.create(NODES, node("a"))
        async with following(api, clock=clock, on_health=metrics.feed("nodes")) as feed:
            assert gauge() == 0
            await until(lambda: server.watching)
            assert gauge() == 1
            broken = server.fail("*", NODES, **fault)
            server.expire_watches()
            await until(lambda: broken.hits >= 3 and text in feed.state)
            assert feed.not_served is ("CRD" in text)
            assert feed.healthy(), "a short outage is no reason to fail"
            assert names(feed) == ["a"] and feed.synced
            now += 91
            assert not feed.healthy()
            assert "no contact for 91 s" in str(feed.reason())
            hits = broken.hits
            await until(lambda: broken.hits > hits + 1 and gauge() == 0)
            server.heal(broken)
            server.objects.create(NODES, node("b"))
            await until(lambda: names(feed) == ["a", "b"])
            assert feed.healthy() and gauge() == 1


async def test_a_kind_that_is_not_served_yet_is_not_empty_and_is_followed_once_it_is() -> None:
    async with FakeApi(served=(NODES,)) as server, server.client() as api, following(api, NPU_NODE_STATES) as feed:
        await until(lambda: "is its CRD installed" in feed.state)
        assert not feed.synced and not feed.healthy()
        server.served.add(NPU_NODE_STATES)
        await feed.wait_synced()
        server.objects.create(NPU_NODE_STATES, node("a"))
        await until(lambda: names(feed) == ["a"])


async def test_a_single_object_is_followed_by_its_name() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NPU_NODE_STATES, node("other"))
        async with following(api, NPU_NODE_STATES, field_selector="metadata.name=mine") as feed:
            await feed.wait_synced()
            assert names(feed) == []
            server.objects.create(NPU_NODE_STATES, node("mine", revision="r1"))
            server.objects.create(NPU_NODE_STATES, node("another"))
            await until(lambda: feed.store.get("mine") == {"revision": "r1"})
            server.objects.delete(NPU_NODE_STATES, "mine")
            await until(lambda: names(feed) == [])


async def test_deleted_and_created_again_under_one_name_is_seen_as_another_object() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NODES, node("a"))
        async with following(api) as feed:
            await until(lambda: server.watching)
            server.silence_watches()
            server.objects.delete(NODES, "a")
            second = server.objects.create(NODES, node("a"))
            server.expire_watches()
            await until(lambda: [entry.uid for entry in feed.store.entries()] == [second["metadata"]["uid"]])


async def test_a_server_whose_history_was_set_back_is_followed_again() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.version = 5000
        server.objects.create(NODES, node("a"))
        async with following(api) as feed:
            await until(lambda: server.watching)
            server.objects.set_back(2000)
            server.break_watches()
            await until(lambda: feed.lists == 2)
            server.objects.create(NODES, node("b"))
            await until(lambda: names(feed) == ["a", "b"])
            server.objects.delete(NODES, "a")
            await until(lambda: names(feed) == ["b"])


async def test_a_list_that_lags_behind_is_not_believed_until_it_goes_on_so() -> None:
    """A server that answers with an older list for a while must not bring back what policies said then."""

    class Lagging:
        """`old` lists of version 10, in which "a" said otherwise, before one of version 20."""

        def __init__(self, old: int) -> None:
            self.old = old

        async def list(self, *_: Any, convert: Any, **__: Any) -> Any:
            self.old -= 1
            version, said = ("10", 1) if self.old >= 0 else ("20", 2)
            item = {"metadata": {"name": "a", "uid": "u", "resourceVersion": version}, "spec": {"said": said}}
            return Listing([convert(item)], version)

    def what_is_said(store: Store[int]) -> int | None:
        return store.get("a")

    seen: list[int | None] = []
    store: Store[int] = Store(lambda item: int(item["spec"]["said"]))

    async def look(seconds: float) -> None:
        seen.append(what_is_said(store))

    async def listed(old: int) -> str:
        return await list_into(cast(Api, Lagging(old)), NODES, store, sleep=look)

    assert await listed(0) == "20"
    assert await listed(3) == "20"
    assert (seen, what_is_said(store)) == ([2, 2, 2], 2)
    assert await listed(100) == "10", "the history was set back"
    assert (set(seen), what_is_said(store)) == ({2}, 1)


async def test_malformed_events_lead_to_a_list_not_to_an_end() -> None:
    async with FakeApi() as server, server.client() as api, following(api) as feed:
        await until(lambda: server.watching)
        server.send_to_watches(NODES, {"type": "ADDED", "object": {"metadata": {"name": "x"}}})
        await until(lambda: feed.lists == 2 and server.watching)
        server.objects.create(NODES, node("a"))
        await until(lambda: names(feed) == ["a"])


async def test_a_server_that_ends_each_watch_at_once_is_not_hammered() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0.001)

    async with FakeApi() as server, server.client() as api:
        server.fail("WATCH", NODES, code=200, raw=b"")
        async with following(api, sleep=sleep, jitter=random.Random(1)) as feed:
            await until(lambda: len(pauses) >= 12)
            assert pauses[8] > 10 and max(pauses) <= 30
            assert "at once" in feed.state


async def test_pauses_grow_while_a_server_refuses_and_start_over_after_success() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0.001)

    async with FakeApi() as server, server.client() as api:
        fault = server.fail("LIST", NODES, code=403, reason="Forbidden")
        async with following(api, sleep=sleep) as feed:
            await until(lambda: len(pauses) >= 10)
            assert 15 <= pauses[9] <= 30
            server.heal(fault)
            await until(lambda: server.watching)
            server.objects.create(NODES, node("a"))
            await until(lambda: names(feed) == ["a"])
            pauses.clear()
            server.expire_watches()
            await until(lambda: pauses)
            assert pauses[0] <= 0.5


async def test_reconnects_are_spread_over_time() -> None:
    async with FakeApi() as server, server.client() as api:
        timeouts = set()
        for seed in range(5):
            async with following(api, jitter=random.Random(seed)):
                count = len(server.calls("WATCH"))
                await until(lambda seen=count: len(server.calls("WATCH")) > seen)  # type: ignore[misc]
                timeouts.add(int(server.calls("WATCH")[-1].query["timeoutSeconds"]))
        assert len(timeouts) > 2 and all(300 <= seconds <= 600 for seconds in timeouts)


async def test_cancelling_closes_the_stream() -> None:
    async with FakeApi(bookmark_seconds=0.05) as server, server.client() as api:
        async with following(api):
            await until(lambda: server.watching == 1)
        await until(lambda: server.watching == 0)
