"""vGPU types in the words of a driver: numbers that hold for one load of it, and names that last. Pure.

Source: NVIDIA Virtual GPU Software User Guide, vendor-specific VFIO framework (creatable_vgpu_types: a line above, then
`ID : name` a line).
"""

import re
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(r"^\s*([0-9]{1,10})\s*:\s*(\S.*?)\s*$")
_VENDOR_WORDS: Final = ("NVIDIA ", "GRID ")


class TypeListError(ValueError):
    """A list of types is none; the text quotes the line."""


@dataclass(frozen=True, slots=True, order=True)
class VGPUType:
    """One line of a driver's list: `id` holds for this load of the driver, `name` as the driver prints it."""

    id: int
    name: str

    @property
    def profile(self) -> str:
        """The name as maps have it."""
        return profile_of(self.name)


def profile_of(name: str) -> str:
    """The name without the vendor's word in front: `NVIDIA L40S-24Q` is the profile `L40S-24Q`."""
    for word in _VENDOR_WORDS:
        if name.startswith(word):
            return name.removeprefix(word).strip()
    return name.strip()


def parse_creatable(data: bytes) -> tuple[VGPUType, ...]:
    """The types of a list, in its order. Raises TypeListError for a line that is neither a type nor the heading."""
    found = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines()):
        match = _LINE.match(line)
        if match is not None:
            found.append(VGPUType(int(match[1]), match[2]))
        elif line.strip() and number > 0:
            raise TypeListError(f"{line.strip()[:80]!r} is no type")
    return tuple(found)


def parse_current(data: bytes) -> int:
    """The number in current_vgpu_type, 0 for none. Raises TypeListError."""
    text = data.decode("utf-8", "replace").strip()
    if not text.isascii() or not text.isdecimal():
        raise TypeListError(f"{text[:80]!r} is no number of a type")
    return int(text)
