"""IOMMU groups and VFIO: when a group may be given away, who may open it, which of it the host needs itself."""

from __future__ import annotations

from node_host.evidence.vetoes import read_evidence, vetoes_of
from node_host.pci.device import read_device
from node_host.pci.iommu import read_groups
from tests.contract.acts import (
    VFIO,
    attribute,
    bind,
    driver,
    give,
    give_to_vfio,
    group_node,
    group_of,
    kept,
    load_vfio,
    members,
    must,
    on_vfio,
    set_override,
    there,
    told,
    unbind,
)
from tests.contract.machine import Machine
from tests.contract.statement import statement


def _given(machine: Machine, address: str) -> str:
    """Whether the kernel calls the group viable, and what a user gets who takes it."""
    viable = machine.viable(address)

    def take() -> None:
        machine.use(address).close()

    return f"{'viable' if viable else 'not viable'}, taking it: {told(take)}"


@statement("open.group-of-vfio-members", "each member is on a vfio driver")
def all_on_vfio(machine: Machine) -> str:
    with kept(machine, "shared_a", "shared_b") as pair:
        give_to_vfio(machine, *pair)
        return _given(machine, pair[0])


@statement("open.group-with-driverless-member", "on a vfio driver, driverless, on pci-stub")
def one_driverless(machine: Machine) -> str:
    with kept(machine, "shared_a", "shared_b") as [one, other]:
        give_to_vfio(machine, one)
        unbind(machine, other)
        return _given(machine, one)


@statement("open.group-with-stub-member", "on a vfio driver, driverless, on pci-stub")
def one_on_stub(machine: Machine) -> str:
    machine.host.load_module("pci_stub")
    with kept(machine, "shared_a", "shared_b") as [one, other]:
        give_to_vfio(machine, one)
        give(machine, other, "pci-stub")
        return _given(machine, one)


@statement("open.group-not-viable", "A group with a member on a foreign driver is not viable (flag bit 0 clear)")
def one_on_native(machine: Machine) -> str:
    with kept(machine, "shared_a", "shared_b") as [one, other]:
        give_to_vfio(machine, one)
        return f"other on {driver(machine, other)}: {_given(machine, one)}"


@statement("open.group-becomes-viable", "the rest fail in QEMU at VM start")
def becomes_viable(machine: Machine) -> str:
    with kept(machine, "shared_a", "shared_b") as [one, other]:
        give_to_vfio(machine, one)
        before = _given(machine, one)
        unbind(machine, other)
        return f"{before}; companion off its driver: {_given(machine, one)}"


@statement("open.group-with-bridge", "is a bridge on an allowed driver (pcieport with driver-managed DMA since 5.19)")
def with_bridge(machine: Machine) -> str:
    with on_vfio(machine, "below_port") as card:
        bridges = [member for member in members(machine, card) if member != card]
        drivers = sorted({driver(machine, bridge) for bridge in bridges})
        return f"with {' '.join(drivers)}: {_given(machine, card)}"


@statement("open.group-open-once", "Opening `/dev/vfio/<group>` a second time: EBUSY")
def open_twice(machine: Machine) -> str:
    with on_vfio(machine, "twin_a") as twin:
        first = machine.hold(group_node(machine, twin))
        try:
            second = told(lambda: machine.hold(group_node(machine, twin)).close())
        finally:
            first.close()
        return (
            f"second: {second}, after the first let go: {told(lambda: machine.hold(group_node(machine, twin)).close())}"
        )


@statement("open.no-such-node", "verify `/dev/vfio/<group>`")
def open_unbound(machine: Machine) -> str:
    node = group_node(machine, machine.roles["twin_a"])
    return told(lambda: machine.hold(node).close())


@statement("bind.group-owned-by-user", "A group with a member on a foreign driver is not viable (flag bit 0 clear)")
def native_while_held(machine: Machine) -> str:
    with kept(machine, "shared_a", "shared_b") as [one, other]:
        native = driver(machine, other)
        give_to_vfio(machine, one)
        unbind(machine, other)
        user = machine.use(one)
        try:
            answer = f"{bind(machine, other, native)}, {driver(machine, other)}"
        finally:
            user.close()
        return f"held: {answer}; let go: {bind(machine, other, native)}"


@statement("vfio.device-node", "`…/vfio-dev/vfio<k>`")
def device_node(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin]:
        place = attribute(twin, "vfio-dev")
        before = there(machine, place)
        give_to_vfio(machine, twin)
        names = machine.host.list(place)
        return f"before: {before}, bound: {len(names)} named {''.join(names).rstrip('0123456789')}<k>"


