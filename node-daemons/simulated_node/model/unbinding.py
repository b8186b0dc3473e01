"""Drivers leaving devices, and devices leaving the machine (drivers/base/dd.c, drivers/pci/{remove,iov}.c).

Both may sleep half-way, because a user holds the device or one of its VFs: what is gone by then stays gone, and an
operation that is started again finds the rest.
"""

from simulated_node.description import VfsOnUnbind, WhenOpen
from simulated_node.model import nodes, vfio, vgpu
from simulated_node.model.events import class_event, device_event
from simulated_node.model.locks import take_lock
from simulated_node.model.state import Device, Driver, Machine
from simulated_node.rules.registry import WouldBlockError, rule

_DD = "drivers/base/dd.c"
_IOV = "drivers/pci/iov.c"

UNBIND_NOT_BOUND = rule(
    "unbind.not-bound-to-driver",
    "unbind fails for a device that is not there or not bound to that driver.",
    errno="ENODEV",
    source="drivers/base/bus.c unbind_store",
)
UNBOUND = rule(
    "unbind.succeeds",
    "An unbound device is driverless: nothing else takes it by itself, its override stays, an unbind event says so.",
    source=f"{_DD} __device_release_driver",
)
UNBIND_VFIO_OPEN = rule(
    "unbind.waits-for-vfio-user",
    "Unbinding a device that a user holds through VFIO sleeps, with the device's lock, until the user lets go.",
    source="drivers/vfio/vfio_main.c vfio_unregister_group_dev",
)
LINKS_FIRST = rule(
    "unbind.links-go-first",
    "The links between device and driver go before the driver's remove callback runs: while an unbind sleeps the "
    "device looks driverless and is not.",
    source=f"{_DD} __device_release_driver: driver_sysfs_remove, then device_remove",
)
ASKS_USER = rule(
    "unbind.asks-vfio-user",
    "The user that an unbind waits for gets a device request through VFIO.",
    source="drivers/vfio/vfio_main.c vfio_unregister_group_dev; drivers/vfio/pci/vfio_pci_core.c vfio_pci_core_request",
)
DEVICE_NODE_FIRST = rule(
    "unbind.vfio-device-goes-before-its-user",
    "While an unbind waits for a VFIO user, the device's vfio-dev directory and own node are gone already, the group's "
    "node is there.",
    source="drivers/vfio/vfio_main.c vfio_unregister_group_dev: vfio_device_del comes before the wait",
)
BARE_GROUP = rule(
    "unbind.group-merely-open-holds-nothing-up",
    "Who has a group open and no device of it holds no unbind up, and keeps a handle on a deleted node.",
    source="drivers/vfio/group.c vfio_device_remove_group",
)
TAKES_TIME = rule(
    "unbind.takes-its-time",
    "A driver's remove callback may take long: the unbind sleeps meanwhile, with the device's lock.",
    source="drivers/base/dd.c device_remove: a remove callback may sleep",
)
UNBIND_NATIVE_OPEN = rule(
    "unbind.native-driver-ignores-user",
    "A native driver that does not wait gives an open device up; the user keeps a handle on a deleted node.",
    source="drivers/base/dd.c device_remove: a remove callback cannot refuse",
)
UNBIND_NATIVE_WAITS = rule(
    "unbind.native-driver-waits-for-user",
    "A native driver may sleep in its remove callback while its node is open (unbindWhenOpen: Blocks).",
    source="drivers/base/dd.c device_remove: a remove callback may sleep",
)
VFS_GO_BEFORE_DRIVER = rule(
    "sriov.driver-destroys-vfs-when-it-leaves",
    "A driver that calls pci_disable_sriov in its remove callback, as igb does, destroys the VFs before it leaves.",
    source="drivers/net/ethernet/intel/igb/igb_main.c igb_remove",
)
VFS_OUTLIVE_DRIVER = rule(
    "sriov.driver-leaves-vfs-when-it-leaves",
    "VFs live on, and numvfs stays, when a driver leaves that does not destroy them, as pci-pf-stub.",
    source=f"{_IOV} pci_iov_remove: a warning and no more; drivers/pci/pci-pf-stub.c",
)
VF_WAITS = rule(
    "sriov.destroying-waits-for-vfio-user",
    "Destroying VFs goes by index and sleeps at the first that a user holds through VFIO, with the locks of that VF "
    "and of its physical function; those before it are gone by then.",
    source=f"{_IOV} sriov_del_vfs, pci_iov_remove_virtfn; drivers/vfio/vfio_main.c vfio_unregister_group_dev",
)


