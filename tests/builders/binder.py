"""Small hosts, orders and a binder on a simulated kernel, for tests of the node daemons."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crds.catalogue import load_catalogue
from crds.models.node_state import Bindings, BoundDevice, Inventory, NodeStateSpec, NodeStateStatus
from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.journal import JOURNAL, Journal, JournalState
from node_host.bounded_call import BoundedCalls
from node_host.handover.binder_half import BinderHalf
from node_host.host import Host
from node_host.orders import Orders
from node_host.pci.device import DEVICES
from simulated_node.description import HostDescription
from simulated_node.description_files import parse_device
from simulated_node.kernel import SimulatedKernel
from vfio_binder.binder import Binder, Pass

NODE_UID = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"
NPU = "0000:23:00.0"
TWIN = "0000:24:00.0"

# Attributes of a device itself; what is written to a driver names the device.
_OF_DEVICES = frozenset({"driver_override", "sriov_numvfs", "sriov_drivers_autoprobe"})
_ROOT = {"source": "vda1", "point": "/"}


def npu(address: str = NPU, group: int | None = 20, **more: Any) -> dict[str, Any]:
    """An RBLN-CA25, on driver rebellions after boot."""
    return {
        "address": address,
        "parent": "pci0000:20",
        "vendor": "1eff",
        "device": "1250",
        "class": "120000",
        "numaNode": 0,
        "iommuGroup": group,
        **more,
    }


def graphics(address: str = "0000:25:00.0", group: int = 24, **more: Any) -> dict[str, Any]:
    """An NVIDIA graphics card, on driver nvidia after boot."""
    return {**npu(address, group), "vendor": "10de", "device": "26b1", "class": "030000", **more}


def audio(address: str = "0000:25:00.1", group: int = 24, **more: Any) -> dict[str, Any]:
    """The audio function of a graphics card, on driver snd_hda_intel after boot."""
    return {**npu(address, group), "vendor": "10de", "device": "22ba", "class": "040300", **more}


def nic(address: str = "0000:26:00.0", group: int = 26, **more: Any) -> dict[str, Any]:
    """A network card, on driver ice after boot; without ``interfaces`` it has none."""
    return {**npu(address, group), "vendor": "8086", "device": "1592", "class": "020000", **more}


def bridge(address: str = "0000:20:01.0", group: int = 24, **more: Any) -> dict[str, Any]:
    """A PCIe port, on driver pcieport after boot."""
    return {**npu(address, group), "vendor": "8086", "device": "2030", "class": "060400", **more}


def disk(address: str = "0000:27:00.0", group: int = 27, *, name: str = "nvme0", **more: Any) -> dict[str, Any]:
    """An NVMe disk with two partitions, on driver nvme after boot."""
    number = int(name.removeprefix("nvme"))
    parts = [{"name": f"{name}n1p{part}", "number": f"259:{number * 8 + part}"} for part in (1, 2)]
    block = {"name": f"{name}n1", "number": f"259:{number * 8}", "partitions": parts}
    storage = {"kind": "NVMe", "name": name, "disks": [block]}
    return {
        **npu(address, group),
        "vendor": "144d",
        "device": "a80a",
        "class": "010802",
        "storage": storage,
        **more,
    }


def host(*devices: dict[str, Any], **more: Any) -> HostDescription:
    """A host of these functions; what is not given is as on a usual server."""
    return HostDescription.model_validate({"name": "bench", "devices": list(devices), **more})


def order(
    address: str = NPU,
    *,
    mode: str = "Passthrough",
    intent: str = "Apply",
    vendor: str = "1eff",
    device: str = "1250",
    serial: str | None = None,
    on_release: str = "Restore",
    **passthrough: Any,
) -> dict[str, Any]:
    """One entry of NPUNodeState.spec.devices; further arguments go to its passthrough block."""
    identity = {"vendor": vendor, "device": device} | ({"serial": serial} if serial else {})
    entry: dict[str, Any] = {
        "address": address,
        "identity": identity,
        "mode": mode,
        "intent": intent,
        "onRelease": on_release,
        "decidedBy": {"policy": "vms", "rule": "npus"},
    }
    blocks = {
        "VGPU": {"vgpu": {"profileMapRef": {"name": "l40s"}}},
        "SoftVNPU": {"softVNPU": {"library": {"name": "vcann-rt", "version": "1.2.0"}}},
    }
    entry |= blocks.get(mode, {})
    if passthrough:
        entry["passthrough"] = passthrough
    return entry


def spec(*entries: dict[str, Any], node_uid: str = NODE_UID) -> NodeStateSpec:
    """Orders for the node."""
    return NodeStateSpec.model_validate({"revision": "5d0f4c1e9b7a", "nodeUID": node_uid, "devices": list(entries)})


class FakeClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class Bench:
    """A binder on a simulated host. ``restart`` gives it a new binder, as after a crash or an upgrade."""

    def __init__(
        self,
        root: Path,
        description: HostDescription,
        *,
        deadline_seconds: float = 5.0,
        read_seconds: float = 5.0,
        host: Host | None = None,
        calls: BoundedCalls | None = None,
        in_memory: bool = False,
    ) -> None:
        self._calls = calls
        self.kernel = SimulatedKernel(root, description, in_memory=in_memory)
        self.host = host or self.kernel.host()
        self.clock = FakeClock()
        self.results: list[str] = []
        self.unstuck = 0
        self._deadline = deadline_seconds
        self._read_deadline = read_seconds
        self._generations = itertools.count(1)
        self._marked = 0
        self.orders = Orders(None, NODE_UID)
        self.status = NodeStateStatus()
        self.restart()

    def close(self) -> None:
        self.kernel.close()

    def restart(
        self,
        *,
        writer: BoundedWriter | None = None,
        host: Host | None = None,
        journal: Journal | None = None,
        tokens: BinderHalf | None = None,
    ) -> None:
        self.host = host or self.host
        self.writer = writer or BoundedWriter(
            self.host,
            deadline_seconds=self._deadline,
            on_result=self.results.append,
            on_unstuck=self._count_unstuck,
        )
        self.binder = Binder(
            self.host,
            load_catalogue(),
            journal or Journal(self.kernel.host().local(JOURNAL)),
            self.writer,
            now=lambda: f"2026-11-30T12:00:{self.clock.seconds % 60:02.0f}Z",
            calls=self._calls or BoundedCalls(deadline_seconds=self._read_deadline),
            clock=self.clock,
            jitter=lambda: 1.0,
            tokens=tokens,
        )

    def order(self, *entries: dict[str, Any], node_uid: str = NODE_UID) -> None:
        """New orders: a new generation."""
        self.orders = Orders(spec(*entries, node_uid=node_uid), NODE_UID, next(self._generations))

    async def run(self) -> Pass:
        """One pass; the status that it reports is what the next one finds."""
        orders = Orders(
            self.orders.spec, self.orders.node_uid, self.orders.generation, self.status, self.orders.unreadable
        )
        done = await self.binder.run(orders)
        self.status = NodeStateStatus(inventory=done.inventory, bindings=done.bindings)
        return done

    def mark(self) -> None:
        """Writes from now on are what `writes` returns."""
        self._marked = len(self.kernel.writes)

    @property
    def writes(self) -> list[tuple[str, str]]:
        """Successful and failed writes since the mark, as (last parts of the path, data); module loads included."""
        records = self.kernel.writes[self._marked :]
        return [(_short(record.path), record.data.rstrip("\n")) for record in records]

    @property
    def sysfs_writes(self) -> list[tuple[str, str]]:
        """The same without module loads."""
        return [write for write in self.writes if not write[0].startswith("module:")]

    def touched(self) -> set[str]:
        """Addresses that any write since the mark was about."""
        found = set()
        for path, data in self.sysfs_writes:
            owner, _, attribute = path.rpartition("/")
            found.add(owner if attribute in _OF_DEVICES else data)
        return found

    def driver(self, address: str = NPU) -> str | None:
        try:
            return self.kernel.host().read_link(f"{DEVICES}/{address}/driver").rpartition("/")[2]
        except FileNotFoundError:
            return None

    def override(self, address: str = NPU) -> str:
        return self.kernel.host().read(f"{DEVICES}/{address}/driver_override").decode().strip()

    def journal(self) -> JournalState:
        return Journal(self.kernel.host().local(JOURNAL)).load(set_aside=False)

    def move(self, address: str, driver: str | None, *, override: str | None = None) -> None:
        """What somebody else does by hand: to another driver, or to none."""
        now = self.driver(address)
        self.kernel.write(f"{DEVICES}/{address}/driver_override", f"{override or ''}\n".encode())
        if now is not None:
            self.kernel.write(f"/sys/bus/pci/drivers/{now}/unbind", address.encode())
        if driver is not None:
            self.kernel.write(f"/sys/bus/pci/drivers/{driver}/bind", address.encode())

    def hot_add(self, device: dict[str, Any]) -> None:
        self.kernel.hot_add(parse_device(device))

    def _count_unstuck(self) -> None:
        self.unstuck += 1


def report_of(reported: Pass | Bindings | NodeStateStatus, address: str = NPU) -> BoundDevice:
    """What bindings say of a device."""
    if isinstance(reported, NodeStateStatus):
        assert reported.bindings is not None
        reported = reported.bindings
    devices: Iterable[BoundDevice] = (reported.bindings if isinstance(reported, Pass) else reported).devices
    return next(device for device in devices if device.address == address)


def verdict(reported: Pass | Bindings | NodeStateStatus, address: str = NPU) -> tuple[str, str]:
    """State and reason."""
    report = report_of(reported, address)
    return str(report.state), str(report.reason)


def condition_of(subtree: Bindings | Inventory, type: str = "Ready") -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    found = next(item for item in subtree.conditions if item.type == type)
    return str(found.status), found.reason, found.message


def _short(path: str) -> str:
    """`0000:23:00.0/driver_override`, `rebellions/unbind`, `drivers_probe`."""
    if path.startswith("module:") or path.endswith("/drivers_probe"):
        return path.rpartition("/")[2]
    return "/".join(path.split("/")[-2:])