@statement(
    "vfio.cdev",
    "IOMMUFD char device name → `/dev/vfio/devices/vfio<k>`",
    not_on_linux="the guest's kernel is built without VFIO device nodes (CONFIG_IOMMUFD is off)",
)
def character_device(machine: Machine) -> str:
    with machine.built_with(vfioNodes="GroupAndCdev"), on_vfio(machine, "twin_a") as twin:
        [name] = machine.host.list(attribute(twin, "vfio-dev"))
        return f"/dev/vfio/devices/vfio<k> {there(machine, f'/dev/vfio/devices/{name}')}"


@statement("vfio.group-directory", "Nobody publishes viability beforehand")
def group_directory(machine: Machine) -> str:
    with kept(machine, "shared_a", "shared_b") as [one, _]:
        place = f"/sys/kernel/iommu_groups/{group_of(machine, one)}"

        def look() -> list[tuple[str, bytes]]:
            names = [name for name in machine.host.list(place) if name not in ("devices", "type", "reserved_regions")]
            return [(name, machine.host.read(f"{place}/{name}")) for name in names]

        before = look()
        give_to_vfio(machine, one)
        return f"beside devices, type, reserved_regions: {len(before)} files, another of them after: {look() != before}"


@statement("vfio.no-iommu-group", "Binding vfio-pci without an IOMMU group: EINVAL from the probe")
def no_group(machine: Machine) -> str:
    with kept(machine, "no_group") as [card]:
        load_vfio(machine)
        link = there(machine, attribute(card, "iommu_group"))
        set_override(machine, card, VFIO)
        return f"iommu_group {link}: {bind(machine, card, VFIO)}, {driver(machine, card)}"


@statement(
    "vfio.unsafe-no-iommu",
    "(unless unsafe no-IOMMU is on)",
    not_on_linux="the guest's kernel is built without that mode (CONFIG_VFIO_NOIOMMU is off)",
)
def no_group_unsafe(machine: Machine) -> str:
    with machine.built_with(iommu="UnsafeNoIOMMU"), kept(machine, "no_group") as [card]:
        load_vfio(machine)
        set_override(machine, card, VFIO)
        answer = bind(machine, card, VFIO)
        nodes = [name for name in machine.host.list("/dev/vfio") if name.startswith("noiommu-")]
        result = f"{answer}, {driver(machine, card)}, {len(nodes)} node noiommu-<n>"
        must(machine, attribute(card, "driver_override"), "\n")
        unbind(machine, card)
        return result


@statement("identity.group-needs-iommu", "group membership")
def group_membership(machine: Machine) -> str:
    found = []
    for role in ("shared_a", "shared_b", "twin_a"):
        address = machine.roles[role]
        found.append(
            f"{role}: listed {address in members(machine, address)}, alone {len(members(machine, address)) == 1}"
        )
    same = group_of(machine, machine.roles["shared_a"]) == group_of(machine, machine.roles["shared_b"])
    return f"{'; '.join(found)}; shared_a with shared_b: {same}"


def _vetoes(machine: Machine, address: str) -> str:
    """Why the host needs a device, as the daemons read it off the host."""
    host = machine.host
    addresses = {address, *members(machine, address)}
    devices = {member: read_device(host, member) for member in sorted(addresses)}
    found = vetoes_of(devices, read_groups(host), read_evidence(host)).get(address, ())
    return " ".join(sorted({str(veto.reason) for veto in found} - {"NetworkAddress"})) or "none"


@statement("veto.default-route", "A member that is a NIC carrying the default route")
def veto_default_route(machine: Machine) -> str:
    own, beside = machine.roles["route_nic"], machine.roles["beside_route"]
    return f"itself: {_vetoes(machine, own)}, beside it: {_vetoes(machine, beside)}"


@statement("veto.mounted-disk", "the boot disk's controller")
def veto_disk(machine: Machine) -> str:
    return _vetoes(machine, machine.roles["disk"])


@statement("veto.boot-display", "the boot VGA must veto the whole group")
def veto_display(machine: Machine) -> str:
    return _vetoes(machine, machine.roles["display"])


@statement("veto.none", "must veto the whole group")
def veto_none(machine: Machine) -> str:
    return f"twin_a: {_vetoes(machine, machine.roles['twin_a'])}"
