"""The device lock: the driver core does one thing at a time to a device (drivers/base, device_lock)."""

from simulated_node.model.state import Device
from simulated_node.rules.registry import WouldBlockError, rule

ONE_AT_A_TIME = rule(
    "device.one-operation-at-a-time",
    "bind, unbind and, before late 6.12, driver_override take the device's lock: while an unbind sleeps, each of them "
    "sleeps too.",
    source="drivers/base/dd.c device_driver_detach; drivers/base/driver.c driver_set_override",
)


def take_lock(device: Device, operation: int, keeping: tuple[str, ...] = ()) -> None:
    """Go on only when no other operation sleeps with the device's lock; ``keeping`` are the locks held already."""
    if device.holder not in (None, operation):
        raise WouldBlockError(ONE_AT_A_TIME, holds=keeping)
