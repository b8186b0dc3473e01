"""vGPU types on the VFs of one card: what each VF may become, what it is (NVIDIA's vendor-specific VFIO framework)."""

from simulated_node.description import VgpuType
from simulated_node.model import vfio
from simulated_node.model.formats import decimal
from simulated_node.model.state import Device, Machine
from simulated_node.rules.registry import rule

_GUIDE = "NVIDIA Virtual GPU Software User Guide, vendor-specific VFIO framework"

OWN_NODES = rule(
    "vgpu.function-has-nodes",
    "A VF on the vendor's driver has nvidia/creatable_vgpu_types and nvidia/current_vgpu_type (0 for none), and the "
    "nodes of VFIO from that driver.",
    source=_GUIDE,
)
LIST = rule(
    "vgpu.list-of-creatable-types",
    "The list of a VF has a line above and the types that it could take now: those of the size that the card has "
    "already, while there is room. A VF with a type could take none.",
    source=f"{_GUIDE}; homogeneous vGPUs",
)
SET = rule(
    "vgpu.type-is-set",
    "A number of the VF's list makes it that type, and the lists of all VFs of the card follow.",
    source=_GUIDE,
)
NOT_A_NUMBER = rule(
    "vgpu.not-a-number", "current_vgpu_type wants a decimal number.", errno="EINVAL", source=f"{_GUIDE}; kstrtouint"
)
NOT_CREATABLE = rule(
    "vgpu.not-creatable",
    "A number that is not in the VF's list is refused, another type for a VF that has one included.",
    errno="EIO",
    source=_GUIDE,
)
HELD = rule(
    "vgpu.held",
    "While a user holds the VF nobody changes its type, nor writes the one it has.",
    errno="EBUSY",
    source=f"{_GUIDE}: a type is changed when no virtual machine uses it",
)
SAME = rule("vgpu.same-type-does-nothing", "Writing the type that the VF has changes nothing.", source=_GUIDE)
CLEARED = rule("vgpu.zero-clears", "0 takes the VF's type away and gives its frame buffer back.", source=_GUIDE)
FORGOTTEN = rule(
    "vgpu.forgotten",
    "The type goes when the VF loses its driver or goes itself, or its card loses the driver; mixed sizes go with the "
    "last VF.",
    source=f"{_GUIDE}: types do not persist",
)
MIXED = rule(
    "vgpu.mixed-sizes",
    "With mixed sizes allowed a type begins at places of its own size rounded up, so that small ones in the wrong "
    "order lock out a large one; the mode changes only while no VF has a type.",
    errno="EBUSY",
    source=f"{_GUIDE}, heterogeneous vGPUs: placement ids",
)

WIPED = rule(
    "vgpu.mixed-sizes-wiped-by-new-vfs",
    "Mixed sizes that were allowed before the card's VFs were made are not allowed once they are.",
    source="bigstack-oss/cubecos, issue 1316: heterogeneous mode is set after sriov-manage",
)
MIG = rule(
    "vgpu.mig-empties-lists",
    "While MIG mode is on the lists of time-sliced types are empty.",
    source="harvester/harvester, issue 11133; NVIDIA Virtual GPU Software User Guide: MIG-backed vGPUs",
)

HEADER = f"{'ID':<5} : vGPU Name"


def is_function(machine: Machine, device: Device) -> bool:
    """Whether it is a vGPU function in the hands of the vendor's driver."""
    if device.driver is None or device.leaving or vfio.vgpu_card(machine, device) is None:
        return False
    return machine.drivers[device.driver].description.vgpu


def is_card(machine: Machine, device: Device) -> bool:
    """Whether it is a card for vGPUs in the hands of the vendor's driver."""
    if device.description.vgpu is None or device.driver is None or device.leaving:
        return False
    return machine.drivers[device.driver].description.vgpu


def creatable(machine: Machine, device: Device) -> list[VgpuType]:
    """The types that the VF could take now, in the driver's order."""
    card = vfio.vgpu_card(machine, device)
    if card is None or device.vgpu_type is not None:
        return []
    if machine.devices[device.physfn or ""].mig:
        MIG.fires()
        return []
    return [kind for kind in card.types if _place(machine, device, kind) is not None]


def write_type(machine: Machine, device: Device, text: str) -> None:
    number = decimal(text, 32)
    if number is None:
        raise NOT_A_NUMBER.refuses(f"{text!r} is no number of a type")
    if vfio.is_owned_by_user(machine, device):
        raise HELD.refuses(f"{device.address} is in use")
    if number == (device.vgpu_type or 0):
        SAME.fires()
        return
    if number == 0:
        device.vgpu_type = None
        CLEARED.fires()
        return
    wanted = next((kind for kind in creatable(machine, device) if kind.id == number), None)
    place = None if wanted is None else _place(machine, device, wanted)
    if place is None:
        raise NOT_CREATABLE.refuses(f"{device.address} cannot become {number}")
    device.vgpu_type, device.vgpu_place = number, place
    SET.fires()


def forget(machine: Machine, device: Device) -> None:
    """The device loses its driver: a VF its type, a card those of its VFs, the last VF the card its mode."""
    physical = machine.devices.get(device.physfn or "")
    going = [device]
    if device.driver is not None and machine.drivers[device.driver].description.vgpu:
        going += machine.vfs_of(device)
    for one in going:
        if one.vgpu_type is not None:
            one.vgpu_type = None
            FORGOTTEN.fires()
    if physical is not None and not any(
        is_function(machine, other) for other in machine.vfs_of(physical) if other is not device
    ):
        physical.mixed_sizes = False


def mix_sizes(machine: Machine, physical: Device, allowed: bool) -> None:
    """What the vendor's tool does: sizes may differ on the card, or not."""
    if allowed != physical.mixed_sizes and any(vf.vgpu_type is not None for vf in machine.vfs_of(physical)):
        raise MIXED.refuses(f"VFs of {physical.address} have types")
    physical.mixed_sizes = allowed


def wipe(machine: Machine, address: str) -> None:
    """New VFs: mixed sizes are not allowed any more."""
    device = machine.devices.get(address)
    if device is not None and device.mixed_sizes:
        device.mixed_sizes = False
        WIPED.fires()


def set_mig(machine: Machine, address: str, on: bool) -> None:
    """MIG mode of a card."""
    machine.devices[address].mig = on


def _place(machine: Machine, device: Device, kind: VgpuType) -> int | None:
    """Where in the frame buffer the type would begin."""
    physical = machine.devices[device.physfn or ""]
    card = physical.description.vgpu
    if card is None or kind.frame_buffer > card.frame_buffer:
        return None
    sizes = {one.id: one.frame_buffer for one in card.types}
    taken = [(vf.vgpu_place, sizes[vf.vgpu_type]) for vf in machine.vfs_of(physical) if vf.vgpu_type is not None]
    places, stride = card.frame_buffer // kind.frame_buffer, kind.frame_buffer
    if physical.mixed_sizes:
        places = 1 << (places.bit_length() - 1)
        stride = card.frame_buffer // places
    elif any(size != kind.frame_buffer for _, size in taken):
        return None
    starts = (index * stride for index in range(places))
    return next(
        (
            start
            for start in starts
            if all(start >= place + size or place >= start + kind.frame_buffer for place, size in taken)
        ),
        None,
    )
