"""Our own daemons as processes on a machine's host root, each with a token that is bound to its Node."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.files import tail
from cli.cluster.run.control_plane import ControlPlane
from cli.cluster.run.processes import end_children, spawn
from tests.builders.waiting import eventually

NAMESPACE = "npufleet-system"
BINDER = "npufleet-vfio-binder"
PUBLISHER = "npufleet-dra-publisher"


class NodeDaemon:
    """One daemon of a node; started, ended and killed by its test. `log` gets the output of all its runs."""

    def __init__(
        self,
        plane: ControlPlane,
        component: str,
        *,
        node: str,
        root: Path,
        directory: Path,
        options: tuple[str, ...] = (),
    ) -> None:
        self.component = component
        self.log = directory / f"{component}.log"
        kubeconfig = service_account_kubeconfig(
            plane, NAMESPACE, component, directory / f"{component}.kubeconfig", node=node
        )
        self._command = [str(Path(sys.executable).parent / component), "--node", node, "--host-root", str(root)]
        self._command += ["--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0", *options]
        self._process: subprocess.Popen[bytes] | None = None
        self._begins = 0

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.component} was not started"
        assert self._process.poll() is None, f"{self.component} ended:\n{tail(self.log)}"
        return self._process.pid

    def start(self, *, seconds: float = 60) -> None:
        """Start it; returns when it says that it is ready."""
        self._begins = self.log.stat().st_size if self.log.exists() else 0
        self._process = spawn(self._command, output=self.log)
        eventually(self.is_ready, seconds=seconds, what=f"{self.component} is ready (log: {self.log})")

    def stop(self) -> None:
        """As an upgrade ends it: SIGTERM. May be called again."""
        if self._process is not None:
            end_children([self._process], grace_seconds=15)
            self._process = None

    def kill(self) -> None:
        """As a crash or a power cut ends it: SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stopped in the middle of whatever it does: calls to it wait."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def output(self) -> str:
        """What the present run has said."""
        with self.log.open("rb") as file:
            file.seek(self._begins)
            return file.read().decode(errors="replace")

    def get(self, path: str) -> tuple[int, str]:
        """From its own server of health and metrics."""
        address = next(
            (str(json.loads(line)["listening"]) for line in self.output().splitlines() if '"listening"' in line), ""
        )
        assert address, f"{self.component} does not listen:\n{tail(self.log)}"
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.component} ended:\n{tail(self.log)}"
        return self.get("/readyz")[0] == 200
