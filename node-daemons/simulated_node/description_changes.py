"""A machine rebuilt while it is off: cards put in or taken out, and the addresses and groups that move by it."""

from collections.abc import Collection, Mapping, Sequence

from pydantic import ValidationError

from simulated_node.description import DescriptionError, Device, HostDescription


def rebuilt(
    description: HostDescription,
    *,
    move: Mapping[str, str],
    groups: Mapping[int, int],
    add: Sequence[Device],
    remove: Collection[str],
) -> HostDescription:
    """The description of the machine after it; DescriptionError when it does not hang together.

    ``move`` leads from old to new addresses, or from buses to buses ("0000:21" to "0000:22"); ``groups`` from old to
    new IOMMU groups. Both concern the devices that stay; ``add`` and ``remove`` are told in the new and in the old
    addresses.
    """

    def moved(address: str) -> str:
        bus = address.rpartition(":")[0]
        return move.get(address) or (f"{move[bus]}:{address.rpartition(':')[2]}" if bus in move else address)

    missing = sorted(set(remove) - {device.address for device in description.devices})
    if missing:
        raise DescriptionError(f"remove: there is no {', '.join(missing)}")
    kept = [device for device in description.devices if device.address not in remove]
    fields = {name: getattr(description, name) for name in HostDescription.model_fields}
    devices = [
        device.model_dump()
        | {
            "address": moved(device.address),
            "parent": moved(device.parent),
            "iommu_group": groups.get(device.iommu_group, device.iommu_group)
            if device.iommu_group is not None
            else None,
        }
        for device in kept
    ]
    try:
        return HostDescription.model_validate({**fields, "devices": [*devices, *(one.model_dump() for one in add)]})
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc']) or 'document'}: {fault['msg']}" for fault in error.errors()
        ]
        raise DescriptionError("\n".join(faults)) from None
