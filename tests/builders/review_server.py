"""The admission app on a free loopback port, over TLS, in the test's own event loop."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from runtime.certificates import Authority, new_authority, new_leaf
from tests.builders.reviews import ALL_KNOWN
from webhooks.certificates.serving import Serving
from webhooks.certificates.serving_pair import ServingPair
from webhooks.server.app import PATH, AdmissionApp
from webhooks.server.limits import Limits
from webhooks.server.metrics import ServerMetrics
from webhooks.server.review import RememberingView

JSON = {"Content-Type": "application/json"}


def authority(name: str = "test") -> Authority:
    return new_authority(name, now=datetime.now(UTC), lifetime=timedelta(days=30))


def pair(signer: Authority, *hosts: str) -> ServingPair:
    """A new certificate for loopback."""
    now = datetime.now(UTC)
    return ServingPair.of(new_leaf(signer, "server", hosts=["127.0.0.1", *hosts], now=now, lifetime=timedelta(days=1)))


@dataclass
class ReviewServer:
    """`registry` has what the app counts."""

    app: AdmissionApp
    serving: Serving
    signer: Authority
    registry: CollectorRegistry
    site: web.BaseSite
    url: str

    def client(self, *trusted: Authority) -> aiohttp.ClientSession:
        """As strict as an API server: it believes these authorities (the server's own without) and no others."""
        context = ssl.create_default_context()
        for one in trusted or (self.signer,):
            context.load_verify_locations(cadata=one.pem.decode())
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=context))

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def review_server(
    *, limits: Limits | None = None, view: Callable[[], RememberingView] = ALL_KNOWN
) -> AsyncIterator[ReviewServer]:
    registry = CollectorRegistry()
    serving, signer = Serving(), authority()
    serving.use(pair(signer))
    app = AdmissionApp(view, ServerMetrics(registry), rules="test", limits=limits, is_former=serving.is_former)
    runner = web.ServerRunner(app.server(), handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    site = app.site(runner, "127.0.0.1", 0, serving.context)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield ReviewServer(app, serving, signer, registry, site, f"https://127.0.0.1:{port}{PATH}")
    finally:
        await runner.cleanup()


async def ask(client: aiohttp.ClientSession, url: str, document: Any) -> tuple[int, Any]:
    """Status, and the body as JSON where it is some, else as text."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    async with client.post(url, data=body, headers=JSON) as answer:
        text = await answer.text()
    return answer.status, json.loads(text) if text.startswith("{") else text
