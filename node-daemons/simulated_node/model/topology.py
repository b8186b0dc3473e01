"""Where a PCI function hangs in the device tree."""

from simulated_node.model.state import Device


def devpath(device: Device) -> str:
    """Its path below /sys."""
    return "/devices/" + "/".join((*device.ancestors, device.address))
