"""The HTTP side: bounded in size, time and number, and never a request lost when a certificate or a replica goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from typing import Any

import aiohttp
import pytest

from tests.builders.review_server import JSON, ask, authority, pair, review_server
from tests.builders.reviews import ALL_KNOWN, policy, review_document
from tests.builders.waiting import until
from webhooks.server.cluster_view import ClusterView
from webhooks.server.limits import Limits

GOOD = review_document(content=policy())
BAD = review_document(content=policy(products=["RBLN-CA2"]))


def padded(size: int) -> bytes:
    """A good review of that many bytes."""
    content = policy()
    content["metadata"]["annotations"] = {"a": ""}
    document = review_document(content=content)
    content["metadata"]["annotations"]["a"] = "x" * (size - len(json.dumps(document)))
    return json.dumps(document).encode()


class SlowView:
    """A view that keeps its asker waiting until it is released; safe to wait for in a thread."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked = 0

    def __call__(self) -> ClusterView:
        slow = self

        class Slow(ClusterView):
            def policies(self) -> Any:
                slow.asked += 1
                slow.release.wait(30)
                return super().policies()

        known = ALL_KNOWN()
        return Slow(catalogue=known.catalogue, now=known.now, known_policies={}, known_maps={})


async def test_reviews_are_answered_over_tls_and_counted() -> None:
    async with review_server() as server, server.client() as client:
        status, answer = await ask(client, server.url + "?timeout=5s", GOOD)
        assert status == 200
        assert answer["response"]["allowed"] is True
        _, answer = await ask(client, server.url, BAD)
        assert answer["response"]["allowed"] is False
        seconds = "npufleet_webhook_review_seconds_count"
        assert server.value(seconds, kind="NPUNodePolicy", verdict="allowed") == 1
        assert server.value(seconds, kind="NPUNodePolicy", verdict="denied") == 1
        assert server.value("npufleet_webhook_rejections_total", rule="NPF-NP-101") == 1
        assert server.value("npufleet_webhook_reviews_in_flight") == 0


