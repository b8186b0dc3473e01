"""Character devices of native drivers (/dev/rbln0, /dev/nvidia0, …) and the handles on them."""

import itertools

from simulated_node.description import DriverKind
from simulated_node.model import vfio
from simulated_node.model.state import Device, Driver, Machine, Node
from simulated_node.rules.registry import rule

LOWEST_FREE = rule(
    "native.lowest-free-index",
    "A native driver numbers its nodes from the lowest free index: after a rebind a device may have another number.",
    source="include/linux/idr.h ida_alloc, as accelerator drivers use it",
)


def make_nodes(machine: Machine, driver: Driver) -> list[Node]:
    """The nodes that a device gets, one of each template."""
    taken = {node.name for device in machine.devices.values() for node in device.nodes}
    made = []
    for template in driver.description.nodes:
        index = next(
            number for number in itertools.count(template.first) if template.name.format(index=number) not in taken
        )
        LOWEST_FREE.fires()
        name = template.name.format(index=index)
        made.append(Node(name, f"{template.major}:{index}", template.sysfs_class, template.index_attribute))
    return made


def visible(device: Device) -> list[Node]:
    """The nodes that are there: those of VFIO go before their user does."""
    return [] if device.leaving and device.vfio_index is not None else device.nodes


def orphan_handles(machine: Machine, device: Device) -> bool:
    """The device's nodes go: handles on them stay, on a deleted file. Whether there was one."""
    return orphan(machine, {node.name for node in device.nodes})


def orphan(machine: Machine, names: set[str]) -> bool:
    found = False
    for process in machine.processes.values():
        for descriptor, name in process.handles.items():
            if name in names:
                process.handles[descriptor] = f"{name} (deleted)"
                found = True
    return found


def drives_function(machine: Machine, device: Device) -> bool:
    """Whether a native driver makes the device do what it is there for."""
    if device.driver is None or vfio.is_on_vfio(machine, device):
        return False
    return machine.drivers[device.driver].description.kind is DriverKind.NATIVE
