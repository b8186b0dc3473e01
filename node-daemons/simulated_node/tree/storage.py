"""Disks below their controllers, volumes on them, and what is mounted (sysfs-block, proc_pid_mountinfo(5))."""

from functools import partial

from simulated_node.description import Storage, StorageKind
from simulated_node.model.nodes import drives_function
from simulated_node.model.state import Device, Machine
from simulated_node.model.topology import devpath
from simulated_node.rules.registry import rule
from simulated_node.tree.entries import READ_WRITE, Memory, TreeBuilder

UNDRIVEN_DISK = rule(
    "host.no-driver-no-disk",
    "A disk controller shows its disks only while its native driver holds it; mounts of what is gone stay listed.",
    source="drivers/nvme/host/pci.c nvme_probe, nvme_remove",
)


def render_storage(out: TreeBuilder, machine: Machine, memory: Memory) -> None:
    controllers = [device for device in machine.devices.values() if device.description.storage is not None]
    driven = tuple((device.address, drives_function(machine, device)) for device in controllers)
    looks = driven, tuple(devpath(device) for device in controllers)
    memory.add(out, "storage", looks, partial(_render_all, machine=machine, driven=driven))


def _render_all(out: TreeBuilder, machine: Machine, driven: tuple[tuple[str, bool], ...]) -> None:
    for directory in ("/sys/block", "/sys/class/block", "/sys/dev/block"):
        out.directory(directory)
    places: dict[str, str] = {}
    for address, is_driven in driven:
        device = machine.devices[address]
        if is_driven and device.description.storage is not None:
            _render_disks(out, device, device.description.storage, places)
        else:
            UNDRIVEN_DISK.fires()
    for volume in machine.description.volumes:
        if not all(slave in places for slave in volume.slaves):
            continue
        here = f"/sys/devices/virtual/block/{volume.name}"
        _render_block(out, here, volume.number, places)
        out.file(f"{here}/dm/name", volume.label)
        for slave in volume.slaves:
            out.link(f"{here}/slaves/{slave}", places[slave])
            out.link(f"{places[slave]}/holders/{volume.name}", here)
    _render_mounts(out, machine)


def _render_disks(out: TreeBuilder, device: Device, storage: Storage, places: dict[str, str]) -> None:
    controller = "/sys" + devpath(device)
    for index, disk in enumerate(storage.disks):
        if storage.kind is StorageKind.NVME:
            here = f"{controller}/nvme/{storage.name}/{disk.name}"
            out.link(f"{controller}/nvme/{storage.name}/device", controller)
        else:
            here = f"{controller}/{storage.name}/host0/target0:0:{index}/0:0:{index}:0/block/{disk.name}"
        _render_block(out, here, disk.number, places)
        out.link(f"{here}/device", here.rpartition("/block/")[0] or here.rpartition("/")[0])
        for partition_index, partition in enumerate(disk.partitions, start=1):
            below = f"{here}/{partition.name}"
            _render_block(out, below, partition.number, places, whole=False)
            out.file(f"{below}/partition", str(partition_index))


def _render_block(out: TreeBuilder, here: str, number: str, places: dict[str, str], *, whole: bool = True) -> None:
    name = here.rpartition("/")[2]
    major, minor = number.split(":")
    out.file(f"{here}/dev", number)
    out.file(f"{here}/size", "1000215216")
    out.file(f"/dev/{name}", b"", 0o660)
    kind = "disk" if whole else "partition"
    out.file(f"{here}/uevent", f"MAJOR={major}\nMINOR={minor}\nDEVNAME={name}\nDEVTYPE={kind}", READ_WRITE)
    out.directory(f"{here}/holders")
    if whole:
        out.directory(f"{here}/slaves")
        out.link(f"/sys/block/{name}", here)
    out.link(f"/sys/class/block/{name}", here)
    out.link(f"/sys/dev/block/{number}", here)
    out.link(f"{here}/subsystem", "/sys/class/block")
    places[name] = here


def _render_mounts(out: TreeBuilder, machine: Machine) -> None:
    numbers = _numbers(machine)
    labels = {volume.name: f"mapper/{volume.label}" for volume in machine.description.volumes}
    mounts = [
        (numbers[mount.source], mount.point, mount.filesystem, f"/dev/{labels.get(mount.source, mount.source)}")
        for mount in machine.description.mounts
    ]
    kernel = (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/run"))
    mounts += [(f"0:{21 + index}", point, kind, kind) for index, (kind, point) in enumerate(kernel)]
    out.file(
        "/proc/1/mountinfo",
        "\n".join(
            f"{index} {int(point == '/') or 21} {number} / {point} rw,relatime shared:{index - 20} - {kind} {source} rw"
            for index, (number, point, kind, source) in enumerate(mounts, start=21)
        ),
    )
    short = (f"{source} {point} {kind} rw,relatime 0 0" for _, point, kind, source in mounts)
    out.file("/proc/1/mounts", "\n".join(short))
    swaps = [f"/dev/{labels.get(name, name)}\tpartition\t8388604\t0\t-2" for name in machine.description.swaps]
    out.file("/proc/swaps", "\n".join(["Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority", *swaps]))


def _numbers(machine: Machine) -> dict[str, str]:
    """The device number of everything that can be mounted, by name."""
    numbers = {volume.name: volume.number for volume in machine.description.volumes}
    for device in machine.description.devices:
        for disk in device.storage.disks if device.storage else ():
            numbers[disk.name] = disk.number
            numbers |= {partition.name: partition.number for partition in disk.partitions}
    return numbers
