"""What the parts of a description are made of."""

import errno
import ipaddress
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

# "Try again later", which the kernel keeps to itself: user space has no errno for it.
PROBE_DEFER = "EPROBE_DEFER"

Address = Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]$")]
Parent = Annotated[str, Field(pattern=r"^(pci[0-9a-f]{4}:[0-9a-f]{2}|[0-9a-f]{4}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7])$")]
Hex2 = Annotated[str, Field(pattern=r"^[0-9a-f]{2}$")]
Hex4 = Annotated[str, Field(pattern=r"^[0-9a-f]{4}$")]
Hex6 = Annotated[str, Field(pattern=r"^[0-9a-f]{6}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
HostPath = Annotated[str, Field(pattern=r"^/[\x20-\x7e]*$")]
DeviceNumber = Annotated[str, Field(pattern=r"^[0-9]{1,4}:[0-9]{1,7}$")]


def _is_interface_address(value: str) -> str:
    ipaddress.ip_interface(value)
    return value


def _is_address(value: str) -> str:
    ipaddress.ip_address(value)
    return value


def _is_errno(value: str) -> str:
    if value != PROBE_DEFER and not hasattr(errno, value):
        raise ValueError(f"no errno is called {value!r}")
    return value


Errno = Annotated[str, AfterValidator(_is_errno)]
InterfaceAddress = Annotated[str, AfterValidator(_is_interface_address)]
Gateway = Annotated[str, AfterValidator(_is_address)]


class DescriptionError(ValueError):
    """A description that is not one; the message names source, field and fault, one a line."""


class Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)
