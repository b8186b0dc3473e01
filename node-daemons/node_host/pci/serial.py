"""The serial number of a PCI function, from the two places that do not depend on a vendor.

First the Device Serial Number capability of config space (PCI Express Base Specification, extended capability 0x0003),
then keyword SN of the Vital Product Data (PCI Local Bus Specification 3.0, appendix I). Nothing else is asked: a number
from a driver would change with the driver, and identity must not.
"""

import re
from collections.abc import Callable
from typing import Final

_EXTENDED: Final = 0x100
_CONFIG_SIZE: Final = 0x1000
_DEVICE_SERIAL_NUMBER: Final = 0x0003
_VPD_READ_ONLY: Final = 0x90
_VPD_END: Final = 0x0F
_PRINTABLE = re.compile(r"[!-~]{1,64}")


def serial_number(config: Callable[[], bytes | None], vpd: Callable[[], bytes | None]) -> str | None:
    """The serial, or None. Both are asked lazily: reading VPD is slow, so it is read only without the capability."""
    return device_serial_number(config() or b"") or vpd_serial_number(vpd() or b"")


def device_serial_number(config: bytes) -> str | None:
    """Eight bytes as `00-11-22-33-44-55-66-77`, highest first, as lspci prints them; None when there are none.

    All zeros and all ones mean that nobody wrote a number. The first 64 bytes alone (all that a reader without
    privileges gets) have no extended capabilities.
    """
    offset, seen = _EXTENDED, set[int]()
    while _EXTENDED <= offset <= min(len(config), _CONFIG_SIZE) - 4 and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _DEVICE_SERIAL_NUMBER:
            number = config[offset + 4 : offset + 12]
            if len(number) < 8 or number in (b"\0" * 8, b"\xff" * 8):
                return None
            return "-".join(f"{byte:02x}" for byte in reversed(number))
        offset = header >> 20 & 0xFFC
    return None


def vpd_serial_number(vpd: bytes) -> str | None:
    """Keyword SN of the read-only section, without blanks around it; None when it is missing or not printable."""
    position = 0
    while position < len(vpd):
        tag = vpd[position]
        if not tag & 0x80:
            if tag >> 3 & 0x0F == _VPD_END:
                return None
            position += 1 + (tag & 0x07)
            continue
        length = int.from_bytes(vpd[position + 1 : position + 3], "little")
        start = position + 3
        if tag == _VPD_READ_ONLY:
            return _keyword(vpd[start : start + length], b"SN")
        position = start + length
    return None


def _keyword(section: bytes, wanted: bytes) -> str | None:
    position = 0
    while position + 3 <= len(section):
        length = section[position + 2]
        value = section[position + 3 : position + 3 + length]
        if section[position : position + 2] == wanted:
            text = value.decode("ascii", "replace").strip(" \0")
            return text if len(value) == length and _PRINTABLE.fullmatch(text) else None
        position += 3 + length
    return None
