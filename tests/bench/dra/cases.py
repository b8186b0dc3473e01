"""What is measured, always of both in turns: on a shared machine a minute is not like the one before."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from statistics import quantiles
from typing import Any

from cli.progress import Progress
from runtime.api import Api
from runtime.resources import RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from tests.bench.dra.claims import AllocatedClaim, BenchError, PluginClient, allocate, forget
from tests.bench.dra.stage import NODE, Contestant, Stage
from tests.bench.process_figures import figures_of
from tests.bench.result import Result
from tests.builders.api_calls import find
from tests.builders.real_node import CLAIMS, PODS, claim_spec, pod
from tests.builders.waiting import eventually

BENCH = "dra"
_WARM_UP = 5
_CALLERS = 8
_QUIET_SECONDS = 3.0  # longer than the scheduler puts a pod back that did not fit
Samples = dict[str, list[float]]


class Cases:
    def __init__(self, stage: Stage, progress: Progress) -> None:
        self._stage = stage
        self._api = stage.api
        self._progress = progress
        self.results: list[Result] = []

    def prepare(self, devices: int, rounds: int) -> None:
        """One call at a time, as for one pod after the other."""
        prepared: Samples = {who.name: [] for who in self._stage.both}
        unprepared: Samples = {who.name: [] for who in self._stage.both}
        offered = {who.name: who.devices() for who in self._stage.both}
        with PluginClient(self._stage.ours) as ours, PluginClient(self._stage.peer) as peer:
            clients = {self._stage.ours.name: ours, self._stage.peer.name: peer}
            with self._progress.step(f"preparing claims of {devices}", f"claims of {devices} prepared") as step:
                for number in range(rounds + _WARM_UP):
                    step.tick(f"round {number}")
                    order = self._stage.both if number % 2 else self._stage.both[::-1]
                    for who in order:
                        first = (number * devices) % (len(offered[who.name]) - devices + 1)
                        claim = allocate(self._api, who, offered[who.name][first : first + devices])
                        took = clients[who.name].prepare(claim, devices)
                        back = clients[who.name].unprepare(claim)
                        forget(self._api, claim)
                        if number >= _WARM_UP:
                            prepared[who.name].append(took)
                            unprepared[who.name].append(back)
        self._add(f"Prepare, {_count(devices)}", prepared)
        self._add(f"Unprepare, {_count(devices)}", unprepared)

    def concurrent(self) -> None:
        """All devices in claims of one, by several callers at once."""
        samples: Samples = {}
        for who in self._stage.both:
            with self._progress.step(f"{who.name}: {_CALLERS} callers at once", f"{who.name}: callers done"):
                claims = [allocate(self._api, who, [device]) for device in who.devices()]
                samples[who.name] = _call_at_once(who, claims)
                for claim in claims:
                    forget(self._api, claim)
        number = len(samples[self._stage.ours.name])
        self._add(f"Prepare, {number} claims from {_CALLERS} callers", samples)

    async def allocation(self, devices: int, rounds: int) -> None:
        """From a slice that appears to a claim that waited for it being allocated, by the real scheduler."""
        allocated: Samples = {who.name: [] for who in self._stage.both}
        published: Samples = {who.name: [] for who in self._stage.both}
        connection = Api.connect(kubeconfig=self._stage.plane.admin_kubeconfig, component="bench")
        async with connection as api:
            with self._progress.step(f"allocating {devices}", f"{devices} allocated") as step:
                for number in range(rounds):
                    for who in self._stage.both if number % 2 else self._stage.both[::-1]:
                        step.tick(f"round {number}, {who.name}")
                        started, there, given = await self._allocate_once(api, who, devices)
                        published[who.name].append(there - started)
                        allocated[who.name].append(given - there)
        self._add(f"slice to allocation, {_count(devices)}", allocated, quantile_99=False)
        self._add(f"start of the process to slice, {_count(devices)} wanted", published, quantile_99=False)

    async def _allocate_once(self, api: Api, who: Contestant, devices: int) -> tuple[float, float, float]:
        """Moments of the start of the driver, of its slice, and of the allocation."""
        await asyncio.to_thread(who.stop)
        await asyncio.to_thread(who.remove_slices)
        body = {"metadata": {"name": "waiting"}, "spec": claim_spec(who.device_class, count=devices)}
        await asyncio.to_thread(self._api.call, "POST", CLAIMS, body)
        await asyncio.to_thread(self._api.call, "POST", PODS, pod("waiting", NODE, claims=["waiting"]))
        await asyncio.sleep(_QUIET_SECONDS)
        self._stage.machine.node.mirror_devices()
        slices = asyncio.create_task(_first(api, RESOURCE_SLICES, None, lambda one: _offers(one, who, devices)))
        claims = asyncio.create_task(_first(api, RESOURCE_CLAIMS, "default", _is_allocated))
        await asyncio.sleep(0.5)  # both watches are open by then; whoever is late sees the objects all the same
        started = time.monotonic()
        await asyncio.to_thread(who.start)
        there, given = await asyncio.wait_for(asyncio.gather(slices, claims), 120)
        await asyncio.to_thread(self._end_waiting)
        return started, there, given

    def _end_waiting(self) -> None:
        def is_running() -> bool:
            return bool(self._api.call("GET", f"{PODS}/waiting").get("status", {}).get("phase") == "Running")

        eventually(is_running, seconds=90, what="the pod of the claim runs")
        for path in (f"{PODS}/waiting", f"{CLAIMS}/waiting"):
            self._api.call("DELETE", path)
            eventually(lambda path=path: find(self._api, path) is None, seconds=90, what=f"{path} is gone")  # type: ignore[misc]

    def memory(self) -> None:
        ours, peer = (figures_of(who.pid()) for who in self._stage.both)
        name = self._stage.peer.name
        self.results.append(Result(BENCH, "RSS after all of it", ours.rss_mb, "MB", name, peer.rss_mb))

    def _add(self, case: str, samples: Samples, *, quantile_99: bool = True) -> None:
        ours, peer = samples[self._stage.ours.name], samples[self._stage.peer.name]
        for what, percent in (("p50", 50), ("p99", 99)) if quantile_99 else (("p50", 50),):
            own, other = _percentile(ours, percent) * 1000, _percentile(peer, percent) * 1000
            self.results.append(Result(BENCH, f"{case}: {what}", own, "ms", self._stage.peer.name, other))


def _count(devices: int) -> str:
    return f"{devices} device{'s' if devices > 1 else ''}"


def _percentile(samples: Sequence[float], percent: int) -> float:
    return quantiles(samples, n=100, method="inclusive")[percent - 1] if len(samples) > 1 else samples[0]


def _call_at_once(who: Contestant, claims: Sequence[AllocatedClaim]) -> list[float]:
    """Each caller has a connection of its own; all start together. What each Prepare took."""
    took: list[float] = []
    faults: list[BaseException] = []
    together = threading.Barrier(_CALLERS)

    def call(own: Iterator[AllocatedClaim]) -> None:
        try:
            with PluginClient(who) as client:
                together.wait(30)
                mine = list(own)
                took.extend([client.prepare(claim, 1) for claim in mine])
                for claim in mine:
                    client.unprepare(claim)
        except BaseException as error:
            faults.append(error)

    callers = [threading.Thread(target=call, args=(iter(claims[n::_CALLERS]),)) for n in range(_CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    if faults:
        raise BenchError(f"{who.name}: {faults[0]}") from faults[0]
    return took


async def _first(api: Api, resource: Resource, namespace: str | None, wanted: Any) -> float:
    """The moment at which an object was first as wanted."""
    listing = await api.list(resource, namespace)
    if any(wanted(one) for one in listing.items):
        return time.monotonic()
    async for event in api.watch(resource, namespace, resource_version=listing.resource_version):
        if event["type"] in ("ADDED", "MODIFIED") and wanted(event["object"]):
            return time.monotonic()
    raise BenchError(f"the watch of {resource.plural} ended")


def _offers(found: dict[str, Any], who: Contestant, devices: int) -> bool:
    return found["spec"]["driver"] == who.driver and len(found["spec"].get("devices") or []) >= devices


def _is_allocated(claim: dict[str, Any]) -> bool:
    return claim["metadata"]["name"] == "waiting" and bool((claim.get("status") or {}).get("allocation"))
