"""Why a device stands where it stands: the stable words in NPUNodeState.status.bindings."""

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Reasons by state; each is documented for users in the reference."""

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


WAITS_FOR_USERS: Final = frozenset({Reason.IN_USE, Reason.COMPANION_IN_USE, Reason.PUBLISHED})
"""Blocks that end when whoever has the device lets it go.

A device that is Blocked so may be taken from its users. So it is said only where nothing else is in the way: else they
would be evicted for a change that cannot be made.
"""
