"""The node-policy controller: feeds of objects in, plans, writes out. All decisions are in `plan`; here is the wiring.

Level-triggered: whatever happens, the whole plan is made again from the stores, and judgements on nodes that did not
change are kept from the last one. Only the leader plans and writes; the others keep their stores warm.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import kopf

from controllers.daemon_leases import LeaseReader
from controllers.node_policy.drain.marks import NodeMarker
from controllers.node_policy.drain.rounds import Rounds
from controllers.node_policy.metrics import Figures, SharedQueueMetrics
from controllers.node_policy.plan import Cache, Plan, PolicyView, plan
from controllers.node_policy.plan.removal_hold import SETTINGS_NAME
from controllers.node_policy.plan.view import DEFAULT_GRACE_SECONDS, MapView
from controllers.node_policy.retreats import Retreats
from controllers.node_policy.settle import Settled, SettledNodes, SettledPolicies, changes_orders, selector_keys
from controllers.node_policy.world import Stores
from controllers.node_policy.writer import Writer
from runtime.api import Api
from runtime.event_recorder import EventRecorder
from runtime.health import HealthServer
from runtime.kopf_feed import KopfFeed
from runtime.kopf_operator import run_kopf
from runtime.lease import LeaderElection
from runtime.list_watch import WATCHING, ListWatch
from runtime.metrics import Metrics
from runtime.process import Process, unless_stopped
from runtime.resources import (
    CONFIG_MAPS,
    DEVICE_CLASSES,
    NAMESPACE,
    NODES,
    NPU_NODE_POLICIES,
    NPU_NODE_STATES,
    VGPU_PROFILE_MAPS,
)
from runtime.store import Change
from runtime.work_queue import WorkQueue

log = logging.getLogger(__name__)

COMPONENT = "npufleet-node-policy"
_NODE_WRITERS = 6
_POLICY_WRITERS = 2
_MARKERS = 2
# Who drains waits for nothing for long: what is in the way may be gone at any moment.
_LONGEST_DRAIN_RETRY = 10.0
# Of its time the controller spends at most a fifth on planning, however fast the events come: orders that were not
# sent yet are taken back before each plan, so where plans follow each other closely nothing is ever sent.
_REST_PER_PLAN = 4.0
_SHORTEST_REST = 0.25
_LONGEST_REST = 10.0
_DRAIN_SECONDS = 2.0
# How long the first plan waits for what only a status depends on.
_CLASSES_SECONDS = 5.0


class Drainer(StrEnum):
    """Who empties nodes: this controller, or another one that it asks through annotations of the Node."""

    INTERNAL = "Internal"
    EXTERNAL = "External"


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of this controller: seconds that commits must stand still, seconds that a state outlives its Node."""

    settle_seconds: float = 1.0
    node_grace_seconds: int = DEFAULT_GRACE_SECONDS
    drainer: Drainer = Drainer.INTERNAL


