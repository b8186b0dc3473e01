"""The life of one replica: local copies, certificate, health, and the server of reviews; and its end without a loss."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from typing import TextIO

from aiohttp import web

from crds.catalogue import load_catalogue
from runtime import process
from runtime.api import Api
from runtime.health import HealthServer, ListenError
from runtime.metrics import Metrics
from runtime.settings import Address, Settings
from webhooks.certificates.files import Files
from webhooks.certificates.keeper import Keeper, Source
from webhooks.certificates.rotation import Rotation
from webhooks.certificates.server_clock import ServerClock
from webhooks.certificates.serving import Serving
from webhooks.rules.judge import version
from webhooks.server.app import AdmissionApp
from webhooks.server.cluster_view import Cluster
from webhooks.server.metrics import ServerMetrics
from webhooks.server.options import Options

log = logging.getLogger(__name__)

_FINISH_SECONDS = 6.0


def run(settings: Settings, options: Options) -> int:
    """Run one replica until it is told to stop; returns the exit code."""

    async def main(life: process.Process) -> None:
        metrics = Metrics(settings.component)
        async with Api.of(settings, metrics) as api:
            await Replica(api, metrics, settings, options).run(life)

    return process.run(main, shutdown_seconds=options.drain_seconds + _FINISH_SECONDS + 10.0)


class Replica:
    """One process's parts, put together."""

    def __init__(
        self,
        api: Api,
        metrics: Metrics,
        settings: Settings,
        options: Options,
        *,
        announce: TextIO | None = None,
    ) -> None:
        self._options = options
        self._announce = announce if announce is not None else sys.stdout
        catalogue = load_catalogue()
        clock = ServerClock(lambda: api.clock_skew)
        self._cluster = Cluster(api, metrics, catalogue, now=clock.now)
        self._serving = Serving()
        source = _source(api, options, clock)
        self._keeper = Keeper(source, self._serving, hosts=options.hosts, now=clock.now, clock=time.monotonic)
        server_metrics = ServerMetrics(metrics.registry)
        server_metrics.follow_expiry(self._ends)
        self._app = AdmissionApp(
            self._cluster.view, server_metrics, rules=version(catalogue), is_former=self._serving.is_former
        )
        self._health = HealthServer(settings.listen, metrics.registry, announce=self._announce)
        self._health.add_readiness("copies", self._cluster.fault)
        self._health.add_readiness("clock", clock.fault)
        self._health.add_readiness("certificate", self._keeper.fault)
        self._health.add_note("certificate-source", lambda: self._keeper.source_fault)
        self._health.add_readiness("stopping", lambda: "told to stop" if self._app.draining else None)

    async def run(self, life: process.Process) -> None:
        """Serve until told to stop. Raises ListenError."""
        async with self._health:
            for feed in self._cluster.feeds():
                life.supervise(feed.run(), f"feed of {feed.resource.full_name}")
            life.supervise(self._keeper.run(), "certificate")
            await self._serve(life.stop)

    async def _serve(self, stop: asyncio.Event) -> None:
        runner = web.ServerRunner(self._app.server(), handle_signals=False, shutdown_timeout=_FINISH_SECONDS)
        await runner.setup()
        listen = self._options.reviews
        site = self._app.site(runner, listen.host or None, listen.port, self._serving.context)
        try:
            try:
                await site.start()
            except OSError as error:
                raise ListenError(f"cannot serve reviews on {listen}: {error}") from error
            host, port = runner.addresses[0][:2]
            said = {"listening": str(Address(host, port)), "for": "reviews"}
            print(json.dumps(said), file=self._announce, flush=True)
            await stop.wait()
            await self._drain(site)
        finally:
            await runner.cleanup()

    async def _drain(self, site: web.BaseSite) -> None:
        """Not ready at once, then answers that end their connections, then no new ones, then what is in flight."""
        self._app.drain()
        log.info("Answering for another %g s, until nobody asks this replica any more", self._options.drain_seconds)
        await asyncio.sleep(self._options.drain_seconds)
        await site.stop()
        try:
            async with asyncio.timeout(_FINISH_SECONDS):
                await self._app.idle()
        except TimeoutError:
            log.warning("Reviews are still in flight after %g s: giving them up", _FINISH_SECONDS)

    def _ends(self) -> float:
        pair = self._serving.pair
        return pair.ends.timestamp() if pair is not None else 0.0


def _source(api: Api, options: Options, clock: ServerClock) -> Source:
    if options.certificates is not None:
        return Files(api, options.certificates, now=clock.now, clock=time.monotonic)
    return Rotation(
        api,
        hosts=options.hosts,
        lifetimes=options.lifetimes,
        now=clock.now,
        clock=time.monotonic,
        skew=lambda: api.clock_skew,
    )
