"""Where a PCI function hangs in the device tree."""

from simulated_node.model.state import Device


def devpath(device: Device) -> str:
    """Its path below /sys."""
    return "/devices/" + "/".join((*device.ancestors, device.address))


def depth_first(devices: dict[str, Device]) -> list[Device]:
    """Parents before children, then by address: the order in which a bus is scanned."""
    return sorted(devices.values(), key=lambda device: (len(device.ancestors), device.address))
