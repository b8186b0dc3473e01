"""The controller as a Deployment would run it: a process that is started again when it ends or is killed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from runtime.api import Api, NotFound
from runtime.resources import LEASES, NAMESPACE
from tests.builders.node_policy_cluster import ControllerProcess

LEASE_NAME = "npufleet-node-policy"
OPTIONS = ("--settle-seconds", "0.3", "--writes-per-second", "100", "--burst", "100")


class Supervised:
    """One replica behind a proxy. `kills` and `exits` count how its processes ended before `stop`."""

    def __init__(
        self, api: Api, kubeconfig: Path, directory: Path, *, keep_lease: bool = False, options: tuple[str, ...] = ()
    ) -> None:
        self.kills = 0
        self.exits: list[float] = []
        """When a process ended that nobody had killed."""
        self.clock_shift = directory / "clock-shift"
        self._api = api
        self._kubeconfig = kubeconfig
        self._directory = directory
        self._keep_lease = keep_lease
        self._options = (*OPTIONS, *options)
        self._process: ControllerProcess | None = None
        self._started = 0
        self._killed = False
        self._paused = asyncio.Event()
        self._paused.set()

    @property
    def log(self) -> Path:
        return self._directory / "controller.log"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        keeper = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            if self._process is not None:
                self._process.kill()
            await self.remove_lease()

    def shift_clock(self, seconds: float) -> None:
        """The process's wall clock is off by so much from now on."""
        self.clock_shift.write_text(str(seconds))

    def kill(self) -> None:
        """kill -9, at once."""
        if self._process is not None and self._process.process.poll() is None:
            self._killed = True
            self.kills += 1
            self._process.kill()

    def readiness(self) -> bool | None:
        """Whether it says that it is ready; None when no process answers."""
        process = self._process
        if process is None or process.process.poll() is not None:
            return None
        try:
            return process.get("/readyz")[0] == 200
        except (OSError, AssertionError):
            return None

    def pause(self) -> None:
        """No process until `resume`."""
        self._paused.clear()
        self.kill()

    async def resume(self) -> None:
        await self.remove_lease()
        self._paused.set()

    async def remove_lease(self) -> None:
        try:
            await self._api.delete(LEASES, LEASE_NAME, NAMESPACE)
        except NotFound:
            return

    async def _keep(self) -> None:
        while True:
            await self._paused.wait()
            self._start()
            assert self._process is not None
            while self._process.process.poll() is None:  # noqa: ASYNC110 - a process tells nobody
                await asyncio.sleep(0.03)
            if not self._killed:
                self.exits.append(time.monotonic())
            self._killed = False
            if not self._keep_lease:
                await self.remove_lease()  # else the next one waits until the dead one's time is over

    def _start(self) -> None:
        self._started += 1
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).with_name("shifted_clock")),
            "NPUFLEET_TEST_CLOCK_SHIFT": str(self.clock_shift),
        }
        log = self._directory / f"controller-{self._started}.log"
        self._process = ControllerProcess(self._kubeconfig, log, *self._options, environment=environment)
