"""The configuration space of a PCI function, as far as anybody reads it here.

Type 0 header (PCI Local Bus 3.0, 6.1), a PCI Express capability, and the Device Serial Number capability (PCI Express
Base, extended id 0x0003) where the device has a serial number.
"""

import struct

from simulated_node.description import Device

_EXPRESS_SIZE = 4096
_CONVENTIONAL_SIZE = 256
_CAPABILITY = 0x40
_PCI_EXPRESS = 0x10
_SERIAL_NUMBER = 0x0003
_EXTENDED = 0x100


def config_space(device: Device, bars: list[int]) -> bytes:
    """4096 bytes, 256 for a conventional function, little endian; ``bars`` are the addresses of its 64-bit BARs."""
    space = bytearray(_EXPRESS_SIZE if device.express else _CONVENTIONAL_SIZE)
    struct.pack_into("<HHHH", space, 0x00, int(device.vendor, 16), int(device.device, 16), 0x0006, 0x0010)
    space[0x08] = int(device.revision, 16)
    space[0x09:0x0C] = bytes.fromhex(device.pci_class)[::-1]
    space[0x0E] = 0x01 if device.is_bridge else 0x00
    if not device.is_bridge:
        for index, address in enumerate(bars[:3]):
            struct.pack_into("<Q", space, 0x10 + 8 * index, address | 0x0C)
        struct.pack_into("<HH", space, 0x2C, int(device.subsystem_vendor, 16), int(device.subsystem_device, 16))
    if not device.express:
        return bytes(space)
    space[0x34] = _CAPABILITY
    struct.pack_into("<BBH", space, _CAPABILITY, _PCI_EXPRESS, 0, 0x0042 if device.is_bridge else 0x0002)
    if device.serial is not None:
        number = int(device.serial, 16)
        struct.pack_into("<IQ", space, _EXTENDED, _SERIAL_NUMBER | 1 << 16, number)
    return bytes(space)
