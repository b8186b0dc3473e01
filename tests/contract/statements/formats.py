"""What the files of a PCI function look like, to the byte."""

from __future__ import annotations

import re

from node_host.pci.serial import device_serial_number, vpd_serial_number
from tests.contract.acts import attribute, text, there, vfs
from tests.contract.machine import Machine
from tests.contract.statement import statement, unshown

_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def _shape(value: str) -> str:
    """A value with each hexadecimal digit after 0x as x."""
    return repr(re.sub(r"(?<=0x)[0-9a-f]+", lambda digits: "x" * len(digits[0]), value))


def _link(machine: Machine, path: str) -> str:
    """A link's text without the way up, addresses and group numbers left out."""
    tail = re.sub(r"^(\.\./)+", "", machine.host.read_link(path))
    return re.sub(r"(?<=iommu_groups/)\d+", "<n>", _ADDRESS.sub("<BDF>", tail))


@statement("format.ids", "`0x` + 4 (class: 6) hex digits + newline")
def ids(machine: Machine) -> str:
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class")
    return " ".join(f"{name} {_shape(text(machine, attribute(machine.roles['pf'], name)))}" for name in names)


@statement("format.values", "`vendor`, `device`, `subsystem_*`, `class`")
def values(machine: Machine) -> str:
    found = []
    for role in ("pf", "twin_a", "shared_a", "route_nic", "disk", "display"):
        parts = [text(machine, attribute(machine.roles[role], name)).strip() for name in ("vendor", "device", "class")]
        found.append(f"{role} {' '.join(parts)}")
    return "; ".join(found)


@statement("format.numa-node", "`numa_node`, `sriov_*`: decimal + newline")
def numa_node(machine: Machine) -> str:
    return repr(text(machine, attribute(machine.roles["pf"], "numa_node")))


@statement("format.sriov", "`numa_node`, `sriov_*`: decimal + newline")
def sriov(machine: Machine) -> str:
    names = ("sriov_totalvfs", "sriov_numvfs", "sriov_drivers_autoprobe")
    return " ".join(f"{name} {text(machine, attribute(machine.roles['pf'], name))!r}" for name in names)


@statement("format.modalias", "`modalias`: `pci:v00001EFFd00001250sv…sd…bc12sc00i00`")
def modalias(machine: Machine) -> str:
    return " ".join(repr(text(machine, attribute(machine.roles[role], "modalias"))) for role in ("pf", "twin_a"))


@statement("format.driver-link", "`driver`, `iommu_group`, `physfn`, `virtfn<i>`, `subsystem`: symlinks")
def driver_link(machine: Machine) -> str:
    bound, driverless = (attribute(machine.roles[role], "driver") for role in ("pf", "twin_a"))
    return f"{_link(machine, bound)}; driverless: {there(machine, driverless)}"


@statement("format.group-link", "`driver`, `iommu_group`, `physfn`, `virtfn<i>`, `subsystem`: symlinks")
def group_link(machine: Machine) -> str:
    return _link(machine, attribute(machine.roles["pf"], "iommu_group"))


@statement("format.subsystem-link", "`driver`, `iommu_group`, `physfn`, `virtfn<i>`, `subsystem`: symlinks")
def subsystem_link(machine: Machine) -> str:
    return _link(machine, attribute(machine.roles["pf"], "subsystem"))


@statement("format.vf-links", "`driver`, `iommu_group`, `physfn`, `virtfn<i>`, `subsystem`: symlinks")
def vf_links(machine: Machine) -> str:
    pf = machine.roles["pf"]
    with vfs(machine, 2) as [first, second]:
        back = [machine.host.read_link(attribute(vf, "physfn")).rpartition("/")[2] == pf for vf in (first, second)]
        shapes = _link(machine, attribute(pf, "virtfn0")), _link(machine, attribute(first, "physfn"))
        return f"virtfn0 {shapes[0]}, physfn {shapes[1]}, back to the PF: {back}, PF has physfn: " + str(
            machine.host.exists(attribute(pf, "physfn"))
        )


@statement("format.vf-identity", "VF→PF, PF→VF index")
def vf_identity(machine: Machine) -> str:
    pf = machine.roles["pf"]
    with vfs(machine, 2) as made:
        found = []
        for vf in made:
            names = ("vendor", "device", "class", "numa_node")
            found.append(" ".join(text(machine, attribute(vf, name)).strip() for name in names))
        distance = [_routing_id(vf) - _routing_id(pf) for vf in made]
        groups = {machine.host.read_link(attribute(address, "iommu_group")) for address in (pf, *made)}
        return f"{' / '.join(found)}, at PF + {distance}, {len(groups)} groups"


def _routing_id(address: str) -> int:
    _, bus, slot, function = re.split("[:.]", address)
    return int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)


@statement("format.resource", "`resource`: one line per BAR")
def resource(machine: Machine) -> str:
    lines = text(machine, attribute(machine.roles["twin_a"], "resource")).splitlines()
    shapes = {re.sub(r"0x[0-9a-f]{16}", "0x<16>", line) for line in lines}
    return f"{len(lines)} lines, each {' or '.join(sorted(shapes))}"


@statement("format.config", "`config`: binary")
def config(machine: Machine) -> str:
    found = []
    for role in ("pf", "twin_a"):
        address = machine.roles[role]
        space = machine.host.read(attribute(address, "config"))
        ids = [int(text(machine, attribute(address, name)), 16) for name in ("vendor", "device")]
        begins = space[:4] == ids[0].to_bytes(2, "little") + ids[1].to_bytes(2, "little")
        found.append(f"{role} {len(space)} bytes, begins with its ids: {begins}")
    return "; ".join(found)


@statement("identity.serial-number-capability", "the Device Serial Number capability (extended id 0x0003)")
def serial(machine: Machine) -> str:
    number = device_serial_number(machine.host.read(attribute(machine.roles["below_port"], "config")))
    return re.sub(r"[0-9a-f]{2}", "xx", number) if number else "none"


@statement("identity.no-serial", "none of them may exist")
def no_serial(machine: Machine) -> str:
    twin = machine.roles["twin_a"]
    number = device_serial_number(machine.host.read(attribute(twin, "config")))
    vpd = there(machine, attribute(twin, "vpd"))
    if vpd == "there":
        vpd = str(vpd_serial_number(machine.host.read(attribute(twin, "vpd"))))
    return f"capability: {number}, vpd {vpd}"


unshown(
    "identity.vpd",
    "VPD (`vpd`) the second source, a vendor class file the third",
    "no emulated card has Vital Product Data, and class files with serial numbers are the vendors'",
)
