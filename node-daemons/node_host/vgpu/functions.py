"""What the virtual functions of a card are as vGPUs, read from their own files.

One function that cannot be read is a fault of that function alone.
Source: NVIDIA Virtual GPU Software User Guide, vendor-specific VFIO framework (`<VF>/nvidia/`).
"""

import errno
from dataclasses import dataclass
from typing import Final

from node_host.host import Host
from node_host.pci.device import DEVICES
from node_host.vgpu.types import TypeListError, VGPUType, parse_creatable, parse_current

CURRENT: Final = "nvidia/current_vgpu_type"
CREATABLE: Final = "nvidia/creatable_vgpu_types"
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class FunctionTypes:
    """The type of a virtual function, and those that it could take at the moment of reading.

    `current` is 0 for none, and None where it cannot be read (`fault` says why).
    """

    address: str
    current: int | None
    creatable: tuple[VGPUType, ...] = ()
    fault: str | None = None


def read_function(host: Host, address: str) -> FunctionTypes | None:
    """The function as a vGPU; None when it is none: it is gone, or its driver makes no vGPUs of it. Never raises."""
    path = f"{DEVICES}/{address}"
    try:
        current = parse_current(host.read(f"{path}/{CURRENT}"))
    except (OSError, TypeListError) as error:
        if isinstance(error, OSError) and error.errno in _ABSENT:
            return None
        return FunctionTypes(address, None, fault=f"{CURRENT}: {_words(error)}")
    try:
        creatable = parse_creatable(host.read(f"{path}/{CREATABLE}"))
    except (OSError, TypeListError) as error:
        return FunctionTypes(address, current, fault=f"{CREATABLE}: {_words(error)}")
    return FunctionTypes(address, current, creatable)


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror or error}"
    return str(error)
