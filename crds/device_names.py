"""Names of devices in ResourceSlices: made by who publishes a device, read by whoever meets it in an allocation.

A name is a DNS label and unique in the pool of its node. It carries the PCI address, so that what an allocation holds
can be told from the API alone.
"""

import re
from enum import StrEnum
from typing import Final

LONGEST_NAME: Final = 63
"""Length of a DNS label, the limit that the API server sets for the name of a device."""


class NamedKind(StrEnum):
    """What is published of a device, as its name begins."""

    VFIO = "vfio"
    NPU = "npu"
    VGPU = "vgpu"
    SOFT = "soft"
    HARD = "hard"


_WHOLE: Final = "|".join(kind for kind in NamedKind if kind is not NamedKind.HARD)
_ADDRESS: Final = r"([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])"
_NAME: Final = re.compile(rf"(?:(?:{_WHOLE})-{_ADDRESS}|hard-{_ADDRESS}-[a-z0-9](?:[-a-z0-9]*[a-z0-9])?-[0-9]+)")
_WIDE_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_MARKS: Final = str.maketrans(":._", "---")


def device_name(kind: NamedKind, address: str, *, template: str = "", number: int = 0) -> str:
    """The name under which the device at a PCI address (of a VF for vGPUs) is published.

    Partitions (`hard`) have a `template` and a `number`, from 0. Raises ValueError for what no name can be made of.
    """
    if not _WIDE_ADDRESS.fullmatch(address):
        raise ValueError(f"{address!r} is no PCI address")
    if (kind is NamedKind.HARD) != bool(template):
        raise ValueError(f"a name of kind {kind} has {'a' if kind is NamedKind.HARD else 'no'} template")
    parts = [str(kind), address, *([template, str(number)] if template else [])]
    name = "-".join(parts).lower().translate(_MARKS)
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a device: a DNS label has at most {LONGEST_NAME} letters of a-z0-9-")
    return name


def address_of(name: str) -> str | None:
    """The PCI address in the name of a device; None when npufleet makes no such names."""
    found = _NAME.fullmatch(name)
    if found is None or len(name) > LONGEST_NAME:
        return None
    domain, bus, device, function = [part for part in found.groups() if part is not None]
    return f"{domain}:{bus}:{device}.{function}"
