"""The attributes that can be written, and what each does."""

from dataclasses import dataclass
from enum import StrEnum

from simulated_node.model import binding, events, identifiers, overrides
from simulated_node.model.state import Machine
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
NO_SRIOV = rule(
    "sriov.not-simulated",
    "Creating and destroying virtual functions is not supported by this simulated kernel; numvfs and autoprobe "
    "can be read.",
    errno="EPERM",
    source="limit of the simulation",
)


class Kind(StrEnum):
    BIND = "bind"
    UNBIND = "unbind"
    NEW_ID = "new_id"
    REMOVE_ID = "remove_id"
    DRIVER_OVERRIDE = "driver_override"
    DRIVERS_PROBE = "drivers_probe"
    SRIOV = "sriov"
    UEVENT = "uevent"


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
            device = machine.devices.get(subject)
            if device is None:
                raise VANISHED.refuses(f"{subject} went away")
            overrides.write_override(device, text, operation)
        case Kind.UEVENT:
            device = machine.devices.get(subject)
            if device is None:
                raise VANISHED.refuses(f"{subject} went away")
            events.synthesise(machine, device, text)
        case Kind.SRIOV:
            raise NO_SRIOV.refuses(f"SR-IOV of {subject} cannot be changed")
        case Kind.BIND:
            binding.bind(machine, machine.drivers[subject], text, operation)
        case Kind.UNBIND:
            binding.unbind(machine, machine.drivers[subject], text, operation)
        case Kind.NEW_ID:
            identifiers.new_id(machine, machine.drivers[subject], text, operation)
        case Kind.REMOVE_ID:
            identifiers.remove_id(machine.drivers[subject], text)