async def test_connection_is_kept_from_review_to_review() -> None:
    async with review_server() as server, server.client() as client:
        opened = 0

        async def count(*_: object) -> None:
            nonlocal opened
            opened += 1

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(count)
        trace.freeze()
        client.trace_configs.append(trace)
        for _ in range(5):
            assert (await ask(client, server.url, GOOD))[0] == 200
        assert opened == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "", b"", JSON, 405),
        ("PUT", "", b"{}", JSON, 405),
        ("POST", "/other", b"{}", JSON, 404),
        ("POST", "", b"{}", {"Content-Type": "text/plain"}, 415),
        ("POST", "", b"{}", JSON, 400),
        ("POST", "", b"", JSON, 400),
        ("POST", "", b"\x00\xff", JSON, 400),
    ],
)
async def test_what_is_no_review_gets_a_status_and_a_reason(
    method: str, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    async with review_server() as server, server.client() as client:
        async with client.request(method, server.url + path, data=body, headers=headers) as answer:
            assert answer.status == status
            assert (await answer.text()).strip()
        assert (await ask(client, server.url, GOOD))[0] == 200


async def test_object_of_three_mebibytes_is_judged_and_a_larger_body_is_refused() -> None:
    limits = Limits()
    async with review_server(limits=limits) as server, server.client() as client:
        assert (await ask(client, server.url, padded(3 << 20)))[1]["response"]["allowed"] is True
        status, text = await ask(client, server.url, padded(limits.body_bytes + 1))
        assert (status, "at most" in text) == (413, True)
        assert (await ask(client, server.url, GOOD))[0] == 200


async def test_body_whose_length_is_not_told_is_bounded_as_well() -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 65536

    async with review_server(limits=Limits(body_bytes=1 << 20)) as server, server.client() as client:
        try:
            async with client.post(server.url, data=endless(), headers=JSON) as answer:
                assert answer.status == 413
        except aiohttp.ClientError:
            pass  # the connection was ended while the body was still being sent
        assert (await ask(client, server.url, GOOD))[0] == 200
        assert server.value("npufleet_webhook_review_seconds_count", kind="other", verdict="malformed") == 1


async def test_body_that_does_not_arrive_is_given_up_in_time() -> None:
    held = asyncio.Event()

    async def stuck() -> Any:
        yield b"{"
        await held.wait()

    async with review_server(limits=Limits(seconds=0.3)) as server, server.client() as client:
        with pytest.raises(aiohttp.ClientError):
            async with client.post(server.url, data=stuck(), headers=JSON) as answer:
                assert answer.status == 504
                raise aiohttp.ClientError
        held.set()


async def test_review_that_takes_too_long_is_given_up_and_the_others_go_on() -> None:
    slow = SlowView()
    limits = Limits(inline_bytes=0, threads=1)
    async with review_server(limits=limits, view=slow) as server, server.client() as client:
        try:
            status, text = await ask(client, server.url + "?timeout=0.4s", GOOD)
            assert (status, text.startswith("no verdict within 0.4 s")) == (504, True)
            # Its thread is still taken: the next one waits no longer than its own time.
            status, _ = await ask(client, server.url + "?timeout=0.2s", GOOD)
            assert status == 504
        finally:
            slow.release.set()
        await until(lambda: server.value("npufleet_webhook_reviews_in_flight") == 0)
        assert (await ask(client, server.url, GOOD))[1]["response"]["allowed"] is True


async def test_too_many_reviews_at_a_time_are_told_so_at_once() -> None:
    slow = SlowView()
    limits = Limits(inline_bytes=0, threads=1, in_flight=4)
    async with review_server(limits=limits, view=slow) as server, server.client() as client:
        waiting = [asyncio.create_task(ask(client, server.url, GOOD)) for _ in range(4)]
        await until(lambda: server.app.judging == 4)
        status, text = await ask(client, server.url, GOOD)
        assert (status, "4 reviews are in flight" in text) == (503, True)
        slow.release.set()
        assert [(await one)[0] for one in waiting] == [200] * 4


async def test_bodies_that_trickle_take_no_place_of_reviews_and_end_in_time() -> None:
    held = asyncio.Event()

    async def trickle() -> Any:
        yield b"{"
        await held.wait()

    async def send(client: aiohttp.ClientSession, url: str) -> int:
        try:
            async with client.post(url, data=trickle(), headers=JSON) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 408  # the server hung up on the body

    async with review_server(limits=Limits(in_flight=2, receive_seconds=0.5)) as server, server.client() as client:
        trickling = [asyncio.create_task(send(client, server.url)) for _ in range(20)]
        await until(lambda: server.value("npufleet_webhook_reviews_in_flight") == 20)
        assert (await ask(client, server.url, GOOD))[0] == 200
        await until(lambda: server.value("npufleet_webhook_reviews_in_flight") == 0)
        held.set()
        assert await asyncio.gather(*trickling) == [408] * 20


async def test_bytes_of_bodies_that_are_being_received_are_bounded_together() -> None:
    held = asyncio.Event()

    async def half(size: int) -> Any:
        yield b"x" * size
        await held.wait()

    async with review_server(limits=Limits(receiving_bytes=100_000)) as server, server.client() as client:

        async def send() -> int:
            async with client.post(server.url, data=half(60_000), headers=JSON) as answer:
                return answer.status

        first = asyncio.create_task(send())
        await until(lambda: server.app.receiving_bytes == 60_000)
        with contextlib.suppress(aiohttp.ClientError):  # the connection may end while the body is still being sent
            assert await send() == 503
        held.set()
        await first
        assert (await ask(client, server.url, GOOD))[0] == 200


async def test_review_that_is_longer_than_it_looks_goes_on_in_a_thread_with_the_same_verdict() -> None:
    names = [[f"x{number:02}y{other:02}" for other in range(32)] for number in range(32)]
    many = policy()
    many["spec"]["devices"] = [
        {"name": f"r{number}", "match": {"products": products}, "mode": "Container"}
        for number, products in enumerate(names)
    ]
    document = review_document(content=many)
    answers = []
    for limits in (Limits(inline_seconds=0.0), Limits(inline_seconds=60.0)):
        async with review_server(limits=limits) as server, server.client() as client:
            _, answer = await ask(client, server.url, document)
            answers.append(answer["response"]["status"])
    assert answers[0] == answers[1]
    assert answers[0]["message"].startswith("1024 violations:")


async def test_review_that_cannot_be_judged_in_time_is_refused_with_what_to_do() -> None:
    limits = Limits(inline_seconds=0.0, judge_seconds=0.0)
    async with review_server(limits=limits) as server, server.client() as client:
        status, answer = await ask(client, server.url, GOOD)
        assert (status, answer["response"]["allowed"]) == (200, False)
        assert answer["response"]["status"]["code"] == 413
        assert "split it into several objects" in answer["response"]["status"]["message"]
        assert server.value("npufleet_webhook_review_seconds_count", kind="NPUNodePolicy", verdict="refused") == 1


async def test_rule_that_breaks_costs_its_own_review_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ClusterView):
        def policies(self) -> Any:
            raise ZeroDivisionError

    def broken() -> ClusterView:
        known = ALL_KNOWN()
        return Broken(catalogue=known.catalogue, now=known.now)

    async with review_server(view=broken) as server, server.client() as client:
        status, text = await ask(client, server.url, GOOD)
        assert status == 500
        assert "log of npufleet-webhook" in text
        assert (await ask(client, server.url, review_document(operation="DELETE", old=policy())))[0] == 200
        assert server.value("npufleet_webhook_review_seconds_count", kind="other", verdict="failed") == 1


