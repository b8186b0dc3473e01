"""VFIO as the host sees it: group and device nodes, who holds them, and when a group may be given away."""

import itertools

from simulated_node.description import DriverKind, Iommu, VfioNodes, VgpuCard
from simulated_node.model.state import Device, Driver, Machine, Node, Process
from simulated_node.rules.registry import rule

NO_GROUP = rule(
    "vfio.no-iommu-group",
    "A vfio driver refuses a device without an IOMMU group unless unsafe no-IOMMU mode is on.",
    errno="EINVAL",
    source="drivers/vfio/group.c vfio_group_find_or_alloc",
)
UNSAFE_NO_IOMMU = rule(
    "vfio.unsafe-no-iommu",
    "With enable_unsafe_noiommu_mode a device without a group gets one of its own while vfio holds it: "
    "/dev/vfio/noiommu-<n>.",
    source="drivers/vfio/group.c vfio_noiommu_group_alloc",
)
BRIDGE = rule(
    "vfio.bridge-refused",
    "vfio-pci takes endpoints only: a bridge's header type is refused.",
    errno="EINVAL",
    source="drivers/vfio/pci/vfio_pci_core.c vfio_pci_core_register_device",
)
NOT_FOR_VFIO_PCI = rule(
    "vgpu.vfio-pci-refused",
    "vfio-pci does not take the VFs of a vGPU card: the vendor's own driver hands them out.",
    errno="EINVAL",
    source="NVIDIA Virtual GPU Software User Guide, vendor-specific VFIO framework",
)
GROUP_NODE = rule(
    "vfio.group-node",
    "/dev/vfio/<group> exists exactly while at least one device of the group is on a vfio driver.",
    source="drivers/vfio/group.c vfio_create_group",
)
DEVICE_NODE = rule(
    "vfio.device-node",
    "Each device on a vfio driver has vfio-dev/vfio<k>; with the cdev interface also /dev/vfio/devices/vfio<k>.",
    source="drivers/vfio/vfio_main.c; Documentation/driver-api/vfio.rst, IOMMUFD and vfio_iommu_type1",
)
SECOND_OPEN = rule(
    "open.group-open-once",
    "A VFIO group or device node is opened by one user at a time.",
    errno="EBUSY",
    source="drivers/vfio/group.c vfio_group_fops_open",
)
NOT_VIABLE = rule(
    "open.group-not-viable",
    "A group is given to a user only when each member is on a vfio driver, on pci-stub, a port, or driverless.",
    errno="EPERM",
    source="drivers/iommu/iommu.c iommu_group_claim_dma_owner; Documentation/driver-api/vfio.rst",
)

_VFIO_MAJOR = 511
_CDEV_MAJOR = 510


def refuse_vfio(machine: Machine, driver: Driver, device: Device) -> None:
    """The checks of a vfio driver's probe."""
    card = vgpu_card(machine, device)
    if card is not None and not card.vfio_pci_too and driver.description.kind is DriverKind.VFIO:
        raise NOT_FOR_VFIO_PCI.refuses(f"{device.address} is a vGPU function")
    if device.description.is_bridge:
        raise BRIDGE.refuses(f"{device.address} is a bridge")
    if device.group is None and machine.description.kernel.iommu is not Iommu.UNSAFE_NO_IOMMU:
        raise NO_GROUP.refuses(f"{device.address} has no IOMMU group")


def attach(machine: Machine, device: Device) -> None:
    """What a vfio driver's probe leaves behind."""
    others = machine.devices.values()
    if device.group is None:
        UNSAFE_NO_IOMMU.fires()
        device.group = _lowest_free({other.group for other in others})
        device.unsafe_group = True
    device.vfio_index = _lowest_free({other.vfio_index for other in others})
    GROUP_NODE.fires()
    DEVICE_NODE.fires()
    if machine.description.kernel.vfio_nodes is VfioNodes.GROUP_AND_CDEV:
        name = f"vfio{device.vfio_index}"
        device.nodes = [Node(f"vfio/devices/{name}", f"{_CDEV_MAJOR}:{device.vfio_index}", "vfio-dev")]


def detach(device: Device) -> None:
    device.vfio_index = None
    device.nodes = []
    if device.unsafe_group:
        device.group = None
        device.unsafe_group = False


def _lowest_free(taken: set[int | None]) -> int:
    return next(number for number in itertools.count() if number not in taken)


def vgpu_card(machine: Machine, device: Device) -> VgpuCard | None:
    """The vGPU card that the device is a VF of."""
    physical = machine.devices.get(device.physfn or "")
    return None if physical is None else physical.description.vgpu


def provides_vfio(machine: Machine, driver: Driver, device: Device) -> bool:
    """Whether a driver hands the device to virtual machines: every vfio driver, and the vendor's its vGPU functions."""
    vendor = driver.description.vgpu and vgpu_card(machine, device) is not None
    return driver.description.kind is DriverKind.VFIO or vendor


def is_on_vfio(machine: Machine, device: Device) -> bool:
    return device.driver is not None and provides_vfio(machine, machine.drivers[device.driver], device)


def group_node(device: Device) -> str | None:
    """The node of the device's group below /dev, whether it exists or not."""
    if device.group is None:
        return None
    return f"vfio/noiommu-{device.group}" if device.unsafe_group else f"vfio/{device.group}"


def group_nodes(machine: Machine) -> dict[str, str]:
    """Each existing group node with its device number."""
    found = {group_node(device): device.group for device in machine.devices.values() if is_on_vfio(machine, device)}
    return {node: f"{_VFIO_MAJOR}:{group}" for node, group in sorted(found.items(), key=str) if node is not None}


def nodes_of(machine: Machine, device: Device) -> list[str]:
    """The nodes by which a user may hold the device: its own and its group's."""
    if not is_on_vfio(machine, device):
        return []
    group = group_node(device)
    return [*(node.name for node in device.nodes), *([group] if group else [])]


def users(machine: Machine, device: Device) -> list[Process]:
    """The processes that hold the device through VFIO, by its group or by its own node."""
    return [process for name in nodes_of(machine, device) for process in machine.users_of(name)]


def is_owned_by_user(machine: Machine, device: Device) -> bool:
    """Whether a user holds a device of the group: DMA of the whole group is then the user's."""
    members = [device] if device.group is None else machine.in_group(device.group)
    return any(users(machine, member) for member in members)


def refuse_open(machine: Machine, node: str, *, takes_device: bool) -> None:
    """Opening a VFIO node and, with ``takes_device``, taking the group behind it."""
    if machine.handles_on(node):
        raise SECOND_OPEN.refuses(f"/dev/{node} is open already")
    if not takes_device:
        return
    members = [device for device in machine.devices.values() if is_on_vfio(machine, device) and _behind(device, node)]
    group = members[0].group if members else None
    for member in members if group is None else machine.in_group(group):
        if not _allows_user(machine, member):
            raise NOT_VIABLE.refuses(f"group {group} is not viable: {member.address} is on {member.driver}")


def _behind(device: Device, node: str) -> bool:
    return node == group_node(device) or node in [own.name for own in device.nodes]


def _allows_user(machine: Machine, device: Device) -> bool:
    if device.driver is None or is_on_vfio(machine, device):
        return True
    return machine.drivers[device.driver].description.kind is not DriverKind.NATIVE
