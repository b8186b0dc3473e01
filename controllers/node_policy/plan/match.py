"""Whether a device of an inventory is meant by a `match`, and whether it is at least of the kind that is meant."""

from controllers.node_policy.plan.orders import Identity
from controllers.node_policy.plan.view import DeviceView
from crds.models.device_match import DeviceMatch, Function


def matches(match: DeviceMatch, device: DeviceView) -> bool:
    """All criteria that are given hold; a device whose value is unknown does not match a criterion that needs it."""
    return (
        of_kind(match, device)
        and (not match.addresses or device.address in match.addresses)
        and (not match.serials or device.serial in match.serials)
        and (not match.numa_nodes or device.numa_node in match.numa_nodes)
        and match.function in (Function.ANY, device.function)
    )


def of_kind(match: DeviceMatch, device: DeviceView) -> bool:
    """The criteria that say what a device is hold, whatever those say that tell which one (address, serial, …)."""
    return (
        (not match.vendors or device.vendor in match.vendors)
        and (not match.devices or device.device in match.devices)
        and (not match.subsystems or device.subsystem in match.subsystems)
        and (not match.classes or any(device.class_code.startswith(code) for code in match.classes))
        and (not match.products or device.product in match.products)
    )


def may_match(match: DeviceMatch, address: str, identity: Identity) -> bool:
    """For a device that is not in the inventory: whether what its order knows of it contradicts the match."""
    return (
        (not match.vendors or identity.vendor in match.vendors)
        and (not match.devices or identity.device in match.devices)
        and (not match.addresses or address in match.addresses)
        and (not match.serials or identity.serial in match.serials)
    )
