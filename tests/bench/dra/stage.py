"""What the bench plays on: one control plane, one node with a real kubelet, and on it the publisher with simulated
devices and Kubernetes' test driver with as many of its own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.kubectl import find_kubectl
from cli.cluster.programs.binaries import ensure_binaries
from cli.cluster.run.control_plane import ControlPlane
from cli.progress import Progress
from tests.builders.objects import node_policy
from tests.builders.real_node import CLASSES, SLICES, RealMachine
from tests.builders.served_node import ServedNode
from tests.builders.waiting import eventually
from tests.node_runtime.configuration import CDI_DIRECTORY
from tests.node_runtime.programs import ensure_node_programs
from tests.node_runtime.service import Service

ROOT = Path(__file__).parents[3]
NODE = "bench"
DEVICES = 64
PEER_DRIVER = "test-driver.cdi.k8s.io"
Object = dict[str, Any]


class Contestant:
    """One of the two drivers: the class that selects its devices, and the socket where the kubelet calls it."""

    def __init__(
        self,
        name: str,
        *,
        driver: str,
        device_class: str,
        root: Path,
        api: ApiAccess,
        start: Callable[[], None],
        stop: Callable[[], None],
        pid: Callable[[], int],
    ) -> None:
        self.name = name
        self.driver = driver
        self.device_class = device_class
        self.start, self.stop, self.pid = start, stop, pid
        self.socket = root / f"var/lib/kubelet/plugins/{driver}/dra.sock"
        self._api = api

    def slices(self) -> list[Object]:
        found: list[Object] = self._api.call("GET", f"{SLICES}?fieldSelector=spec.driver={self.driver}")["items"]
        return found

    def devices(self) -> list[str]:
        return sorted(device["name"] for one in self.slices() for device in one["spec"].get("devices") or [])

    def remove_slices(self) -> None:
        for one in self.slices():
            self._api.call("DELETE", f"{SLICES}/{one['metadata']['name']}")


class Stage:
    """Both contestants, running. `ours` is npufleet's publisher, `peer` Kubernetes' test driver."""

    def __init__(self, plane: ControlPlane, machine: RealMachine, ours: Contestant, peer: Contestant) -> None:
        self.plane = plane
        self.machine = machine
        self.api = plane.api()
        self.ours = ours
        self.peer = peer

    @property
    def both(self) -> tuple[Contestant, Contestant]:
        return self.ours, self.peer


@contextmanager
def stage(directory: Path, progress: Progress) -> Iterator[Stage]:
    """Set everything up; all processes have ended when the block is left."""
    programs = ensure_node_programs(progress=progress)
    driver_program = ensure_binaries(["dra-test-driver"], progress=progress)["dra-test-driver"]
    with ControlPlane.start(directory / "plane", progress=progress) as plane:
        _install(plane)
        description = directory / "machine.yaml"
        description.write_text(yaml.safe_dump(machine_description(DEVICES)))
        with progress.step("starting a node", "node started"):
            machine = RealMachine(plane, programs, name=NODE, description=str(description))
        try:
            served = ServedNode(plane, machine)
            try:
                peer = _peer(plane, machine, driver_program)
                ours = _ours(plane, machine, served)
                with progress.step(f"publishing {DEVICES} devices by both", "devices published"):
                    served.start()
                    served.apply(node_policy("bench"))
                    peer.start()
                    for one in (ours, peer):
                        eventually(lambda one=one: len(one.devices()) == DEVICES, seconds=180, what=one.name)  # type: ignore[misc]
                yield Stage(plane, machine, ours, peer)
                peer.stop()
            finally:
                served.stop()
        finally:
            machine.stop()


def _install(plane: ControlPlane) -> None:
    command = [str(find_kubectl()), f"--kubeconfig={plane.admin_kubeconfig}"]
    for arguments in (
        ["apply", "--server-side", "--kustomize", str(ROOT / "kustomize/base")],
        ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"],
    ):
        subprocess.run([*command, *arguments], check=True, stdout=subprocess.DEVNULL)
    selector = {"cel": {"expression": f'device.driver == "{PEER_DRIVER}"'}}
    plane.api().call("POST", CLASSES, {"metadata": {"name": PEER_DRIVER}, "spec": {"selectors": [selector]}})


def _ours(plane: ControlPlane, machine: RealMachine, served: ServedNode) -> Contestant:
    return Contestant(
        "npufleet-dra-publisher",
        driver="npufleet.io",
        device_class="vfio-npufleet.io",
        root=machine.root,
        api=plane.api(),
        start=served.publisher.start,
        stop=served.publisher.stop,
        pid=lambda: served.publisher.pid,
    )


def _peer(plane: ControlPlane, machine: RealMachine, program: Path) -> Contestant:
    options = {
        "node-name": machine.name,
        "num-devices": DEVICES,
        "cdi-dir": CDI_DIRECTORY,
        "drivername": PEER_DRIVER,
        # Both write the file through which KubeVirt finds a device.
        "enable-device-metadata": "true",
    }
    command = [str(program), "kubelet-plugin", *(f"--{key}={value}" for key, value in options.items())]
    environment = {"KUBECONFIG": str(plane.admin_kubeconfig), "PATH": os.environ["PATH"]}
    (machine.root / f"var/lib/kubelet/plugins/{PEER_DRIVER}").mkdir(parents=True)  # it makes the one above only
    running: list[Service] = []

    def start() -> None:
        running.append(machine.node.start_program("dra-test-driver", command, environment=environment))

    def stop() -> None:
        while running:
            running.pop().stop()

    return Contestant(
        "Kubernetes' DRA test driver",
        driver=PEER_DRIVER,
        device_class=PEER_DRIVER,
        root=machine.root,
        api=plane.api(),
        start=start,
        stop=stop,
        pid=lambda: running[-1].pid,
    )


def machine_description(devices: int) -> Object:
    """A machine with so many RBLN-CA25, each alone in its IOMMU group, sixteen below each root complex."""
    found: list[Object] = []
    for number in range(devices):
        root = 0x20 + 0x20 * (number // 16)
        slot = number % 16 + 1
        port = f"0000:{root:02x}:{slot:02x}.0"
        found.append(
            {
                "address": port,
                "parent": f"pci0000:{root:02x}",
                "vendor": "8086",
                "device": "2030",
                "class": "060400",
                "numaNode": number // 32,
                "iommuGroup": 200 + number,
            }
        )
        found.append(
            {
                "address": f"0000:{root + slot:02x}:00.0",
                "parent": port,
                "vendor": "1eff",
                "device": "1250",
                "class": "120000",
                "subsystemVendor": "1eff",
                "subsystemDevice": "1250",
                "numaNode": number // 32,
                "iommuGroup": 100 + number,
                "serial": f"001eff12500{number:05d}",
                "bars": [0x4000000, 0x10000],
            }
        )
    return {"name": NODE, "extends": "plain-server", "devices": found}
