"""The controller as a Deployment would run it: a process that is started again when it ends or is killed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from runtime.api import Api, ApiError, NotFound
from runtime.resources import LEASES, NAMESPACE
from tests.builders.node_policy_cluster import ControllerProcess
from tests.cluster.faults.background import Background

LAST_LINES = 15
LEASE_NAME = "npufleet-node-policy"
OPTIONS = ("--settle-seconds", "0.3", "--writes-per-second", "100", "--burst", "100")


class Supervised:
    """One replica behind a proxy. `kills` and `exits` count how its processes ended before `stop`."""

    def __init__(
        self,
        api: Api,
        kubeconfig: Path,
        directory: Path,
        *,
        keep_lease: bool = False,
        options: tuple[str, ...] = (),
        background: Background | None = None,
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
        self._background = background or Background()
        self._process: ControllerProcess | None = None
        self._started = 0
        self._killed = False
        self._paused = asyncio.Event()
        self._paused.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        keeper = self._background.start(self._keep(), "whoever starts the controller again")
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

    def describe(self) -> str:
        """Which process runs, whether it is ready, and the last that it said. Takes up to seconds."""
        process = self._process
        if process is None:
            return "no controller was started"
        name, code = process.log.name, process.process.poll()
        how = f"ended with {code}" if code is not None else self._readiness_in_words(process)
        told = process.log.read_text().splitlines()[-LAST_LINES:] if process.log.exists() else []
        counts = f"{self._started} started, {self.kills} killed, {len(self.exits)} ended by themselves"
        return "\n  ".join((f"{name}: {how} ({counts}); it said last:", *told))

    def _readiness_in_words(self, process: ControllerProcess) -> str:
        try:
            status, text = process.get("/readyz")
        except (OSError, AssertionError) as error:
            return f"it does not answer: {error}"
        return "it is ready" if status == 200 else f"it is not ready: {text.strip()}"

    def pause(self) -> None:
        """No process until `resume`."""
        self._paused.clear()
        self.kill()

    async def resume(self) -> None:
        await self.remove_lease()
        self._paused.set()

    async def remove_lease(self) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    await self._api.delete(LEASES, LEASE_NAME, NAMESPACE)
                except NotFound:
                    return
                except ApiError:  # the server is slow: it may have happened
                    await asyncio.sleep(0.3)
                else:
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
