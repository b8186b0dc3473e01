"""The attributes that can be written, and what each does."""

from dataclasses import dataclass
from enum import StrEnum

from simulated_node.model import binding, events, hotplug, identifiers, overrides, sriov, unbinding, vgpu
from simulated_node.model.state import Device, Machine
from simulated_node.rules.registry import rule

EMPTY_WRITE = rule(
    "write.empty-does-nothing",
    "A write of no bytes never reaches the attribute: it changes nothing and succeeds.",
    source="fs/sysfs/file.c sysfs_kf_write",
)
VANISHED = rule(
    "write.device-vanished",
    "A write that was opened before the device went away fails.",
    errno="ENODEV",
    source="fs/kernfs/file.c kernfs_fop_write_iter",
)


class Kind(StrEnum):
    BIND = "bind"
    UNBIND = "unbind"
    NEW_ID = "new_id"
    REMOVE_ID = "remove_id"
    DRIVER_OVERRIDE = "driver_override"
    DRIVERS_PROBE = "drivers_probe"
    SRIOV_NUMVFS = "sriov_numvfs"
    SRIOV_AUTOPROBE = "sriov_drivers_autoprobe"
    VGPU_TYPE = "current_vgpu_type"
    UEVENT = "uevent"
    REMOVE = "remove"
    RESCAN = "rescan"


@dataclass(frozen=True, slots=True)
class Attribute:
    """What a file writes to: ``subject`` is a driver's name, a device's address, or nothing."""

    kind: Kind
    subject: str = ""


def write_attribute(machine: Machine, attribute: Attribute, data: bytes, operation: int) -> None:
    """One write(2) to an attribute; KernelError, or WouldBlockError with nothing changed."""
    text = data.decode("latin-1")
    if not text:
        EMPTY_WRITE.fires()
        return
    subject = attribute.subject
    match attribute.kind:
        case Kind.DRIVERS_PROBE:
            binding.drivers_probe(machine, text, operation)
        case Kind.DRIVER_OVERRIDE:
            overrides.write_override(machine, _device(machine, subject), text, operation)
        case Kind.UEVENT:
            events.synthesise(machine, _device(machine, subject), text)
        case Kind.SRIOV_NUMVFS:
            sriov.write_numvfs(machine, _device(machine, subject), text, operation)
        case Kind.SRIOV_AUTOPROBE:
            sriov.write_autoprobe(_device(machine, subject), text)
        case Kind.VGPU_TYPE:
            vgpu.write_type(machine, _device(machine, subject), text)
        case Kind.REMOVE:
            hotplug.write_remove(machine, _device(machine, subject), text, operation)
        case Kind.RESCAN:
            hotplug.write_rescan(machine, _device(machine, subject) if subject else None, text, operation)
        case Kind.BIND:
            binding.bind(machine, machine.drivers[subject], text, operation)
        case Kind.UNBIND:
            unbinding.unbind(machine, machine.drivers[subject], text, operation)
        case Kind.NEW_ID:
            identifiers.new_id(machine, machine.drivers[subject], text, operation)
        case Kind.REMOVE_ID:
            identifiers.remove_id(machine.drivers[subject], text)


def _device(machine: Machine, address: str) -> Device:
    device = machine.devices.get(address)
    if device is None:
        raise VANISHED.refuses(f"{address} went away")
    return device
