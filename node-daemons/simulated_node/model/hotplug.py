"""Devices that come and go while the machine runs (drivers/pci/hotplug, drivers/pci/remove.c)."""

from simulated_node.description import Device as DeviceDescription
from simulated_node.description import Iommu
from simulated_node.model.binding import attach, release, retry_deferred, wait_for_users
from simulated_node.model.events import device_event
from simulated_node.model.locks import take_lock
from simulated_node.model.state import Device, Machine
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
    for leaving in (*below, device):
        take_lock(leaving, operation)
        wait_for_users(machine, leaving)
    for leaving in sorted((*below, device), key=lambda one: -len(one.ancestors)):
        if leaving.driver is not None:
            release(machine, leaving)
        del machine.devices[leaving.address]
        machine.deferred.discard(leaving.address)
        machine.events.append(device_event("remove", leaving))
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
