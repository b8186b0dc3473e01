"""The state of a simulated kernel between two operations.

Plain data without behaviour of its own: the rules change it, the tree renders it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from node_host.host.protocol import Uevent
from simulated_node.description import (
    Device as DeviceDescription,
)
from simulated_node.description import (
    Driver as DriverDescription,
)
from simulated_node.description import (
    HostDescription,
)
from simulated_node.description import (
    Module as ModuleDescription,
)


@dataclass(frozen=True, slots=True)
class Node:
    """A character device: its name below /dev and its number.

    ``sysfs_class`` is the class of its class device, None without one; ``index_attribute`` the attribute of the PCI
    function that tells its index.
    """

    name: str
    number: str
    sysfs_class: str | None = None
    index_attribute: str | None = None

    @property
    def base(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def minor(self) -> str:
        return self.number.partition(":")[2]


@dataclass(slots=True)
class Device:
    """A PCI function.

    ``ancestors`` are the names above it in /sys/devices, root complex first. ``group`` is its IOMMU group, None
    without one; ``unsafe_group``: it is the unprotected one of no-IOMMU mode. ``holder`` is the operation that keeps
    the device lock while it sleeps.

    Of a physical function: ``num_vfs``, ``autoprobe``, and ``virtfns``, the links to its VFs by index. Of a virtual
    one: ``physfn``, the address of the physical function, and ``virtfn``, its index there. Of a vGPU card:
    ``mixed_sizes``, and ``mig``, None where it has no such mode; of one of its VFs: ``vgpu_type``, the number of its
    type, and ``vgpu_place``, where in the frame buffer it begins (GiB).

    ``leaving``: its driver is on its way out. ``removing`` is the operation that takes it off the bus by its remove
    attribute.
    """

    description: DeviceDescription
    ancestors: tuple[str, ...]
    driver: str | None = None
    override: str | None = None
    nodes: list[Node] = field(default_factory=list)
    vfio_index: int | None = None
    group: int | None = None
    unsafe_group: bool = False
    holder: int | None = None
    leaving: bool = False
    failures: dict[str, int] = field(default_factory=dict)
    num_vfs: int = 0
    autoprobe: bool = True
    virtfns: dict[int, str] = field(default_factory=dict)
    physfn: str | None = None
    virtfn: int | None = None
    removing: int | None = None
    mixed_sizes: bool = False
    mig: bool | None = None
    vgpu_type: int | None = None
    vgpu_place: int = 0

    @property
    def address(self) -> str:
        return self.description.address


@dataclass(frozen=True, slots=True)
class DynamicId:
    """An id added at run time; None matches anything, of the class what ``class_mask`` covers has to be the same."""

    vendor: int | None
    device: int | None
    subsystem_vendor: int | None = None
    subsystem_device: int | None = None
    pci_class: int = 0
    class_mask: int = 0


@dataclass(slots=True)
class Driver:
    """A registered PCI driver with the ids added at run time."""

    description: DriverDescription
    dynamic_ids: list[DynamicId] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.description.name


@dataclass(slots=True)
class Module:
    description: ModuleDescription
    loaded: bool = False

    @property
    def name(self) -> str:
        return self.description.name


@dataclass(slots=True)
class Process:
    """A simulated process; ``handles`` maps a descriptor to the name of the node it holds, "(deleted)" added when it
    went. ``bare`` are the descriptors of VFIO groups from which it has taken no device.
    """

    pid: int
    comm: str
    cgroup: str
    handles: dict[int, str] = field(default_factory=dict)
    bare: set[int] = field(default_factory=set)


def _no_fault(_name: str) -> str | None:
    return None


def _no_hold(_name: str, _operation: int) -> bool:
    return False


@dataclass(slots=True)
class Machine:
    """Everything: what the description gave, and what became of it since boot.

    ``hardware`` is what sits in the slots, whether or not the kernel has it among its ``devices``; ``scanner`` is the
    operation that has the lock of hot-plugging.
    ``drivers`` is in the order of registration, which is the order of matching. ``events`` is the outbox of an
    operation, ``requests`` what VFIO users were asked for: (operation, node), ``begun`` the unbinds that are past their
    check of the driver. ``fault`` and ``held`` let a test make a
    driver fail or sleep: "probe:<driver>:<address>", "remove:<driver>:<address>" or "sriov:<address>" -> errno name, or
    whether the operation sleeps on.
    """

    description: HostDescription
    boot_id: str
    hardware: dict[str, DeviceDescription] = field(default_factory=dict)
    scanner: int | None = None
    devices: dict[str, Device] = field(default_factory=dict)
    modules: dict[str, Module] = field(default_factory=dict)
    available_drivers: dict[str, DriverDescription] = field(default_factory=dict)
    drivers: dict[str, Driver] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)
    events: list[Uevent] = field(default_factory=list)
    requests: set[tuple[int, str]] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    fault: Callable[[str], str | None] = _no_fault
    held: Callable[[str, int], bool] = _no_hold

    def in_group(self, group: int) -> list[Device]:
        return [device for device in self.devices.values() if device.group == group]

    def vfs_of(self, physical: Device) -> list[Device]:
        """Its VFs that are there, by index."""
        found = [device for device in self.devices.values() if device.physfn == physical.address]
        return sorted(found, key=lambda device: device.virtfn or 0)

    def find(self, text: str) -> Device | None:
        """bus_find_device_by_name: an exact name, one newline after it allowed (sysfs_streq); a NUL ends it."""
        return self.devices.get(text.split("\0", 1)[0].removesuffix("\n"))

    def users_of(self, node: str) -> list[Process]:
        """The processes that hold a VFIO node and a device through it."""
        return [
            process
            for process in self.processes.values()
            if any(name == node and number not in process.bare for number, name in process.handles.items())
        ]

    def handles_on(self, node: str) -> list[Process]:
        """The processes that hold a node of /dev open."""
        return [process for process in self.processes.values() if node in process.handles.values()]
