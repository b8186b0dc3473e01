"""One real control plane (etcd, API server, and by default controller manager and scheduler) with its own directory:
what the demo, the tests and `npufleet cluster` run on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.access.certificates import Authority
from cli.cluster.access.kubeconfig import read_kubeconfig
from cli.cluster.access.pki import cluster_authority, write_kubeconfigs, write_pki
from cli.cluster.errors import ApiCallError, ClusterError
from cli.cluster.files import write_private
from cli.cluster.locks import holder, try_lock
from cli.cluster.programs.binaries import ensure_binaries
from cli.cluster.run.audit_policy import audit_policy
from cli.cluster.run.components import (
    API_SERVER,
    COMPONENTS,
    CONTROLLER_MANAGER,
    ETCD,
    SCHEDULER,
    scheduler_configuration,
)
from cli.cluster.run.layout import Layout
from cli.cluster.run.runner import Runner
from cli.progress import Progress

CONTROLLERS = (CONTROLLER_MANAGER, SCHEDULER)
ACCOUNT_SECONDS = 60.0


class ControlPlane:
    """A control plane that answers. Attributes: `url`, `admin_kubeconfig`, `audit_log` (None without audit, and for a
    cluster that was here before), `directory` for whatever belongs to it."""

    def __init__(self, *, directory: Path, url: str, admin_kubeconfig: Path, audit_log: Path | None = None) -> None:
        self.directory = directory
        self.url = url
        self.admin_kubeconfig = admin_kubeconfig
        self.audit_log = audit_log
        self._runner: Runner | None = None
        self._lock: int | None = None
        self._bin_dir: Path | None = None
        self._progress = Progress()

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        components: Iterable[str] = CONTROLLERS,
        audit: bool = False,
        bin_dir: Path | None = None,
        progress: Progress | None = None,
        detached: bool = False,
    ) -> Self:
        """Start etcd, the API server and `components`, each ready before the next; programs are built where needed.

        `directory` is empty, new, or an earlier plane's, whose data, keys and (where free) ports are taken up again.
        The processes end with this one, even if it is killed; `detached` ones stay until `stop`. Whatever fails or
        interrupts the start ends all of them. Raises ClusterError.
        """
        layout = Layout(directory.absolute())
        layout.prepare()
        lock = try_lock(layout.lock, "runs a control plane here")
        if lock is None:
            raise ClusterError(f"{layout.directory} is in use by {holder(layout.lock)}")
        plane = cls(
            directory=layout.directory,
            url="",
            admin_kubeconfig=layout.admin_kubeconfig,
            audit_log=layout.audit_log if audit else None,
        )
        plane._lock = lock
        plane._bin_dir = bin_dir
        plane._progress = progress or Progress()
        plane._runner = Runner(layout, audit=audit, detached=detached, progress=plane._progress)
        try:
            plane._start(layout, list(components))
        except BaseException:
            plane.stop()
            raise
        return plane

    @classmethod
    def existing(cls, kubeconfig: Path, directory: Path) -> Self:
        """A cluster that runs already, used through an administrator's kubeconfig. `stop` leaves it alone.

        Raises ClusterError when it does not answer or does not accept the credentials.
        """
        access = read_kubeconfig(kubeconfig)
        ApiAccess(access).call("GET", "/version")
        return cls(directory=directory, url=access.endpoint.server, admin_kubeconfig=kubeconfig.absolute())

    @classmethod
    def at(cls, directory: Path, *, bin_dir: Path | None = None, progress: Progress | None = None) -> Self | None:
        """The plane that was started in this directory, whether or not its processes still run; None without one."""
        layout = Layout(directory.absolute())
        state = layout.state()
        if state is None or not layout.admin_kubeconfig.exists():
            return None
        audit = state.get("audit") is True
        plane = cls(
            directory=layout.directory,
            url=read_kubeconfig(layout.admin_kubeconfig).endpoint.server,
            admin_kubeconfig=layout.admin_kubeconfig,
            audit_log=layout.audit_log if audit else None,
        )
        plane._bin_dir = bin_dir
        plane._progress = progress or Progress()
        plane._runner = Runner(layout, audit=audit, detached=True, progress=plane._progress)
        return plane

    def api(self) -> ApiAccess:
        """Calls as the administrator."""
        return ApiAccess(read_kubeconfig(self.admin_kubeconfig))

    @property
    def authority(self) -> Authority | None:
        """The authority for client certificates; None for a cluster that we did not start."""
        return cluster_authority(self._runner.layout) if self._runner is not None else None

    def running(self) -> dict[str, int]:
        """Pids of the components that run, by name; empty for a cluster that we did not start."""
        return self._runner.running() if self._runner is not None else {}

    def start_component(self, name: str) -> None:
        """Start one more component, or start a stopped one again (on the same ports: URLs given out stay valid)."""
        runner = self._own(name)
        program = ensure_binaries([name], bin_dir=self._bin_dir, progress=self._progress)[name]
        again = all(port_name in runner.ports for port_name in COMPONENTS[name].port_names)
        runner.start(name, program, keep_port=again and name in (ETCD, API_SERVER))
        if name == CONTROLLER_MANAGER:
            self._await_default_account()

    def stop_component(self, name: str) -> None:
        """Stop one component and leave the others, e.g. to see how clients live through it."""
        self._own(name).stop([name])

    def stop(self) -> None:
        """End all processes (controllers, API server, etcd). May be called again; data and logs stay."""
        if self._runner is not None:
            self._runner.stop()
        self.release()

    def release(self) -> None:
        """Let other processes act on this directory (a detached plane is managed by whoever comes next)."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _own(self, name: str) -> Runner:
        if self._runner is None:
            raise ClusterError(f"{name} of {self.url} is not ours to start or stop")
        if name not in COMPONENTS:
            raise ClusterError(f"unknown component {name!r}: known are {', '.join(COMPONENTS)}")
        return self._runner

    def _start(self, layout: Layout, components: list[str]) -> None:
        runner = self._own(ETCD)
        for name in components:
            self._own(name)
        runner.stop()  # what a killed starter may have left
        if not layout.data.exists():
            layout.remove_logs()  # of a cluster that is no more
        layout.save_state({"ports": runner.ports, "audit": runner.audit})
        write_pki(layout)
        write_private(layout.configuration / "audit-policy.yaml", audit_policy())
        write_private(layout.configuration / "scheduler.yaml", scheduler_configuration(layout))
        # The two that make a usable server are built and started before the rest is built.
        programs = ensure_binaries((ETCD, API_SERVER), bin_dir=self._bin_dir, progress=self._progress)
        for name in (ETCD, API_SERVER):
            runner.start(name, programs[name])
        self.url = runner.plan.url(API_SERVER)
        write_kubeconfigs(layout, self.url)
        for name in COMPONENTS:
            if name in components and name not in programs:
                self.start_component(name)

    def _await_default_account(self) -> None:
        """Pods are refused until the controller manager has made their namespace's ServiceAccount."""
        api = self.api()
        deadline = time.monotonic() + ACCOUNT_SECONDS
        while True:
            try:
                api.call("GET", "/api/v1/namespaces/default/serviceaccounts/default")
            except ApiCallError as error:
                if error.status != 404 or time.monotonic() > deadline:
                    raise ClusterError(
                        f"{CONTROLLER_MANAGER} runs but has not made the ServiceAccount default/default: {error}"
                    ) from error
            else:
                return
            time.sleep(0.05)


__all__ = ["API_SERVER", "CONTROLLERS", "CONTROLLER_MANAGER", "ETCD", "SCHEDULER", "ControlPlane"]
