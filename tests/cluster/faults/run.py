"""One run: a scenario on a real API server under the faults of a plan, from an empty cluster to an empty cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from cli.cluster.run.control_plane import ControlPlane
from runtime.api import Api
from runtime.resources import NODES
from tests.builders.fault_proxy import Fault, Kind, ProxyServer, Weather
from tests.cluster.faults import availability, ending
from tests.cluster.faults.background import Background
from tests.cluster.faults.controller import Supervised
from tests.cluster.faults.fleet import Fleet, remove_all, seconds_since
from tests.cluster.faults.judge import NOTICE_SECONDS, SETTLE_SECONDS, SETTLE_SECONDS_AFTER_STALL, Object, Record
from tests.cluster.faults.scenarios import Scenario, Stage

QUIET_SECONDS = 1.0
QUIET_SECONDS_WITHOUT_FAULTS = 2.5
LOOK_SECONDS = 0.3
# A probe a second, and what a request takes.
_PROBE_SLACK = 3.0


@dataclass(slots=True)
class Run:
    """What a run was made of, and what came of it."""

    scenario: Scenario
    faults: Sequence[Fault]
    seed: str
    record: Record = field(default_factory=Record)
    struck: dict[Kind, int] = field(default_factory=dict)
    kills: int = 0
    exits: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        struck = ", ".join(f"{kind} x{count}" for kind, count in sorted(self.struck.items())) or "nothing"
        plan = "; ".join(map(str, self.faults)) or "no faults"
        return (
            f"{self.scenario.name} seed {self.seed} [{plan}]: struck {struck}; {self.kills} kills, {self.exits} exits, "
            f"settled {self.record.settled_after:.1f} s after, {self.seconds:.0f} s in all"
        )


async def perform(
    plane: ControlPlane,
    kubeconfig: Path,
    directory: Path,
    scenario: Scenario,
    faults: Sequence[Fault] = (),
    *,
    seed: str = "0",
    wanted: Object | None = None,
    keep_lease: bool = False,
) -> Run:
    """Carry the scenario out. `wanted` is the ending to wait for; without it the run is over when nothing moves."""
    assert plane.audit_log is not None, "the oracles read the audit log"
    started = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    run = Run(scenario, tuple(faults), seed)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(
            Api.connect(
                kubeconfig=plane.admin_kubeconfig, component="npufleet-test", writes_per_second=2000, burst=2000
            )
        )
        await remove_all(api)
        stack.push_async_callback(remove_all, api)
        since = plane.audit_log.stat().st_size
        weather = Weather(faults, seed=seed, on_kill=lambda: controller.kill())
        proxy = ProxyServer(kubeconfig, directory / "proxied", weather)
        background = Background()
        controller = Supervised(
            api,
            directory / "proxied",
            directory,
            keep_lease=keep_lease,
            options=scenario.options,
            background=background,
        )
        fleet = Fleet(api, seed=seed, background=background)
        fleet.also_told = controller.describe
        stage = Stage(fleet, weather, controller, run.record.broken)
        await fleet.build()
        await stack.enter_async_context(fleet.followed())
        await stack.enter_async_context(proxy)
        await stack.enter_async_context(controller.running())
        await scenario.arrange(stage)
        stack.push_async_callback(scenario.tidy, stage)
        fleet.forget_moves()
        run.record.watched_from = int((await api.list(NODES, page=1)).resource_version)
        exits_before = len(controller.exits)
        weather.begin()
        watch = background.start(_watch_readiness(stage, run.record), "the watch of readiness")
        await scenario.act(stage)
        await _settle(stage, run.record, wanted)
        if weather.dead or weather.stalled:
            await asyncio.wait({watch}, timeout=NOTICE_SECONDS + _PROBE_SLACK + 1)
        watch.cancel()
        run.record.moves, run.record.moved = len(fleet.moves), {(node, place) for node, place, _ in fleet.moves}
        run.record.hits = weather.hits.total()
        run.struck = dict(weather.hits)
        run.kills, run.exits = controller.kills, len(controller.exits) - exits_before
        run.record.audit = [entry for entry in availability.read(plane.audit_log, since) if _matters(entry)]
    run.seconds = time.monotonic() - started
    return run


async def _settle(stage: Stage, record: Record, wanted: Object | None) -> None:
    """Wait until the ending is there and the controller has nothing more to write."""
    acted = time.monotonic()
    weather, reached, seen = stage.weather, 0.0, 0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        stage.fleet.background.check()
        record.stalled = weather.hits[Kind.STALL] > 0
        last = max(acted, weather.last or 0.0)
        found = await ending.look(stage.fleet)
        writes = len(weather.writes)
        if wanted is None:
            settled, differs = _is_complete(found), []
        else:
            differs = ending.differences(wanted, found)
            settled = not differs
        if not settled:
            reached = 0.0
        elif reached == 0.0 or writes != seen:
            reached, seen = time.monotonic(), writes
        elif time.monotonic() - reached >= (QUIET_SECONDS if wanted is not None else QUIET_SECONDS_WITHOUT_FAULTS):
            record.settled_after = max(0.0, reached - last)
            record.ending, record.differs = found, []
            return
        limit = SETTLE_SECONDS_AFTER_STALL if record.stalled else SETTLE_SECONDS
        if time.monotonic() - last > limit + QUIET_SECONDS and not weather.dead:
            record.ending, record.differs = found, differs or ["it never came to rest"]
            record.settled_after = time.monotonic() - last
            return


def _is_complete(found: Object) -> bool:
    """Whether a run without faults may have come to its end: everything speaks of the present generations."""
    policies = all(each["current"] for each in found["policies"].values())
    states = all(
        each["rollout is current"] or not (each["rollout"] or each["devices"])
        for each in found["states"].values()
        if each["current UID"]
    )
    return policies and states and bool(found["states"])


async def _watch_readiness(stage: Stage, record: Record) -> None:
    """A dead or stalled feed must be noticed: cured by a new watch, or told by readiness or by an exit."""
    while True:
        await asyncio.sleep(1.0)
        weather = stage.weather
        ready = await asyncio.to_thread(stage.controller.readiness) if weather.dead or weather.stalled else True
        for plural, since in list(weather.dead.items()):
            if not ready or any(moment >= since for moment in stage.controller.exits):
                weather.revive(plural)
            elif seconds_since(since) > NOTICE_SECONDS + _PROBE_SLACK:
                record.unnoticed.append(f"{plural} refused")
                weather.revive(plural)
        for plural, (since, opened) in list(weather.stalled.items()):
            cured = weather.opened[plural] > opened
            if cured or not ready or any(moment >= since for moment in stage.controller.exits):
                del weather.stalled[plural]
            elif seconds_since(since) > NOTICE_SECONDS + _PROBE_SLACK:
                record.unnoticed.append(f"{plural} silent")
                del weather.stalled[plural]


def _matters(entry: Object) -> bool:
    """Keep what the oracles read."""
    return entry.get("verb") not in {"get", "list", "watch"} and (entry.get("objectRef") or {}).get("resource") in {
        "npunodestates",
        "npunodepolicies",
        "nodes",
    }
