"""Starts components one by one until each says that it is ready, and ends them in the order that does not hang."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.access.pki import admin_access, etcd_access
from cli.cluster.errors import ClusterError
from cli.cluster.files import tail
from cli.cluster.run import ports
from cli.cluster.run.components import API_SERVER, COMPONENTS, CONTROLLER_MANAGER, ETCD, SCHEDULER, Component, Plan
from cli.cluster.run.layout import Layout
from cli.cluster.run.processes import ProcessRecord, end_processes, is_running, read_record, spawn
from cli.progress import Progress, Step

PORT_ATTEMPTS = 8
POLL_SECONDS = 0.05
# One group after the other; inside a group all at once.
STOP_ORDER = ((SCHEDULER, CONTROLLER_MANAGER), (API_SERVER,), (ETCD,))


class _PortTakenError(Exception):
    """Another process listens where the component wanted to."""


class Runner:
    """The processes of one directory. `detached` ones outlive this process; others die with it, however it ends."""

    def __init__(self, layout: Layout, *, audit: bool, detached: bool, progress: Progress) -> None:
        self.layout = layout
        self.audit = audit
        self._detached = detached
        self._progress = progress
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        state = layout.state() or {}
        known = state.get("ports")
        self.ports: dict[str, int] = dict(known) if isinstance(known, dict) else {}

    @property
    def plan(self) -> Plan:
        return Plan(self.layout, self.ports, self.audit)

    def running(self) -> dict[str, int]:
        """Pids of the components that run now, by name."""
        found = {}
        for name in COMPONENTS:
            self._reap(name)
            record = self._record(name)
            if record is not None and is_running(record):
                found[name] = record.pid
        return found

    def start(self, name: str, program: Path, *, keep_port: bool = False) -> None:
        """Start one component and wait until it is ready.

        It gets the ports of its last run where they are free. With `keep_port` it gets those or the start fails.
        Raises ClusterError with the end of the component's log.
        """
        component = COMPONENTS[name]
        self.stop([name])
        with self._progress.step(f"starting {name}", f"{name} ready") as step:
            deadline = time.monotonic() + component.ready_seconds
            for attempt in range(PORT_ATTEMPTS):
                if not (keep_port or (attempt == 0 and self._last_ports_free(component))):
                    self.ports |= {port_name: ports.free_port() for port_name in component.port_names}
                self.layout.save_state({"ports": self.ports, "audit": self.audit})
                try:
                    self._start_once(component, program, deadline, step)
                except _PortTakenError:
                    continue
                return
            taken = {port_name: self.ports[port_name] for port_name in component.port_names}
            raise ClusterError(
                f"{name}: another process listens on its port in {PORT_ATTEMPTS} attempts (last: {taken}); end that "
                f"process (`ss -ltnp` names it) and start again"
            )

    def stop(self, names: Iterable[str] | None = None) -> None:
        """End these components (all of them by default): SIGTERM, and SIGKILL after each one's own time."""
        wanted = set(COMPONENTS if names is None else names)
        for group in STOP_ORDER:
            members = [name for name in group if name in wanted]
            records = [record for name in members if (record := self._record(name)) is not None]
            if records:
                end_processes(records, grace_seconds=max(COMPONENTS[name].stop_seconds for name in members))
            for name in members:
                self._reap(name)
                self.layout.record(name).unlink(missing_ok=True)

    def _record(self, name: str) -> ProcessRecord | None:
        return read_record(self.layout.record(name))

    def _reap(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None and child.poll() is not None:
            del self._children[name]

    def _last_ports_free(self, component: Component) -> bool:
        return all(name in self.ports and ports.is_free(self.ports[name]) for name in component.port_names)

    def _start_once(self, component: Component, program: Path, deadline: float, step: Step) -> None:
        log = self.layout.log(component.name)
        offset = log.stat().st_size if log.exists() else 0
        child = spawn(
            [str(program), *component.arguments(self.plan)],
            output=log,
            record=self.layout.record(component.name),
            die_with_starter=not self._detached,
            # etcd takes every ETCD_* variable as a flag.
            environment={name: value for name, value in os.environ.items() if not name.startswith("ETCD_")},
            directory=self.layout.directory,
        )
        self._children[component.name] = child
        url = self.plan.url(component.port_names[0])
        access = etcd_access if component.name == ETCD else admin_access
        api = ApiAccess(access(self.layout, url))
        answer = "it did not answer"
        while child.poll() is None:
            try:
                api.call("GET", component.ready_path, timeout=2)
            except ClusterError as error:
                answer = str(error)
            else:
                return
            if time.monotonic() > deadline:
                self.stop([component.name])
                raise ClusterError(
                    f"{component.name} is not ready after {component.ready_seconds:.0f} s: {answer}\n"
                    f"{tail(log, offset=offset)}\nwhole log: {log}"
                )
            step.tick()
            time.sleep(POLL_SECONDS)
        self.layout.record(component.name).unlink(missing_ok=True)
        if "address already in use" in tail(log, 200, offset=offset):
            raise _PortTakenError
        raise ClusterError(
            f"{component.name} ended while it started (exit code {child.returncode}):\n{tail(log, offset=offset)}\n"
            f"whole log: {log}"
        )
