"""Events about devices (lib/kobject_uevent.c): which variables each carries, and those that are made by writing
`uevent`.
"""

from node_host.host.protocol import Uevent
from simulated_node.model.state import Device, Machine
from simulated_node.model.topology import devpath
from simulated_node.rules.registry import rule

_SOURCE = "lib/kobject_uevent.c; drivers/base/core.c dev_uevent; drivers/pci/pci-driver.c pci_uevent"

DRIVER_NAMED = rule(
    "uevent.bind-names-driver",
    "Every event of a device carries its address; a bind event carries the driver too, add, unbind and remove do not.",
    source=_SOURCE,
)
SYNTHETIC = rule(
    "uevent.synthetic",
    "Writing an action to a device's uevent attribute sends that event again; anything else is refused.",
    errno="EINVAL",
    source="Documentation/ABI/testing/sysfs-uevent",
)

_ACTIONS = frozenset({"add", "remove", "change", "move", "online", "offline", "bind", "unbind"})


def device_event(action: str, device: Device) -> Uevent:
    DRIVER_NAMED.fires()
    return Uevent(action, devpath(device), "pci", device.driver, device.address)


def class_event(action: str, device: Device, sysfs_class: str, name: str) -> Uevent:
    return Uevent(action, f"{devpath(device)}/{sysfs_class}/{name}", sysfs_class, None, None)


def synthesise(machine: Machine, device: Device, text: str) -> None:
    words = text.split("\0", 1)[0].split()
    if not words or words[0] not in _ACTIONS:
        raise SYNTHETIC.refuses(f"{text.strip()!r} is no action")
    machine.events.append(device_event(words[0], device))
