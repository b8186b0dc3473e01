"""One node of a cluster with a real kubelet and containerd, in a sandbox, on the disk and devices of a host root.

The host root may be that of a simulated machine: daemons of ours that serve it with `--host-root` and the kubelet in
the sandbox then meet in the same /var/lib/kubelet and /run/cdi.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.access.identities import node_kubeconfig
from cli.cluster.errors import ApiCallError, ClusterError
from cli.cluster.files import tail, write_private
from cli.cluster.run.control_plane import ControlPlane
from cli.cluster.run.processes import end_children, spawn
from tests.node_runtime import configuration
from tests.node_runtime.devices import DeviceMirror
from tests.node_runtime.errors import NodeRuntimeError
from tests.node_runtime.images import BUSYBOX, PAUSE, write_archive
from tests.node_runtime.programs import NodePrograms
from tests.node_runtime.sandbox import Sandbox, View
from tests.node_runtime.service import Service, await_ready

_LOOPBACK = Path(__file__).with_name("loopback.py")
_BOOT_ID = "proc/sys/kernel/random/boot_id"
_NAMESPACE = "k8s.io"
_READY_SECONDS = 90.0


class Node:
    """A running node. `host_root` keeps its disk over reboots; everything else of it is in `directory`."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        plane: ControlPlane,
        host_root: Path,
        programs: NodePrograms,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.name = name
        self.host_root = host_root
        self.api: ApiAccess = plane.api()
        self._programs = programs
        self._labels = dict(labels or {})
        self._plane = plane
        self._sandbox: Sandbox | None = None
        self._forwarder: subprocess.Popen[bytes] | None = None
        self._devices = DeviceMirror(host_root / "dev")
        self._numbers = itertools.count()
        self.containerd = Service("containerd", directory / "logs/containerd.log")
        self.kubelet = Service("kubelet", directory / "logs/kubelet.log")

    @property
    def sandbox(self) -> Sandbox:
        if self._sandbox is None:
            raise NodeRuntimeError(f"node {self.name} is switched off")
        return self._sandbox

    @property
    def boot_id(self) -> str:
        """Of the present or the next boot: the simulated machine's, else one that every start makes anew."""
        return self._boot_id_file().read_text().strip()

    def start(self) -> Self:
        """Switch on; returns when the Node is Ready with this boot id. Whatever fails switches it off again."""
        if not (self.host_root / _BOOT_ID).exists():
            write_private(self.directory / "boot_id", f"{uuid.uuid4()}\n")
        try:
            self._prepare()
            self._sandbox = Sandbox.start(self.directory / "sandbox", self._view(), busybox=self._programs.busybox)
            self._devices.forget()
            self.mirror_devices()
            self._start_forwarder()
            self._start_containerd()
            self._start_kubelet()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Switch off at once, as a power cut does. May be called again; the disk stays."""
        if self._sandbox is not None:
            self._sandbox.stop()
            self._sandbox = None
        self.containerd.forget()
        self.kubelet.forget()
        if self._forwarder is not None:
            end_children([self._forwarder], grace_seconds=5)
            self._forwarder = None

    def remove(self) -> None:
        """Switch off and forget the containers' disk, which nobody reads afterwards; logs stay."""
        self.stop()
        shutil.rmtree(self.directory / "containerd", ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def restart_kubelet(self, *, kill: bool = False, meanwhile: Callable[[], None] | None = None) -> None:
        """End the kubelet, call `meanwhile`, start it again; pods live on. Returns when it is healthy."""
        if kill:
            self.kubelet.kill()
        else:
            self.kubelet.stop()
        if meanwhile is not None:
            meanwhile()
        self._start_kubelet()

    def reboot(self, machine: Callable[[], object] | None = None) -> str:
        """Switch off, reboot the machine behind the host root with `machine`, switch on; the new boot id."""
        before = self.boot_id
        self.stop()
        if machine is not None:
            machine()
        self.start()
        if self.boot_id == before:
            raise NodeRuntimeError(
                f"the boot id of {self.name} is still {before}: reboot the simulated machine as well"
            )
        return self.boot_id

    def mirror_devices(self) -> frozenset[str]:
        """Bring the node's /dev up to the host root's; call it when a device has changed there. Names below /dev."""
        return self._devices.update(self.sandbox.path("/dev"))

    def start_program(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        network: bool = False,
    ) -> Service:
        """A program with the node's view of files and processes; without `network` it reaches the API server where the
        rest of the machine does. It ends with the sandbox, or by its own `stop`."""
        service = Service(name, self.directory / "logs" / f"{name}.log")
        service.start(self.sandbox, command, environment=environment, network=network)
        return service

    def exec(self, namespace: str, pod: str, command: Sequence[str], *, container: str | None = None) -> str:
        """Run a command in a container of a running pod; its output. Raises NodeRuntimeError when it fails."""
        found = self.api.call("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}")
        statuses: list[dict[str, Any]] = found.get("status", {}).get("containerStatuses", [])
        identity = next(
            (str(one.get("containerID", "")) for one in statuses if container in (None, one["name"])), ""
        ).removeprefix("containerd://")
        if not identity:
            raise NodeRuntimeError(f"pod {namespace}/{pod} has no running container {container or ''}")
        execution = f"npufleet-{os.getpid()}-{next(self._numbers)}"
        return self._ctr("tasks", "exec", "--exec-id", execution, identity, *command)

    def pod_log(self, namespace: str, pod: str, *, container: str = "*") -> str:
        """What containers of the pod have said so far, all attempts one after the other."""
        text = []
        for file in sorted(self.sandbox.path(configuration.POD_LOGS).glob(f"{namespace}_{pod}_*/{container}/*.log")):
            # Each line: time, stream, F or P (a part of a longer line), text.
            for line in file.read_text(errors="replace").splitlines():
                _, _, mark, said = [*line.split(" ", 3), "", "", ""][:4]
                text.append(said + ("" if mark == "P" else "\n"))
        return "".join(text)

    def _prepare(self) -> None:
        for path in ("sandbox", "logs", "configuration/network", "sysctls", "containerd"):
            (self.directory / path).mkdir(parents=True, exist_ok=True)
        for path in ("var/lib/kubelet", "run/cdi", "dev"):
            (self.host_root / path).mkdir(parents=True, exist_ok=True)
        for name, value in configuration.SYSCTLS.items():
            self._sysctl(name).write_text(f"{value}\n")
        settings = self.directory / "configuration"
        network = settings / "network"
        write_private(network / "10-pods.conflist", configuration.network_configuration())
        write_private(
            settings / "containerd.toml",
            configuration.containerd_configuration(
                runc=self._programs.runc, plugins=self._programs.network, network=network
            ),
        )
        write_private(settings / "kubelet.yaml", configuration.kubelet_configuration())
        if not (settings / "kubeconfig").exists():
            node_kubeconfig(self._plane, self.name, settings / "kubeconfig")

    def _view(self) -> View:
        return View(
            self.name,
            binds={
                configuration.KUBELET_DIRECTORY: self.host_root / "var/lib/kubelet",
                configuration.CDI_DIRECTORY: self.host_root / "run/cdi",
                "/var/lib/containerd": self.directory / "containerd",
            },
            files={
                f"/{_BOOT_ID}": self._boot_id_file(),
                **{f"/proc/sys/{name}": self._sysctl(name) for name in configuration.SYSCTLS},
            },
        )

    def _boot_id_file(self) -> Path:
        simulated = self.host_root / _BOOT_ID
        return simulated if simulated.exists() else self.directory / "boot_id"

    def _sysctl(self, name: str) -> Path:
        return self.directory / "sysctls" / name.replace("/", ".")

    def _start_forwarder(self) -> None:
        address = urlsplit(self._plane.url)
        if address.hostname not in ("127.0.0.1", "localhost") or address.port is None:
            raise NodeRuntimeError(f"{self._plane.url}: a node in a sandbox reaches API servers on 127.0.0.1 only")
        log = self.directory / "logs/loopback.log"
        log.unlink(missing_ok=True)
        command = [sys.executable, "-I", "-S", str(_LOOPBACK), str(self.sandbox.pid), str(address.port)]
        self._forwarder = forwarder = spawn(command, output=log)
        await_ready(lambda: "listening" in tail(log), forwarder, name="the way to the API server", log=log, seconds=20)

    def _start_containerd(self) -> None:
        command = [str(self._programs.containerd), "--config", str(self.directory / "configuration/containerd.toml")]
        environment = {"PATH": self._programs.search_path, "HOME": "/root", "TMPDIR": "/run"}
        self.containerd.start(self.sandbox, command, environment=environment)
        self.containerd.await_ready(lambda: _answers(self.sandbox.path(configuration.CONTAINERD_SOCKET)), seconds=60)
        archive = self.directory / "images.tar"
        if not archive.exists():
            write_archive(archive, self._programs.busybox, (PAUSE, BUSYBOX))
            self._ctr("images", "import", str(archive))

    def _start_kubelet(self) -> None:
        settings = self.directory / "configuration"
        flags = configuration.kubelet_flags(
            name=self.name,
            kubeconfig=settings / "kubeconfig",
            configuration=settings / "kubelet.yaml",
            labels=self._labels,
        )
        environment = {"PATH": self._programs.search_path, "HOME": "/root"}
        self.kubelet.start(self.sandbox, [str(self._programs.kubelet), *flags], environment=environment)
        self.kubelet.await_ready(self._is_ready, seconds=_READY_SECONDS, every=0.1)

    def _is_ready(self) -> bool:
        return self._is_registered() and self._is_healthy()

    def _is_healthy(self) -> bool:
        url = f"http://127.0.0.1:{configuration.HEALTH_PORT}/healthz"
        try:
            return self.sandbox.run([str(self._programs.busybox), "wget", "-qO-", url], seconds=10) == "ok"
        except NodeRuntimeError:
            return False

    def _is_registered(self) -> bool:
        try:
            status = self.api.call("GET", f"/api/v1/nodes/{self.name}").get("status", {})
        except ApiCallError:
            return False
        except ClusterError as error:
            raise NodeRuntimeError(f"the API server is gone: {error}") from error
        conditions = {one["type"]: one["status"] for one in status.get("conditions", [])}
        return conditions.get("Ready") == "True" and status.get("nodeInfo", {}).get("bootID") == self.boot_id

    def _ctr(self, *arguments: str) -> str:
        command = [str(self._programs.ctr), "--address", configuration.CONTAINERD_SOCKET, "--namespace", _NAMESPACE]
        return self.sandbox.run([*command, *arguments])


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
