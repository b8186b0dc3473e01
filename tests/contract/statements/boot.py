"""What a reboot keeps, and what it forgets."""

from __future__ import annotations

from node_host.boot import read_boot_id
from node_host.pci.device import DEVICES
from node_host.pci.serial import device_serial_number
from tests.contract.acts import attribute, count, driver, give_to_vfio, group_of, must, override, text
from tests.contract.machine import Machine
from tests.contract.statement import Facts, over_reboot

_WATCHED = ("pf", "other_pf", "route_nic", "disk", "shared_a", "twin_a")


def _boot(machine: Machine) -> Facts:
    return {"boot": read_boot_id(machine.host)}


@over_reboot("boot.new-boot-id", "reboot detection", _boot)
def new_boot_id(machine: Machine, before: Facts) -> str:
    return "another" if read_boot_id(machine.host) != before["boot"] else "the same"


def _addresses(machine: Machine) -> Facts:
    return {role: machine.roles[role] for role in _WATCHED}


@over_reboot("boot.addresses-move", "BDFs can move when a card is added", _addresses)
def addresses_move(machine: Machine, before: Facts) -> str:
    moved = [role for role in _WATCHED if machine.roles[role] != before[role]]
    return "moved: " + ("some" if moved else "none")


def _groups(machine: Machine) -> Facts:
    return {role: group_of(machine, machine.roles[role]) for role in _WATCHED}


@over_reboot("boot.groups-move", "group numbers move over reboot", _groups)
def groups_move(machine: Machine, before: Facts) -> str:
    moved = [role for role in _WATCHED if group_of(machine, machine.roles[role]) != before[role]]
    return "moved: " + ("some" if moved else "none")


def _serial(machine: Machine) -> str | None:
    return device_serial_number(machine.host.read(attribute(machine.roles["below_port"], "config")))


@over_reboot("boot.serial-stays", "Identity = serial/uuid when readable", lambda machine: {"serial": _serial(machine)})
def serial_stays(machine: Machine, before: Facts) -> str:
    return "the same" if before["serial"] and _serial(machine) == before["serial"] else "another"


def _slot_paths(machine: Machine) -> Facts:
    """Where each device is plugged in: the slots on the way from the root complex, without bus numbers, and its ids."""
    found = {}
    for role in _WATCHED:
        address = machine.roles[role]
        way = machine.host.resolve(f"{DEVICES}/{address}").split("/")[3:]
        slots = [step.rpartition(":")[2] for step in way[1:]]
        ids = [text(machine, attribute(address, name)).strip() for name in ("vendor", "device")]
        found[role] = "/".join([way[0], *slots, *ids])
    return found


@over_reboot("boot.slot-path-stays", "else PCI slot path + ids", _slot_paths)
def slot_path_stays(machine: Machine, before: Facts) -> str:
    after = _slot_paths(machine)
    other = [role for role in _WATCHED if after[role] != before[role]]
    return "the same" if not other else f"another: {' '.join(other)}"


def _enable(machine: Machine) -> Facts:
    must(machine, attribute(machine.roles["other_pf"], "sriov_numvfs"), "2")
    return {"numvfs": count(machine, machine.roles["other_pf"])}


@over_reboot("boot.resets-numvfs", "Reboot, driver reload/upgrade or PF re-enumeration reset numvfs", _enable)
def resets_numvfs(machine: Machine, before: Facts) -> str:
    return f"before: {before['numvfs']}, after: {count(machine, machine.roles['other_pf'])}"


def _bound(machine: Machine) -> Facts:
    twin = machine.roles["twin_b"]
    give_to_vfio(machine, twin)
    return {"driver": driver(machine, twin), "override": override(machine, twin)}


@over_reboot("boot.forgets-bindings", "group numbers move over reboot", _bound)
def forgets_bindings(machine: Machine, before: Facts) -> str:
    twin = machine.roles["twin_b"]
    after = f"{driver(machine, twin)}, override {override(machine, twin)}"
    return f"before: {before['driver']}, override {before['override']}; after: {after}"
