"""A node with more accelerators than an inventory lists: which are left out, and that it is said."""

from crds.catalogue import load_catalogue
from crds.models.device_match import Function
from crds.models.node_state import MAX_DEVICES
from node_host.pci.device import PCIDevice
from node_host.view import HostView
from tests.builders.objects import BOOT, NOW
from vfio_binder.report import inventory


def flex(address: str, card: str | None = None) -> PCIDevice:
    return PCIDevice(address, "8086", "56c0", "038000", physical_function=card)


def test_virtual_functions_beyond_the_bound_hide_no_card() -> None:
    cards = [f"0000:{bus:02x}:00.0" for bus in (0x21, 0x61, 0xC1)]
    parts = {f"{card[:8]}{slot:02x}.{number}": card for card in cards for slot in range(1, 32) for number in range(8)}
    devices = {address: flex(address) for address in cards} | {part: flex(part, card) for part, card in parts.items()}
    assert len(devices) > MAX_DEVICES
    view = HostView(BOOT, devices=dict(sorted(devices.items())))
    found = inventory(view, load_catalogue(), named=(), generation=1, now=NOW, former=None)
    listed = [device.address for device in found.devices]
    assert len(listed) == MAX_DEVICES
    assert listed == sorted(listed)
    assert set(cards) < set(listed)
    assert {d.physical_function for d in found.devices if d.function is Function.VIRTUAL} <= set(cards)
    [ready] = [condition for condition in found.conditions if condition.type == "Ready"]
    assert (str(ready.status), ready.reason) == ("True", "TooManyDevices")
    assert str(len(devices)) in ready.message
