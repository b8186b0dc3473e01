"""Callers who ask much at once keep nobody from a verdict in time: others wait for a turn of it, not for the sum."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.builders.review_server import ask, review_server
from tests.builders.reviews import policy, review_document

GOOD = review_document(content=policy())
MOST_SECONDS = 2.5
"""Half of what the API server waits; it takes a fifth of that on a machine that has nothing else to do."""


def unknown_products(rules: int, products: int) -> bytes:
    """As many as the schema allows: the nearest names are searched for some of them."""
    content = policy()
    content["spec"]["devices"] = [
        {"name": f"r{rule}", "match": {"products": [f"x{rule:02}{i:02}" for i in range(products)]}, "mode": "Container"}
        for rule in range(rules)
    ]
    return json.dumps(review_document(content=content)).encode()


def text_without_end() -> bytes:
    content = policy()
    content["metadata"]["annotations"] = {f"npufleet.io/{number}": "a://" * 16000 for number in range(40)}
    return json.dumps(review_document(content=content)).encode()


def products_without_end() -> bytes:
    return json.dumps(review_document(content=policy(products=[f"RBLN-{i:06}" for i in range(200_000)]))).encode()


@pytest.mark.parametrize(
    ("body", "times"),
    [
        (unknown_products(32, 32), 60),
        (unknown_products(24, 24), 60),
        (products_without_end(), 8),
        (text_without_end(), 8),
    ],
    ids=["the longest policies", "short policies", "products", "annotations"],
)
async def test_good_review_has_its_verdict_in_time_while_others_ask_for_much(body: bytes, times: int) -> None:
    async with review_server() as server, server.client() as flood, server.client() as client:
        await ask(client, server.url, GOOD)
        asked: list[asyncio.Task[tuple[int, Any]]] = [
            asyncio.create_task(ask(flood, server.url, body)) for _ in range(times)
        ]
        slowest = 0.0
        while not all(one.done() for one in asked):
            started = time.perf_counter()
            status, answer = await ask(client, server.url, GOOD)
            slowest = max(slowest, time.perf_counter() - started)
            assert (status, answer["response"]["allowed"]) == (200, True)
        print(f"{times} of {len(body)} bytes: the slowest good review took {slowest * 1000:.0f} ms")
        assert slowest < MOST_SECONDS
        assert all(one.result()[0] in (200, 503, 504) for one in asked)
