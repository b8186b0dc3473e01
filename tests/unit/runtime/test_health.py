"""Health endpoints: fast under load, honest about a process that hangs, clear about what is wrong."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from runtime.health import HealthServer, ListenError
from runtime.metrics import Metrics
from runtime.settings import Address


def fetch(health: HealthServer, path: str) -> tuple[int, str, float]:
    """Status, body, seconds; blocks, so call it in a thread."""
    started = time.monotonic()
    try:
        with urllib.request.urlopen(f"http://{health.address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode(), time.monotonic() - started
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), time.monotonic() - started


async def get(health: HealthServer, path: str) -> tuple[int, Any]:
    status, body, _ = await asyncio.to_thread(fetch, health, path)
    return status, json.loads(body) if path != "/metrics" else body


def server(**options: Any) -> HealthServer:
    options.setdefault("announce", io.StringIO())
    return HealthServer(Address("127.0.0.1", 0), options.pop("registry", Metrics("c").registry), **options)


async def test_the_address_is_announced_as_one_json_line() -> None:
    out = io.StringIO()
    async with server(announce=out) as health:
        assert json.loads(out.getvalue()) == {"listening": str(health.address)}
        assert out.getvalue().endswith("}\n") and health.address is not None and health.address.port > 0


async def test_checks_are_named_with_their_reasons() -> None:
    reason: str | None = "nodes: no contact for 91 s"
    async with server() as health:
        health.add_readiness("feeds", lambda: reason)
        health.add_readiness("leader", lambda: None)
        status, body = await get(health, "/readyz")
        assert status == 503
        assert body == {
            "ok": False,
            "checks": {"feeds": {"ok": False, "reason": reason}, "leader": {"ok": True, "reason": ""}},
        }
        assert (await get(health, "/healthz"))[0] == 200, "what a restart would not cure is no liveness matter"
        reason = None
        assert (await get(health, "/readyz"))[0] == 200


async def test_notes_are_shown_with_their_reasons_and_fail_nothing() -> None:
    async with server() as health:
        health.add_note("source", lambda: "it is missing")
        assert (await get(health, "/readyz"))[0] == 503, "a note alone is no check"
        health.add_readiness("feeds", lambda: None)
        status, body = await get(health, "/readyz")
        assert status == 200
        assert body["checks"]["source"] == {"ok": True, "reason": "it is missing"}


async def test_a_process_without_checks_is_still_starting() -> None:
    async with server() as health:
        status, body = await get(health, "/readyz")
        assert status == 503
        assert body["checks"] == {"start": {"ok": False, "reason": "still starting"}}
        health.add_readiness("orders", lambda: None)
        assert (await get(health, "/readyz"))[0] == 200


async def test_a_check_that_fails_itself_counts_as_failed() -> None:
    def broken() -> str | None:
        raise RuntimeError("oops")

    async with server() as health:
        health.add_liveness("broken", broken)
        status, body = await get(health, "/healthz")
        assert status == 503 and "oops" in body["checks"]["broken"]["reason"]


async def test_metrics_are_served() -> None:
    metrics = Metrics("npufleet-test")
    metrics.count_write("Node", "ok")
    async with server(registry=metrics.registry) as health:
        status, body = await get(health, "/metrics")
        assert status == 200
        wanted = 'npufleet_api_writes_total{component="npufleet-test",kind="Node",result="ok"} 1.0'
        assert wanted in body


async def test_case_8_probes_answer_within_a_second_while_reconciles_keep_the_loop_busy() -> None:
    """The main loop computes without a pause, as at a start-up with thousands of objects."""
    answers: list[tuple[int, float]] = []
    async with server() as health:
        health.add_readiness("orders", lambda: None)
        done = threading.Event()

        def probe() -> None:
            for path in ("/healthz", "/readyz", "/metrics") * 3:
                status, _, seconds = fetch(health, path)
                answers.append((status, seconds))
            done.set()

        thread = threading.Thread(target=probe)
        thread.start()
        deadline = time.monotonic() + 20
        objects = {f"policy-{number}": {"spec": list(range(20))} for number in range(5000)}
        while not done.is_set() and time.monotonic() < deadline:
            json.dumps({key: sorted(value["spec"]) for key, value in objects.items()})  # no await: the loop stands
        thread.join()
    assert len(answers) == 9
    assert all(status == 200 for status, _ in answers)
    late = [seconds for _, seconds in answers if seconds >= 1.0]
    assert len(late) <= 1, late  # one: a machine that stood still is not the server


async def test_a_main_loop_that_hangs_fails_liveness_and_recovers() -> None:
    async with server(hangs_after_seconds=1.5) as health:
        assert (await get(health, "/healthz"))[0] == 200
        seen: list[str] = []

        def probe_until_failed() -> None:
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline:
                status, body, _ = fetch(health, "/healthz")
                if status == 503:
                    seen.append(json.loads(body)["checks"]["event-loop"]["reason"])
                    return
                time.sleep(0.05)

        thread = threading.Thread(target=probe_until_failed)
        thread.start()
        thread.join()  # blocks the main loop
        assert seen and "has not turned" in seen[0]
        async with asyncio.timeout(10):
            while (await get(health, "/healthz"))[0] != 200:  # noqa: ASYNC110 - polls another thread
                await asyncio.sleep(0.05)


async def test_an_address_that_is_taken_is_named() -> None:
    async with server() as health:
        assert health.address is not None
        second = HealthServer(health.address, Metrics("c").registry, announce=io.StringIO())
        with pytest.raises(ListenError, match=str(health.address.port)):
            async with second:
                pass


async def test_leaving_the_block_frees_the_port() -> None:
    async with server() as health:
        address = health.address
    assert address is not None
    async with HealthServer(address, Metrics("c").registry, announce=io.StringIO()) as again:
        assert again.address == address
