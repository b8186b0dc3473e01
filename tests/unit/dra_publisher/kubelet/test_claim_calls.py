"""Prepare and Unprepare over the wire: both versions, each claim its own answer, and calls that take too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from dra_publisher.kubelet import calls
from dra_publisher.kubelet.calls import ClaimCalls
from dra_publisher.kubelet.service import AnsweredDevice, ClaimRef
from kubelet_api import dra_v1_pb2 as v1
from tests.builders.fake_kubelet import FakeKubelet, HungUpError, Registered
from tests.builders.kubelet_plugins import DRIVER, Claims, Node, claim, device
from tests.builders.waiting import until

V1 = "v1.DRAPlugin"
V1BETA1 = "v1beta1.DRAPlugin"


async def served(node: Node, **options: Any) -> FakeKubelet:
    kubelet = await node.kubelet(**options)
    await node.plugins().serve(frozenset({DRIVER}))
    await kubelet.registered(DRIVER)
    return kubelet


@pytest.mark.parametrize("service", [V1, V1BETA1])
async def test_devices_are_answered_in_both_versions(node: Node, service: str) -> None:
    kubelet = await served(node, services=(service,))
    assert (await kubelet.registered(DRIVER)).service == service
    node.claims.answer = lambda claim: (device(1, share_id="share-1"), AnsweredDevice((), "node-a", "npu-2", (), None))
    answer = (await kubelet.prepare(DRIVER, claim()))[claim().uid]
    first = v1.Device(
        request_names=["npu"],
        pool_name="node-a",
        device_name="vfio-0000-01-00-0",
        cdi_device_ids=["k8s.npufleet.io/vfio=vfio-0000-01-00-0"],
        share_id="share-1" if service == V1 else None,
    )
    assert answer == [first, v1.Device(pool_name="node-a", device_name="npu-2")]
    assert node.claims.asked == [("prepare", DRIVER, (claim(),))]


@pytest.mark.parametrize("service", [V1, V1BETA1])
async def test_one_claims_error_is_its_own(node: Node, service: str) -> None:
    kubelet = await served(node)
    node.claims.answer = lambda asked: "device is being handed over" if asked == claim(2) else (device(),)
    node.claims.error = lambda asked: "the file cannot be removed" if asked == claim(2) else None
    answers = await kubelet.prepare(DRIVER, claim(1), claim(2), claim(3), service=service)
    assert answers[claim(2).uid] == "device is being handed over"
    assert len(answers[claim(1).uid]) == len(answers[claim(3).uid]) == 1
    errors = await kubelet.unprepare(DRIVER, claim(1), claim(2), claim(3), service=service)
    assert errors == {claim(1).uid: "", claim(2).uid: "the file cannot be removed", claim(3).uid: ""}


async def test_a_claim_without_devices_of_the_driver_is_prepared_all_the_same(node: Node) -> None:
    kubelet = await served(node)
    node.claims.answer = lambda claim: ()
    assert await kubelet.prepare(DRIVER, claim()) == {claim().uid: []}


async def test_a_call_for_no_claim_is_answered_and_nobody_is_asked(node: Node) -> None:
    kubelet = await served(node)
    assert await kubelet.prepare(DRIVER) == {}
    assert await kubelet.unprepare(DRIVER) == {}
    assert node.claims.asked == []


async def test_the_driver_of_the_socket_is_the_driver_that_is_asked_for(node: Node) -> None:
    kubelet = await node.kubelet()
    drivers = {DRIVER, "npu.rebellions.ai"}
    await node.plugins().serve(frozenset(drivers))
    for driver in sorted(drivers):
        await kubelet.prepare(driver, claim())
    assert [driver for _, driver, _ in node.claims.asked] == sorted(drivers)


async def test_a_failure_of_the_program_is_each_claims_error_and_the_plugin_lives_on(node: Node) -> None:
    kubelet = await served(node)

    def broken(claim: ClaimRef) -> str:
        raise ZeroDivisionError("bug")

    node.claims.answer = broken
    answers = await kubelet.prepare(DRIVER, claim(1), claim(2))
    assert answers == dict.fromkeys((claim(1).uid, claim(2).uid), "prepare failed: ZeroDivisionError: bug")
    node.claims.answer = lambda claim: (device(),)
    assert (await kubelet.prepare(DRIVER, claim(1)))[claim(1).uid] != []


async def test_an_empty_reason_is_no_success(node: Node) -> None:
    kubelet = await served(node)
    node.claims.answer = lambda claim: ""
    assert await kubelet.prepare(DRIVER, claim()) == {claim().uid: "prepare failed without a reason"}
    node.claims.error = lambda claim: ""
    assert await kubelet.unprepare(DRIVER, claim()) == {claim().uid: "unprepare failed without a reason"}


async def test_a_claim_that_nobody_answers_is_no_success() -> None:
    class Silent(Claims):
        async def prepare(self, driver: str, claims: Any) -> Any:
            return {}

    answers = await ClaimCalls(Silent()).prepare(DRIVER, [claim()], None)
    assert "no answer" in str(answers[claim().uid])


@pytest.mark.parametrize("bad", [ClaimRef("team", "a", ""), ClaimRef("", "a", "u"), ClaimRef("team", "", "u")])
async def test_a_claim_that_is_not_named_fully_is_refused_alone(node: Node, bad: ClaimRef) -> None:
    kubelet = await served(node)
    answers = await kubelet.prepare(DRIVER, bad, claim())
    assert "names a claim without a" in str(answers[bad.uid])
    assert len(answers[claim().uid]) == 1
    assert "names a claim without a" in (await kubelet.unprepare(DRIVER, bad))[bad.uid]
    assert [asked for method, _, asked in node.claims.asked] == [(claim(),)]


async def test_a_claim_that_is_named_twice_is_asked_for_once(node: Node) -> None:
    kubelet = await served(node)
    await kubelet.prepare(DRIVER, claim(), claim())
    assert node.claims.asked == [("prepare", DRIVER, (claim(),))]


async def test_two_claims_with_one_uid_are_refused(node: Node) -> None:
    kubelet = await served(node)
    twin = ClaimRef("team", "other", claim().uid)
    answers = await kubelet.prepare(DRIVER, claim(), twin)
    assert "two claims with the UID" in str(answers[claim().uid])
    assert node.claims.asked == []


async def test_more_claims_than_any_pod_has_are_refused_as_a_whole(node: Node) -> None:
    kubelet = await served(node)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await kubelet.prepare(DRIVER, *(claim(number) for number in range(1025)))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_call_that_the_kubelet_gives_up_is_worked_off_and_joined_by_the_next(node: Node) -> None:
    kubelet = await served(node)
    go_on = asyncio.Event()
    node.claims.before = go_on.wait
    call = asyncio.ensure_future(kubelet.prepare(DRIVER, claim()))
    await until(lambda: node.claims.asked)
    call.cancel()
    again = await kubelet.prepare(DRIVER, claim(), service=V1BETA1, seconds=1.2)
    assert again == {claim().uid: "prepare is still under way; ask again"}
    assert node.claims.asked == [("prepare", DRIVER, (claim(),))]
    go_on.set()
    await until(lambda: node.claims.ended == 1)
    assert len((await kubelet.prepare(DRIVER, claim()))[claim().uid]) == 1
    assert len(node.claims.asked) == 2  # what has ended is asked for anew


async def test_an_answer_comes_before_the_kubelets_patience_ends(node: Node) -> None:
    kubelet = await served(node)
    go_on = asyncio.Event()
    node.claims.before = go_on.wait
    answers = await kubelet.prepare(DRIVER, claim(1), claim(2), seconds=1.2)
    assert answers == dict.fromkeys((claim(1).uid, claim(2).uid), "prepare is still under way; ask again")
    assert await kubelet.unprepare(DRIVER, claim(1), seconds=1.2) == {
        claim(1).uid: "unprepare is still under way; ask again"
    }
    go_on.set()
    await until(lambda: node.claims.ended == 2)


async def test_a_caller_without_a_deadline_is_answered_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ANSWER_SECONDS", 0.05)
    service = Claims(before=asyncio.Event().wait)
    for seconds in (None, float("inf"), float("nan"), 1e9):
        claim_calls = ClaimCalls(service)
        answers = await claim_calls.prepare(DRIVER, [claim()], seconds)
        assert "still under way" in str(answers[claim().uid])
        await claim_calls.finish(0.0)


@asynccontextmanager
async def caller(node: Node) -> AsyncIterator[Registered]:
    """Somebody who calls the socket and does not hang up when the registration goes, as the kubelet does."""
    caller = Registered(node.root, DRIVER, f"/var/lib/kubelet/plugins/{DRIVER}/dra.sock", "", V1, "")
    await caller.connect()
    yield caller
    await caller.close()


async def test_a_stop_waits_for_what_was_asked(node: Node) -> None:
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    go_on = asyncio.Event()
    node.claims.before = go_on.wait
    async with caller(node) as client:
        call = asyncio.ensure_future(client.prepare([claim()]))
        await until(lambda: node.claims.asked)
        stop = asyncio.ensure_future(plugins.stop(5.0))
        await until(lambda: not (node.registry / f"{DRIVER}-reg.sock").exists())  # goodbye first
        assert not stop.done()
        go_on.set()
        assert len((await call)[claim().uid]) == 1
        await stop
    assert node.sockets() == []


async def test_a_stop_finishes_what_the_kubelet_hung_up_on(node: Node) -> None:
    kubelet = await node.kubelet()
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    await kubelet.registered(DRIVER)
    go_on = asyncio.Event()
    node.claims.before = go_on.wait
    call = asyncio.ensure_future(kubelet.prepare(DRIVER, claim()))
    await until(lambda: node.claims.asked)
    stop = asyncio.ensure_future(plugins.stop(5.0))
    with pytest.raises(HungUpError):
        await call
    assert not stop.done()
    go_on.set()
    await stop
    assert node.claims.ended == 1


async def test_a_stop_gives_up_what_does_not_end(node: Node) -> None:
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    node.claims.before = asyncio.Event().wait
    async with caller(node) as client:
        call = asyncio.ensure_future(client.prepare([claim()]))
        await until(lambda: node.claims.asked)
        async with asyncio.timeout(5):
            await plugins.stop(0.1)
        with pytest.raises(grpc.aio.AioRpcError):
            await call
    assert node.claims.ended == 0
    assert node.sockets() == []


async def test_each_claims_answer_is_measured(node: Node) -> None:
    told: list[tuple[str, str, str]] = []

    def on_call(method: str, driver: str, result: str, seconds: float) -> None:
        assert 0 <= seconds < 60
        told.append((method, driver, result))

    kubelet = await node.kubelet()
    await node.plugins(on_call=on_call).serve(frozenset({DRIVER}))
    node.claims.answer = lambda asked: "no" if asked == claim(2) else (device(),)
    await kubelet.prepare(DRIVER, claim(1), claim(2))
    await kubelet.unprepare(DRIVER, claim(1))
    assert sorted(told) == [("prepare", DRIVER, "error"), ("prepare", DRIVER, "ok"), ("unprepare", DRIVER, "ok")]


async def test_many_callers_at_once_each_get_their_own(node: Node) -> None:
    kubelet = await served(node)
    node.claims.answer = lambda asked: (device(int(asked.name.rpartition("-")[2])),)

    async def calling(first: int) -> None:
        for number in range(first, first + 8):
            answer = (await kubelet.prepare(DRIVER, claim(number)))[claim(number).uid]
            assert not isinstance(answer, str)
            assert answer[0].device_name == device(number).device

    await asyncio.gather(*(calling(8 * number) for number in range(8)))
    assert len(node.claims.asked) == 64
