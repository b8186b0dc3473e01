"""Ids added to a driver at run time (drivers/pci/pci-driver.c new_id_store, remove_id_store)."""

from simulated_node.description import MatchId
from simulated_node.model.binding import attach_driver
from simulated_node.model.locks import take_lock
from simulated_node.model.matching import id_matches
from simulated_node.model.state import Driver, Machine
from simulated_node.rules.registry import rule

_SOURCE = "drivers/pci/pci-driver.c new_id_store, remove_id_store"

BAD_FORMAT = rule(
    "ids.bad-format",
    "new_id and remove_id want at least vendor and device in hexadecimal.",
    errno="EINVAL",
    source=_SOURCE,
)
EXISTS = rule("ids.exists", "new_id refuses an id that the driver knows already.", errno="EEXIST", source=_SOURCE)
TWINS = rule(
    "ids.new-id-takes-twins",
    "new_id at once probes every driverless device with the same ids, not one of them.",
    source=_SOURCE,
)
UNKNOWN = rule("ids.no-such-id", "remove_id refuses an id that was not added.", errno="ENODEV", source=_SOURCE)
REMOVED = rule(
    "ids.remove-keeps-bindings", "remove_id leaves devices that the driver holds where they are.", source=_SOURCE
)


def new_id(machine: Machine, driver: Driver, text: str, operation: int) -> None:
    row = _parse(text)
    if any(_covers(known, row) for known in (*driver.dynamic_ids, *driver.description.ids)):
        raise EXISTS.refuses(f"{driver.name} has {text.strip()!r} already")
    # Before anything changes: an operation that sleeps starts over.
    for device in machine.devices.values():
        if id_matches(row, device.description):
            take_lock(device, operation)
    driver.dynamic_ids.append(row)
    attach_driver(machine, driver, operation)
    TWINS.fires()


def _covers(known: MatchId, row: MatchId) -> bool:
    """The core compares a bare device with these ids: rows that want a class do not match it."""
    return known.pci_class is None and known.vendor in (None, row.vendor) and known.device in (None, row.device)


def remove_id(driver: Driver, text: str) -> None:
    row = _parse(text)
    if row not in driver.dynamic_ids:
        raise UNKNOWN.refuses(f"{driver.name} was not given {text.strip()!r}")
    driver.dynamic_ids.remove(row)
    REMOVED.fires()


def _parse(text: str) -> MatchId:
    words = text.split("\0", 1)[0].split()
    try:
        numbers = [int(word, 16) for word in words]
    except ValueError:
        numbers = []
    if len(numbers) < 2 or not all(0 <= number <= 0xFFFF for number in numbers[:2]):
        raise BAD_FORMAT.refuses(f"not an id: {text.strip()!r}")
    return MatchId(vendor=f"{numbers[0]:04x}", device=f"{numbers[1]:04x}")
