"""A program of the node that goes on running: started inside the sandbox, ended with the signals of a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cli.cluster.files import tail
from cli.cluster.run.launch import boot_id, start_ticks
from cli.cluster.run.processes import ProcessRecord, end_processes, spawn
from tests.node_runtime.errors import NodeRuntimeError
from tests.node_runtime.sandbox import Sandbox, children_of

_APPEAR_SECONDS = 10.0
_POLL_SECONDS = 0.02


def await_ready(
    ready: Callable[[], bool],
    process: subprocess.Popen[bytes] | None,
    *,
    name: str,
    log: Path,
    seconds: float,
    every: float = _POLL_SECONDS,
) -> None:
    """Wait until `ready` says so. Raises NodeRuntimeError with the end of the log when it does not in time, or when the
    process ends first."""
    deadline = time.monotonic() + seconds
    while not ready():
        code = process.poll() if process is not None else None
        if process is None or code is not None:
            raise NodeRuntimeError(f"{name} ended while it started (code {code}):\n{tail(log)}\nwhole log: {log}")
        if time.monotonic() > deadline:
            raise NodeRuntimeError(f"{name} is not ready after {seconds:.0f} s:\n{tail(log)}\nwhole log: {log}")
        time.sleep(every)


class Service:
    """One program in a sandbox. `log` gets the output of all its runs."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._entered: subprocess.Popen[bytes] | None = None
        self._record: ProcessRecord | None = None

    @property
    def pid(self) -> int:
        """Of the program itself, as this machine counts. Raises NodeRuntimeError when it does not run."""
        if self._record is None or not self.running:
            raise NodeRuntimeError(f"{self.name} does not run:\n{tail(self.log)}")
        return self._record.pid

    @property
    def running(self) -> bool:
        return self._entered is not None and self._entered.poll() is None

    def start(
        self,
        sandbox: Sandbox,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        network: bool = True,
    ) -> None:
        """Start it; does not wait until it is ready. Raises NodeRuntimeError when it ends at once."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        entered = spawn(
            sandbox.command(command, network=network),
            output=self.log,
            environment=None if environment is None else dict(environment),
        )
        self._entered = entered
        deadline = time.monotonic() + _APPEAR_SECONDS
        while True:
            # Entering a PID namespace takes a process that waits outside and a child that is in.
            children = children_of(entered.pid)
            if children:
                with suppress(OSError):
                    self._record = ProcessRecord(children[0], start_ticks(children[0]), boot_id())
                    return
            if entered.poll() is not None or time.monotonic() > deadline:
                raise NodeRuntimeError(f"{self.name} did not start (code {entered.poll()}):\n{tail(self.log)}")
            time.sleep(_POLL_SECONDS)

    def await_ready(self, ready: Callable[[], bool], *, seconds: float, every: float = _POLL_SECONDS) -> None:
        """Wait until `ready` says so. Raises NodeRuntimeError with the end of the log when it does not, or ends."""
        await_ready(ready, self._entered, name=self.name, log=self.log, seconds=seconds, every=every)

    def stop(self, *, grace_seconds: float = 10.0) -> None:
        """SIGTERM, and SIGKILL after the grace. May be called again."""
        if self._record is not None:
            end_processes([self._record], grace_seconds=grace_seconds)
        self._collect()

    def kill(self) -> None:
        """SIGKILL: what a crash looks like."""
        if self._record is not None and self.running:
            with suppress(ProcessLookupError):
                os.kill(self._record.pid, signal.SIGKILL)
        self._collect()

    def forget(self) -> None:
        """The sandbox has ended, and with it this program."""
        self._collect()

    def _collect(self) -> None:
        if self._entered is not None:
            self._entered.wait(20)
        self._entered = self._record = None
