"""The publisher with an API server: as a daemon, for one look, or only to say what a look would find."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from typing import Final

from dra_publisher.build import Parts, build_parts, now
from dra_publisher.daemon import Daemon
from dra_publisher.metrics import PublisherMetrics
from dra_publisher.plan_text import show_done, show_plan
from dra_publisher.slices.resource_slice import COMPONENT
from dra_publisher.slices.writer import SliceWriter
from node_host.boot import BootUnknownError
from node_host.bounded_call import BoundedCalls, HungError
from node_host.handover.watch import watch_handover
from node_host.node_identity import NodeIdentity, extended_resources
from node_host.orders import read_orders
from node_host.resync import watch_host
from node_host.rounds import Wake
from node_host.state_record import StateRecord, read_state
from runtime import process
from runtime.api import Api
from runtime.errors import ApiError, ServerTimeout
from runtime.event_recorder import EventRecorder
from runtime.health import HealthServer
from runtime.lease import Heartbeat
from runtime.list_watch import ListWatch
from runtime.metrics import Metrics
from runtime.resources import NODES, NPU_NODE_STATES
from runtime.settings import Settings
from runtime.status_writer import StatusWriter
from runtime.store import Store

CLEAN: Final = 0
FINDINGS: Final = 1
_SYNC_SECONDS: Final = 15.0
_DRAIN_EVENTS_SECONDS: Final = 2.0


def run_daemon(settings: Settings, arguments: argparse.Namespace) -> int:
    """Serve until a signal comes; the exit code."""
    return process.run(lambda life: serve(life, settings, arguments))


def run_once(settings: Settings, arguments: argparse.Namespace) -> int:
    """One look, or with ``--dry-run`` what it would find; printed. The exit code."""
    findings = False

    async def work(life: process.Process) -> None:
        nonlocal findings
        try:
            text, findings = await _once(life, settings, arguments)
        except (BootUnknownError, HungError) as error:
            life.fail(f"the host cannot be read: {error}")
        except ApiError as error:
            life.fail(str(error))
        else:
            sys.stdout.write(text)

    code = process.run(work)
    return code if code != CLEAN else (FINDINGS if findings else CLEAN)


async def _once(life: process.Process, settings: Settings, arguments: argparse.Namespace) -> tuple[str, bool]:
    async with Api.of(settings, Metrics(settings.component)) as api:
        parts = build_parts(api, arguments.host_root, arguments.node, owner=COMPONENT)
        life.supervise(parts.slices.run(), "slices")
        await _synced(parts.slices)
        orders, _ = await read_orders(api, arguments.node)
        if arguments.dry_run:
            return show_plan(*await parts.look.plan(orders), held=orders.held)
        if not parts.active.take():
            raise ApiError(0, "Busy", f"a publisher is at work on this node: {parts.active.waits}")
        try:
            return show_done(await parts.look.run(orders, active=True))
        finally:
            parts.active.release()


async def _synced(slices: SliceWriter) -> None:
    try:
        async with asyncio.timeout(_SYNC_SECONDS):
            await slices.wait_synced()
    except TimeoutError:
        raise ServerTimeout(0, "Timeout", f"the slices of the node cannot be read: {slices.problem()}") from None


async def serve(life: process.Process, settings: Settings, arguments: argparse.Namespace) -> None:
    """The daemon, until ``life.stop``.

    At the end the registrations go first, then what the kubelet has asked is answered, then the sockets go. Nothing is
    taken out of the slices, and no claim is taken back: the next publisher goes on from the checkpoint.
    """
    metrics = Metrics(settings.component)
    publisher_metrics = PublisherMetrics(metrics.registry)
    store: Store[StateRecord] = Store(read_state)
    extended: Store[dict[str, str]] = Store(extended_resources)
    wake = Wake()
    async with HealthServer(settings.listen, metrics.registry) as health, Api.of(settings, metrics) as api:
        events = EventRecorder(api, component=settings.component, instance=settings.identity)
        node_uid = [""]

        def tell(is_warning: bool, reason: str, message: str, uid: str = "") -> None:
            node_uid[0] = uid or node_uid[0]
            node = {"metadata": {"name": arguments.node, "uid": node_uid[0]}}
            (events.warning if is_warning else events.normal)(NODES, node, reason, message)

        parts = build_parts(
            api,
            arguments.host_root,
            arguments.node,
            owner=COMPONENT,
            pod_uid=arguments.pod_uid,
            wake=wake.set,
            on_call=publisher_metrics.on_call,
            tell=lambda reason, message: tell(True, reason, message),
        )
        daemon = _daemon(parts, arguments, api, store, extended, publisher_metrics, wake, tell, life.fail)
        own = f"metadata.name={arguments.node}"
        feed = ListWatch(
            api, NPU_NODE_STATES, store, field_selector=own, on_health=metrics.feed(NPU_NODE_STATES.full_name)
        )
        # Device plugins come and go, and only the Node tells.
        node_feed = ListWatch(api, NODES, extended, field_selector=own, on_health=metrics.feed(NODES.full_name))
        store.subscribe(lambda _: wake.set())
        extended.subscribe(lambda _: wake.set())
        health.add_readiness("orders", feed.reason)
        health.add_readiness("node", node_feed.reason)
        health.add_readiness("slices", parts.slices.problem)
        health.add_readiness("kubelet", parts.plugins.problem)
        health.add_readiness("lock", lambda: parts.active.problem)
        health.add_readiness("look", lambda: daemon.problem)
        await parts.claims.start()
        life.supervise(feed.run(), "orders")
        life.supervise(node_feed.run(), "node")
        life.supervise(parts.slices.run(), "slices")
        life.supervise(parts.claims.run(), "claims")
        life.supervise(watch_host(parts.host, wake.set), "kernel events")
        life.supervise(watch_handover(parts.host, BoundedCalls(), wake.set), "hand-over")
        life.supervise(Heartbeat(api, settings.component, arguments.node).run(), "lease")
        life.supervise(events.run(), "events")
        life.supervise(parts.active.run(), "active", finite=True)
        try:
            await daemon.run(life.stop)
        finally:
            parts.active.release()
            await parts.plugins.stop()
            await events.drain(_DRAIN_EVENTS_SECONDS)


def _daemon(
    parts: Parts,
    arguments: argparse.Namespace,
    api: Api,
    store: Store[StateRecord],
    extended: Store[dict[str, str]],
    metrics: PublisherMetrics,
    wake: Wake,
    tell: Callable[[bool, str, str, str], None],
    fail: Callable[[str], None],
) -> Daemon:
    return Daemon(
        arguments.node,
        store,
        parts.look,
        NodeIdentity(api, arguments.node),
        StatusWriter(api, NPU_NODE_STATES, COMPONENT, fields=("publication",)),
        metrics,
        wake,
        active=lambda: parts.active.is_held,
        extended=lambda: (extended.get(arguments.node) or {}) if extended.synced else None,
        ready=lambda: None if parts.slices.synced else "the slices of this node have not been read yet",
        serve=parts.plugins.serve,
        kubelet=parts.plugins.problem,
        doubt=parts.ledger.doubt,
        show=lambda offers: parts.health.show(offers.values()),
        tell=tell,
        fail=fail,
        now=now,
        resync_seconds=arguments.resync_seconds,
        clock=time.monotonic,
    )
