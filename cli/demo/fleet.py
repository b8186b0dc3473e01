"""The processes of the demo: simulated nodes with their daemons, and the controllers, each under its own identity."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.cluster.access.identities import node_kubeconfig, service_account_kubeconfig
from cli.cluster.files import tail
from cli.cluster.run.control_plane import ControlPlane
from cli.cluster.run.processes import end_children, spawn
from cli.errors import CommandError
from simulated_node.control import Control
from simulated_node.records import WriteRecord

NAMESPACE = "npufleet-system"
BINDER = "npufleet-vfio-binder"
PUBLISHER = "npufleet-dra-publisher"
PROFILE_WRITER = "npufleet-profile-writer"
DAEMONS = (BINDER, PUBLISHER)
CONTROLLERS = ("npufleet-node-policy", "npufleet-profile-map")
_STOP_SECONDS = 10.0
# A real kubelet takes its time to ask again for a claim that could not be prepared yet (after a reboot, say).
_PREPARE_AGAIN = "2"


@dataclass
class Node:
    """A simulated node: its host root, and the processes that belong to it. `components` are the daemons that it has,
    `daemons` those that run now, `starts` counts all.
    """

    name: str
    root: Path
    machine: subprocess.Popen[bytes]
    components: tuple[str, ...] = DAEMONS
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)


class Fleet:
    """Starts and ends the processes of the demo; whatever it started is ended by ``stop``."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.plane = plane
        self.directory = directory
        self.nodes: dict[str, Node] = {}
        self._controllers: subprocess.Popen[bytes] | None = None
        self._controller_starts = 0
        for name in ("logs", "hosts", "identities/controllers"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    def start_controllers(self) -> None:
        """All controllers, each under its own ServiceAccount."""
        identities = self.directory / "identities/controllers"
        for name in CONTROLLERS:
            service_account_kubeconfig(self.plane, NAMESPACE, name, identities / f"{name}.kubeconfig")
        command = [_script("npufleet-controllers"), "--all", "--kubeconfig-dir", str(identities)]
        self._controller_starts += 1
        self._controllers = spawn(command, output=self._controllers_log())

    def restart_controllers(self) -> None:
        """Stop the controllers as an upgrade would, and start them again."""
        if self._controllers is not None:
            end_children([self._controllers], grace_seconds=_STOP_SECONDS)
        self.start_controllers()

    def start_node(
        self, name: str, description: str, labels: Mapping[str, str], *, components: tuple[str, ...] = DAEMONS
    ) -> Node:
        """A machine with a kernel and a kubelet of its own; returns when its host root is there."""
        root, log = self.directory / "hosts" / name, self._log(name)
        kubeconfig = self.directory / "identities" / f"{name}.kubeconfig"
        node_kubeconfig(self.plane, name, kubeconfig)
        command = [sys.executable, "-m", "simulated_node", "--description", description, "--root", str(root)]
        command += ["--node-name", name, "--kubeconfig", str(kubeconfig), "--prepare-again-seconds", _PREPARE_AGAIN]
        for key, value in labels.items():
            command += ["--label", f"{key}={value}"]
        node = Node(name, root, spawn(command, output=log), components)
        self.nodes[name] = node
        _await_line(log, "ready", node.machine, what=f"simulated node {name}")
        return node

    def start_daemon(self, name: str, component: str) -> None:
        """A daemon of the node, with a token that is bound to the Node (which must be registered)."""
        kubeconfig = self.directory / "identities" / f"{name}-{component}.kubeconfig"
        service_account_kubeconfig(self.plane, NAMESPACE, component, kubeconfig, node=name)
        node = self.nodes[name]
        command = [_script(component), "--node", name, "--host-root", str(node.root)]
        command += ["--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0"]
        node.starts[component] = node.starts.get(component, 0) + 1
        node.daemons[component] = spawn(command, output=self._daemon_log(node, component))

    def stop_daemon(self, name: str, component: str) -> None:
        """Stop it as an upgrade would; nothing happens where it does not run."""
        process = self.nodes[name].daemons.pop(component, None)
        if process is not None:
            end_children([process], grace_seconds=_STOP_SECONDS)

    def restart_daemon(self, name: str, component: str) -> None:
        """Stop it as an upgrade would, and start it again."""
        self.stop_daemon(name, component)
        self.start_daemon(name, component)

    def start_daemons(self, name: str) -> None:
        """Every daemon of the node."""
        for component in self.nodes[name].components:
            self.start_daemon(name, component)

    def restart_daemons(self, name: str) -> None:
        """All at once, as when a node's software is upgraded."""
        end_children(list(self.nodes[name].daemons.values()), grace_seconds=_STOP_SECONDS)
        self.nodes[name].daemons.clear()
        self.start_daemons(name)

    def not_ready(self) -> str:
        """What does not yet say that it is ready (/readyz): the controllers, or daemons with their node."""
        waiting = [] if _ready(self._controllers_log(), len(CONTROLLERS)) else ["controllers"]
        for node in self.nodes.values():
            waiting += [
                f"{component} of {node.name}"
                for component in node.daemons
                if not _ready(self._daemon_log(node, component), 1)
            ]
        return ", ".join(waiting)

    def pids(self) -> list[int]:
        """The processes that run now."""
        nodes = [process for node in self.nodes.values() for process in (node.machine, *node.daemons.values())]
        return [process.pid for process in (self._controllers, *nodes) if process and process.poll() is None]

    def reboot(self, name: str) -> str:
        """Power-cycle the node: its daemons die at once, its kernel starts anew; returns the new boot id."""
        node = self.nodes[name]
        for process in node.daemons.values():
            process.kill()
        for process in node.daemons.values():
            process.wait()
        node.daemons.clear()
        return Control(node.root).reboot()

    def drivers(self, name: str) -> dict[str, str]:
        """The kernel driver of each accelerator of the node by address, as its sysfs tells."""
        devices = self.nodes[name].root / "sys/bus/pci/devices"
        found = {}
        for device in sorted(devices.iterdir(), key=lambda entry: entry.name):
            if (device / "class").read_text().startswith("0x12"):
                driver = device / "driver"
                found[device.name] = driver.readlink().name if driver.is_symlink() else "(none)"
        return found

    def write_log(self, name: str) -> list[WriteRecord]:
        """Every write that the node's simulated kernel has seen, over all boots."""
        return Control(self.nodes[name].root).writes

    def check(self) -> None:
        """Raise CommandError when one of the processes has ended by itself."""
        running = [("controllers", self._controllers, self._controllers_log())]
        for node in self.nodes.values():
            running.append((node.name, node.machine, self._log(node.name)))
            for component, daemon in node.daemons.items():
                running.append((f"{component} of {node.name}", daemon, self._daemon_log(node, component)))
        for what, process, log in running:
            if process is not None and process.poll() is not None:
                raise CommandError(f"{what} ended with code {process.returncode}:\n{tail(log)}")

    def stop(self) -> None:
        """End everything: writers first, then the machines they write to."""
        daemons = [process for node in self.nodes.values() for process in node.daemons.values()]
        writers = [process for process in (self._controllers, *daemons) if process is not None]
        end_children(writers, grace_seconds=_STOP_SECONDS)
        end_children([node.machine for node in self.nodes.values()], grace_seconds=_STOP_SECONDS)

    def _log(self, what: str) -> Path:
        return self.directory / "logs" / f"{what}.log"

    def _controllers_log(self) -> Path:
        return self._log(f"controllers-{self._controller_starts}")

    def _daemon_log(self, node: Node, component: str) -> Path:
        return self._log(f"{node.name}-{component.removeprefix('npufleet-')}-{node.starts[component]}")


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _await_line(log: Path, key: str, process: subprocess.Popen[bytes], *, what: str, seconds: float = 30) -> None:
    """Wait until the process has printed a JSON line with the key."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if _json_lines(log, key):
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise CommandError(f"{what} did not start within {seconds:.0f} s:\n{tail(log)}")


def _json_lines(log: Path, key: str) -> list[Any]:
    """The values of the key in the JSON lines of the log that have it."""
    values = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        if not line.startswith("{"):
            continue
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if key in content:
            values.append(content[key])
    return values


def _ready(log: Path, processes: int) -> bool:
    """Whether so many processes with this log have printed an address, and each answers /readyz there with 200."""
    addresses = _json_lines(log, "listening")
    return len(addresses) >= processes and all(_answers_ready(str(address)) for address in addresses[-processes:])


def _answers_ready(address: str) -> bool:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
