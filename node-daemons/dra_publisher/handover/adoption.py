"""What a former publisher offered, read back from the slices: names and taints tell all that matters. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from crds.device_names import NamedKind, address_of
from crds.models.modes import Mode
from crds.models.node_state import DecidedBy, DesiredDevice, DeviceIdentity, Intent
from dra_publisher.handover.situation import Situation
from dra_publisher.offers.offer import Offer
from dra_publisher.offers.prerequisites import recipe
from dra_publisher.slices.device import Object, offer_from_device

_MODES: Final = {NamedKind.VFIO: Mode.PASSTHROUGH, NamedKind.NPU: Mode.CONTAINER}
_UNKNOWN: Final = "unknown"


def adopted(
    existing: Mapping[str, Iterable[str]], device: Callable[[str, str], Object | None], situation: Situation
) -> list[Offer]:
    """``existing`` are the names in our slices by driver, ``device`` gives the slice's entry.

    A device that is there no more, and names that npufleet does not make, are left out: nobody is to get them.
    """
    offers = []
    for driver in sorted(existing):
        for name in sorted(existing[driver]):
            address, body = address_of(name), device(driver, name)
            entry = None if address is None else _entry(situation, address, name, driver)
            offer = None if body is None or entry is None else offer_from_device(body, driver, entry)
            if offer is not None:
                offers.append(offer)
    return offers


def _entry(situation: Situation, address: str, name: str, driver: str) -> DesiredDevice | None:
    """The order that it was published for, as far as the present one still says so."""
    kind = NamedKind(name.partition("-")[0])
    present = situation.responsible(address)
    how = recipe(present.mode) if present is not None else None
    if present is not None and how is not None and how.kind is kind:
        if present.driver_name == driver:
            return present
        return present.model_copy(update={"driver_name": driver})
    there, mode = situation.view.devices.get(address), _MODES.get(kind)
    if there is None or mode is None:
        return None
    return DesiredDevice(
        address=address,
        identity=DeviceIdentity(vendor=there.vendor, device=there.device),
        mode=mode,
        intent=Intent.HOLD,
        driver_name=driver,
        decided_by=DecidedBy(policy=_UNKNOWN, rule=_UNKNOWN),
    )
