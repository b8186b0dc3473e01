"""Switching the machine on: nothing is left of the run before but what the description and the disk hold."""

import uuid

from simulated_node.description import HostDescription, KnownDrivers, ModuleState
from simulated_node.model.handles import open_node
from simulated_node.model.hotplug import scan
from simulated_node.model.modules import insert, load_module, wanted_by_hardware
from simulated_node.model.state import Machine, Module
from simulated_node.rules.registry import rule

NEW_BOOT_ID = rule(
    "boot.new-boot-id",
    "Every boot has another /proc/sys/kernel/random/boot_id.",
    source="drivers/char/random.c; random(4)",
)
STATE_GONE = rule(
    "boot.forgets-bindings",
    "Overrides, ids added at run time, bindings and handles do not live through a reboot; drivers bind again by "
    "their ids.",
    source="Documentation/ABI/testing/sysfs-bus-pci: nothing of it is stored",
)
AUTOLOAD = rule(
    "boot.loads-modules-by-modalias",
    "At boot the modules whose aliases match a device are loaded; vfio-pci has no alias of its own and is not.",
    source="udev(7); modules.alias",
)

ADDRESSES_MOVE = rule(
    "boot.addresses-and-groups-may-move",
    "Addresses and IOMMU group numbers are given anew at every boot, in the order in which devices are found: a card "
    "put in or taken out moves those of others.",
    source="drivers/pci/probe.c pci_scan_bridge_extend; drivers/iommu/iommu.c iommu_group_alloc",
)

_NAMESPACE = uuid.UUID("6a1d0c4e-3a55-5c0e-9b1f-7a0d3f6f2c11")
# Operations of the boot itself: nobody else is there to hold a lock.
_BOOT = 0


def boot(description: HostDescription, known: KnownDrivers, *, boots: int) -> Machine:
    """The machine after its ``boots``-th start, 1 for the first. Same description, same count: same machine."""
    machine = Machine(description, str(uuid.uuid5(_NAMESPACE, f"{description.name}/{boots}")))
    NEW_BOOT_ID.fires()
    machine.modules = {module.name: Module(module) for module in (*known.modules, *description.modules)}
    machine.available_drivers = {driver.name: driver for driver in (*known.drivers, *description.drivers)}
    machine.hardware = {device.address: device for device in description.devices}
    ADDRESSES_MOVE.fires()
    scan(machine, machine.hardware)
    for module in machine.modules.values():
        if module.description.state is ModuleState.BUILTIN:
            insert(machine, module, _BOOT)
    for module in machine.modules.values():
        if module.description.state is ModuleState.LOADED:
            load_module(machine, module.name, _BOOT)
    for module in wanted_by_hardware(machine):
        AUTOLOAD.fires()
        load_module(machine, module.name, _BOOT)
    if boots == 1:
        for process in description.processes:
            for node in process.opens:
                open_node(
                    machine, node.removeprefix("/dev/"), pid=process.pid, comm=process.comm, cgroup=process.cgroup
                )
    else:
        STATE_GONE.fires()
    machine.events.clear()
    return machine
