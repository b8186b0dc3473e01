"""Calls to the API server: deadlines, retries, limits, paging, errors by type."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest

from runtime.api import (
    AlreadyExists,
    Api,
    ApiError,
    Conflict,
    CredentialsError,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from runtime.metrics import Metrics
from runtime.resources import NODES, NPU_NODE_POLICIES, NPU_NODE_STATES, PODS, VNPU_QUOTAS
from tests.builders.fake_api import FakeApi
from tests.builders.fake_objects import Object
from tests.builders.waiting import until


def node(name: str, **spec: object) -> Object:
    return {"metadata": {"name": name}, "spec": spec}


async def test_create_get_replace_delete_round_trip() -> None:
    async with FakeApi() as server, server.client() as api:
        made = await api.create(NODES, node("n1"))
        made["spec"] = {"unschedulable": True}
        await api.replace(NODES, made)
        assert (await api.get(NODES, "n1"))["spec"] == {"unschedulable": True}
        await api.delete(NODES, "n1", uid=made["metadata"]["uid"])
        with pytest.raises(NotFound) as caught:
            await api.get(NODES, "n1")
        assert caught.value.reason == "NotFound" and not caught.value.not_served


async def test_distance_of_the_clocks_is_known_after_an_answer() -> None:
    async with FakeApi() as server, server.client() as api:
        known = [api.clock_skew]
        await api.create(NODES, node("n1"))
        known.append(api.clock_skew)
        assert known[0] is None
        assert known[1] is not None
        assert abs(known[1].total_seconds()) < 10


async def test_replace_of_a_stale_copy_is_a_conflict_and_changes_nothing() -> None:
    async with FakeApi() as server, server.client() as api:
        stale = await api.create(NODES, node("n1"))
        server.objects.edit(NODES, "n1", spec={"unschedulable": True})
        with pytest.raises(Conflict):
            await api.replace(NODES, {**stale, "spec": {"podCIDR": "x"}})
        assert server.objects.get(NODES, "n1")["spec"] == {"unschedulable": True}


async def test_delete_refuses_another_incarnation_and_another_version() -> None:
    async with FakeApi() as server, server.client() as api:
        old = await api.create(NODES, node("n1"))
        server.objects.delete(NODES, "n1")
        server.objects.create(NODES, node("n1"))
        with pytest.raises(Conflict):
            await api.delete(NODES, "n1", uid=old["metadata"]["uid"])
        with pytest.raises(Conflict):
            await api.delete(NODES, "n1", resource_version=old["metadata"]["resourceVersion"])


async def test_identical_apply_is_no_change_and_a_precondition_is_a_compare_and_swap() -> None:
    async with FakeApi() as server, server.client() as api:
        body = {"metadata": {"name": "n1"}, "spec": {"revision": "a"}}
        first = await api.apply(NPU_NODE_STATES, body, field_manager="npufleet-node-policy")
        again = await api.apply(NPU_NODE_STATES, body, field_manager="npufleet-node-policy")
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        server.objects.edit(NPU_NODE_STATES, "n1", metadata_labels={"a": "b"})
        body["metadata"]["resourceVersion"] = first["metadata"]["resourceVersion"]
        with pytest.raises(Conflict):
            await api.apply(NPU_NODE_STATES, body, field_manager="npufleet-node-policy")


async def test_create_of_an_existing_name_is_already_exists() -> None:
    async with FakeApi() as server, server.client() as api:
        await api.create(NODES, node("n1"))
        with pytest.raises(AlreadyExists):
            await api.create(NODES, node("n1"))


async def test_json_patch_tests_a_precondition_and_merge_patch_merges() -> None:
    async with FakeApi() as server, server.client() as api:
        await api.create(PODS, {"metadata": {"name": "p", "namespace": "a"}, "spec": {"schedulingGates": ["x"]}})
        with pytest.raises(Invalid):
            await api.patch(PODS, "p", [{"op": "test", "path": "/metadata/uid", "value": "other"}], "a")
        await api.patch(PODS, "p", [{"op": "remove", "path": "/spec/schedulingGates"}], "a")
        await api.patch(PODS, "p", {"metadata": {"labels": {"k": "v"}}}, "a")
        pod = server.objects.get(PODS, "p", "a")
        assert pod["spec"] == {} and pod["metadata"]["labels"] == {"k": "v"}


async def test_eviction_refused_by_a_disruption_budget_is_reported_at_once() -> None:
    async with FakeApi() as server, server.client() as api:
        pod = await api.create(PODS, {"metadata": {"name": "p", "namespace": "a"}})
        cause = {"reason": "DisruptionBudget", "message": "needs 1 healthy pod"}
        server.fail("POST", PODS, code=429, reason="TooManyRequests", retry_after=1, causes=[cause])
        with pytest.raises(TooManyRequests) as caught:
            await api.evict("p", "a", uid=pod["metadata"]["uid"])
        assert caught.value.causes[0].message == "needs 1 healthy pod"
        assert len(server.calls("POST")) == 2
        server.heal()
        await api.evict("p", "a", uid=pod["metadata"]["uid"])
        assert server.objects.find(PODS, "p", "a") is None


async def test_eviction_refused_by_a_webhook_is_reported_at_once_with_its_words() -> None:
    metrics = Metrics("npufleet-test")
    async with FakeApi() as server, server.client(metrics=metrics) as api:
        pod = await api.create(PODS, {"metadata": {"name": "p", "namespace": "a"}})
        words = 'admission webhook "virt" denied the request: VMI a/db is being migrated'
        server.fail("POST", PODS, code=429, reason="TooManyRequests", message=words)
        with pytest.raises(TooManyRequests) as caught:
            await api.evict("p", "a", uid=pod["metadata"]["uid"])
        assert caught.value.message == words
        assert len(server.calls("POST")) == 2
    labels = {"component": "npufleet-test", "kind": "Eviction", "result": "TooManyRequests"}
    assert metrics.registry.get_sample_value("npufleet_api_writes_total", labels) == 1


async def test_eviction_meant_for_an_earlier_pod_of_the_name_does_not_happen() -> None:
    async with FakeApi() as server, server.client() as api:
        await api.create(PODS, {"metadata": {"name": "p", "namespace": "a"}})
        with pytest.raises(Conflict):
            await api.evict("p", "a", uid="another")
        assert server.objects.find(PODS, "p", "a") is not None
        with pytest.raises(NotFound):
            await api.evict("q", "a", uid="another")


async def test_invalid_names_the_fields() -> None:
    async with FakeApi() as server, server.client() as api:
        with pytest.raises(Invalid) as caught:
            await api.create(NODES, {"metadata": {}})
        assert [cause.field for cause in caught.value.causes] == ["metadata.name"]


async def test_list_is_paged_and_converted_page_by_page() -> None:
    async with FakeApi() as server, server.client() as api:
        for number in range(25):
            server.objects.create(NODES, node(f"n{number:02}"))
        listing = await api.list(NODES, page=10, convert=lambda item: str(item["metadata"]["name"]))
        assert listing.items == [f"n{number:02}" for number in range(25)]
        assert listing.resource_version == str(server.objects.version)
        assert len(server.calls("LIST")) == 3


async def test_list_restarts_when_its_continue_token_expires_and_is_of_one_snapshot() -> None:
    async with FakeApi() as server, server.client() as api:
        for number in range(4):
            server.objects.create(NODES, node(f"n{number}"))
        seen = 0

        def compact_once(item: Object) -> str:
            nonlocal seen
            seen += 1
            if seen == 2:
                server.objects.delete(NODES, "n0")
                server.objects.create(NODES, node("n9"))
                server.objects.compact()
            return str(item["metadata"]["name"])

        listing = await api.list(NODES, page=2, convert=compact_once)
        assert listing.items == ["n1", "n2", "n3", "n9"]


async def test_list_gives_up_when_every_continue_token_expires() -> None:
    async with FakeApi() as server, server.client() as api:
        for number in range(4):
            server.objects.create(NODES, node(f"n{number}"))

        def compact_always(item: Object) -> str:
            server.objects.edit(NODES, "n0", spec={"n": time.monotonic()})
            server.objects.compact()
            return ""

        with pytest.raises(Gone):
            await api.list(NODES, page=2, convert=compact_always)
        assert 4 <= len(server.calls("LIST")) <= 10


async def test_reads_are_retried_through_passing_faults() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NODES, node("n1"))
        server.fail("GET", NODES, code=503, reason="ServiceUnavailable", times=2)
        server.fail("GET", NODES, drop=True, times=1)
        assert (await api.get(NODES, "n1"))["metadata"]["name"] == "n1"
        assert len(server.calls("GET")) == 4


async def test_a_write_whose_answer_was_lost_is_not_repeated_unless_it_is_idempotent() -> None:
    async with FakeApi() as server, server.client() as api:
        server.fail("*", NODES, drop=True, after=True, times=1)
        with pytest.raises(Unreachable):
            await api.create(NODES, node("n1"))
        assert len(server.calls("POST")) == 1
        server.heal()
        server.fail("PATCH", NODES, drop=True, after=True, times=1)
        await api.apply(NODES, {"metadata": {"name": "n1", "labels": {"a": "b"}}}, field_manager="m")
        assert len(server.calls("PATCH")) == 2


async def test_a_compare_and_swap_whose_answer_was_lost_is_not_repeated() -> None:
    async with FakeApi() as server, server.client() as api:
        made = await api.create(NODES, node("n1"))
        server.fail("*", NODES, drop=True, after=True, times=1)
        target = {"name": "n1", "resourceVersion": made["metadata"]["resourceVersion"], "labels": {"a": "b"}}
        with pytest.raises(Unreachable):
            await api.apply(NODES, {"metadata": target}, field_manager="m")
        assert len(server.calls("PATCH")) == 1


async def test_a_replace_whose_answer_was_lost_is_not_repeated_behind_our_back() -> None:
    """aiohttp repeats a PUT by itself; the repetition of a compare-and-swap would report a false conflict."""
    async with FakeApi() as server, server.client() as api:
        made = await api.create(NODES, node("n1"))
        server.fail("PUT", NODES, drop=True, after=True, times=1)
        with pytest.raises(Unreachable):
            await api.replace(NODES, {**made, "spec": {"unschedulable": True}})
        assert len(server.calls("PUT")) == 1


async def test_a_delete_whose_answer_was_lost_succeeds() -> None:
    async with FakeApi() as server, server.client() as api:
        await api.create(NODES, node("n1"))
        server.fail("DELETE", NODES, drop=True, after=True, times=1)
        await api.delete(NODES, "n1")
        assert server.objects.find(NODES, "n1") is None


async def test_throttled_write_waits_as_told_and_then_succeeds() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async with FakeApi() as server, server.client() as api:
        api._transport._sleep = sleep
        server.fail("POST", NODES, code=429, reason="TooManyRequests", retry_after=2, times=2)
        await api.create(NODES, node("n1"))
        assert pauses == [2.0, 2.0]


async def test_throttled_write_that_would_miss_its_deadline_says_how_long_to_wait() -> None:
    async with FakeApi() as server, server.client(timeout_seconds=1.0) as api:
        server.fail("POST", NODES, code=429, reason="TooManyRequests", retry_after=30)
        with pytest.raises(TooManyRequests) as caught:
            await api.create(NODES, node("n1"))
        assert caught.value.retry_after == 30.0
        assert len(server.calls("POST")) == 1


async def test_a_server_that_never_answers_is_unreachable_within_the_deadline() -> None:
    async with FakeApi() as server, server.client(timeout_seconds=0.3) as api:
        server.fail("*", hang=True)
        started = time.monotonic()
        with pytest.raises(Unreachable):
            await api.get(NODES, "n1")
        with pytest.raises(Unreachable):
            async with aclosing(api.watch(NODES, resource_version="1")) as events:
                await anext(events)
        assert time.monotonic() - started < 3
        server.heal()


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    server = FakeApi()
    async with server:
        kubeconfig = server.kubeconfig()
        kept = kubeconfig.read_text()
    gone = Path(kubeconfig.parent)
    gone.mkdir(exist_ok=True)
    kubeconfig.write_text(kept)
    try:
        async with Api.connect(kubeconfig=kubeconfig, component="t", timeout_seconds=0.5) as api:
            with pytest.raises(Unreachable) as caught:
                await api.create(NODES, node("n1"))
            assert caught.value.transient
    finally:
        kubeconfig.unlink()
        gone.rmdir()


@pytest.mark.parametrize("body", [b"<html>502 Bad Gateway</html>", b"", b"\xff\xfe", b"[1]", b'{"kind": 3}'])
@pytest.mark.parametrize("code", [200, 500, 502])
async def test_an_answer_that_is_no_kubernetes_object_is_an_error_not_a_crash(code: int, body: bytes) -> None:
    async with FakeApi() as server, server.client(timeout_seconds=0.3) as api:
        server.fail("*", NODES, code=code, raw=body)
        if code == 200 and body == b'{"kind": 3}':
            assert await api.get(NODES, "n1") == {"kind": 3}
            return
        with pytest.raises(ApiError) as caught:
            await api.get(NODES, "n1")
        assert caught.value.transient


async def test_a_kind_that_is_not_served_is_told_from_an_object_that_is_missing() -> None:
    async with FakeApi(served=(NODES,)) as server, server.client() as api:
        with pytest.raises(NotFound) as caught:
            await api.list(NPU_NODE_POLICIES)
        assert caught.value.not_served


async def test_refusals_keep_their_type() -> None:
    async with FakeApi() as server, server.client() as api:
        server.fail("GET", code=403, reason="Forbidden", message="nodes is forbidden", times=1)
        with pytest.raises(Forbidden, match="nodes is forbidden"):
            await api.get(NODES, "n1")
        server.tokens = {"another"}
        with pytest.raises(Unauthorized):
            await api.get(NODES, "n1")
        assert len(server.calls("GET")) == 2


async def test_case_7_write_rate_limit_holds_for_a_herd_of_writers() -> None:
    """However many writers start at once, no moment has seen more writes than the burst plus the rate allow."""
    rate, burst, count = 100.0, 10, 60
    async with FakeApi() as server, server.client(writes_per_second=rate, burst=burst) as api:
        begin = time.monotonic()
        await asyncio.gather(*(api.create(NODES, node(f"n{number}")) for number in range(count)))
        times = sorted(request.at for request in server.calls("POST"))
        assert len(times) == count and len(list(server.objects.items(NODES))) == count, "all of them converge"
        for number, at in enumerate(times, start=1):
            assert number <= burst + rate * (at - begin) + 1e-3
        assert len(server.writes()) == count, "and none was refused and repeated"


async def test_writes_are_counted_by_kind_and_outcome() -> None:
    metrics = Metrics("npufleet-test")
    async with FakeApi() as server, server.client(metrics=metrics) as api:
        await api.create(NODES, node("n1"))
        with pytest.raises(AlreadyExists):
            await api.create(NODES, node("n1"))
        await api.get(NODES, "n1")

    def count(result: str) -> float | None:
        labels = {"component": "npufleet-test", "kind": "Node", "result": result}
        return metrics.registry.get_sample_value("npufleet_api_writes_total", labels)

    assert count("ok") == 1.0
    assert count("AlreadyExists") == 1.0


async def test_connection_that_goes_just_before_a_read_is_an_error_of_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """aiohttp raises RuntimeError there, which no caller takes for the network's: a daemon ended by it."""
    reads = 0

    async def gone(reader: aiohttp.StreamReader) -> bytes:
        nonlocal reads
        reads += 1
        if reads in (1, 3):
            raise RuntimeError("Connection closed.")
        return await real(reader)

    real = aiohttp.StreamReader.readany
    async with FakeApi() as server, server.client() as api:
        made = server.objects.create(NODES, node("n1"))
        monkeypatch.setattr(aiohttp.StreamReader, "readany", gone)
        assert (await api.get(NODES, "n1"))["metadata"]["name"] == "n1"
        reads = 2
        version = made["metadata"]["resourceVersion"]
        with pytest.raises(Unreachable, match="Connection closed"):
            async with aclosing(api.watch(NODES, resource_version=version)) as events:
                await anext(events)
    assert reads == 3