def unbind(machine: Machine, driver: Driver, text: str, operation: int) -> None:
    device = machine.find(text)
    if operation in machine.begun:
        # The check comes before the lock: by now another may have unbound the device.
        if device is None or device.driver != driver.name:
            return
    elif device is None or device.driver != driver.name:
        raise UNBIND_NOT_BOUND.refuses(f"{text.strip()!r} is not bound to {driver.name}")
    machine.begun.add(operation)
    leave(machine, device, operation)


def leave(machine: Machine, device: Device, operation: int, keeping: tuple[str, ...] = ()) -> None:
    """The device's driver, if there is one, goes as soon as its users let it; ``keeping`` are locks held meanwhile."""
    take_lock(device, operation, keeping)
    if device.driver is None:
        return
    if not device.leaving:
        device.leaving = True
        LINKS_FIRST.fires()
    _wait_for_users(machine, device, operation, (*keeping, device.address))
    if machine.held(f"remove:{device.driver}:{device.address}", operation):
        raise WouldBlockError(TAKES_TIME, (*keeping, device.address))
    sriov = machine.drivers[device.driver].description.sriov
    if device.num_vfs and sriov is not None and sriov.on_unbind is VfsOnUnbind.DESTROYED:
        destroy_vfs(machine, device, operation, (*keeping, device.address))
        VFS_GO_BEFORE_DRIVER.fires()
    elif device.num_vfs:
        VFS_OUTLIVE_DRIVER.fires()
    _release(machine, device)


def destroy_vfs(machine: Machine, physical: Device, operation: int, keeping: tuple[str, ...]) -> None:
    """sriov_disable: the VFs go one by one, bound or not."""
    for virtual in machine.vfs_of(physical):
        physical.virtfns.pop(virtual.virtfn or 0, None)
        try:
            leave(machine, virtual, operation, keeping)
        except WouldBlockError as block:
            if block.rule is UNBIND_VFIO_OPEN:
                VF_WAITS.fires()
            raise
        depart(machine, virtual)
    physical.virtfns.clear()
    physical.num_vfs = 0


def depart(machine: Machine, device: Device) -> None:
    """A device without a driver goes for good."""
    del machine.devices[device.address]
    machine.deferred.discard(device.address)
    machine.events.append(device_event("remove", device))


def _wait_for_users(machine: Machine, device: Device, operation: int, holds: tuple[str, ...]) -> None:
    """Sleep while the driver that is to leave waits for its users."""
    held = [node for node in vfio.nodes_of(machine, device) if machine.users_of(node)]
    if held:
        machine.requests.update((operation, node) for node in held)
        ASKS_USER.fires()
        DEVICE_NODE_FIRST.fires()
        raise WouldBlockError(UNBIND_VFIO_OPEN, holds)
    waits = machine.drivers[device.driver or ""].description.unbind_when_open is WhenOpen.BLOCKS
    if waits and any(machine.handles_on(node.name) for node in device.nodes):
        raise WouldBlockError(UNBIND_NATIVE_WAITS, holds)


def _release(machine: Machine, device: Device) -> None:
    """The driver leaves; nothing else takes the device by itself."""
    vgpu.forget(machine, device)
    for node in device.nodes:
        if node.sysfs_class is not None:
            machine.events.append(class_event("remove", device, node.sysfs_class, node.base))
    if vfio.is_on_vfio(machine, device):
        group = vfio.group_node(device)
        vfio.detach(device)
        device.driver = None
        if group is not None and group not in vfio.group_nodes(machine) and nodes.orphan(machine, {group}):
            BARE_GROUP.fires()
    elif nodes.orphan_handles(machine, device):
        UNBIND_NATIVE_OPEN.fires()
    device.nodes = []
    device.driver = None
    device.leaving = False
    machine.events.append(device_event("unbind", device))
    UNBOUND.fires()
