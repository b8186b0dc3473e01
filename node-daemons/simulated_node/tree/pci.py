"""/sys/devices/pci…, /sys/bus/pci, /sys/kernel/iommu_groups (Documentation/ABI/testing/sysfs-bus-pci)."""

from functools import partial

from simulated_node.model import nodes, sriov, vfio, vgpu
from simulated_node.model.attributes import Attribute, Kind
from simulated_node.model.matching import modalias
from simulated_node.model.state import Device, Machine
from simulated_node.model.topology import devpath
from simulated_node.rules.registry import rule
from simulated_node.tree.config_space import config_space
from simulated_node.tree.entries import READ_WRITE, WRITE_ONLY, Memory, TreeBuilder

_ABI = "Documentation/ABI/testing/sysfs-bus-pci"

OVERRIDE_UNSET = rule("identity.override-reads-null", "driver_override reads (null) while none is set.", source=_ABI)
SERIAL = rule(
    "identity.serial-number-capability",
    "A device with a serial number has the Device Serial Number capability in its configuration space; others do not.",
    source="PCI Express Base Specification, extended capability 0x0003",
)
BOOT_VGA = rule("identity.boot-vga", "boot_vga exists on VGA class functions only.", source=_ABI)
PF_ONLY = rule(
    "identity.sriov-files-on-pf-only",
    "sriov_totalvfs, sriov_numvfs and sriov_drivers_autoprobe exist on functions that can have VFs only.",
    source=_ABI,
)
GROUP_LINK = rule(
    "identity.group-needs-iommu",
    "With the IOMMU on each device links to its group and back; with it off there is no link and no group.",
    source="Documentation/ABI/testing/sysfs-kernel-iommu_groups",
)

_BUS = "/sys/bus/pci"
_RESOURCES = 13  # six BARs, the ROM, six of SR-IOV
_MEMORY_64 = 0x14220C  # IORESOURCE_MEM | PREFETCH | SIZEALIGN | MEM_64