class NodePolicyController:
    """One replica of the controller. `run` returns when the process shall stop."""

    def __init__(
        self,
        api: Api,
        metrics: Metrics,
        *,
        identity: str,
        options: Options | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.options = options or Options()
        self._api = api
        self._stores = stores = Stores()
        self._clock = clock
        self._now = now
        self._figures = Figures(metrics, clock)
        self._recorder = EventRecorder(api, component=COMPONENT, instance=identity)
        self._election = LeaderElection(api, COMPONENT, identity)
        self._settled = SettledPolicies(clock, seconds=self.options.settle_seconds)
        self._settled_maps: Settled[MapView] = Settled(clock, seconds=self.options.settle_seconds)
        self._labels = SettledNodes(clock, seconds=self.options.settle_seconds)
        stores.nodes.subscribe(self._labels.changed)  # before it leads, too: then it knows which labels stand still
        self._writer = Writer(
            api,
            stores.states,
            stores.policies,
            self._recorder,
            self._figures,
            field_manager=COMPONENT,
            may_write=lambda: self._election.leading,
            node_exists=stores.node_exists,
            replan=self._plan_soon,
        )
        self._marker = NodeMarker(
            api,
            stores.nodes,
            may_write=lambda: self._election.leading,
            replan=self._plan_soon,
            changed=lambda: self._drain_rounds.add("all"),
        )
        self._rounds = Rounds(
            api,
            may_write=lambda: self._election.leading,
            replan=self._plan_soon,
            problem=self._marker.problem,
            evicts=self.options.drainer is Drainer.INTERNAL,
        )
        queues = SharedQueueMetrics(metrics.queue("node-policy"))
        # A queue of its own for each: thousands of nodes to write must not delay the next plan, or a policy's status.
        self._plans: WorkQueue[str] = WorkQueue("plan", observer=queues.observer("plan"))
        self._node_writes: WorkQueue[str] = WorkQueue("node", observer=queues.observer("node"))
        self._policy_writes: WorkQueue[str] = WorkQueue("policy", observer=queues.observer("policy"))
        self._mark_writes: WorkQueue[str] = WorkQueue(
            "mark", max_delay=_LONGEST_DRAIN_RETRY, observer=queues.observer("mark")
        )
        self._drain_rounds: WorkQueue[str] = WorkQueue(
            "drain", max_delay=_LONGEST_DRAIN_RETRY, observer=queues.observer("drain")
        )
        self._registry = kopf.OperatorRegistry()
        self._policy_feed = KopfFeed(
            api, NPU_NODE_POLICIES, stores.policies, self._registry, on_health=metrics.feed(NPU_NODE_POLICIES.full_name)
        )
        self._node_feed = ListWatch(api, NODES, stores.nodes, on_health=metrics.feed(NODES.full_name))
        self._state_feed = ListWatch(
            api, NPU_NODE_STATES, stores.states, on_health=metrics.feed(NPU_NODE_STATES.full_name)
        )
        self._settings_feed = ListWatch(
            api,
            CONFIG_MAPS,
            stores.settings,
            namespace=NAMESPACE,
            field_selector=f"metadata.name={SETTINGS_NAME}",
            on_health=metrics.feed(CONFIG_MAPS.full_name),
        )
        self._class_feed = ListWatch(
            api, DEVICE_CLASSES, stores.classes, on_health=metrics.feed(DEVICE_CLASSES.full_name)
        )
        # They have a controller of their own; here only their specs count.
        self._map_feed = ListWatch(
            api, VGPU_PROFILE_MAPS, stores.maps, on_health=metrics.feed(VGPU_PROFILE_MAPS.full_name)
        )
        self._leases = LeaseReader(api, stores.daemons, self._plan_soon, now=now)
        self._cache = Cache()
        self._retreats = Retreats()
        self._confirmed: tuple[str, frozenset[str]] = ("", frozenset())
        self._held: frozenset[str] | None = None
        self._rest_until = 0.0
        self._fault: str | None = None

    def add_checks(self, health: HealthServer) -> None:
        """Ready means: every feed follows the API server, and plans can be made."""
        for feed in (self._policy_feed, self._node_feed, self._state_feed, self._settings_feed):
            health.add_readiness(feed.resource.full_name, feed.reason)
        health.add_readiness("leases", lambda: self._leases.problem)
        health.add_readiness("planner", lambda: self._fault)

    async def run(self, process: Process) -> None:
        """Follow the API server, stand for election, and as the leader plan and write until the process stops."""
        background: dict[str, Coroutine[Any, Any, None]] = {
            "policy feed": self._policy_feed.run(),
            "node feed": self._node_feed.run(),
            "state feed": self._state_feed.run(),
            "settings feed": self._settings_feed.run(),
            "class feed": self._class_feed.run(),
            "map feed": self._map_feed.run(),
            "daemon leases": self._read_leases(),
        }
        for name, work in background.items():
            process.supervise(work, name)
        events = process.supervise(self._recorder.run(), "events")
        kopf_run = run_kopf(
            self._registry, credentials=self._api.credentials, stop=process.stop, feeds=[self._policy_feed]
        )
        process.supervise(kopf_run, "kopf", finite=True)
        # Nothing is decided before everything is known: what was not listed yet is not absent.
        if not await unless_stopped(process, self._wait_synced()):
            return
        give_up_lease = asyncio.Event()
        election = process.supervise(self._election.run(give_up_lease), "election", finite=True)
        if await unless_stopped(process, self._election.acquired.wait()):
            await self._lead(process)
        give_up_lease.set()
        events.cancel()
        await asyncio.wait({election, events})
        await self._recorder.drain(_DRAIN_SECONDS)

    async def _lead(self, process: Process) -> None:
        log.info("Leading: %d policies, %d nodes", len(self._stores.policies), len(self._stores.nodes))
        self._settled.changed()
        self._settled_maps.changed()
        for store in (self._stores.nodes, self._stores.states, self._stores.settings, self._stores.classes):
            store.subscribe(lambda changes: self._plan_soon())
        self._stores.policies.subscribe(self._policies_changed)
        self._stores.maps.subscribe(self._maps_changed)
        self._plans.add_after("all", self.options.settle_seconds)
        work = [
            process.supervise(self._plans.run(1, self._plan), "planner", finite=True),
            process.supervise(self._node_writes.run(_NODE_WRITERS, self._writer.write_node), "nodes", finite=True),
            process.supervise(
                self._policy_writes.run(_POLICY_WRITERS, self._writer.write_policy), "policies", finite=True
            ),
            process.supervise(self._mark_writes.run(_MARKERS, self._marker.write), "marks", finite=True),
            process.supervise(self._drain_rounds.run(1, self._rounds.run), "drains", finite=True),
        ]
        await process.stop.wait()
        self._rounds.stop()
        for queue in (self._plans, self._node_writes, self._policy_writes, self._mark_writes, self._drain_rounds):
            queue.stop()
        if self._election.lost.is_set():
            # Somebody else leads now: what has not been sent must not be sent.
            for task in work:
                task.cancel()
        await asyncio.wait(work)

    async def _wait_synced(self) -> None:
        for feed in (self._policy_feed, self._node_feed, self._state_feed, self._settings_feed):
            await feed.wait_synced()
        await self._leases.wait_synced()
        # Without classes (not allowed to read them, say) there is only less to tell.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._map_feed.wait_synced(), _CLASSES_SECONDS)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._class_feed.wait_synced(), _CLASSES_SECONDS)

    async def _read_leases(self) -> None:
        # Which Leases are expected follows from the reports.
        await self._state_feed.wait_synced()
        await self._leases.run()

    # What changed, and when to plan.

    def _plan_soon(self) -> None:
        self._plans.add_after("all", self._rest_until - self._clock())

    def _policies_changed(self, changes: Sequence[Change[PolicyView]]) -> None:
        for change in changes:
            if not changes_orders(change.old, change.new):
                continue
            self._commit_came()
            if change.old is not None:
                self._figures.forget(change.old.uid)
            if change.new is not None:
                self._figures.generation_seen(change.new.uid, change.new.generation)
        wait = self._settled.wait()
        if wait is None:
            self._plan_soon()  # only a status changed
        else:
            self._plans.add_after("all", wait)

    def _maps_changed(self, changes: Sequence[Change[MapView]]) -> None:
        if any(changes_orders(change.old, change.new) for change in changes):
            self._commit_came()
            self._plans.add_after("all", self._settled_maps.wait() or 0.0)

    def _commit_came(self) -> None:
        """Policies and maps of one commit act together: each waits for the others to stand still."""
        self._settled.changed()
        self._settled_maps.changed()

    # Planning.

    async def _plan(self, _: str) -> float | None:
        if not self._election.leading:
            return 1.0
        started = self._clock()
        try:
            again = await self._plan_now()
        except Exception as error:
            self._fault = f"the last plan failed: {type(error).__name__}: {error}"
            raise
        self._fault = None
        took = self._clock() - started
        self._rest_until = self._clock() + min(_LONGEST_REST, max(_SHORTEST_REST, _REST_PER_PLAN * took))
        return again

    async def _plan_now(self) -> float | None:
        # What is not on its way yet is decided anew: nothing that the plan does not know of may start meanwhile.
        for name in self._writer.withdraw_changes():
            self._node_writes.discard(name)
        policies = self._settled.take(self._stores.live_policies())
        # Without a list of the maps nothing is known of them: a card keeps what it carries.
        maps = self._settled_maps.take(self._stores.live_maps()) if self._stores.maps.synced else None
        wait = self._settled.wait()
        if policies is None:
            return wait  # commits have not stood still yet
        live = self._stores.live_nodes()
        nodes, unsettled = self._labels.take(live, selector_keys(policies.values()))
        world = self._stores.world(
            policies,
            maps=maps,
            nodes=nodes,
            unsettled=unsettled,
            silent=self._leases.silent,
            in_flight=self._writer.in_flight,
            refused=self._writer.refused,
            confirmed=self._confirmed,
            held=self._held,
            grace_seconds=self.options.node_grace_seconds,
        )
        now = self._now()
        world = replace(
            world,
            drains=dict(self._rounds.facts),
            external_drainer=self.options.drainer is Drainer.EXTERNAL,
            resting=self._retreats.resting(now),
            states_known=self._state_feed.not_served
            or (self._state_feed.healthy() and self._state_feed.state == WATCHING),
        )
        # In a thread: seconds of work for thousands of nodes, during which the Lease must be renewed.
        made = await asyncio.to_thread(plan, world, now, self._cache)
        self._retreats.note(made.retreats, now)
        self._confirmed, self._held = (world.confirmation, made.holds.confirmed), made.holds.held
        self._figures.show_blocked(made.blocked)
        self._figures.show_held({hold.id: len(hold.held) for hold in made.holds.active})
        posted = self._writer.post(made, world.policies, world.states)
        for name in posted.policies:
            self._policy_writes.add(name)
        for name in posted.nodes:
            self._node_writes.add(name)
        for name in self._marker.post(made.marks, live):
            self._mark_writes.add(name)
        if (due := self._rounds.post(made.drains, made.marks)) is not None:
            self._drain_rounds.add_after("all", due)
        self._figures.show_nodes(_nodes_by_state(made, world.policies))
        waits = [seconds for seconds in (wait, self._labels.wait(), self._retreats.wait(now)) if seconds is not None]
        if made.next_check is not None:
            waits.append(max(0.1, (made.next_check - now).total_seconds()))
        return min(waits, default=None)


def _nodes_by_state(made: Plan, policies: Mapping[str, PolicyView]) -> dict[str, dict[str, int]]:
    draining = Counter(drain.policy for drain in made.drains.values())
    found = {}
    for name, policy in policies.items():
        status = made.policy_statuses.get(name, policy.status)
        nodes = status.nodes if status is not None else None
        if nodes is not None:
            states = {"matched": nodes.matched, "updated": nodes.updated, "ready": nodes.ready}
            found[name] = states | {"blocked": nodes.blocked, "draining": draining[name]}
    return found
