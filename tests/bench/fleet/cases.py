"""What is measured: a fleet appears, is changed as a whole and in one node, and the controller is started again."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.resources import NPU_NODE_POLICIES
from tests.bench.fleet.floor import Floor, measure_floor
from tests.bench.fleet.machines import EXCEPTION, POLICY, exception_policy, fleet_policy, node_name
from tests.bench.fleet.stage import Controller, PlayedDaemons, Stage, condition_of, running, wait_until
from tests.bench.process_figures import ProcessFigures, figures_of
from tests.bench.result import Result

BENCH = "fleet"
FLOOR = "bare loop, the controller's writes"
FLOOR_WITH_REPORTS = "bare loop, all writes"
# As many as the controller has for nodes.
FLOOR_WRITERS = 6
DEFAULT_WRITES_PER_SECOND = 20
_QUIET_SECONDS = 4.0
_WATCHED_SECONDS = 15.0
_STATES = "NPUNodeState"
_POLICIES = "NPUNodePolicy"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """One case: `seconds` until done, and what it cost until everything was quiet again."""

    seconds: float
    orders: int
    judgements: int
    policy_writes: int
    failed_writes: int
    other_writes: int
    reconciles: int
    cpu_seconds: float
    daemons_cpu_seconds: float
    server_cpu_seconds: float
    rss_mb: float
    peak_mb: float

    @property
    def writes(self) -> int:
        return self.orders + self.judgements + self.policy_writes + self.other_writes


@dataclass(frozen=True, slots=True)
class _Reading:
    writes: Counter[tuple[str, str]]
    reconciles: int
    generations: int
    waiting: int
    controller: ProcessFigures
    daemons_cpu_seconds: float
    server_cpu_seconds: float


@dataclass(slots=True)
class Cases:
    """All cases of one size of fleet, in the order in which `run` plays them."""

    stage: Stage
    bind_seconds: float
    timeout_seconds: float
    floor_nodes: int
    short: bool
    results: dict[str, Figures] = field(default_factory=dict)
    floor: Floor | None = None
    floor_server_cpu_seconds: float = 0.0

    @property
    def size(self) -> str:
        return f"{self.stage.nodes} nodes x {self.stage.devices} devices"

    async def run(self) -> None:
        """Play the cases and print each one's figures.

        The floor comes last, on the objects as they then are, when every process has ended.
        """
        stage, say = self.stage, self.stage.progress.say
        daemons = PlayedDaemons(stage, bind_seconds=self.bind_seconds)
        try:
            with running(Controller(stage, 1)) as controller:
                run = _Run(self, controller, daemons)
                await run.case("registration", run.everything_known, fresh=True)
                await run.case("all nodes", run.ready, fleet_policy("Passthrough", "100%"))
                controller.stop()
            with running(Controller(stage, 2)) as controller:
                run = _Run(self, controller, daemons)
                await run.case("restart", run.leading, fresh=True, watch_seconds=_WATCHED_SECONDS)
                await run.case("one node", run.exception_ready, exception_policy(node_name(0), "Container"))
                if not self.short:
                    await stage.api.delete(NPU_NODE_POLICIES, EXCEPTION)
                    await run.case("one node given back", run.ready)
                    await run.case("limits alone", run.limits_written, fleet_policy("Passthrough", "10%"))
                    await run.case("all nodes, 10 % at a time", run.ready, fleet_policy("Container", "10%"))
                controller.stop()
        finally:
            daemons.stop()
        server = stage.server_cpu_seconds()
        self.floor = await measure_floor(
            stage.controller_kubeconfig,
            stage.plane.admin_kubeconfig,
            nodes=self.floor_nodes,
            writers=FLOOR_WRITERS,
            say=say,
        )
        self.floor_server_cpu_seconds = (stage.server_cpu_seconds() - server) * self.floor.scale
        say(f"  {self.floor}, CPU of the API server and etcd {self.floor_server_cpu_seconds:.1f} s")

    def lines(self) -> Iterator[Result]:
        """The change of all nodes beside the floor."""
        changed = self.results["all nodes"]
        assert self.floor is not None
        case = f"{self.size}: all nodes"
        yield Result(BENCH, f"{case}: time", changed.seconds, "s", FLOOR, self.floor.controller)
        yield Result(BENCH, f"{case}: time", changed.seconds, "s", FLOOR_WITH_REPORTS, self.floor.everything)
        yield Result(BENCH, f"{case}: CPU of the controller", changed.cpu_seconds, "s", FLOOR, self.floor.cpu_seconds)
        server = changed.server_cpu_seconds
        yield Result(
            BENCH,
            f"{case}: CPU of the API server and etcd",
            server,
            "s",
            FLOOR_WITH_REPORTS,
            self.floor_server_cpu_seconds,
        )
        limited = changed.writes / DEFAULT_WRITES_PER_SECOND
        yield Result(
            BENCH, f"{case}: time of its writes at {DEFAULT_WRITES_PER_SECOND} a second, the default", limited, "s"
        )


def _lines(case: str, found: Figures, nodes: int) -> Iterator[Result]:
    yield Result(BENCH, f"{case}: time", found.seconds, "s")
    yield Result(BENCH, f"{case}: writes of orders", found.orders, "writes", "nodes", nodes)
    yield Result(BENCH, f"{case}: writes of status.rollout", found.judgements, "writes", "nodes", nodes)
    yield Result(BENCH, f"{case}: writes of policies' status", found.policy_writes, "writes")
    yield Result(BENCH, f"{case}: other writes (Events)", found.other_writes, "writes")
    yield Result(BENCH, f"{case}: writes that failed", found.failed_writes, "writes")
    yield Result(BENCH, f"{case}: reconciles", found.reconciles, "reconciles")
    yield Result(BENCH, f"{case}: CPU of the controller", found.cpu_seconds, "s")
    yield Result(BENCH, f"{case}: CPU of the played daemons", found.daemons_cpu_seconds, "s")
    yield Result(BENCH, f"{case}: CPU of the API server and etcd", found.server_cpu_seconds, "s")
    yield Result(BENCH, f"{case}: RSS of the controller", found.rss_mb, "MB")
    yield Result(BENCH, f"{case}: peak RSS of the controller", found.peak_mb, "MB")


@dataclass(slots=True)
class _Run:
    """The cases that one controller process sees."""

    cases: Cases
    controller: Controller
    daemons: PlayedDaemons
    generations: int = 0

    async def case(
        self,
        name: str,
        done: Callable[[], Awaitable[bool]],
        policy: Object | None = None,
        *,
        fresh: bool = False,
        watch_seconds: float = 0.0,
    ) -> None:
        """Apply the policy, wait until `done` holds and everything is quiet, and note what it cost.

        `fresh`: the controller has only just been started, and its whole life counts.
        """
        stage = self.cases.stage
        before = self._before_start() if fresh else self._read()
        self.generations = before.generations
        with stage.progress.step(f"{stage.nodes} nodes: {name}", f"{stage.nodes} nodes: {name}, until quiet") as step:
            started = time.monotonic()
            if policy is not None:
                await stage.api.apply(NPU_NODE_POLICIES, policy, field_manager="bench")
            processes = (self.controller, self.daemons)
            await wait_until(done, seconds=self.cases.timeout_seconds, what=name, processes=processes, tick=step.tick)
            seconds = time.monotonic() - started
            await asyncio.sleep(watch_seconds)
            await self._quiet()
        found = _difference(before, self._read(), seconds)
        stage.progress.say(f"  {found}")
        stage.progress.say(f"  load {os.getloadavg()[0]:.1f}, writes so far {dict(self._read().writes)}")
        self.cases.results[name] = found
        for result in _lines(f"{self.cases.size}: {name}", found, stage.nodes):
            result.print()

    # When a case is done.

    async def everything_known(self) -> bool:
        """Every node has its NPUNodeState, and its binder has reported the devices."""
        told = self.daemons.told()
        return told["nodes"] == self.cases.stage.nodes and not told["waiting"] and told["reports"] >= told["nodes"]

    async def ready(self) -> bool:
        """The policy of the fleet is Ready for its present generation, with every device of every node."""
        status = await self._ready_status(POLICY)
        nodes, devices = self.cases.stage.nodes, self.cases.stage.devices
        return status["nodes"]["ready"] == nodes and status["devices"]["ready"] == nodes * devices if status else False

    async def limits_written(self) -> bool:
        """Every node's orders say how fast the policy may change nodes."""
        return await self.ready() and self.daemons.told()["generations"] >= self.generations + self.cases.stage.nodes

    async def exception_ready(self) -> bool:
        return bool(await self._ready_status(EXCEPTION))

    async def leading(self) -> bool:
        """The new process has followed everything, leads, and has made a plan."""
        return _reconciles(self.controller.numbers()) > 0

    async def _ready_status(self, name: str) -> Object:
        """The status of a policy that is Ready, else {}."""
        policy = await self.cases.stage.api.get(NPU_NODE_POLICIES, name)
        status: Object = policy.get("status") or {}
        return status if condition_of(policy, "Ready") == "True" else {}

    # Reading.

    async def _quiet(self) -> None:
        """Until nobody has written anything for a while."""
        since, last = time.monotonic(), self._marks()
        while time.monotonic() - since < _QUIET_SECONDS:
            await asyncio.sleep(0.5)
            now = self._marks()
            if now != last:
                since, last = time.monotonic(), now

    def _marks(self) -> tuple[object, ...]:
        reading = self._read()
        return reading.writes, reading.generations, reading.waiting

    def _before_start(self) -> _Reading:
        told, used = self.daemons.told(), figures_of(self.daemons.pid).cpu_seconds
        server = self.cases.stage.server_cpu_seconds()
        return _Reading(Counter(), 0, told["generations"], told["waiting"], ProcessFigures(0.0, 0.0, 0.0), used, server)

    def _read(self) -> _Reading:
        numbers, told = self.controller.numbers(), self.daemons.told()
        return _Reading(
            writes=count_writes(numbers),
            reconciles=_reconciles(numbers),
            generations=told["generations"],
            waiting=told["waiting"],
            controller=figures_of(self.controller.pid),
            daemons_cpu_seconds=figures_of(self.daemons.pid).cpu_seconds,
            server_cpu_seconds=self.cases.stage.server_cpu_seconds(),
        )


