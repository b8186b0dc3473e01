"""Ids added to a driver at run time (drivers/pci/pci-driver.c new_id_store, remove_id_store)."""

from simulated_node.description import Device as DeviceDescription
from simulated_node.description import DriverKind
from simulated_node.model.binding import attach_driver
from simulated_node.model.formats import hexadecimals
from simulated_node.model.locks import take_lock
from simulated_node.model.matching import dynamic_id_matches, id_matches
from simulated_node.model.state import Driver, DynamicId, Machine
from simulated_node.rules.registry import rule

_SOURCE = "drivers/pci/pci-driver.c new_id_store, remove_id_store"

BAD_FORMAT = rule(
    "ids.bad-format",
    "new_id and remove_id want vendor and device, and take subsystem vendor and device, class and class mask, all in "
    "hexadecimal with blanks between; what comes after them is not looked at.",
    errno="EINVAL",
    source=f"{_SOURCE}: sscanf",
)
BAD_DATA = rule(
    "ids.unknown-driver-data",
    "A seventh number is the driver's own and has to stand in its id table, where it has one.",
    errno="EINVAL",
    source="drivers/pci/pci-driver.c new_id_store",
)
EXISTS = rule(
    "ids.exists",
    "new_id refuses an id that the driver knows already, unless all seven numbers are given.",
    errno="EEXIST",
    source=_SOURCE,
)
TWINS = rule(
    "ids.new-id-takes-twins",
    "new_id at once probes every driverless device with the same ids, not one of them.",
    source=_SOURCE,
)
NEVER_MATCHES = rule(
    "ids.wide-number-matches-nothing",
    "Numbers of more than 16 bits are taken and match no device; ffffffff matches any.",
    source="include/linux/mod_devicetable.h pci_device_id: 32 bits; PCI_ANY_ID",
)
UNKNOWN = rule("ids.no-such-id", "remove_id refuses an id that was not added.", errno="ENODEV", source=_SOURCE)
REMOVED = rule(
    "ids.remove-keeps-bindings", "remove_id leaves devices that the driver holds where they are.", source=_SOURCE
)

_ANY = 0xFFFF_FFFF
_NUMBERS = 7


def new_id(machine: Machine, driver: Driver, text: str, operation: int) -> None:
    numbers = hexadecimals(text, _NUMBERS)
    row = _row(numbers, text)
    if len(numbers) < _NUMBERS:
        if _knows(driver, row):
            raise EXISTS.refuses(f"{driver.name} has {text.strip()!r} already")
    elif numbers[6] != 0 and driver.description.kind is not DriverKind.STUB:
        # No driver of a description has other data than 0 in its table; pci-stub has no table.
        raise BAD_DATA.refuses(f"{driver.name} has no {numbers[6]:#x} in its table")
    # Before anything changes: an operation that sleeps starts over.
    for device in machine.devices.values():
        if dynamic_id_matches(row, device.description):
            take_lock(device, operation)
    if max(row.vendor or 0, row.device or 0) > 0xFFFF:
        NEVER_MATCHES.fires()
    driver.dynamic_ids.append(row)
    attach_driver(machine, driver, operation)
    TWINS.fires()


def remove_id(driver: Driver, text: str) -> None:
    row = _row(hexadecimals(text, _NUMBERS - 1), text)
    for known in driver.dynamic_ids:
        if (
            (known.vendor, known.device) == (row.vendor, row.device)
            and row.subsystem_vendor in (None, known.subsystem_vendor)
            and row.subsystem_device in (None, known.subsystem_device)
            and not (known.pci_class ^ row.pci_class) & row.class_mask
        ):
            driver.dynamic_ids.remove(known)
            REMOVED.fires()
            return
    raise UNKNOWN.refuses(f"{driver.name} was not given {text.strip()!r}")


def _knows(driver: Driver, row: DynamicId) -> bool:
    """Whether the driver matches a device with just these ids; the core makes one up to see."""

    def digits(number: int | None) -> str:
        return f"{(_ANY if number is None else number) & 0xFFFF:04x}"

    bare = DeviceDescription(
        address="0000:00:00.0",
        parent="pci0000:00",
        vendor=digits(row.vendor),
        device=digits(row.device),
        subsystem_vendor=digits(row.subsystem_vendor),
        subsystem_device=digits(row.subsystem_device),
        pci_class=f"{row.pci_class & 0xFFFFFF:06x}",
    )
    return any(dynamic_id_matches(known, bare) for known in driver.dynamic_ids) or any(
        id_matches(known, bare) for known in driver.description.ids
    )


def _row(numbers: list[int], text: str) -> DynamicId:
    if len(numbers) < 2:
        raise BAD_FORMAT.refuses(f"not an id: {text.strip()!r}")
    vendor, device, subsystem_vendor, subsystem_device = [
        None if number == _ANY else number for number in (*numbers, _ANY, _ANY)[:4]
    ]
    pci_class, class_mask = (*numbers[4:6], 0, 0)[:2]
    return DynamicId(vendor, device, subsystem_vendor, subsystem_device, pci_class, class_mask)
