"""What the binder says of a device in `status.bindings`: shared by who writes it and by whoever plans on it."""

from enum import StrEnum
from typing import Final


class BindingReason(StrEnum):
    """Why a device stands where it stands, by state; each is documented for users in the reference."""

    # Ready
    BOUND = "Bound"
    ADOPTED = "Adopted"
    NATIVE_DRIVER = "NativeDriver"
    LEFT_ALONE = "LeftAlone"
    COMPANION = "Companion"
    FUNCTIONS_BOUND = "FunctionsBound"
    # Pending
    BINDING = "Binding"
    RESTORING = "Restoring"
    HELD = "Held"
    ORPHANED = "Orphaned"
    # Released
    RELEASED = "Released"
    # Blocked: the device was not touched
    IN_USE = "InUse"
    PUBLISHED = "Published"
    VETOED = "Vetoed"
    COMPANIONS_REFUSED = "CompanionsRefused"
    COMPANION_IN_USE = "CompanionInUse"
    COMPANION_VETOED = "CompanionVetoed"
    COMPANION_MANAGED = "CompanionManaged"
    NO_IOMMU = "NoIOMMU"
    NO_DRIVER = "NoDriver"
    BOUND_BY_OTHERS = "BoundByOthers"
    MODULE_MISSING = "ModuleMissing"
    DRIVER_MISSING = "DriverMissing"
    IDENTITY_MISMATCH = "IdentityMismatch"
    DEVICE_MISSING = "DeviceMissing"
    DEVICE_UNREADABLE = "DeviceUnreadable"
    BRIDGE = "Bridge"
    GROUP_LOCKED = "GroupLocked"
    JOURNAL_UNREADABLE = "JournalUnreadable"
    NO_SRIOV = "NoSRIOV"
    TOO_MANY_FUNCTIONS = "TooManyFunctions"
    FUNCTIONS_OF_OTHERS = "FunctionsOfOthers"
    CHANGED = "Changed"
    # Failed
    BIND_FAILED = "BindFailed"
    FUNCTIONS_FAILED = "FunctionsFailed"
    RESTORE_FAILED = "RestoreFailed"
    VERIFY_FAILED = "VerifyFailed"
    WRITE_STUCK = "WriteStuck"
    DRIFT_LOOP = "DriftLoop"
    INTERNAL_ERROR = "InternalError"


WAITS_FOR_USERS: Final = frozenset({BindingReason.IN_USE, BindingReason.COMPANION_IN_USE, BindingReason.PUBLISHED})
"""Blocks that end when whoever has the device lets it go.

A device that is Blocked so may be taken from its users. So it is said only where nothing else is in the way: else they
would be evicted for a change that cannot be made.
"""
