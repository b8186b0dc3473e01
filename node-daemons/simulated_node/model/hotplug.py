"""Devices that come and go while the machine runs (drivers/pci/{hotplug,remove.c,probe.c,pci-sysfs.c})."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from simulated_node.description import Device as DeviceDescription
from simulated_node.description import Iommu
from simulated_node.model.binding import attach, retry_deferred
from simulated_node.model.events import device_event
from simulated_node.model.formats import unsigned
from simulated_node.model.state import Device, Machine
from simulated_node.model.unbinding import depart, leave
from simulated_node.rules.registry import WouldBlockError, rule

_REMOVE = "drivers/pci/remove.c pci_stop_and_remove_bus_device"

NO_DEVICE = rule(
    "hotplug.no-such-device", "Only a device that is there can be removed.", errno="ENODEV", source=_REMOVE
)
TAKEN = rule(
    "hotplug.address-taken", "An address holds one device.", errno="EEXIST", source="drivers/base/core.c device_add"
)
NO_PARENT = rule(
    "hotplug.no-such-parent",
    "A device is added below a bridge that is there.",
    errno="ENODEV",
    source="drivers/pci/probe.c pci_scan_slot",
)
REMOVED = rule(
    "hotplug.remove",
    "A removed device loses its driver, then every name it had; a remove event is the last word of it.",
    source=_REMOVE,
)
TAKES_VFS = rule(
    "sriov.removal-takes-vfs",
    "Removing a physical function takes its VFs along.",
    source="drivers/pci/iov.c sriov_release: none may be left; drivers/pci/remove.c",
)
ADDED = rule(
    "hotplug.add",
    "An added device is announced, then offered to the registered drivers.",
    source="drivers/pci/bus.c pci_bus_add_device",
)


BAD_NUMBER = rule(
    "hotplug.not-a-number",
    "remove and rescan want a number as sriov_numvfs does, of 64 bits; 0 does nothing.",
    errno="EINVAL",
    source="drivers/pci/pci-sysfs.c remove_store, rescan_store, dev_rescan_store",
)
REMOVE_ONCE = rule(
    "hotplug.remove-attribute",
    "Writing to remove takes the device off the bus, as if it were pulled out; the attribute goes first, so that it is "
    "written once.",
    source="drivers/pci/pci-sysfs.c remove_store: device_remove_file_self",
)
RESCAN = rule(
    "hotplug.rescan-finds-what-is-there",
    "rescan finds every device that sits in a slot and is not known: below the whole bus, or on the bus of a device "
    "and below it. What is known stays as it is.",
    source="drivers/pci/probe.c pci_rescan_bus",
)
ONE_SCANNER = rule(
    "hotplug.one-at-a-time",
    "While the removal of a device sleeps, every other removal, addition and rescan sleeps too.",
    source="drivers/pci/probe.c pci_lock_rescan_remove",
)


def remove(machine: Machine, address: str, operation: int, *, pulled: bool = True) -> None:
    """Remove a device and everything below it. Sleeps while a VFIO user holds one of them, as unbind does.

    ``pulled``: out of its slot too, so that no rescan finds it.
    """
    with _scanning(machine, operation):
        device = machine.devices.get(address)
        if device is None and pulled and machine.hardware.pop(address, None) is not None:
            return  # it had been taken off the bus before
        if device is None:
            raise NO_DEVICE.refuses(f"no device {address!r}")
        below = [other for other in machine.devices.values() if address in other.ancestors]
        # What is deeper goes first, and VFs go before their physical function.
        going = sorted((*below, device), key=lambda one: (-len(one.ancestors), one.physfn is None))
        going = [*(vf for one in going for vf in machine.vfs_of(one) if vf not in going), *going]
        if any(one.physfn in {other.address for other in going} for one in going):
            TAKES_VFS.fires()
        for leaving in going:
            # A driver that leaves may have taken VFs along by now.
            if leaving.address in machine.devices:
                leave(machine, leaving, operation)
        for leaving in going:
            if pulled:
                machine.hardware.pop(leaving.address, None)
            if leaving.address in machine.devices:
                depart(machine, leaving)
        REMOVED.fires()


def write_remove(machine: Machine, device: Device, text: str, operation: int) -> None:
    if not _number(text) or device.removing not in (None, operation):
        return
    device.removing = operation
    REMOVE_ONCE.fires()
    remove(machine, device.address, operation, pulled=False)


def write_rescan(machine: Machine, beside: Device | None, text: str, operation: int) -> None:
    """``beside``: a device on the bus that is scanned, None for all buses."""
    if not _number(text):
        return
    with _scanning(machine, operation):
        found = {
            address: description
            for address, description in machine.hardware.items()
            if address not in machine.devices
            and (beside is None or _is_below(machine, description, beside.ancestors[-1]))
        }
        RESCAN.fires()
        for device in scan(machine, found):
            if attach(machine, device):
                retry_deferred(machine)


def add(machine: Machine, description: DeviceDescription, operation: int) -> None:
    """A device is put into a slot that announces it."""
    with _scanning(machine, operation):
        insert(machine, description)
        if not description.parent.startswith("pci") and description.parent not in machine.devices:
            return  # the bridge above has been taken off the bus: only a rescan finds both
        device = _appear(machine, description)
        ADDED.fires()
        if attach(machine, device):
            retry_deferred(machine)


def insert(machine: Machine, description: DeviceDescription) -> None:
    """A device is put into a slot that announces nothing."""
    if description.address in machine.hardware or description.address in machine.devices:
        raise TAKEN.refuses(f"there is a device at {description.address}")
    parent = machine.hardware.get(description.parent)
    if not description.parent.startswith("pci") and (parent is None or not parent.is_bridge):
        raise NO_PARENT.refuses(f"{description.address}: no bridge {description.parent}")
    machine.hardware[description.address] = description


def scan(machine: Machine, hardware: Mapping[str, DeviceDescription]) -> list[Device]:
    """The bus scan: what hangs below a root or a known bridge is found, from the top down; drivers come later."""
    found: list[Device] = []
    waiting = dict(sorted(hardware.items()))
    while ready := [one for one in waiting.values() if one.parent.startswith("pci") or one.parent in machine.devices]:
        found += [_appear(machine, waiting.pop(one.address)) for one in ready]
    return found


def _appear(machine: Machine, description: DeviceDescription) -> Device:
    ancestors: tuple[str, ...] = (description.parent,)
    if not description.parent.startswith("pci"):
        parent = machine.devices[description.parent]
        ancestors = (*parent.ancestors, parent.address)
    device = Device(description, ancestors)
    if machine.description.kernel.iommu is Iommu.ENABLED:
        device.group = description.iommu_group
    machine.devices[description.address] = device
    machine.devices = dict(sorted(machine.devices.items()))
    machine.events.append(device_event("add", device))
    return device


@contextmanager
def _scanning(machine: Machine, operation: int) -> Iterator[None]:
    """pci_lock_rescan_remove; an operation that sleeps keeps it."""
    if machine.scanner not in (None, operation):
        raise WouldBlockError(ONE_SCANNER, ())
    machine.scanner = operation
    try:
        yield
    except WouldBlockError:
        raise
    except BaseException:
        machine.scanner = None
        raise
    machine.scanner = None


def _is_below(machine: Machine, description: DeviceDescription, bridge: str) -> bool:
    while description.parent != bridge:
        above = machine.hardware.get(description.parent)
        if above is None:
            return False
        description = above
    return True


def _number(text: str) -> int:
    number = unsigned(text, 64)
    if number is None:
        raise BAD_NUMBER.refuses(f"{text!r} is no number")
    return number