async def test_draining_replica_answers_and_ends_its_connections() -> None:
    async with review_server() as server, server.client() as client:
        async with client.post(server.url, json=GOOD) as answer:
            assert answer.headers.get("Connection", "").lower() != "close"
        server.app.drain()
        async with client.post(server.url, json=GOOD) as answer:
            assert answer.status == 200
            assert answer.headers["Connection"].lower() == "close"
        await server.app.idle()


async def test_stopped_listener_lets_what_is_in_flight_end() -> None:
    slow = SlowView()
    limits = Limits(inline_bytes=0, threads=1)
    async with review_server(limits=limits, view=slow) as server, server.client() as client:
        asked = asyncio.create_task(ask(client, server.url, GOOD))
        await until(lambda: slow.asked)
        server.app.drain()
        await server.site.stop()
        idle = asyncio.create_task(server.app.idle())
        await asyncio.sleep(0)
        assert not idle.done()
        slow.release.set()
        assert (await asked)[0] == 200
        await idle


async def test_other_certificate_under_load_costs_no_review() -> None:
    async with review_server() as server:
        second = authority("second")
        async with server.client(server.signer, second) as client:
            statuses: list[int] = []
            over = asyncio.Event()

            async def caller() -> None:
                while not over.is_set():
                    statuses.append((await ask(client, server.url, GOOD))[0])

            async with asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(caller())
                for number in range(10):
                    before = len(statuses)
                    server.serving.use(pair(second if number % 2 else server.signer))
                    await until(lambda seen=before: len(statuses) > seen + 60)  # type: ignore[misc]
                over.set()
        assert set(statuses) == {200}
        assert len(statuses) > 600


async def test_connections_of_a_former_certificate_are_ended_after_their_next_answer() -> None:
    async with review_server() as server, server.client() as client:
        await ask(client, server.url, GOOD)
        server.serving.use(pair(server.signer))
        async with client.post(server.url, json=GOOD) as answer:
            assert answer.headers["Connection"].lower() == "close"
        async with client.post(server.url, json=GOOD) as answer:
            assert answer.headers.get("Connection", "").lower() != "close"


async def test_handshake_shows_the_new_certificate_and_not_the_old_one_of_another_algorithm() -> None:
    async with review_server() as server:
        foreign = authority("foreign")
        server.serving.use(pair(foreign))
        async with server.client() as client:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await ask(client, server.url, GOOD)
        async with server.client(foreign) as client:
            assert (await ask(client, server.url, GOOD))[0] == 200


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("5s", 4.5),
        ("30s", 4.5),
        ("2s", 1.8),
        (None, 4.5),
        ("", 4.5),
        ("soon", 4.5),
        ("-1s", 4.5),
        ("nan", 4.5),
        ("1e9s", 4.5),
    ],
)
def test_time_of_a_review_is_the_api_servers_with_a_margin(asked: str | None, seconds: float) -> None:
    assert Limits().seconds_for(asked) == pytest.approx(seconds)