def _difference(before: _Reading, after: _Reading, seconds: float) -> Figures:
    writes = after.writes - before.writes
    orders = after.generations - before.generations
    states, policies = writes[_STATES, "ok"], writes[_POLICIES, "ok"]
    good = sum(count for (_, result), count in writes.items() if result == "ok")
    return Figures(
        seconds=seconds,
        orders=orders,
        judgements=states - orders,
        policy_writes=policies,
        failed_writes=writes.total() - good,
        other_writes=good - states - policies,
        reconciles=after.reconciles - before.reconciles,
        cpu_seconds=after.controller.cpu_seconds - before.controller.cpu_seconds,
        daemons_cpu_seconds=after.daemons_cpu_seconds - before.daemons_cpu_seconds,
        server_cpu_seconds=after.server_cpu_seconds - before.server_cpu_seconds,
        rss_mb=after.controller.rss_mb,
        peak_mb=after.controller.peak_mb,
    )


def count_writes(numbers: Mapping[str, float]) -> Counter[tuple[str, str]]:
    """Writes of the controller by kind and result; renewals of its Lease apart."""
    found: Counter[tuple[str, str]] = Counter()
    for name, value in numbers.items():
        if name.startswith("npufleet_api_writes_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
            if labels["kind"] != "Lease":
                found[labels["kind"], labels["result"]] += int(value)
    return found


def _reconciles(numbers: Mapping[str, float]) -> int:
    return int(sum(value for name, value in numbers.items() if name.startswith("npufleet_reconcile_total{")))