def render_pci(out: TreeBuilder, machine: Machine, memory: Memory) -> None:
    drivers = tuple((driver.name, driver.description.module) for driver in machine.drivers.values())
    memory.add(out, "pci bus", drivers, partial(_render_bus, drivers=drivers))
    free = 0x2000_0000_0000
    # Virtual functions last: their coming moves nobody else's memory.
    for device in sorted(machine.devices.values(), key=lambda one: one.physfn is not None):
        bars = []
        for size in device.description.bars:
            free = -(-free // size) * size
            bars.append(free)
            free += size
        render = partial(_render_device, machine=machine, device=device, bars=bars)
        memory.add(out, device.address, _looks(machine, device, bars), render)
    groups = tuple(vfio.group_nodes(machine).items())
    memory.add(out, "vfio groups", groups, partial(_render_groups, groups=groups))


def _render_bus(out: TreeBuilder, drivers: tuple[tuple[str, str], ...]) -> None:
    """``drivers``: names, with their modules."""
    out.directory(f"{_BUS}/devices")
    out.file(f"{_BUS}/drivers_probe", "", WRITE_ONLY, Attribute(Kind.DRIVERS_PROBE))
    out.file(f"{_BUS}/drivers_autoprobe", "1", READ_WRITE)
    out.file(f"{_BUS}/rescan", "", WRITE_ONLY, Attribute(Kind.RESCAN))
    out.directory("/sys/kernel/iommu_groups")
    out.directory("/sys/class/vfio")
    for name, module in drivers:
        _render_driver(out, name, module)


def _render_groups(out: TreeBuilder, groups: tuple[tuple[str, str], ...]) -> None:
    """``groups``: nodes, with their numbers."""
    for node, number in groups:
        name = node.removeprefix("vfio/")
        _class_device(out, f"/sys/devices/virtual/vfio/{name}", "vfio", node, number)


def _looks(machine: Machine, device: Device, bars: list[int]) -> tuple[object, ...]:
    return (
        device.description,
        device.ancestors,
        device.driver,
        device.override,
        tuple(device.nodes),
        device.vfio_index,
        device.group,
        vfio.is_on_vfio(machine, device),
        tuple(bars),
        device.num_vfs,
        device.autoprobe,
        tuple(device.virtfns.items()),
        _links_to_physical(machine, device),
        device.leaving,
        device.removing,
        device.vgpu_type,
        tuple(vgpu.creatable(machine, device)) if vgpu.is_function(machine, device) else None,
    )


def _render_device(out: TreeBuilder, machine: Machine, device: Device, bars: list[int]) -> None:
    facts = device.description
    here = "/sys" + devpath(device)
    for name, value in (
        ("vendor", f"0x{facts.vendor}"),
        ("device", f"0x{facts.device}"),
        ("subsystem_vendor", f"0x{facts.subsystem_vendor}"),
        ("subsystem_device", f"0x{facts.subsystem_device}"),
        ("class", f"0x{facts.pci_class}"),
        ("revision", f"0x{facts.revision}"),
        ("modalias", modalias(facts)),
        ("irq", "0"),
        ("power_state", "D0"),
        ("resource", _resource(facts.bars, bars)),
    ):
        out.file(f"{here}/{name}", value)
    out.file(f"{here}/config", config_space(facts, bars), READ_WRITE)
    out.file(f"{here}/enable", "0" if device.driver is None else "1", READ_WRITE)
    out.file(f"{here}/numa_node", str(facts.numa_node), READ_WRITE)
    out.file(f"{here}/uevent", _uevent(device), READ_WRITE, Attribute(Kind.UEVENT, device.address))
    out.file(
        f"{here}/driver_override",
        _override(device),
        READ_WRITE,
        Attribute(Kind.DRIVER_OVERRIDE, device.address),
    )
    out.file(f"{here}/rescan", "", WRITE_ONLY, Attribute(Kind.RESCAN, device.address))
    if device.removing is None:
        out.file(f"{here}/remove", "", WRITE_ONLY, Attribute(Kind.REMOVE, device.address))
    if facts.serial is not None:
        SERIAL.fires()
    if facts.pci_class.startswith("0300"):
        BOOT_VGA.fires()
        out.file(f"{here}/boot_vga", str(facts.boot_vga or 0))
    if facts.sriov_total_vfs is not None:
        PF_ONLY.fires()
        _render_sriov(out, machine, device, here)
    if _links_to_physical(machine, device):
        out.link(f"{here}/physfn", f"{here.rpartition('/')[0]}/{device.physfn}")
    out.link(f"{here}/subsystem", _BUS)
    out.link(f"{_BUS}/devices/{device.address}", here)
    if device.driver is not None and not device.leaving:
        out.link(f"{here}/driver", f"{_BUS}/drivers/{device.driver}")
        out.link(f"{_BUS}/drivers/{device.driver}/{device.address}", here)
    if device.group is not None:
        GROUP_LINK.fires()
        group = f"/sys/kernel/iommu_groups/{device.group}"
        out.link(f"{here}/iommu_group", group)
        out.link(f"{group}/devices/{device.address}", here)
        out.file(f"{group}/type", "DMA-FQ" if not vfio.is_on_vfio(machine, device) else "identity", READ_WRITE)
    if vgpu.is_function(machine, device):
        vgpu.OWN_NODES.fires()
        _render_vgpu(out, machine, device, f"{here}/nvidia")
    if device.vfio_index is not None and not device.leaving:
        out.directory(f"{here}/vfio-dev/vfio{device.vfio_index}")
    for node in nodes.visible(device):
        if node.sysfs_class is not None:
            own = f"{here}/{node.sysfs_class}/{node.base}"
            _class_device(out, own, node.sysfs_class, node.name, node.number)
            out.link(f"{own}/device", here)
        if node.index_attribute is not None:
            out.file(f"{here}/{node.index_attribute}", node.minor)


def _links_to_physical(machine: Machine, device: Device) -> bool:
    """Whether a VF still has its link: it loses it before its driver leaves."""
    physical = machine.devices.get(device.physfn or "")
    return physical is not None and physical.virtfns.get(device.virtfn or 0) == device.address


def _render_sriov(out: TreeBuilder, machine: Machine, device: Device, here: str) -> None:
    facts = device.description
    virtual = facts.virtual_functions
    out.file(f"{here}/sriov_totalvfs", str(sriov.total_vfs(machine, device)))
    out.file(f"{here}/sriov_offset", str(virtual.first_offset))
    out.file(f"{here}/sriov_stride", str(virtual.stride))
    out.file(f"{here}/sriov_vf_device", f"{int(virtual.device or facts.device, 16):x}")
    out.file(f"{here}/sriov_numvfs", str(device.num_vfs), READ_WRITE, Attribute(Kind.SRIOV_NUMVFS, device.address))
    out.file(
        f"{here}/sriov_drivers_autoprobe",
        str(int(device.autoprobe)),
        READ_WRITE,
        Attribute(Kind.SRIOV_AUTOPROBE, device.address),
    )
    for index, address in device.virtfns.items():
        out.link(f"{here}/virtfn{index}", f"{here.rpartition('/')[0]}/{address}")


def _render_vgpu(out: TreeBuilder, machine: Machine, device: Device, here: str) -> None:
    vgpu.LIST.fires()
    rows = [f"{kind.id:<5} : {kind.name}" for kind in vgpu.creatable(machine, device)]
    out.file(f"{here}/creatable_vgpu_types", "\n".join([vgpu.HEADER, *rows]))
    out.file(
        f"{here}/current_vgpu_type",
        str(device.vgpu_type or 0),
        READ_WRITE,
        Attribute(Kind.VGPU_TYPE, device.address),
    )


def _class_device(out: TreeBuilder, path: str, sysfs_class: str, node: str, number: str) -> None:
    """A class device that stands for a node of /dev."""
    major, minor = number.split(":")
    out.file(f"{path}/dev", number)
    out.file(f"{path}/uevent", f"MAJOR={major}\nMINOR={minor}\nDEVNAME={node}", READ_WRITE)
    out.link(f"{path}/subsystem", f"/sys/class/{sysfs_class}")
    out.link(f"/sys/class/{sysfs_class}/{path.rpartition('/')[2]}", path)


def _render_driver(out: TreeBuilder, name: str, module: str) -> None:
    here = f"{_BUS}/drivers/{name}"
    for kind in (Kind.BIND, Kind.UNBIND, Kind.NEW_ID, Kind.REMOVE_ID):
        out.file(f"{here}/{kind}", "", WRITE_ONLY, Attribute(kind, name))
    out.file(f"{here}/uevent", "", WRITE_ONLY)
    out.link(f"{here}/module", f"/sys/module/{module}")
    out.link(f"/sys/module/{module}/drivers/pci:{name}", here)


def _override(device: Device) -> str:
    if device.override is None:
        OVERRIDE_UNSET.fires()
        return "(null)"
    return device.override + "\n"


def _uevent(device: Device) -> str:
    facts = device.description
    lines = [f"DRIVER={device.driver}"] if device.driver is not None else []
    lines += [
        f"PCI_CLASS={int(facts.pci_class, 16):04X}",
        f"PCI_ID={facts.vendor.upper()}:{facts.device.upper()}",
        f"PCI_SUBSYS_ID={facts.subsystem_vendor.upper()}:{facts.subsystem_device.upper()}",
        f"PCI_SLOT_NAME={facts.address}",
        f"MODALIAS={modalias(facts)}",
    ]
    return "\n".join(lines)


def _resource(sizes: tuple[int, ...], addresses: list[int]) -> str:
    rows = [(0, 0, 0)] * _RESOURCES
    for index, (size, address) in enumerate(zip(sizes, addresses, strict=True)):
        # A 64-bit BAR takes two of the six places.
        if 2 * index < 6:
            rows[2 * index] = (address, address + size - 1, _MEMORY_64)
    return "\n".join(f"0x{start:016x} 0x{end:016x} 0x{flags:016x}" for start, end, flags in rows)
