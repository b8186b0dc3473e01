"""Drivers taking devices: probe, bind, drivers_probe (drivers/base/{bus,dd}.c, drivers/pci)."""

from simulated_node.description import PROBE_DEFER, DriverKind
from simulated_node.model import nodes, vfio
from simulated_node.model.events import class_event, device_event
from simulated_node.model.locks import take_lock
from simulated_node.model.matching import matches
from simulated_node.model.state import Device, Driver, Machine
from simulated_node.rules.registry import KernelError, rule

_BUS = "drivers/base/bus.c"
_DD = "drivers/base/dd.c"

BIND_NO_DEVICE = rule(
    "bind.no-such-device",
    "bind fails for an address that is not there; so does every write of a name that is not exactly one (a "
    "newline may end it).",
    errno="ENODEV",
    source=f"{_BUS} bind_store",
)
BIND_NO_MATCH = rule(
    "bind.no-match",
    "bind fails when the driver does not match the device, its driver_override included; the match comes before "
    "the busy check.",
    errno="ENODEV",
    source=f"{_BUS} bind_store",
)
BIND_BUSY = rule(
    "bind.already-bound",
    "bind fails for a device that has a driver, be it the same one.",
    errno="EBUSY",
    source=f"{_DD} __driver_probe_device",
)
BIND_DEFERRED = rule(
    "bind.deferred-shows-as-eagain",
    "A probe that defers (EPROBE_DEFER) shows as EAGAIN when ordered through bind.",
    errno="EAGAIN",
    source=f"{_DD} device_driver_attach",
)
PROBE_ERROR = rule(
    "bind.probe-error",
    "bind passes the probe's own error on and leaves the device driverless.",
    errno="probe",
    source=f"{_DD} device_driver_attach",
)
BOUND = rule(
    "bind.succeeds",
    "A bound device has its driver link, its driver lists it, a bind event names both.",
    source=f"{_DD} driver_bound",
)
USER_OWNS_GROUP = rule(
    "bind.group-owned-by-user",
    "While a user holds the IOMMU group, no driver that does DMA for the host is bound to a member.",
    errno="EBUSY",
    source="drivers/iommu/iommu.c iommu_device_use_default_domain",
)
PROBE_NO_DEVICE = rule(
    "probe.no-such-device",
    "drivers_probe fails for an address that is not there.",
    errno="ENODEV",
    source=f"{_BUS} drivers_probe_store",
)
PROBE_UNCLAIMED = rule(
    "probe.success-even-if-unclaimed",
    "drivers_probe reports success although no driver took the device, be it that none matched or that probes failed.",
    source=f"{_BUS} bus_rescan_devices_helper",
)
PROBE_BOUND = rule(
    "probe.leaves-bound-device",
    "drivers_probe does nothing to a device that has a driver, be it one whose unbind sleeps.",
    source=f"{_BUS} bus_rescan_devices_helper",
)
PROBE_NEXT = rule(
    "probe.next-driver-after-failure",
    "When a matching driver's probe fails, the next one that matches is tried, in the order of registration.",
    source=f"{_DD} __device_attach_driver",
)
PROBE_RETRIED = rule(
    "probe.deferred-is-retried",
    "A device whose probe deferred is tried again when some other device has been bound; bind by hand does not "
    "queue it.",
    source=f"{_DD} driver_deferred_probe_trigger",
)


AUTOPROBE_OFF = rule(
    "sriov.autoprobe-off-keeps-drivers-away",
    "With sriov_drivers_autoprobe off no driver takes a VF, be it by itself, by drivers_probe or by bind.",
    errno="ENODEV",
    source="drivers/pci/pci-driver.c pci_device_can_probe",
)
OVERRIDE_BEATS_AUTOPROBE = rule(
    "sriov.override-beats-autoprobe",
    "A VF with driver_override is probed although sriov_drivers_autoprobe is off (since 5.3).",
    source="drivers/pci/pci-driver.c pci_device_can_probe",
)


class _DeferredError(Exception):
    """The probe wants to be tried again later (EPROBE_DEFER)."""


