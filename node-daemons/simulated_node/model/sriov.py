"""Virtual functions: how many there are, what they are like, who may have them (drivers/pci/iov.c)."""

from simulated_node.description import Iommu, VirtualGroups
from simulated_node.model.binding import attach, retry_deferred
from simulated_node.model.events import device_event
from simulated_node.model.formats import switch, unsigned
from simulated_node.model.locks import take_lock
from simulated_node.model.state import Device, Machine
from simulated_node.model.unbinding import destroy_vfs
from simulated_node.rules.registry import WouldBlockError, rule

_STORE = "drivers/pci/iov.c sriov_numvfs_store"
_ENABLE = "drivers/pci/iov.c sriov_enable"
_ADD = "drivers/pci/iov.c pci_iov_add_virtfn"

NOT_A_NUMBER = rule(
    "sriov.not-a-number",
    "sriov_numvfs wants an unsigned number of 16 bits, in decimal, 0x hexadecimal or 0 octal, with nothing around it "
    "but a newline at its end.",
    errno="EINVAL",
    source=_STORE,
)
TOO_MANY = rule("sriov.too-many", "More VFs than sriov_totalvfs are refused.", errno="ERANGE", source=_STORE)
TOTAL = rule(
    "sriov.driver-lowers-total",
    "A driver may allow fewer VFs than the hardware: sriov_totalvfs tells its limit while it holds the device.",
    source="drivers/pci/iov.c pci_sriov_set_totalvfs, pci_iov_remove",
)
SAME = rule(
    "sriov.same-number-does-nothing",
    "Writing the number of VFs that there are changes nothing and succeeds, with or without a driver.",
    source=_STORE,
)
NO_DRIVER = rule(
    "sriov.no-driver",
    "Without a driver of the physical function the number of VFs cannot be changed.",
    errno="ENOENT",
    source=_STORE,
)
NO_SUPPORT = rule(
    "sriov.driver-without-support",
    "The number of VFs cannot be changed while a driver has the physical function that does not set it through sysfs, "
    "as vfio-pci or nvidia.",
    errno="ENOENT",
    source=f"{_STORE}; drivers/vfio/pci/vfio_pci.c vfio_pci_sriov_configure",
)
BUSY = rule(
    "sriov.number-cannot-change",
    "From one number of VFs to another the way leads through 0.",
    errno="EBUSY",
    source=_STORE,
)
DRIVER_ERROR = rule(
    "sriov.driver-error",
    "The driver's own error comes through, and no VF is there.",
    errno="probe",
    source=f"{_STORE}; {_ENABLE}: ENOMEM without room for their BARs",
)
NO_BUS = rule(
    "sriov.no-bus-number",
    "VFs whose bus numbers the bridge above does not pass on are refused.",
    errno="ENOMEM",
    source=_ENABLE,
)
FEWER = rule(
    "sriov.fewer-than-asked",
    "A driver may make fewer VFs than asked for: the write succeeds, sriov_numvfs tells how many.",
    source=_STORE,
)
TAKES_TIME = rule(
    "sriov.takes-its-time",
    "Making or destroying VFs may take long: the write sleeps meanwhile, with the lock of the physical function.",
    source=f"{_ENABLE}, sriov_disable: they sleep a second and more",
)
CREATED = rule(
    "sriov.creates-vfs",
    "From 0 to a number: each VF is added, linked with its physical function (virtfn<i>, physfn), announced (add, "
    "change) and offered to the registered drivers; last the physical function tells of a change.",
    source=f"{_ADD}; {_ENABLE}",
)
DESTROYED = rule(
    "sriov.destroys-vfs",
    "To 0: every VF loses its driver, vfio-pci or another, and then every name it had.",
    source="drivers/pci/iov.c sriov_disable, pci_iov_remove_virtfn",
)
ADDRESS = rule(
    "sriov.vf-address",
    "VF i has the routing id of its physical function plus offset plus i times stride, on another bus if need be; its "
    "directory lies beside the physical function's.",
    source="drivers/pci/iov.c pci_iov_virtfn_bus, pci_iov_virtfn_devfn, pci_iov_add_virtfn",
)
GROUP = rule(
    "sriov.vf-group",
    "A VF has an IOMMU group of its own, with the lowest free number, or that of its physical function where nothing "
    "isolates them.",
    source="drivers/iommu/iommu.c pci_device_group, iommu_group_alloc",
)
BAD_SWITCH = rule(
    "sriov.autoprobe-format",
    "sriov_drivers_autoprobe is a switch: 1, y, t, on or 0, n, f, off; it is on at first and reads 1 or 0.",
    errno="EINVAL",
    source="drivers/pci/iov.c sriov_drivers_autoprobe_store; lib/kstrtox.c kstrtobool",
)


