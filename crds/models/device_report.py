"""What a daemon says of one device of its node: how far it has come, and why."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from crds.models.base import Model, PCIAddress, Reason, ShortText


class DeviceState(StrEnum):
    """How far a daemon has come with a device."""

    READY = "Ready"
    PENDING = "Pending"
    BLOCKED = "Blocked"
    FAILED = "Failed"
    RELEASED = "Released"


class DeviceReport(Model):
    """What a daemon says of one device."""

    address: Annotated[PCIAddress, Field(description="PCI address (BDF).")]
    state: Annotated[DeviceState, Field(description="`Ready`, `Pending`, `Blocked`, `Failed` or `Released`.")]
    reason: Annotated[Reason, Field(description="One stable CamelCase word.")]
    message: Annotated[ShortText, Field(description="The same for a human, with the name of the user or the fix.")] = ""
