"""Devices that come and go while the machine runs (drivers/pci/hotplug, drivers/pci/remove.c)."""

from simulated_node.description import Device as DeviceDescription
from simulated_node.description import Iommu
from simulated_node.model.binding import attach, retry_deferred
from simulated_node.model.events import device_event
from simulated_node.model.state import Device, Machine
from simulated_node.model.unbinding import depart, leave
from simulated_node.rules.registry import rule

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


def remove(machine: Machine, address: str, operation: int) -> None:
    """Remove a device and everything below it. Sleeps while a VFIO user holds one of them, as unbind does."""
    device = machine.devices.get(address)
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
        if leaving.address in machine.devices:
            depart(machine, leaving)
    REMOVED.fires()


def add(machine: Machine, description: DeviceDescription) -> None:
    if description.address in machine.devices:
        raise TAKEN.refuses(f"there is a device at {description.address}")
    device = appear(machine, description)
    ADDED.fires()
    if attach(machine, device):
        retry_deferred(machine)


def appear(machine: Machine, description: DeviceDescription) -> Device:
    """The bus scan finds a device; drivers come later."""
    ancestors: tuple[str, ...] = (description.parent,)
    if not description.parent.startswith("pci"):
        parent = machine.devices.get(description.parent)
        if parent is None or not parent.description.is_bridge:
            raise NO_PARENT.refuses(f"{description.address}: no bridge {description.parent}")
        ancestors = (*parent.ancestors, parent.address)
    device = Device(description, ancestors)
    if machine.description.kernel.iommu is Iommu.ENABLED:
        device.group = description.iommu_group
    machine.devices[description.address] = device
    machine.devices = dict(sorted(machine.devices.items()))
    machine.events.append(device_event("add", device))
    return device
