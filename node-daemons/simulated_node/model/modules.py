"""Kernel modules: which exist, what loading one does (kernel/module, drivers/base/driver.c, modprobe(8))."""

from node_host.host.protocol import Uevent
from simulated_node.description import ModuleState
from simulated_node.model.binding import attach_driver
from simulated_node.model.matching import id_matches
from simulated_node.model.state import Driver, DynamicId, Machine, Module
from simulated_node.rules.registry import rule

ABSENT = rule(
    "module.absent", "modprobe fails for a module that the kernel does not have.", errno="ENOENT", source="modprobe(8)"
)
PRESENT = rule(
    "module.present-is-no-error",
    "modprobe of a loaded or built-in module changes nothing and succeeds; '-' and '_' are the same in a "
    "module's name.",
    source="modprobe(8)",
)
LOADED = rule(
    "module.load-registers-drivers",
    "Loading a module loads what it requires, registers its drivers, and offers each every driverless device "
    "that it matches.",
    source="drivers/base/bus.c bus_add_driver; drivers/base/dd.c driver_attach",
)
PARAMETER_IDS = rule(
    "module.ids-parameter",
    "The ids of vfio-pci.ids are the driver's from its first moment: at boot it may take devices before anybody else.",
    source="drivers/vfio/pci/vfio_pci.c vfio_pci_fill_ids",
)


def load_module(machine: Machine, name: str, operation: int) -> None:
    module = machine.modules.get(name.replace("-", "_"))
    if module is None or module.description.state is ModuleState.ABSENT:
        raise ABSENT.refuses(f"there is no module {name}")
    if module.loaded:
        PRESENT.fires()
        return
    for required in module.description.requires:
        load_module(machine, required, operation)
    insert(machine, module, operation)
    LOADED.fires()


def insert(machine: Machine, module: Module, operation: int) -> None:
    """The module's start: its drivers register one by one. A sleeping insert starts over where it was."""
    drivers = [driver for driver in machine.available_drivers.values() if driver.module == module.name]
    for description in drivers:
        if description.name not in machine.drivers:
            driver = Driver(description, [_id(pair) for pair in module.description.ids])
            machine.drivers[description.name] = driver
            machine.events.append(Uevent("add", f"/bus/pci/drivers/{description.name}", "drivers", None, None))
            if driver.dynamic_ids:
                PARAMETER_IDS.fires()
        attach_driver(machine, machine.drivers[description.name], operation)
    module.loaded = True
    machine.events.append(Uevent("add", f"/module/{module.name}", "module", None, None))


def wanted_by_hardware(machine: Machine) -> list[Module]:
    """The loadable modules whose id tables name a device of the machine: what udev loads at boot, by name."""
    rows = {
        module.name: [
            row for driver in machine.available_drivers.values() if driver.module == module.name for row in driver.ids
        ]
        for module in machine.modules.values()
        if module.description.state is ModuleState.LOADABLE
    }
    return [
        machine.modules[name]
        for name in sorted(rows)
        if any(id_matches(row, device.description) for row in rows[name] for device in machine.devices.values())
    ]


def _id(pair: str) -> DynamicId:
    vendor, device = pair.split(":")
    return DynamicId(int(vendor, 16), int(device, 16))
