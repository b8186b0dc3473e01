"""What the publisher says of a device in `status.publication`: shared by who writes it and by whoever plans on it."""

from enum import StrEnum
from typing import Final


class PublicationReason(StrEnum):
    """How far a device is on its way to pods and VMs, or why it does not get there."""

    # Ready
    PUBLISHED = "Published"
    NOT_BY_CLAIMS = "NotByClaims"
    """As ordered, and given to VMs in another way than by claims."""
    # Pending
    WAITS_FOR_BINDING = "WaitsForBinding"
    """A daemon that prepares the device has not reported it Ready, of these orders and in this boot."""
    HAND_OVER = "HandOver"
    """Withheld from new users, because its orders changed; claims on it are still allocated."""
    HANDED_OVER = "HandedOver"
    """Withheld, and left to the daemon that changes it."""
    # Blocked: nobody gets it
    OTHER_PLUGIN = "OtherPlugin"
    INVALID_DEVICE = "InvalidDevice"
    MODE_NOT_PUBLISHED = "ModeNotPublished"
    # Blocked: it keeps its place, with a taint that keeps new users away (these words are the taint's value)
    NOT_READY = "NotReady"
    VETOED = "Vetoed"
    USED_OUTSIDE = "UsedOutside"
    DRIVER_CHANGED = "DriverChanged"
    UNHEALTHY = "Unhealthy"
    # Released
    WITHDRAWN = "Withdrawn"


WITHHELD: Final = frozenset({PublicationReason.HAND_OVER, PublicationReason.HANDED_OVER})
"""Nobody new gets the device, and who has it may keep it for the time being."""

NEVER_OFFERED: Final = frozenset(
    {
        PublicationReason.WAITS_FOR_BINDING,
        PublicationReason.OTHER_PLUGIN,
        PublicationReason.INVALID_DEVICE,
        PublicationReason.MODE_NOT_PUBLISHED,
        PublicationReason.WITHDRAWN,
    }
)
"""The device is listed in the report alone: it is in no slice, and no pod has it from there."""


class PublicationConditionType(StrEnum):
    """Conditions of `status.publication`."""

    READY = "Ready"
    REGISTERED = "Registered"
    CHECKPOINT_INTACT = "CheckpointIntact"


class PublicationConditionReason(StrEnum):
    """Stable reasons in them."""

    # Ready
    ALL_DEVICES_PUBLISHED = "AllDevicesPublished"
    NOTHING_ORDERED = "NothingOrdered"
    DEVICES_BLOCKED = "DevicesBlocked"
    DEVICES_PENDING = "DevicesPending"
    ORDERS_HELD = "OrdersHeld"
    NOT_PUBLISHED = "NotPublished"
    """The API server or a file could not be written; the message says which."""
    # Registered
    REGISTERED = "KubeletRegistered"
    NOT_REGISTERED = "KubeletNotRegistered"
    # CheckpointIntact
    CHECKPOINT_READ = "CheckpointRead"
    CHECKPOINT_LOST = "CheckpointLost"