async def test_watch_yields_changes_after_its_version_and_bookmarks() -> None:
    async with FakeApi(bookmark_seconds=0.05) as server, server.client() as api:
        made = server.objects.create(NODES, node("n1"))
        server.objects.create(PODS, {"metadata": {"name": "p", "namespace": "a"}})
        version = made["metadata"]["resourceVersion"]
        server.objects.edit(NODES, "n1", spec={"unschedulable": True})
        server.objects.delete(NODES, "n1")
        kinds = []
        async with aclosing(api.watch(NODES, resource_version=version)) as events:
            async for event in events:
                kinds.append(event["type"])
                if event["type"] == "BOOKMARK":
                    assert event["object"]["metadata"]["resourceVersion"] == str(server.objects.version)
                    break
        assert kinds == ["MODIFIED", "DELETED", "BOOKMARK"]


async def test_watch_of_one_name_and_of_a_label_sees_objects_enter_and_leave() -> None:
    async with FakeApi() as server, server.client() as api:
        start = str(server.objects.version)
        kinds: list[str] = []

        async def follow() -> None:
            events = api.watch(NODES, resource_version=start, label_selector="pool=a")
            async with aclosing(events):
                async for event in events:
                    name = event["object"]["metadata"]["name"]
                    kinds.append(f"{event['type']} {name}")

        task = asyncio.create_task(follow())
        server.objects.create(NODES, {"metadata": {"name": "n1", "labels": {"pool": "b"}}})
        server.objects.edit(NODES, "n1", metadata_labels={"pool": "a"})
        server.objects.edit(NODES, "n1", metadata_labels={"pool": "b"})
        await until(lambda: len(kinds) == 2)
        assert kinds == ["ADDED n1", "DELETED n1"]
        task.cancel()


