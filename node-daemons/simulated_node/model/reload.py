"""A driver's module taken out and loaded again, as at an upgrade: nothing of its devices stays (kernel/module)."""

from collections.abc import Mapping, Sequence

from node_host.host.protocol import Uevent
from simulated_node.description import HostDescription, KnownDrivers, VgpuType
from simulated_node.model.modules import load_module
from simulated_node.model.state import Machine
from simulated_node.model.unbinding import destroy_vfs, leave
from simulated_node.rules.registry import rule

UNLOADED = rule(
    "module.unload-takes-devices-and-vfs",
    "A module that is taken out leaves its devices without a driver; NVIDIA's takes the VFs of its cards along.",
    source="drivers/base/driver.c driver_unregister; NVIDIA Virtual GPU Software User Guide: VFs do not persist",
)
RELEASE = rule(
    "module.version-tells-release",
    "/sys/module/<name>/version is the release of a loaded module that tells one.",
    source="kernel/module/sysfs.c; MODULE_VERSION",
)


def changed(
    description: HostDescription,
    known: KnownDrivers,
    driver: str,
    release: str | None,
    types: Mapping[str, Sequence[VgpuType]],
) -> HostDescription:
    """The description of the machine with another release of the driver, from the next load on, over reboots too."""
    name = _module_of(description, known, driver)
    modules = list(description.modules)
    if release is not None:
        before = next((module for module in (*modules, *known.modules) if module.name == name), None)
        if before is None:
            raise ValueError(f"there is no module {name}")
        modules = [module for module in modules if module.name != name]
        modules.append(before.model_copy(update={"release": release}))
    devices = tuple(
        device.model_copy(update={"vgpu": device.vgpu.model_copy(update={"types": tuple(types[device.address])})})
        if device.address in types and device.vgpu is not None
        else device
        for device in description.devices
    )
    return description.model_copy(update={"modules": tuple(modules), "devices": devices})


def unload(machine: Machine, driver: str, operation: int) -> None:
    """rmmod: VFs go, every device loses the driver, then the module and its drivers are gone."""
    if driver not in machine.drivers:
        return
    for device in [one for one in machine.devices.values() if one.driver == driver and one.num_vfs]:
        destroy_vfs(machine, device, operation, (device.address,))
    for device in [one for one in machine.devices.values() if one.driver == driver]:
        leave(machine, device, operation)
    module = machine.drivers[driver].description.module
    for name in [one for one, found in machine.drivers.items() if found.description.module == module]:
        del machine.drivers[name]
        machine.events.append(Uevent("remove", f"/bus/pci/drivers/{name}", "drivers", None, None))
    machine.modules[module].loaded = False
    machine.events.append(Uevent("remove", f"/module/{module}", "module", None, None))
    UNLOADED.fires()


def load(machine: Machine, description: HostDescription, known: KnownDrivers, driver: str, operation: int) -> None:
    """modprobe of what the description says now."""
    name = _module_of(description, known, driver)
    if machine.modules[name].loaded and driver in machine.drivers:
        return
    for module in description.modules:
        if module.name == name:
            machine.modules[name].description = module
    by_address = {device.address: device for device in description.devices}
    for device in machine.devices.values():
        if device.address in by_address:
            device.description = by_address[device.address]
    load_module(machine, name, operation)


def _module_of(description: HostDescription, known: KnownDrivers, driver: str) -> str:
    found = next((one.module for one in (*description.drivers, *known.drivers) if one.name == driver), None)
    if found is None:
        raise ValueError(f"there is no driver {driver}")
    return found
