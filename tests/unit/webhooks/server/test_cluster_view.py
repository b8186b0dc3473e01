"""What the server knows: kept by watches, and honest about what it does not see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from crds.catalogue import load_catalogue
from runtime.metrics import Metrics
from runtime.resources import CONFIG_MAPS, NAMESPACE, NODES, NPU_NODE_POLICIES, NPU_NODE_STATES, VNPU_QUOTAS
from tests.builders.fake_api import FakeApi
from tests.builders.paper_binder import Card, address, report_on
from tests.builders.reviews import policy, quota, review_document, reviewed
from tests.builders.waiting import until
from webhooks.rules.view import UNKNOWN
from webhooks.server.cluster_view import Cluster


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def followed(server: FakeApi, clock: Clock) -> AsyncIterator[Cluster]:
    """A cluster whose copies follow the server."""
    async with server.client("npufleet-webhook") as api:
        cluster = Cluster(api, Metrics("npufleet-webhook"), load_catalogue(), clock=clock)
        feeds = [asyncio.create_task(feed.run()) for feed in cluster.feeds()]
        try:
            yield cluster
        finally:
            for feed in feeds:
                feed.cancel()
            await asyncio.gather(*feeds, return_exceptions=True)


async def test_copies_are_unknown_until_they_are_whole_and_then_follow() -> None:
    clock = Clock()
    async with FakeApi() as server, followed(server, clock) as cluster:
        assert cluster.fault() is not None
        assert cluster.view().policies() is UNKNOWN
        await until(lambda: cluster.fault() is None, what="the copies are whole")
        assert dict(cluster.view().policies()) == {}  # type: ignore[arg-type]
        before = cluster.view()
        server.objects.create(NPU_NODE_POLICIES, policy())
        server.objects.create(NODES, {"metadata": {"name": "n", "labels": {"a": "b"}}})
        server.objects.create(VNPU_QUOTAS, quota() | {"status": {"used": {"cores": 7}}}, "team")
        await until(lambda: "a" in cluster.view().policies())  # type: ignore[operator]
        await until(lambda: cluster.view().nodes() and "n" in cluster.view().nodes())  # type: ignore[operator]
        await until(lambda: cluster.view().used("team", "q") is not UNKNOWN)
        view = cluster.view()
        assert dict(view.nodes()) == {"n": {"a": "b"}}  # type: ignore[arg-type]
        assert list(view.quotas("team")) == ["q"]  # type: ignore[arg-type]
        assert list(view.quotas("other")) == []  # type: ignore[arg-type]
        assert view.used("team", "q").cores == 7  # type: ignore[union-attr]
        assert dict(before.policies()) == {}, "a look does not change in the middle of a review"  # type: ignore[arg-type]


async def test_writers_are_whom_the_list_names_and_nobody_without_a_list() -> None:
    clock = Clock()
    async with FakeApi() as server, followed(server, clock) as cluster:
        assert cluster.view().writers() is UNKNOWN
        await until(lambda: cluster.fault() is None)
        assert not cluster.view().writers()
        text = "# who applies Git\n\n  git:one\t\r\n#no\ngit:two"
        metadata = {"name": "npufleet-writers", "namespace": NAMESPACE}
        server.objects.create(CONFIG_MAPS, {"metadata": metadata, "data": {"writers": text}}, NAMESPACE)
        await until(lambda: set(cluster.view().writers()) == {"git:one", "git:two"})  # type: ignore[arg-type]


async def test_inventory_is_unknown_until_a_node_has_reported() -> None:
    clock = Clock()
    async with FakeApi() as server, followed(server, clock) as cluster:
        await until(lambda: cluster.fault() is None)
        spec = {"revision": "", "nodeUID": "u", "devices": []}
        state = server.objects.create(NPU_NODE_STATES, {"metadata": {"name": "n"}, "spec": spec})
        clock.now += 2
        assert cluster.view().inventory("n") is UNKNOWN
        server.objects.edit(NPU_NODE_STATES, "n", status=report_on(state, {address(1): Card()}, "boot"))

        def known() -> bool:
            clock.now += 2
            return cluster.view().inventory("n") is not UNKNOWN

        await until(known)
        assert len(cluster.view().inventory("n")) == 1  # type: ignore[arg-type]
        assert cluster.view().inventory("none-such") is UNKNOWN


async def test_copy_whose_server_is_silent_is_unknown_again_and_nothing_is_let_in_or_refused_for_it() -> None:
    clock = Clock()
    content = policy(mode="VGPU", vgpu={"profileMapRef": {"name": "none-such"}}, products=["L40S"])
    async with FakeApi() as server, followed(server, clock) as cluster:
        await until(lambda: cluster.fault() is None)
        seeing = reviewed(review_document(content=content), cluster.view()).answer["response"]
        assert any("[NPF-NP-121]" in one for one in seeing["warnings"])
        clock.now += 1000
        assert "no contact for" in (cluster.fault() or "")
        blind = reviewed(review_document(content=content), cluster.view()).answer["response"]
        assert blind["allowed"]
        assert blind["warnings"][0].startswith("not checked against ")
        assert not any("[NPF-NP-121]" in one for one in blind["warnings"])
        bad = reviewed(review_document(content=policy(products=["none-such"])), cluster.view()).answer["response"]
        assert not bad["allowed"]


async def test_kind_that_may_not_be_read_is_named_with_the_right_that_lacks() -> None:
    clock = Clock()
    async with FakeApi() as server:
        server.fail("LIST", NODES, code=403, reason="Forbidden", message="no")
        async with followed(server, clock) as cluster:
            await until(lambda: "grant list and watch on nodes" in (cluster.fault() or ""))
            view = cluster.view()
            assert view.nodes() is UNKNOWN
            assert view.missed == ["Nodes"]
