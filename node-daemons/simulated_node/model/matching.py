"""Which driver takes which device: the PCI core's match (drivers/pci/pci-driver.c, pci_match_device)."""

from simulated_node.description import Device, MatchId
from simulated_node.model.state import Device as DeviceState
from simulated_node.model.state import Driver, DynamicId
from simulated_node.rules.registry import rule

_CORE = "drivers/pci/pci-driver.c pci_match_device"

OVERRIDE_EXCLUDES = rule(
    "match.override-excludes-other-drivers",
    "A device with driver_override is matched by the driver of that name alone, its own native driver included.",
    source=_CORE,
)
OVERRIDE_MATCHES_ANY_ID = rule(
    "match.override-matches-any-id",
    "The driver named by driver_override matches the device whatever the driver's id table says.",
    source=_CORE,
)
OVERRIDE_ONLY = rule(
    "match.override-only-ids",
    "Ids marked override-only (vfio variant drivers since 5.16) match only a device whose driver_override is set.",
    source=f"{_CORE}; include/linux/mod_devicetable.h PCI_ID_F_VFIO_DRIVER_OVERRIDE",
)

LATER_ONES = rule(
    "ids.new-id-takes-later-ones",
    "An id stays with its driver: devices that come later, VFs too, are taken when no driver before it matches.",
    source="drivers/pci/pci-driver.c pci_match_device: dynamic ids come before the static table",
)


def matches(driver: Driver, device: DeviceState) -> bool:
    if device.override is not None:
        if device.override != driver.name:
            OVERRIDE_EXCLUDES.fires()
            return False
        OVERRIDE_MATCHES_ANY_ID.fires()
        return True
    if any(dynamic_id_matches(row, device.description) for row in driver.dynamic_ids):
        LATER_ONES.fires()
        return True
    if any(id_matches(row, device.description) for row in driver.description.ids):
        return True
    if any(id_matches(row, device.description) for row in driver.description.override_only_ids):
        OVERRIDE_ONLY.fires()
    return False


def id_matches(row: MatchId, device: Device) -> bool:
    return (
        row.vendor in (None, device.vendor)
        and row.device in (None, device.device)
        and (row.pci_class is None or device.pci_class.startswith(row.pci_class))
    )


def dynamic_id_matches(row: DynamicId, device: Device) -> bool:
    """pci_match_one_device."""
    return (
        row.vendor in (None, int(device.vendor, 16))
        and row.device in (None, int(device.device, 16))
        and row.subsystem_vendor in (None, int(device.subsystem_vendor, 16))
        and row.subsystem_device in (None, int(device.subsystem_device, 16))
        and not (row.pci_class ^ int(device.pci_class, 16)) & row.class_mask
    )


def modalias(device: Device) -> str:
    """Documentation/ABI: pci:vVVVVVVVVdDDDDDDDDsvSSSSSSSSsdSSSSSSSSbcBBscSSiII, upper-case hex."""
    base, sub, interface = device.pci_class[:2], device.pci_class[2:4], device.pci_class[4:]
    return (
        f"pci:v0000{device.vendor.upper()}d0000{device.device.upper()}"
        f"sv0000{device.subsystem_vendor.upper()}sd0000{device.subsystem_device.upper()}"
        f"bc{base.upper()}sc{sub.upper()}i{interface.upper()}"
    )


def alias_pattern(row: MatchId) -> str:
    """An id row as scripts/mod/file2alias.c writes it into modules.alias, without the prefix."""

    def number(digits: str | None) -> str:
        return f"0000{digits.upper()}" if digits else "*"

    parts = [(row.pci_class or "")[start : start + 2].upper() or "*" for start in (0, 2, 4)]
    return f"v{number(row.vendor)}d{number(row.device)}sv*sd*bc{parts[0]}sc{parts[1]}i{parts[2]}"