async def test_watch_from_a_compacted_version_is_gone_in_the_answer_and_in_the_stream() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(NODES, node("n1"))
        server.objects.compact()
        with pytest.raises(Gone):
            async with aclosing(api.watch(NODES, resource_version="5")) as events:
                await anext(events)
        async with aclosing(api.watch(NODES, resource_version=str(server.objects.version))) as events:
            waiting = asyncio.ensure_future(anext(events))
            await until(lambda: server.watching)
            server.expire_watches()
            with pytest.raises(Gone):
                await waiting


async def test_case_3_a_silent_watch_ends_with_an_error_within_the_inactivity_limit() -> None:
    async with FakeApi() as server, server.client() as api:
        started = time.monotonic()
        with pytest.raises(Unreachable, match="no event and no bookmark"):
            version = str(server.objects.version)
            async with aclosing(api.watch(NODES, resource_version=version, inactivity_seconds=0.2)) as events:
                await anext(events)
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("line", [{"type": "ADDED"}, {"type": "ADDED", "object": []}, {"object": {"x": 1}}])
async def test_watch_lines_that_make_no_sense_are_errors_or_passed_on_never_crashes(line: Object) -> None:
    async with FakeApi() as server, server.client() as api:
        events = api.watch(NODES, resource_version=str(server.objects.version))
        async with aclosing(events):
            waiting = asyncio.ensure_future(anext(events))
            await until(lambda: server.watching)
            server.send_to_watches(NODES, line)
            if isinstance(line.get("object"), dict):
                assert await waiting == line
            else:
                with pytest.raises(Unreachable):
                    await waiting


