"""What the bench plays on: a control plane of its own with npufleet installed, the Nodes, and the processes.

The control plane is etcd and the API server alone: kubelets' Leases and the other controllers are no part of the work
that is measured.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.kubectl import find_kubectl
from cli.cluster.run.control_plane import API_SERVER, ETCD, ControlPlane
from cli.cluster.run.layout import Layout
from cli.cluster.run.processes import read_record, spawn
from cli.progress import Progress
from runtime.api import Api
from runtime.resources import LEASES, NODES
from tests.bench.fleet.machines import lease, node, node_name
from tests.bench.process_figures import figures_of
from tests.builders.node_policy_cluster import ControllerProcess

ROOT = Path(__file__).parents[3]
LIMIT_OF_THE_BENCH = 10**6
_WRITERS = 8
_INSTALL_SECONDS = 60.0


class BenchError(Exception):
    """The bench cannot go on; the text says why."""


class Process(Protocol):
    """A running process, with the log that tells why it ended."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Stage:
    """A fleet of `nodes` registered Nodes with `devices` devices each, and how to reach their API server."""

    plane: ControlPlane
    directory: Path
    nodes: int
    devices: int
    api: Api
    controller_kubeconfig: Path
    progress: Progress

    def server_cpu_seconds(self) -> float:
        """Processor time of the API server and its etcd so far."""
        layout = Layout(self.plane.directory)
        records = [read_record(layout.record(name)) for name in (ETCD, API_SERVER)]
        return sum(figures_of(record.pid).cpu_seconds for record in records if record is not None)


@asynccontextmanager
async def stage(directory: Path, *, nodes: int, devices: int, progress: Progress) -> AsyncIterator[Stage]:
    """Set everything up in `directory`; all processes have ended when the block is left."""
    with ControlPlane.start(directory / "plane", components=(), progress=progress) as plane:
        await asyncio.to_thread(_install, plane)
        kubeconfig = service_account_kubeconfig(
            plane, "npufleet-system", "npufleet-node-policy", directory / "controller.kubeconfig"
        )
        connection = Api.connect(
            kubeconfig=plane.admin_kubeconfig,
            component="bench",
            writes_per_second=LIMIT_OF_THE_BENCH,
            burst=LIMIT_OF_THE_BENCH,
            timeout_seconds=60,
        )
        async with connection as api:
            with progress.step(f"registering {nodes} Nodes", f"{nodes} Nodes registered"):
                await _each(nodes, lambda number: _register(api, number))
            yield Stage(plane, directory, nodes, devices, api, kubeconfig, progress)


def _install(plane: ControlPlane) -> None:
    """The API, identities and admission policies of kustomize/base; kinds are served a moment after they are stored."""
    command = [str(find_kubectl()), f"--kubeconfig={plane.admin_kubeconfig}"]
    for arguments in (
        ["apply", "--server-side", "--kustomize", str(ROOT / "kustomize/base")],
        ["wait", "--for=condition=Established", "crd", "--all", f"--timeout={_INSTALL_SECONDS:.0f}s"],
    ):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")


async def _register(api: Api, number: int) -> None:
    name = node_name(number)
    await api.create(NODES, node(name, number))
    await api.create(LEASES, lease(name))


async def _each(count: int, work: Callable[[int], Awaitable[None]]) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(_WRITERS):
            group.create_task(worker())


class Controller(ControllerProcess):
    """The controller as it is deployed, but for its limit on writes."""

    def __init__(self, stage: Stage, number: int) -> None:
        limit = str(LIMIT_OF_THE_BENCH)
        options = ("--writes-per-second", limit, "--burst", limit)
        super().__init__(stage.controller_kubeconfig, stage.directory / f"controller-{number}.log", *options)

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        return self.process.poll()

    @cached_property
    def address(self) -> str:
        return super().address

    def numbers(self) -> dict[str, float]:
        """All its metrics, by name with labels; without any while it does not answer."""
        try:
            text = self.get("/metrics")[1]
        except (OSError, http.client.HTTPException):
            return {}
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}


class PlayedDaemons:
    """The process that plays the binders."""

    def __init__(self, stage: Stage, *, bind_seconds: float) -> None:
        self.log = stage.directory / "daemons.log"
        self._told = stage.directory / "daemons.json"
        command = [sys.executable, "-m", "tests.bench.fleet.daemons", f"--devices={stage.devices}"]
        command += [f"--kubeconfig={stage.plane.admin_kubeconfig}", f"--bind-seconds={bind_seconds}"]
        self._process = spawn([*command, f"--told={self._told}"], output=self.log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(30)

    def told(self) -> dict[str, int]:
        """`nodes` known, the sum of their `generations`, `waiting` for a report, `reports` written."""
        try:
            found: dict[str, int] = json.loads(self._told.read_text())
        except FileNotFoundError:
            found = {"nodes": 0, "generations": 0, "waiting": 0, "reports": 0}
        return found


@contextmanager
def running(controller: Controller) -> Iterator[Controller]:
    """Ends the controller with the block, whatever happens in it."""
    try:
        yield controller
    finally:
        controller.kill()


async def wait_until(
    condition: Callable[[], Awaitable[bool]],
    *,
    seconds: float,
    what: str,
    processes: tuple[Process, ...],
    every: float = 0.1,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Poll until the condition holds. Raises BenchError when that takes too long or one of the processes has ended."""
    deadline = time.monotonic() + seconds
    while not await condition():
        for process in processes:
            if process.poll() is not None:
                raise BenchError(f"{type(process).__name__} ended with {process.poll()} while waiting: {what}")
        if time.monotonic() > deadline:
            raise BenchError(f"not within {seconds:.0f} s: {what}")
        tick()
        await asyncio.sleep(every)


def condition_of(policy: dict[str, Any], kind: str) -> str:
    """Status of a condition that speaks of the present generation, else ""."""
    status = policy.get("status") or {}
    if status.get("observedGeneration") != policy["metadata"]["generation"]:
        return ""
    return next((str(c["status"]) for c in status.get("conditions", []) if c["type"] == kind), "")
