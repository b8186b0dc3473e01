"""The writer with an API server: as a daemon, or for one pass."""

import argparse
import sys
import time

from node_host.boot import BootUnknownError
from node_host.bounded_call import BoundedCalls, HungError
from node_host.device_metrics import DeviceMetrics
from node_host.file_pass import CLEAN, FINDINGS
from node_host.handover.watch import CLAIM_LOOKS, watch_handover
from node_host.node_identity import NodeIdentity
from node_host.orders import read_orders
from node_host.resync import watch_host
from node_host.rounds import Wake
from node_host.state_record import StateRecord, read_state
from profile_writer.build import build_writer
from profile_writer.daemon import DAEMON, Daemon
from profile_writer.text import has_findings, show
from profile_writer.tools import ToolPaths
from profile_writer.writer import COMPONENT, Pass, ProfileWriter
from runtime import process
from runtime.api import Api
from runtime.errors import ApiError
from runtime.health import HealthServer
from runtime.lease import Heartbeat
from runtime.list_watch import ListWatch
from runtime.metrics import Metrics
from runtime.resources import NPU_NODE_STATES
from runtime.settings import Settings
from runtime.status_writer import StatusWriter
from runtime.store import Store


def run_daemon(settings: Settings, arguments: argparse.Namespace, paths: ToolPaths) -> int:
    """Serve until a signal comes; the exit code."""
    return process.run(lambda life: serve(life, settings, arguments, paths))


def run_once(settings: Settings, arguments: argparse.Namespace, paths: ToolPaths) -> int:
    """One pass with the orders of the API server; print plan and outcome; the exit code."""
    findings = False

    async def work(life: process.Process) -> None:
        nonlocal findings
        _, writer = build_writer(arguments.host_root, paths, stopping=life.stop.is_set)
        try:
            done = await _once(settings, arguments, writer)
        except (BootUnknownError, HungError) as error:
            life.fail(f"the host cannot be read: {error}")
        except ApiError as error:
            life.fail(str(error))
        else:
            findings = has_findings(done)
            sys.stdout.write(show(done, dry_run=arguments.dry_run))

    code = process.run(work)
    return code if code != CLEAN else (FINDINGS if findings else CLEAN)


async def _once(settings: Settings, arguments: argparse.Namespace, writer: ProfileWriter) -> Pass:
    async with Api.of(settings, Metrics(settings.component)) as api:
        orders, record = await read_orders(api, arguments.node)
        if arguments.dry_run:
            return await writer.dry_run(orders)
        done = await writer.run(orders)
        if record is not None:
            await _statuses(api).write(record.observed, {"profiles": done.profiles.to_object()})
        return done


async def serve(life: process.Process, settings: Settings, arguments: argparse.Namespace, paths: ToolPaths) -> None:
    """The daemon, until ``life.stop``."""
    metrics = Metrics(settings.component)
    device_metrics = DeviceMetrics(metrics.registry, DAEMON)
    store: Store[StateRecord] = Store(read_state)
    wake = Wake()
    host, writer = build_writer(
        arguments.host_root, paths, count_write=device_metrics.count_write, stopping=life.stop.is_set, wake=wake.set
    )
    async with HealthServer(settings.listen, metrics.registry) as health, Api.of(settings, metrics) as api:
        daemon = Daemon(
            arguments.node,
            store,
            writer,
            NodeIdentity(api, arguments.node),
            _statuses(api),
            device_metrics,
            wake,
            resync_seconds=arguments.resync_seconds,
            clock=time.monotonic,
        )
        feed = ListWatch(
            api,
            NPU_NODE_STATES,
            store,
            field_selector=f"metadata.name={arguments.node}",
            on_health=metrics.feed(NPU_NODE_STATES.full_name),
        )
        store.subscribe(lambda _: wake.set())
        health.add_readiness("orders", feed.reason)
        health.add_readiness("pass", lambda: daemon.problem)
        life.supervise(feed.run(), "orders")
        life.supervise(watch_host(host, wake.set), "kernel events")
        life.supervise(watch_handover(host, BoundedCalls(), wake.set, claim_looks=CLAIM_LOOKS), "hand-over")
        life.supervise(Heartbeat(api, settings.component, arguments.node).run(), "lease")
        await daemon.run(life.stop)


def _statuses(api: Api) -> StatusWriter:
    return StatusWriter(api, NPU_NODE_STATES, COMPONENT, fields=("profiles",))
