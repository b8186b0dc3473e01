"""Where the local control plane keeps what: one directory, all of it ours, recognised by its marker file."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.cluster.errors import ClusterError
from cli.cluster.files import write_private

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths inside the directory of one control plane."""

    directory: Path

    @property
    def marker(self) -> Path:
        """What is running here: format, URL, ports by component, audit on or off."""
        return self.directory / "npufleet-cluster.json"

    @property
    def lock(self) -> Path:
        return self.directory / "lock"

    @property
    def pki(self) -> Path:
        return self.directory / "pki"

    @property
    def data(self) -> Path:
        return self.directory / "etcd"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def records(self) -> Path:
        return self.directory / "run"

    @property
    def configuration(self) -> Path:
        """Kubeconfigs and configuration files of the components."""
        return self.directory / "configuration"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.directory / "admin.kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.directory / "audit.log"

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"

    def record(self, component: str) -> Path:
        return self.records / f"{component}.json"

    def kubeconfig(self, component: str) -> Path:
        return self.configuration / f"{component}.kubeconfig"

    def prepare(self) -> None:
        """Make the directory ours. Raises ClusterError when it holds something else, so that no file of a person who
        mistyped a path is ever written over or removed."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            others = [entry.name for entry in self.directory.iterdir() if entry != self.lock]
            if others and not self.marker.exists():
                raise ClusterError(
                    f"{self.directory} holds other files ({', '.join(sorted(others)[:3])}): choose an empty or new one"
                )
            self.directory.chmod(0o700)  # keys and credentials below
            for path in (self.pki, self.logs, self.records, self.configuration):
                path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ClusterError(f"{self.directory} cannot be used: {error.strerror}") from error

    def state(self) -> dict[str, Any] | None:
        """The marker's content; None when there is none, or it is damaged or of another format."""
        try:
            content = json.loads(self.marker.read_bytes())
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) and content.get("format") == FORMAT else None

    def save_state(self, state: dict[str, Any]) -> None:
        write_private(self.marker, json.dumps({"format": FORMAT, **state}, indent=1) + "\n")

    def remove_cluster(self) -> None:
        """Forget the cluster: data, keys, credentials. The logs stay for whoever wants to know what happened, and the
        marker, so that the directory stays recognisably ours."""
        for path in (self.data, self.pki, self.records, self.configuration):
            shutil.rmtree(path, ignore_errors=True)
        self.admin_kubeconfig.unlink(missing_ok=True)
        self.save_state({"ports": {}, "audit": False})

    def remove_logs(self) -> None:
        for log in self.logs.glob("*.log"):
            log.unlink(missing_ok=True)
        self.audit_log.unlink(missing_ok=True)
