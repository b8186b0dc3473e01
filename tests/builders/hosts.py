"""A small simulated host with one device of each sort, and the same host served by a process of its own."""

from __future__ import annotations

import errno
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node_host.host import Host, open_host
from simulated_node.control import Control
from simulated_node.description import HostDescription
from simulated_node.description_files import parse_description
from simulated_node.kernel import SimulatedKernel

PORT = "0000:20:01.0"
NPU = "0000:21:00.0"
TWIN = "0000:22:00.0"
GRAPHICS = "0000:25:00.0"
AUDIO = "0000:25:00.1"
VARIANT = "0000:26:00.0"
NIC = "0000:27:00.0"
DISK = "0000:28:00.0"
SICK = "0000:29:00.0"
LATE = "0000:2a:00.0"
NOBODY = "0000:ff:1f.7"

DEVICES = "/sys/bus/pci/devices"
DRIVERS = "/sys/bus/pci/drivers"
PROBE = "/sys/bus/pci/drivers_probe"

HOST = """
name: bench
devices:
  - {address: "0000:20:01.0", parent: "pci0000:20", vendor: "8086", device: "2030", class: "060400", iommuGroup: 40}
  - &npu
    address: "0000:21:00.0"
    parent: "0000:20:01.0"
    vendor: "1eff"
    device: "1250"
    class: "120000"
    subsystemVendor: "1eff"
    subsystemDevice: "0101"
    numaNode: 1
    iommuGroup: 20
    serial: "0123456789abcdef"
  - {<<: *npu, address: "0000:22:00.0", iommuGroup: 21, serial: null, numaNode: -1}
  # A graphics card and its companion in one group; the card could have VFs.
  - address: "0000:25:00.0"
    parent: "0000:20:01.0"
    vendor: "10de"
    device: "26b1"
    class: "030000"
    iommuGroup: 24
    bootVGA: 1
    sriovTotalVFs: 16
  - {address: "0000:25:00.1", parent: "0000:20:01.0", vendor: "10de", device: "22ba", class: "040300", iommuGroup: 24}
  # A device for which a vfio variant driver exists.
  - {address: "0000:26:00.0", parent: "0000:20:01.0", vendor: "15b3", device: "101e", class: "020000", iommuGroup: 26}
  - address: "0000:27:00.0"
    parent: "0000:20:01.0"
    vendor: "8086"
    device: "1592"
    class: "020000"
    iommuGroup: 27
    interfaces:
      - name: ens1
        addresses: ["10.23.0.10/24", "fd00:23::10/64"]
        gateways: ["10.23.0.1", "fd00:23::1"]
      - {name: ens2, master: bond0}
  - address: "0000:28:00.0"
    parent: "0000:20:01.0"
    vendor: "144d"
    device: "a80a"
    class: "010802"
    iommuGroup: 28
    storage:
      kind: NVMe
      name: nvme0
      disks: [{name: nvme0n1, number: "259:0", partitions: [{name: nvme0n1p1, number: "259:1"}]}]
  # Devices that their native driver cannot take, or not yet.
  - {<<: *npu, address: "0000:29:00.0", iommuGroup: 29, serial: null, probeErrors: [{driver: rebellions, errno: EIO}]}
  - {<<: *npu, address: "0000:2a:00.0", iommuGroup: 30, serial: null,
     probeErrors: [{driver: rebellions, errno: EPROBE_DEFER}]}
virtualInterfaces: [{name: bond0, kind: Bond, addresses: ["10.24.0.10/24"]}]
volumes: [{name: dm-0, label: root, number: "253:0", slaves: [nvme0n1p1]}]
mounts: [{source: dm-0, point: /}]
"""


def bench(**changes: Any) -> HostDescription:
    """The small host; ``changes`` replace whole fields of its description (camelCase)."""
    fields = _bench().model_dump(mode="json", by_alias=True, exclude_unset=True) if changes else {}
    return HostDescription.model_validate({**fields, **changes}) if changes else _bench()


@functools.cache
def _bench() -> HostDescription:
    return parse_description(HOST)


@contextmanager
def running(root: Path, **changes: Any) -> Iterator[SimulatedKernel]:
    """The small host, switched on in this process."""
    with SimulatedKernel(root / "host", bench(**changes)) as kernel:
        yield kernel


def attribute(address: str, name: str) -> str:
    return f"{DEVICES}/{address}/{name}"


def driver_of(host: Host, address: str) -> str | None:
    """The driver that the device's link names."""
    path = attribute(address, "driver")
    return host.read_link(path).rpartition("/")[2] if host.exists(path) else None


def text(host: Host, path: str) -> str:
    return host.read(path).decode()


def give_to_vfio(host: Host, address: str, driver: str = "vfio-pci") -> None:
    """Off its driver and onto a vfio driver, in the order that a careful writer uses."""
    host.load_module(driver.replace("-", "_"))
    host.write(attribute(address, "driver_override"), driver.encode())
    if driver_of(host, address) is not None:
        host.write(attribute(address, "driver/unbind"), address.encode())
    host.write(PROBE, address.encode())


@contextmanager
def refused(name: str) -> Iterator[None]:
    """The order fails with this errno."""
    with pytest.raises(OSError) as caught:
        yield
    assert errno.errorcode[caught.value.errno or 0] == name


class Sleeper:
    """An order in a thread of its own, for orders that sleep."""

    def __init__(self, order: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._order = order
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._order()
        except OSError as error:
            self.error = error

    @property
    def asleep(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout_seconds: float = 5) -> str:
        """ "ok" or the errno's name, once it is done."""
        self._thread.join(timeout_seconds)
        assert not self._thread.is_alive(), "the order still sleeps"
        if self.error is None:
            return "ok"
        assert isinstance(self.error, OSError)
        return errno.errorcode[self.error.errno or 0]


class Served:
    """A machine in a process of its own: ``python -m simulated_node``."""

    def __init__(self, root: Path, description: str, *arguments: str, log: Path | None = None) -> None:
        self.root = root
        command = [sys.executable, "-m", "simulated_node", "--description", description, "--root", str(root)]
        with (log or root.with_suffix(".log")).open("wb") as errors:
            self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=errors)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the machine did not start: {(log or root.with_suffix('.log')).read_text()}"
        self.said = json.loads(line)
        self.control = Control(root)

    @property
    def host(self) -> Host:
        return open_host(self.root)

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@contextmanager
def served(directory: Path, *arguments: str, description: str | None = None) -> Iterator[Served]:
    """The small host (or another) in a process of its own, below ``directory``."""
    if description is None:
        path = directory / "bench.yaml"
        path.write_text(HOST)
        description = str(path)
    machine = Served(directory / "host", description, *arguments)
    try:
        yield machine
    finally:
        machine.stop()
