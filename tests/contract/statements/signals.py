"""How a host shows that it uses a device itself."""

from __future__ import annotations

from node_host.evidence.open_handles import read_open_handles
from node_host.evidence.vetoes import read_evidence
from node_host.pci.device import DEVICES
from tests.contract.acts import attribute, group_node, kept, on_vfio, text
from tests.contract.machine import Machine
from tests.contract.statement import statement, unshown


def _interface(machine: Machine, address: str) -> str:
    [name] = machine.host.list(attribute(address, "net"))
    return name


@statement("signal.address", "net device under `…/net/` that is up with an address")
def addressed(machine: Machine) -> str:
    card = machine.roles["other_pf"]

    def look() -> str:
        evidence = read_evidence(machine.host).network
        return "needed" if any(evidence.function_of.get(name) == card for name in evidence.addressed) else "not needed"

    before = look()
    with machine.network(card, "address"):
        return f"without: {before}, with: {look()}"


@statement("signal.default-route", "or is a default route")
def default_route(machine: Machine) -> str:
    evidence = read_evidence(machine.host).network
    carriers = {evidence.function_of.get(name) for name in evidence.default_route}
    return " ".join(role for role in ("route_nic", "other_pf") if machine.roles[role] in carriers)


def _master(machine: Machine, state: str) -> str:
    card = machine.roles["other_pf"]
    before = machine.host.exists(attribute(card, f"net/{_interface(machine, card)}/master"))
    with machine.network(card, state):
        master = attribute(card, f"net/{_interface(machine, card)}/master")
        kinds = [kind for kind in ("bonding", "bridge") if machine.host.exists(f"{master}/{kind}")]
        return f"master before: {before}, then with {' '.join(kinds)}"


@statement("signal.bond-member", "(or a bond/bridge member)")
def bond_member(machine: Machine) -> str:
    return _master(machine, "bond")


@statement("signal.bridge-member", "(or a bond/bridge member)")
def bridge_member(machine: Machine) -> str:
    return _master(machine, "bridge")


@statement("host.no-driver-no-interface", "net device under `…/net/`")
def undriven_nic(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        native = len(machine.host.list(attribute(card, "net")))
        with on_vfio(machine, "other_pf"):
            left = machine.host.exists(attribute(card, "net"))
        return f"on its driver: {native}, on vfio-pci: {int(left)}"


@statement("signal.mounted-disk", "block device below `…/nvme|ata|host*` that is mounted")
def mounted_disk(machine: Machine) -> str:
    disk = machine.roles["disk"]
    controllers = [name for name in machine.host.list(attribute(disk, "nvme")) if name.startswith("nvme")]
    mounted = read_evidence(machine.host).disks.functions.get(disk, ())
    return f"{len(controllers)} controller, mounted: {bool(mounted)}"


@statement("signal.boot-vga", "`boot_vga`=1")
def boot_vga(machine: Machine) -> str:
    having = [role for role in ("display", "twin_a", "disk") if _has_boot_vga(machine, machine.roles[role])]
    return f"{' '.join(having)}: {text(machine, attribute(machine.roles['display'], 'boot_vga')).strip()}"


def _has_boot_vga(machine: Machine, address: str) -> bool:
    return machine.host.exists(f"{DEVICES}/{address}/boot_vga")


@statement("signal.group-handle", "open handles on `/dev/vfio/<group>`")
def group_handle(machine: Machine) -> str:
    with on_vfio(machine, "twin_a") as twin:
        node = group_node(machine, twin)
        held = machine.hold(node)
        try:
            during = [handle.comm for handle in read_open_handles(machine.host).by_path.get(node, ())]
        finally:
            held.close()
        after = read_open_handles(machine.host).by_path.get(node, ())
        return f"held: {' '.join(during)}, let go: {len(after)}"


@statement("signal.user-handle", "(via /proc/*/fd)")
def user_handle(machine: Machine) -> str:
    with on_vfio(machine, "twin_a") as twin:
        node = group_node(machine, twin)
        user = machine.use(twin)
        try:
            names = {handle.comm for handle in read_open_handles(machine.host).by_path.get(node, ())}
        finally:
            user.close()
        return f"found: {' '.join(sorted(names))}"


@statement("open.pod-in-cgroup", "(via /proc/*/fd)")
def pod_in_cgroup(machine: Machine) -> str:
    pod = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"
    found = []
    with on_vfio(machine, "twin_a") as twin:
        node = group_node(machine, twin)
        for uid in (pod, None):
            held = machine.hold(node, pod_uid=uid)
            try:
                found += [handle.pod_uid == pod for handle in read_open_handles(machine.host).by_path.get(node, ())]
            finally:
                held.close()
    return f"the pod told: {found[0]}, of a process of the host: {found[1]}"


unshown(
    "signal.vendor-handle",
    "`/dev/nvidia*`, `/dev/rbln*`",
    "these nodes are made by the vendors' drivers for cards that nobody emulates; the same walk over /proc/*/fd is "
    "shown on the nodes of VFIO",
)
unshown(
    "signal.framebuffer",
    "boot framebuffer holding a BAR",
    "the guest boots on a serial console: no firmware framebuffer holds a part of the display's memory",
)
