"""driver_override (drivers/base/driver.c driver_set_override)."""

from simulated_node.model.locks import take_lock
from simulated_node.model.state import Device, Machine
from simulated_node.rules.registry import rule

_SOURCE = "drivers/base/driver.c driver_set_override"
_PAGE = 4096

SET = rule(
    "override.set",
    "driver_override takes any text up to the first newline or NUL, and reads back with a newline.",
    source=_SOURCE,
)
REBINDS_NOTHING = rule(
    "override.rebinds-nothing",
    "Writing driver_override neither unbinds, nor probes, nor loads a module.",
    source="Documentation/ABI/testing/sysfs-bus-pci, driver_override",
)
NEWLINE_CLEARS = rule("override.newline-clears", "A newline alone clears it; it then reads (null).", source=_SOURCE)
NUL_CLEARS = rule("override.nul-clears", "A leading NUL clears it.", source=_SOURCE)
WITHOUT_LOCK = rule(
    "override.later-kernels-take-no-lock",
    "Later kernels (6.12.117 is one) take no lock of the device to write or read driver_override: it goes on while an "
    "unbind sleeps.",
    source="drivers/base/driver.c; measured on 6.12.117",
)
TOO_LONG = rule("override.too-long", "PAGE_SIZE - 1 bytes or more are refused.", errno="EINVAL", source=_SOURCE)


def write_override(machine: Machine, device: Device, text: str, operation: int) -> None:
    if len(text) >= _PAGE - 1:
        raise TOO_LONG.refuses(f"{len(text)} bytes for the driver_override of {device.address}")
    if machine.description.kernel.override_takes_lock:
        take_lock(device, operation)
    elif device.holder is not None:
        WITHOUT_LOCK.fires()
    text = text.split("\0", 1)[0]
    if not text:
        NUL_CLEARS.fires()
        device.override = None
    elif text.startswith("\n"):
        NEWLINE_CLEARS.fires()
        device.override = None
    else:
        SET.fires()
        device.override = text.split("\n", 1)[0]
    REBINDS_NOTHING.fires()