def bind(machine: Machine, driver: Driver, text: str, operation: int) -> None:
    device = machine.find(text)
    if device is None:
        raise BIND_NO_DEVICE.refuses(f"no device {text.strip()!r}")
    if not matches(driver, device):
        raise BIND_NO_MATCH.refuses(f"{driver.name} does not match {device.address}")
    take_lock(device, operation)
    if device.driver is not None:
        raise BIND_BUSY.refuses(f"{device.address} is on {device.driver}")
    try:
        probe(machine, device, driver)
    except _DeferredError:
        raise BIND_DEFERRED.refuses(f"{driver.name} defers {device.address}") from None
    retry_deferred(machine)


def drivers_probe(machine: Machine, text: str, operation: int) -> None:
    device = machine.find(text)
    if device is None:
        raise PROBE_NO_DEVICE.refuses(f"no device {text.strip()!r}")
    # Looked at without the lock: a driver that is on its way out is still there.
    if device.driver is not None:
        PROBE_BOUND.fires()
        return
    take_lock(device, operation)
    if attach(machine, device):
        retry_deferred(machine)
    else:
        PROBE_UNCLAIMED.fires()


def attach(machine: Machine, device: Device) -> bool:
    """device_attach: the first matching driver whose probe succeeds takes the device; errors are swallowed."""
    failed = False
    for driver in machine.drivers.values():
        if not matches(driver, device):
            continue
        if failed:
            PROBE_NEXT.fires()
        try:
            probe(machine, device, driver)
        except _DeferredError:
            machine.deferred.add(device.address)
            failed = True
        except KernelError:
            failed = True
        else:
            return True
    return False


def attach_driver(machine: Machine, driver: Driver, operation: int) -> None:
    """driver_attach: offer a driver, new or with a new id, every driverless device that it matches."""
    wanted = [device for device in machine.devices.values() if matches(driver, device)]
    for device in wanted:
        take_lock(device, operation)
    for device in wanted:
        if device.driver is None:
            try:
                probe(machine, device, driver)
            except _DeferredError:
                machine.deferred.add(device.address)
            except KernelError:
                continue
    retry_deferred(machine)


def retry_deferred(machine: Machine) -> None:
    """Try the deferred devices again, and again as long as one more of them is bound."""
    progress = True
    while progress:
        waiting, machine.deferred = sorted(machine.deferred), set()
        progress = False
        for address in waiting:
            device = machine.devices.get(address)
            if device is None or device.driver is not None or device.holder is not None:
                continue
            PROBE_RETRIED.fires()
            progress = attach(machine, device) or progress


def probe(machine: Machine, device: Device, driver: Driver) -> None:
    """really_probe: the driver takes the device, or its error comes out."""
    kind = driver.description.kind
    for_machines = vfio.provides_vfio(machine, driver, device)
    if kind is DriverKind.NATIVE and not for_machines and vfio.is_owned_by_user(machine, device):
        raise USER_OWNS_GROUP.refuses(f"the group of {device.address} is held by a user")
    _refuse_without_autoprobe(machine, device)
    error = machine.fault(f"probe:{driver.name}:{device.address}") or _described_error(device, driver)
    if error == PROBE_DEFER:
        raise _DeferredError
    if error is not None:
        raise PROBE_ERROR.refuses(f"{driver.name} fails to take {device.address}", errno=error)
    if for_machines:
        vfio.refuse_vfio(machine, driver, device)
        vfio.attach(machine, device)
    elif kind is DriverKind.NATIVE:
        device.nodes = nodes.make_nodes(machine, driver)
    device.driver = driver.name
    machine.deferred.discard(device.address)
    for node in device.nodes:
        if node.sysfs_class is not None:
            machine.events.append(class_event("add", device, node.sysfs_class, node.base))
    machine.events.append(device_event("bind", device))
    BOUND.fires()


def _refuse_without_autoprobe(machine: Machine, device: Device) -> None:
    physical = machine.devices.get(device.physfn or "")
    if physical is None or physical.autoprobe:
        return
    if device.override is None:
        raise AUTOPROBE_OFF.refuses(f"{physical.address} keeps drivers away from {device.address}")
    OVERRIDE_BEATS_AUTOPROBE.fires()


def _described_error(device: Device, driver: Driver) -> str | None:
    for error in device.description.probe_errors:
        if error.driver != driver.name:
            continue
        failed = device.failures.get(driver.name, 0)
        if error.times is None or failed < error.times:
            device.failures[driver.name] = failed + 1
            return error.errno
    return None