async def test_an_event_larger_than_any_buffer_arrives_whole() -> None:
    async with FakeApi() as server, server.client() as api:
        version = str(server.objects.version)
        server.objects.create(NPU_NODE_STATES, {"metadata": {"name": "n"}, "spec": {"blob": "x" * 3_000_000}})
        async with aclosing(api.watch(NPU_NODE_STATES, resource_version=version)) as events:
            event = await anext(events)
        assert len(event["object"]["spec"]["blob"]) == 3_000_000


async def test_a_rotated_token_file_is_picked_up_after_a_refusal(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with FakeApi() as server:
        server.tokens = {"first"}
        async with server.client(kubeconfig=server.kubeconfig(token_file=token)) as api:
            server.objects.create(NODES, node("n1"))
            await api.get(NODES, "n1")
            server.tokens = {"second"}
            token.with_suffix(".new").write_text("second\n")
            token.with_suffix(".new").rename(token)
            await api.get(NODES, "n1")
            async with aclosing(api.watch(NODES, resource_version="100")) as events:
                assert (await anext(events))["type"] == "ADDED"


async def test_calls_that_cannot_be_right_are_refused_before_they_are_sent() -> None:
    async with FakeApi() as server, server.client() as api:
        with pytest.raises(ValueError, match="namespaced"):
            await api.get(PODS, "p")
        with pytest.raises(ValueError, match="cluster-scoped"):
            await api.get(NODES, "n1", "default")
        with pytest.raises(ValueError, match=r"metadata\.name"):
            await api.replace(NODES, {"metadata": {}})
        with pytest.raises(ValueError, match="needs a namespace"):
            await api.apply(VNPU_QUOTAS, {"metadata": {"name": "q"}}, field_manager="m")
        assert server.requests == []


async def test_names_are_escaped_in_the_url() -> None:
    async with FakeApi() as server, server.client() as api:
        with pytest.raises(NotFound):
            await api.get(NODES, "../pods?x=1")
        assert server.requests[0].resource == NODES


async def test_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="nowhere"):
        async with Api.connect(kubeconfig=tmp_path / "nowhere", component="t"):
            pass
