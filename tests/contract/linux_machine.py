"""Linux itself as a machine of the contract: the lab's guest, from inside and as root."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from node_host.host import Host, KernelFiles
from node_host.pci.device import DEVICES
from tests.contract.holder import Holder, pod_cgroup
from tests.contract.orders import ChildOrder, Order, poll
from tests.kernel.lab.guest_side import ask_host
from tests.kernel.lab.roles import ROLES, below, find_all

_GROUP_GET_STATUS: Final = 0x3B67  # include/uapi/linux/vfio.h
_GROUP_VIABLE: Final = 1
_WRITE: Final = "1"  # write(2) in /proc/<pid>/syscall on x86-64
_BUSYBOX: Final = "/run/kernel-lab/busybox"
_SECONDS: Final = 20
_MODELS: Final = {"edu": "edu", "variant": "pci-testdev"}
_VARIANT: Final = "sim_variant_vfio_pci"
_EIO: Final = 5
_PLUGGED: Final = "contract_card"
_FILLER: Final = "x" * 250
_FLOOD: Final = 5000


class _Opened:
    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        return os.read(self._descriptor, 4096)

    def close(self) -> None:
        os.close(self._descriptor)


class LinuxMachine:
    """``Machine`` on the kernel that runs this process."""

    name = "linux"

    def __init__(self) -> None:
        self.host: Host = KernelFiles("/")
        # The card that QEMU has in the empty port, and whether the kernel is to know of it.
        self._in_port: str | None = None
        self._is_plugged = False

    @property
    def roles(self) -> Mapping[str, str]:
        return find_all()

    def close(self) -> None:
        """The port is empty again."""
        if self._in_port is not None:
            self._power_off()

    def order(self, path: str, data: bytes) -> ChildOrder:
        return ChildOrder(self.host, path, data)

    def flood(self, address: str) -> None:
        """Fat events fill the 8 MiB that the kernel gives a reader who asks for 4."""
        event = f"change {uuid.uuid4()} {' '.join(f'K{number}={_FILLER}' for number in range(5))}".encode()
        descriptor = os.open(f"{DEVICES}/{address}/uevent", os.O_WRONLY | os.O_CLOEXEC)
        try:
            for _ in range(_FLOOD):
                os.write(descriptor, event)
        finally:
            os.close(descriptor)

    def hold(self, node: str, *, pod_uid: str | None = None) -> Holder:
        return Holder(node, device=False, cgroup=None if pod_uid is None else pod_cgroup(pod_uid))

    def use(self, address: str) -> Holder:
        return Holder(address, device=True)

    def viable(self, address: str) -> bool:
        group = self.host.read_link(f"{DEVICES}/{address}/iommu_group").rpartition("/")[2]
        descriptor = os.open(f"/dev/vfio/{group}", os.O_RDWR | os.O_CLOEXEC)
        try:
            status = bytearray(struct.pack("II", 8, 0))
            fcntl.ioctl(descriptor, _GROUP_GET_STATUS, status)
        finally:
            os.close(descriptor)
        return bool(struct.unpack("II", status)[1] & _GROUP_VIABLE)

    def asleep(self, order: Order) -> bool:
        """In write(2) and not running, at three looks in a row."""
        assert isinstance(order, ChildOrder)
        child, looks = order.pid, 0

        def sleeps() -> bool:
            nonlocal looks
            looks = looks + 1 if _sleeps_in_write(child) else 0
            return order.done or looks == 3

        return poll(sleeps, 5) and not order.done

    def opened(self, path: str) -> _Opened:
        return _Opened(path)

    def remove(self, address: str) -> None:
        self.host.write(f"{DEVICES}/{address}/remove", b"1")

    def rescan(self) -> None:
        """A card that was unplugged lies in its port still, and would be found too."""
        self.host.write("/sys/bus/pci/rescan", b"1")
        found = below(ROLES["empty_port"])
        if found is not None and not self._is_plugged:
            self.remove(found)

    def plug(self, card: str) -> str:
        """The first time QEMU plugs it in; later it is found again by a scan of the bus, which takes no seconds."""
        self._is_plugged = True
        if self._in_port == card:
            self.rescan()
        else:
            if self._in_port is not None:
                self._power_off()
            ask_host("device_add", {"driver": _MODELS[card], "id": _PLUGGED, "bus": "empty_port"})
            self._in_port = card
        if not poll(_settled, _SECONDS):
            raise TimeoutError(f"no {card} appears in the empty port")
        address = below(ROLES["empty_port"])
        assert address is not None
        return address

    def unplug(self, address: str) -> None:
        self._is_plugged = False
        self.remove(address)

    def _power_off(self) -> None:
        """The slot without power: QEMU takes the card out at once."""
        slot = next(place for place in Path("/sys/bus/pci/slots").iterdir() if self._is_empty_port(place))
        self.host.write(f"{slot}/power", b"0")
        self._in_port = None

    def _is_empty_port(self, slot: Path) -> bool:
        """A slot's address is that of the bus below its port."""
        port = Path(DEVICES, self.roles["empty_port"]).resolve()
        buses = [name.name for name in (port / "pci_bus").iterdir()] if (port / "pci_bus").is_dir() else []
        return (slot / "address").read_text().strip().rpartition(":")[0] in buses

    @contextmanager
    def network(self, address: str, state: str) -> Iterator[None]:
        [interface] = self.host.list(f"{DEVICES}/{address}/net")
        if state == "address":
            _ip("address", "add", "192.0.2.1/24", "dev", interface)
            _ip("link", "set", interface, "up")
            try:
                yield
            finally:
                _ip("link", "set", interface, "down")
                _ip("address", "del", "192.0.2.1/24", "dev", interface)
            return
        kind, master = {"bond": ("bonding", "contract-bond"), "bridge": ("bridge", "contract-br")}[state]
        self.host.load_module(kind)
        _ip("link", "add", master, "type", state)
        try:
            _ip("link", "set", interface, "down")
            _ip("link", "set", interface, "master", master)
            yield
        finally:
            _ip("link", "set", interface, "nomaster")
            _ip("link", "set", interface, "down")
            _ip("link", "del", master)

    def built_with(self, **kernel: str) -> AbstractContextManager[None]:
        raise NotImplementedError(f"there is one guest kernel: none with {kernel}")

    def sick(self, path: str, errno: str) -> AbstractContextManager[None]:
        raise NotImplementedError(f"no file of the guest can be made to fail: {path} with {errno}")

    def load_vgpu(self) -> None:
        self.host.load_module("sim_vgpu")

    @contextmanager
    def failing_probe(self, number: int) -> Iterator[str]:
        """e1000 answers EIO to a card that it does not know; the lab's variant driver answers what it is told to."""
        if number == _EIO:
            self.host.load_module("e1000")
            yield "e1000"
            return
        self.host.load_module(_VARIANT)
        parameter = f"/sys/module/{_VARIANT}/parameters/probe_error"
        self.host.write(parameter, str(number).encode())
        try:
            yield _VARIANT
        finally:
            self.host.write(parameter, b"0")


def _settled() -> bool:
    """A card is below the port, and the kernel is through with adding it."""
    address = below(ROLES["empty_port"])
    return address is not None and Path(DEVICES, address, "iommu_group").exists() and Path(DEVICES, address).exists()


def _sleeps_in_write(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        call = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except (OSError, IndexError):
        return False
    return state in "SD" and call == _WRITE


def _ip(*arguments: str) -> None:
    subprocess.run([_BUSYBOX, "ip", *arguments], check=True, capture_output=True, timeout=_SECONDS)
