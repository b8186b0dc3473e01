"""The simulated kernel as a machine of the contract: the lab's devices, in this process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from node_host.host import Host
from node_host.pci.device import DEVICES
from simulated_node.description import Device, HostDescription
from simulated_node.description_files import load_description, parse_device
from simulated_node.kernel import SimulatedKernel
from tests.contract.orders import Order, ThreadOrder, poll

NODE: Final = Path(__file__).with_name("lab-node.yaml")

ROLES: Final = {
    "display": "0000:00:01.0",
    "twin_a": "0000:00:02.0",
    "twin_b": "0000:00:03.0",
    "route_nic": "0000:00:04.0",
    "beside_route": "0000:00:04.1",
    "pf": "0000:01:00.0",
    "other_pf": "0000:02:00.0",
    "shared_bridge": "0000:03:00.0",
    "shared_a": "0000:04:01.0",
    "shared_b": "0000:04:02.0",
    "disk": "0000:05:00.0",
    "empty_port": "0000:00:0c.0",
    "below_port": "0000:07:00.0",
    "no_group": "0000:08:00.0",
    "few_pf": "0000:09:00.0",
    "cramped_pf": "0000:0a:00.0",
    "starved_pf": "0000:0c:00.0",
}
"""By address. The last three are devices that the guest does not have."""

_PLUGGED: Final = "0000:06:00.0"
_CARDS: Final = {"edu": ("1234", "11e8", "00ff00"), "variant": ("1b36", "0005", "00ff00")}
_PROBE_ERRORS: Final = {5: "e1000", 517: "sim_variant_vfio_pci"}


class _Hold:
    """A handle of a simulated process on a node."""

    def __init__(self, kernel: SimulatedKernel, node: str, pid: int, *, pod_uid: str | None = None) -> None:
        self._kernel, self._node, self._pid = kernel, node, pid
        kernel.open_device(node, pid=pid, comm="holder", pod_uid=pod_uid)

    def close(self) -> None:
        with suppress(OSError):
            self._kernel.close_device(self._node, pid=self._pid)


class _Late:
    """A read that was begun before: it sleeps between open and read."""

    def __init__(self, kernel: SimulatedKernel, path: str) -> None:
        self._block = kernel.block(f"read:{path}")
        self._answer: bytes | OSError | None = None
        self._thread = threading.Thread(target=lambda: self._read(kernel.host(), path), daemon=True)
        self._thread.start()
        if not self._block.wait_until_blocked():
            raise TimeoutError(f"nobody came to read {path}")

    def _read(self, host: Host, path: str) -> None:
        try:
            self._answer = host.read(path)
        except OSError as error:
            self._answer = error

    def read(self) -> bytes:
        self.close()
        if isinstance(self._answer, OSError):
            raise self._answer
        assert self._answer is not None
        return self._answer

    def close(self) -> None:
        self._block.release()
        self._thread.join(5)


class _User(_Hold):
    """A handle that stands for a virtual machine's: the group taken, the device open."""

    def __init__(self, kernel: SimulatedKernel, node: str, pid: int) -> None:
        self._asked = kernel.requests(node)
        super().__init__(kernel, node, pid)

    def requested(self) -> bool:
        return poll(lambda: self._kernel.requests(self._node) > self._asked, 5)


