"""The webhook as a real process that a real API server asks by URL, as where Services do not reach the API server."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.files import tail
from cli.cluster.run.control_plane import ControlPlane
from cli.cluster.run.processes import end_children, spawn
from tests.builders.waiting import eventually

NAMESPACE = "npufleet-system"
COMPONENT = "npufleet-webhook"
SERVICE_HOST = "npufleet-webhook.npufleet-system.svc"
CONFIGURATION = "validatingwebhookconfigurations/npufleet.io"
ROOT = Path(__file__).parents[2]


class WebhookProcess:
    """One replica. `port` 0 picks a free one; `restart` keeps the port, since configurations name it."""

    def __init__(self, plane: ControlPlane, directory: Path, *options: str) -> None:
        self.log = directory / f"{COMPONENT}.log"
        kubeconfig = directory / f"{COMPONENT}.kubeconfig"
        service_account_kubeconfig(plane, NAMESPACE, COMPONENT, kubeconfig)
        self._options = ["--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0", *options]
        self._options += ["--host", "127.0.0.1", "--host", SERVICE_HOST]
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._begins = 0
        self.environment: dict[str, str] = {}
        """What the next start adds to the environment."""

    def start(self) -> None:
        """Start it; returns when it listens (see `is_ready`)."""
        self._begins = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "webhooks.server.main", *self._options]
        command += ["--listen-reviews", f"127.0.0.1:{self._port}"]
        self._process = spawn(command, output=self.log, environment={**os.environ, **self.environment})
        eventually(lambda: len(self._listening()) == 2, seconds=60, what=f"the webhook listens (log: {self.log})")
        self._port = int(self._listening()[1].rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}/validate"

    def stop(self, *, grace_seconds: float = 20) -> None:
        """As an upgrade ends it. May be called again."""
        if self._process is not None:
            end_children([self._process], grace_seconds=grace_seconds)
            self._process = None

    def kill(self) -> None:
        """As a crash ends it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None

    def readiness(self) -> dict[str, str]:
        """What is not as it should be, by check; empty when the process is ready."""
        body = json.loads(self.get("/readyz"))
        return {name: check["reason"] for name, check in body["checks"].items() if not check["ok"]}

    def notes(self) -> dict[str, str]:
        """What is told beside readiness, by name."""
        body = json.loads(self.get("/readyz"))
        return {name: check["reason"] for name, check in body["checks"].items() if check["ok"] and check["reason"]}

    def is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the webhook ended:\n{tail(self.log)}"
        return not self.readiness()

    def get(self, path: str) -> str:
        """From its server of health and metrics."""
        host, _, port = self._listening()[0].rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def served(self) -> bytes:
        """The certificate that a handshake shows now."""
        return ssl.get_server_certificate(("127.0.0.1", self._port), timeout=5).encode()

    def _listening(self) -> list[str]:
        with self.log.open("rb") as file:
            file.seek(self._begins)
            lines = file.read().decode(errors="replace").splitlines()
        return [str(json.loads(line)["listening"]) for line in lines if line.startswith('{"listening"')]


def write_installation(directory: Path, url: str, component: str = "certificates-built-in") -> Path:
    """A kustomization that adds this component to the base, with the URL instead of the Service."""
    up = os.path.relpath(ROOT, directory)
    change = [
        {"op": "replace", "path": f"/webhooks/{number}/clientConfig", "value": {"url": url}} for number in range(2)
    ]
    (directory / "kustomization.yaml").write_text(
        json.dumps(
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": [f"{up}/kustomize/base"],
                "components": [f"{up}/kustomize/components/{component}"],
                "patches": [{"target": {"kind": "ValidatingWebhookConfiguration"}, "patch": json.dumps(change)}],
            }
        )
    )
    return directory


Kubectl = Callable[..., subprocess.CompletedProcess[str]]


def is_asked(kubectl: Kubectl, good: str) -> bool:
    """Whether the API server asks the webhook and gets an answer: a dry run of a good object, as docs tell to do."""
    return kubectl("create", "--dry-run=server", "-f", "-", input=good, check=False).returncode == 0


def in_force(kubectl: Kubectl, bad: str, rule: str) -> bool:
    """Whether the webhook refuses what it should."""
    done = kubectl("create", "--dry-run=server", "-f", "-", input=bad, check=False)
    return done.returncode != 0 and rule in done.stderr
