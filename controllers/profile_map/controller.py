"""The profile-map controller: maps, node states, Nodes and Leases in; the status of maps out, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import kopf

from controllers.daemon_leases import Daemon, LeaseReader
from controllers.profile_map.plan import WRITER, status_of
from controllers.profile_map.view import MapRecord, NodeCards, read_boot, read_cards, read_map
from crds.models.conditions import timestamp
from runtime.api import Api, Conflict, NotFound
from runtime.health import HealthServer
from runtime.kopf_feed import KopfFeed
from runtime.kopf_operator import run_kopf
from runtime.lease import LeaderElection
from runtime.list_watch import ListWatch
from runtime.metrics import Metrics
from runtime.process import Process, unless_stopped
from runtime.resources import NODES, NPU_NODE_STATES, VGPU_PROFILE_MAPS
from runtime.status_writer import StatusWriter
from runtime.store import Change, Store
from runtime.work_queue import WorkQueue

log = logging.getLogger(__name__)

COMPONENT = "npufleet-profile-map"
_WRITERS = 2
# Reports come node by node while a fleet boots: a status that follows each of them would be hundreds of writes.
_SETTLE_SECONDS = 0.5


class ProfileMapController:
    """One replica of the controller. `run` returns when the process shall stop."""

    def __init__(
        self,
        api: Api,
        metrics: Metrics,
        *,
        identity: str,
        settle_seconds: float = _SETTLE_SECONDS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._now = now
        self._settle = settle_seconds
        self._maps: Store[MapRecord] = Store(read_map)
        self._states: Store[NodeCards] = Store(read_cards)
        self._boots: Store[str] = Store(read_boot)
        self._election = LeaderElection(api, COMPONENT, identity)
        self._statuses = StatusWriter(api, VGPU_PROFILE_MAPS, COMPONENT)
        self._queue: WorkQueue[str] = WorkQueue("map", observer=metrics.queue("profile-map"))
        self._registry = kopf.OperatorRegistry()
        self._map_feed = KopfFeed(
            api, VGPU_PROFILE_MAPS, self._maps, self._registry, on_health=metrics.feed(VGPU_PROFILE_MAPS.full_name)
        )
        self._state_feed = ListWatch(
            api, NPU_NODE_STATES, self._states, on_health=metrics.feed(NPU_NODE_STATES.full_name)
        )
        self._node_feed = ListWatch(api, NODES, self._boots, on_health=metrics.feed(NODES.full_name))
        self._leases = LeaseReader(api, self._daemons, self._all_soon, now=now)

    def add_checks(self, health: HealthServer) -> None:
        """Ready means: every feed follows the API server."""
        for feed in (self._map_feed, self._state_feed, self._node_feed):
            health.add_readiness(feed.resource.full_name, feed.reason)
        health.add_readiness("leases", lambda: self._leases.problem)

    async def run(self, process: Process) -> None:
        """Follow the API server, stand for election, and as the leader write until the process stops."""
        background: dict[str, Coroutine[Any, Any, None]] = {
            "map feed": self._map_feed.run(),
            "state feed": self._state_feed.run(),
            "node feed": self._node_feed.run(),
            "daemon leases": self._read_leases(),
        }
        for name, work in background.items():
            process.supervise(work, name)
        kopf_run = run_kopf(
            self._registry, credentials=self._api.credentials, stop=process.stop, feeds=[self._map_feed]
        )
        process.supervise(kopf_run, "kopf", finite=True)
        if not await unless_stopped(process, self._wait_synced()):
            return
        give_up = asyncio.Event()
        election = process.supervise(self._election.run(give_up), "election", finite=True)
        if await unless_stopped(process, self._election.acquired.wait()):
            await self._lead(process)
        give_up.set()
        await asyncio.wait({election})

    async def _lead(self, process: Process) -> None:
        log.info("Leading: %d maps, %d nodes", len(self._maps), len(self._states))
        self._maps.subscribe(self._maps_changed)
        self._states.subscribe(self._states_changed)
        self._boots.subscribe(lambda _: self._all_soon())
        self._all_soon()
        work = process.supervise(self._queue.run(_WRITERS, self._reconcile), "maps", finite=True)
        await process.stop.wait()
        self._queue.stop()
        if self._election.lost.is_set():
            work.cancel()  # somebody else leads now: what has not been sent must not be sent
        await asyncio.wait({work})

    async def _wait_synced(self) -> None:
        for feed in (self._map_feed, self._state_feed, self._node_feed):
            await feed.wait_synced()
        await self._leases.wait_synced()

    async def _read_leases(self) -> None:
        await self._state_feed.wait_synced()
        await self._leases.run()

    def _daemons(self) -> Iterator[Daemon]:
        """Every writer that has ever reported: it must have a Lease."""
        for _key, cards in self._states.items():  # noqa: PERF102 - a store is no dict
            if cards.reports is not None:
                yield Daemon(WRITER, cards.node)

    def _maps_changed(self, changes: Sequence[Change[MapRecord]]) -> None:
        for change in changes:
            if change.new is not None:
                self._queue.add(change.key.name)
            elif change.old is not None:
                self._statuses.forget(change.old.uid)

    def _states_changed(self, changes: Sequence[Change[NodeCards]]) -> None:
        for change in changes:
            for cards in (change.old, change.new):
                if cards is not None and cards.error:
                    self._all_soon()
                for name in cards.maps if cards is not None else ():
                    self._queue.add_after(name, self._settle)

    def _all_soon(self) -> None:
        for key in self._maps.keys():  # noqa: SIM118 - a store is no dict
            self._queue.add_after(key.name, self._settle)

    async def _reconcile(self, name: str) -> float | None:
        if not self._election.leading:
            return 1.0
        record = self._maps.get(name)
        if record is None:
            return None
        nodes = [cards for _key, cards in self._states.items() if name in cards.maps or cards.error]
        boots = {key.name: boot for key, boot in self._boots.items()}
        status = status_of(record, nodes, boots, self._leases.silent, timestamp(self._now()))
        with suppress(NotFound, Conflict):  # it is gone, or another one: its own event brings it
            await self._statuses.write(record.observed, status.to_object())
        return None