def total_vfs(machine: Machine, device: Device) -> int:
    """pci_sriov_get_totalvfs; 0 for what is no physical function."""
    hardware = device.description.sriov_total_vfs or 0
    sriov = machine.drivers[device.driver].description.sriov if device.driver is not None else None
    if sriov is None or sriov.maximum is None or sriov.maximum >= hardware:
        return hardware
    TOTAL.fires()
    return sriov.maximum


def write_numvfs(machine: Machine, device: Device, text: str, operation: int) -> None:
    wanted = unsigned(text, 16)
    if wanted is None:
        raise NOT_A_NUMBER.refuses(f"{text!r} is no number of VFs")
    if wanted > total_vfs(machine, device):
        raise TOO_MANY.refuses(f"{device.address} cannot have {wanted} VFs")
    take_lock(device, operation)
    if wanted == device.num_vfs:
        SAME.fires()
        return
    if device.driver is None:
        raise NO_DRIVER.refuses(f"{device.address} has no driver")
    if machine.drivers[device.driver].description.sriov is None:
        raise NO_SUPPORT.refuses(f"{device.driver} makes no VFs")
    if wanted and device.num_vfs:
        raise BUSY.refuses(f"{device.address} has {device.num_vfs} VFs")
    if machine.held(f"sriov:{device.address}", operation):
        raise WouldBlockError(TAKES_TIME, (device.address,))
    error = machine.fault(f"sriov:{device.address}") or (_described_error(device) if wanted else None)
    if error is not None:
        raise DRIVER_ERROR.refuses(f"{device.driver} does not make {wanted} VFs", errno=error)
    if wanted:
        _create(machine, device, wanted)
    else:
        destroy_vfs(machine, device, operation, (device.address,))
        DESTROYED.fires()


def write_autoprobe(device: Device, text: str) -> None:
    value = switch(text)
    if value is None:
        raise BAD_SWITCH.refuses(f"{text!r} is no switch")
    device.autoprobe = value


def _create(machine: Machine, physical: Device, asked: int) -> None:
    facts = physical.description
    limit = facts.virtual_functions.enabled_at_most
    number = asked if limit is None else min(asked, limit)
    if number < asked:
        FEWER.fires()
    descriptions = [facts.virtual_function(index) for index in range(number)]
    last_bus = facts.virtual_functions.last_bus
    if descriptions and last_bus is not None and descriptions[-1].address[5:7] > last_bus:
        raise NO_BUS.refuses(f"{descriptions[-1].address} is beyond bus {last_bus}")
    for index, description in enumerate(descriptions):
        virtual = Device(description, physical.ancestors, physfn=physical.address, virtfn=index)
        virtual.group = _group(machine, physical)
        machine.devices[virtual.address] = virtual
        physical.virtfns[index] = virtual.address
        machine.events.append(device_event("add", virtual))
        machine.events.append(device_event("change", virtual))
        ADDRESS.fires()
        attach(machine, virtual)
    machine.devices = dict(sorted(machine.devices.items()))
    machine.events.append(device_event("change", physical))
    physical.num_vfs = number
    if number:
        CREATED.fires()
        retry_deferred(machine)


def _group(machine: Machine, physical: Device) -> int | None:
    if machine.description.kernel.iommu is not Iommu.ENABLED or physical.group is None:
        return None
    GROUP.fires()
    if physical.description.virtual_functions.iommu_groups is VirtualGroups.PHYSICAL_FUNCTION:
        return physical.group
    taken = {device.group for device in machine.devices.values()}
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _described_error(device: Device) -> str | None:
    """The next of the described failures that has not happened often enough; each kind counts for itself."""
    for position, error in enumerate(device.description.virtual_functions.errors):
        key = f"sriov/{position}"
        failed = device.failures.get(key, 0)
        if error.times is None or failed < error.times:
            device.failures[key] = failed + 1
            return error.errno
    return None