class SimulatedMachine:
    """``Machine`` on a simulated kernel below ``directory``."""

    name = "simulated"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pids = itertools.count(5000)
        self.roles: Mapping[str, str] = ROLES
        self._start(load_description(NODE), directory / "node")

    def _start(self, description: HostDescription, root: Path) -> None:
        self._description = description
        self._kernel = _Kernel(root, description)
        self.host: Host = self._kernel.host()

    def close(self) -> None:
        self._kernel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reboot(self) -> None:
        """Off, one more card in a slot before the others, and on: addresses and groups move."""
        self._kernel.close()
        self._start(with_one_more_card(self._description), self._kernel.root)
        self.roles = {role: _moved(address) for role, address in ROLES.items()}

    def order(self, path: str, data: bytes) -> ThreadOrder:
        return ThreadOrder(self.host, path, data)

    def flood(self, address: str) -> None:
        for _ in range(2 * _Kernel.event_capacity):
            self.host.write(f"{DEVICES}/{address}/uevent", b"change")

    def hold(self, node: str, *, pod_uid: str | None = None) -> _Hold:
        return _Hold(self._kernel, node, next(self._pids), pod_uid=pod_uid)

    def use(self, address: str) -> _User:
        group = self.host.read_link(f"{DEVICES}/{address}/iommu_group").rpartition("/")[2]
        return _User(self._kernel, f"/dev/vfio/{group}", next(self._pids))

    def viable(self, address: str) -> bool:
        """The simulated kernel shows the flag by what it answers to a user."""
        try:
            self.use(address).close()
        except PermissionError:
            return False
        return True

    def asleep(self, order: Order) -> bool:
        return poll(lambda: order.done or order.path in self._kernel.sleeping, 5) and not order.done

    def opened(self, path: str) -> _Late:
        return _Late(self._kernel, path)

    def remove(self, address: str) -> None:
        self.host.write(f"{DEVICES}/{address}/remove", b"1")

    def rescan(self) -> None:
        self.host.write("/sys/bus/pci/rescan", b"1")

    def plug(self, card: str) -> str:
        vendor, device, pci_class = _CARDS[card]
        port = self.roles["empty_port"]
        address = _PLUGGED if port == ROLES["empty_port"] else _moved(_PLUGGED)
        facts = {"address": address, "parent": port, "vendor": vendor, "device": device, "class": pci_class}
        ids = {"subsystemVendor": "1af4", "subsystemDevice": "1100"}
        self._kernel.hot_add(parse_device({**facts, **ids, "iommuGroup": self._free_group()}))
        return address

    def unplug(self, address: str) -> None:
        self._kernel.hot_remove(address)

    @contextmanager
    def network(self, address: str, state: str) -> Iterator[None]:
        before = self._described(address)
        changes = {
            "address": {"state": "Up", "addresses": ["192.0.2.1/24"]},
            "bond": {"state": "Up", "master": "contract-bond"},
            "bridge": {"state": "Up", "master": "contract-br"},
        }
        facts = before.model_dump(mode="json", by_alias=True, exclude_unset=True)
        facts["interfaces"][0] |= changes[state]
        self._exchange(parse_device(facts))
        try:
            yield
        finally:
            self._exchange(before)

    @contextmanager
    def built_with(self, **kernel: str) -> Iterator[None]:
        before = self._kernel, self.host, self._description
        facts = self._description.model_dump(mode="json", by_alias=True, exclude_unset=True)
        facts["kernel"] |= kernel
        self._start(HostDescription.model_validate(facts), self._directory / "other")
        try:
            yield
        finally:
            self._kernel.close()
            self._kernel, self.host, self._description = before

    @contextmanager
    def sick(self, path: str, errno: str) -> Iterator[None]:
        self._kernel.fail_next(f"read:{path}", errno)
        yield

    def load_vgpu(self) -> None:
        self.host.load_module("nvidia")

    @contextmanager
    def failing_probe(self, number: int) -> Iterator[str]:
        name = _PROBE_ERRORS[number]
        self.host.load_module(name)
        yield name

    def _described(self, address: str) -> Device:
        return next(device for device in self._description.devices if device.address == address)

    def _exchange(self, device: Device) -> None:
        self._kernel.hot_remove(device.address)
        self._kernel.hot_add(device)

    def _free_group(self) -> int:
        taken = {int(name) for name in self.host.list("/sys/kernel/iommu_groups")}
        return next(number for number in itertools.count() if number not in taken)


class _Kernel(SimulatedKernel):
    """Listeners have small buffers here, so that a short burst overflows one."""

    event_capacity = 64


def _moved(address: str) -> str:
    """An address after one more bus has come before the others; functions on bus 0 stay."""
    domain, bus, rest = address.split(":")
    number = int(bus, 16)
    return f"{domain}:{number + (number > 0):02x}:{rest}"


def with_one_more_card(description: HostDescription) -> HostDescription:
    """The node with a card in slot 7, before the root ports of the others: buses and groups after it are renumbered."""
    facts = description.model_dump(mode="json", by_alias=True, exclude_unset=True)
    by_address = {device["address"]: device for device in facts["devices"]}
    for device in facts["devices"]:
        device["address"] = _moved(device["address"])
        if not device["parent"].startswith("pci"):
            device["parent"] = _moved(device["parent"])
        if device.get("iommuGroup") is not None and device["address"] > "0000:00:07.0":
            device["iommuGroup"] += 1
    port, card = by_address[ROLES["empty_port"]], by_address[ROLES["twin_a"]]
    highest = max(device["iommuGroup"] for device in facts["devices"] if device.get("iommuGroup") is not None)
    facts["devices"] += [
        {**port, "address": "0000:00:07.0", "iommuGroup": highest + 1},
        {**card, "address": "0000:01:00.0", "parent": "0000:00:07.0", "iommuGroup": highest + 2},
    ]
    return HostDescription.model_validate(facts)
