"""What the profile writer says of a card or a vGPU in `status.profiles`: shared by its writer and by planners."""

from enum import StrEnum


class ProfileReason(StrEnum):
    """Why a card or one of its vGPUs stands where it stands, by state; reasons that the binder has too mean the same.

    A card is as far as the worst of its vGPUs, and then has that one's reason.
    """

    # Ready
    TYPED = "Typed"
    ADOPTED = "Adopted"
    UNASSIGNED = "Unassigned"
    """A function beyond the layout that carries a type of others, and may."""
    # Pending
    TYPING = "Typing"
    HELD = "Held"
    RESTORING = "Restoring"
    LIST_EMPTY = "ListEmpty"
    """The driver offers the card no type at all; the message says why, where that can be found out."""
    # Released
    RELEASED = "Released"
    # Blocked: nothing was changed
    IN_USE = "InUse"
    PUBLISHED = "Published"
    VETOED = "Vetoed"
    DRIVER_MISSING = "DriverMissing"
    FRAMEWORK_MISSING = "FrameworkMissing"
    """The card is in another mode: its driver makes no vGPUs, or not in the ordered way."""
    MIG_ENABLED = "MIGEnabled"
    PROFILE_UNKNOWN = "ProfileUnknown"
    NO_ROOM = "NoRoom"
    MIXED_SIZES_FORBIDDEN = "MixedSizesForbidden"
    TOOL_MISSING = "ToolMissing"
    """What is ordered needs the vendor's tool, and the host has none."""
    TYPE_UNKNOWN = "TypeUnknown"
    """A function has a type whose name nothing tells."""
    TOO_FEW_FUNCTIONS = "TooFewFunctions"
    IDENTITY_MISMATCH = "IdentityMismatch"
    DEVICE_MISSING = "DeviceMissing"
    DEVICE_UNREADABLE = "DeviceUnreadable"
    GROUP_LOCKED = "GroupLocked"
    JOURNAL_UNREADABLE = "JournalUnreadable"
    CHANGED = "Changed"
    # Failed
    FUNCTIONS_FAILED = "FunctionsFailed"
    MIXED_SIZES_FAILED = "MixedSizesFailed"
    TYPE_FAILED = "TypeFailed"
    RESTORE_FAILED = "RestoreFailed"
    WRITE_STUCK = "WriteStuck"
    DRIFT_LOOP = "DriftLoop"
    INTERNAL_ERROR = "InternalError"


class ProfilesConditionReason(StrEnum):
    """Reasons of the condition Ready of `status.profiles`."""

    ALL_CARDS_TYPED = "AllCardsTyped"
    NOTHING_ORDERED = "NothingOrdered"
    CARDS_BLOCKED = "CardsBlocked"
    CARDS_PENDING = "CardsPending"
    CARDS_FAILED = "CardsFailed"
    ORDERS_HELD = "OrdersHeld"
