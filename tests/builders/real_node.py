"""A node with a real kubelet on a simulated machine: pods that really run, on devices that only look real."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cli.cluster.files import tail
from cli.cluster.run.control_plane import ControlPlane
from cli.cluster.run.processes import end_children, spawn
from simulated_node.control import Control
from tests.builders.api_calls import delete, find
from tests.builders.waiting import eventually
from tests.node_runtime.images import BUSYBOX
from tests.node_runtime.node import Node
from tests.node_runtime.programs import NodePrograms

Object = dict[str, Any]
NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_RESOURCES = "/apis/resource.k8s.io/v1"
CLAIMS = f"{_RESOURCES}/namespaces/{NAMESPACE}/resourceclaims"
TEMPLATES = f"{_RESOURCES}/namespaces/{NAMESPACE}/resourceclaimtemplates"
CLASSES = f"{_RESOURCES}/deviceclasses"
SLICES = f"{_RESOURCES}/resourceslices"


class RealMachine:
    """A simulated machine (without its simulated kubelet) with a real node on it. `root` is the machine's host root."""

    def __init__(
        self,
        plane: ControlPlane,
        programs: NodePrograms,
        *,
        name: str,
        description: str,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        # Sockets live below it, and their addresses must not be long.
        self.directory = Path(tempfile.mkdtemp(prefix="npufleet-"))
        self.root = self.directory / "host"
        self.name = name
        log = self.directory / "machine.log"
        command = [sys.executable, "-m", "simulated_node", "--description", description, "--root", str(self.root)]
        self._process: subprocess.Popen[bytes] = spawn(command, output=log)
        self.control = Control(self.root)
        self.node = Node(
            self.directory / "node", name=name, plane=plane, host_root=self.root, programs=programs, labels=labels
        )
        self.api = plane.api()
        try:
            eventually(lambda: self._is_ready(log), every=0.02, what="the simulated machine is up")
            self.node.start()
        except BaseException:
            self.stop()
            raise

    def _is_ready(self, log: Path) -> bool:
        assert self._process.poll() is None, tail(log)
        return any(json.loads(line).get("ready") for line in log.read_text().splitlines() if line.startswith("{"))

    def reboot(self) -> str:
        """Of the machine and its node; the new boot id."""
        return self.node.reboot(self.control.reboot)

    def stop(self, *, logs: Path | None = None) -> None:
        """End all of it; only the logs stay, in a new directory that may be given."""
        self.node.remove()
        end_children([self._process], grace_seconds=10)
        if logs is not None:
            logs.mkdir(parents=True)
            for log in self.directory.rglob("*.log"):
                shutil.copy(log, logs)
        shutil.rmtree(self.directory, ignore_errors=True)


class Workloads:
    """Pods and claims of one test in the namespace "default"; `clear` ends them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.api = node.api
        self.also: Callable[[], str] = lambda: ""  # what a failed wait tells beside pods and claims
        self._made: list[str] = []

    def create(self, collection: str, body: Object) -> Object:
        """An object that `clear` removes."""
        made: Object = self.api.call("POST", collection, body)
        self._made.append(f"{collection}/{made['metadata']['name']}")
        return made

    def claim(self, name: str, device_class: str, **given: Any) -> Object:
        """A claim for one device of the class; `given` replaces parts of its spec.devices."""
        return self.create(CLAIMS, {"metadata": {"name": name}, "spec": claim_spec(device_class, **given)})

    def template(self, name: str, device_class: str, **given: Any) -> Object:
        spec = {"spec": claim_spec(device_class, **given)}
        return self.create(TEMPLATES, {"metadata": {"name": name}, "spec": spec})

    def pod(self, name: str, *, claims: Iterable[str] = (), templates: Iterable[str] = (), **given: Any) -> Object:
        return self.create(PODS, pod(name, self.node.name, claims=claims, templates=templates, **given))

    def get(self, name: str) -> Object:
        found: Object = self.api.call("GET", f"{PODS}/{name}")
        return found

    def get_claim(self, name: str) -> Object:
        found: Object = self.api.call("GET", f"{CLAIMS}/{name}")
        return found

    def find(self, path: str) -> Object | None:
        return find(self.api, path)

    def is_running(self, name: str) -> bool:
        status = self.get(name).get("status", {})
        conditions = {one["type"]: one["status"] for one in status.get("conditions", [])}
        return status.get("phase") == "Running" and conditions.get("Ready") == "True"

    def runs(self, *names: str, seconds: float = 60) -> None:
        """Wait until the pods run; fails with what the kubelet says of them."""
        for name in names:
            self.until(lambda name=name: self.is_running(name), f"{name} runs", seconds=seconds)  # type: ignore[misc]

    def until(self, holds: Callable[[], object], what: str, *, seconds: float = 60) -> None:
        try:
            eventually(holds, seconds=seconds, every=0.1, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}\n{self.also()}") from error

    def ends(self, *names: str, seconds: float = 60) -> None:
        """Delete the pods and wait until they are gone."""
        for name in names:
            self.api.call("DELETE", f"{PODS}/{name}")
        for name in names:
            self.until(lambda name=name: self.find(f"{PODS}/{name}") is None, f"{name} is gone", seconds=seconds)  # type: ignore[misc]

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and text of what was told of an object."""
        selector = f"fieldSelector=involvedObject.name={name}"
        found = self.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/events?{selector}")["items"]
        return [(one.get("reason", ""), one.get("message", "")) for one in found]

    def describe(self) -> str:
        """For messages of failed tests."""
        said = {}
        for path in self._made:
            found = self.find(path)
            if found is not None:
                said[path.rpartition("/")[2]] = [found.get("status"), self.events(found["metadata"]["name"])]
        return json.dumps(said, indent=1)

    def clear(self) -> None:
        for path in reversed(self._made):
            delete(self.api, path)
        pods = [path for path in self._made if path.startswith(PODS)]
        self.until(lambda: all(self.find(path) is None for path in self._made), f"all is gone: {pods}", seconds=90)
        self._made.clear()


def claim_spec(device_class: str, *, count: int = 1, request: str = "npu", **given: Any) -> Object:
    """The spec of a claim with one request; `selectors` are CEL expressions."""
    exactly: Object = {"deviceClassName": device_class, "count": count}
    selectors = given.pop("selectors", ())
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": one}} for one in selectors]
    return {"devices": {"requests": [{"name": request, "exactly": exactly}], **given}}


def pod(
    name: str,
    node: str,
    *,
    claims: Iterable[str] = (),
    templates: Iterable[str] = (),
    command: str = "",
    grace: int = 1,
    **spec: Any,
) -> Object:
    """A pod that runs `command` in a shell and then stays until it is told to go."""
    script = f"trap 'exit 0' TERM; {command}\nwhile true; do sleep 3600 & wait $!; done"
    # Not `nodeName`: the scheduler is who allocates devices.
    body: Object = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": grace,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **spec,
    }
    named = [("resourceClaimName", one) for one in claims] + [("resourceClaimTemplateName", one) for one in templates]
    entries = [{"name": f"devices-{number}", kind: one} for number, (kind, one) in enumerate(named)]
    container: Object = {
        "name": "main",
        "image": BUSYBOX.name,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
    }
    if entries:
        body["resourceClaims"] = entries
        container["resources"] = {"claims": [{"name": entry["name"]} for entry in entries]}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **body}}
