"""Conditions and reasons of vGPUs, documented for users: of a map, and of the profile writer's report."""

from typing import Final

from crds.models.documented import ConditionDoc, ReasonTable, reasons
from crds.models.node_state import DeviceState
from crds.models.profile_map import MapConditionType, MapReason
from crds.models.profiling import ProfileReason, ProfilesConditionReason

_SEE: Final = "see `problems`"

MAP: Final = (
    ConditionDoc(
        "status",
        MapConditionType.READY,
        "Every vGPU that the map asks for is there on every card that a policy gives it to, observed in this boot.",
        reasons(
            (MapReason.ALL_TYPED, "True", "All vGPUs are there."),
            (MapReason.NOT_USED, "True", "No card is ordered to carry it: nothing to do."),
            (MapReason.CARDS_FAILED, "False", f"The host refused a change; {_SEE}."),
            (MapReason.CARDS_BLOCKED, "False", f"Cards may not be changed, or cannot carry the layout; {_SEE}."),
            (MapReason.CARDS_PENDING, "False", "Cards are changing, wait for their turn, or keep what they carry."),
            (MapReason.DAEMON_MISSING, "False", "No npufleet-profile-writer reports on a node with such a card."),
            (MapReason.INVALID, "False", "The map cannot be understood; the message names the field."),
            (MapReason.DAEMON_SILENT, "Unknown", "A node's npufleet-profile-writer has not renewed its Lease."),
            (MapReason.NODES_UNREADABLE, "Unknown", "The NPUNodeState of a node cannot be understood."),
            (
                MapReason.REBOOTED,
                "Unknown",
                "A node has booted and its profile writer has not reported since.",
            ),
        ),
    ),
    ConditionDoc(
        "status",
        MapConditionType.ACCEPTED,
        "The map can be carried out as it is written.",
        reasons(
            (MapReason.VALID, "True", "The map is understood."),
            (MapReason.INVALID, "False", "The map cannot be understood; cards keep what they carry."),
        ),
    ),
)

MAP_PROBLEMS: Final = ReasonTable(
    "status.problems[].reason",
    "Why a vGPU or a card is not as the map asks: reasons of the profile writer (see NPUNodeState), and these.",
    reasons(
        ("DaemonMissing", "", "No npufleet-profile-writer reports on the node."),
        ("DaemonSilent", "", "It has not renewed its Lease for 15 minutes."),
        ("Rebooted", "", "The node has booted and it has not reported since."),
        ("CardsPending", "", "It has not answered the present orders yet."),
        ("CardsFailed", "", "Its report cannot be understood."),
        (
            "NodesUnreadable",
            "",
            "The NPUNodeState of the node cannot be understood.",
        ),
    ),
)

PROFILES: Final = (
    ConditionDoc(
        "status.profiles",
        "Ready",
        "Every ordered card carries its layout, observed in this boot.",
        reasons(
            (ProfilesConditionReason.ALL_CARDS_TYPED, "True", "All do."),
            (ProfilesConditionReason.NOTHING_ORDERED, "True", "No card is ordered to carry vGPUs."),
            (ProfilesConditionReason.CARDS_FAILED, "False", "The host refused a change."),
            (ProfilesConditionReason.CARDS_BLOCKED, "False", "Cards may not be changed, or cannot carry their layout."),
            (ProfilesConditionReason.CARDS_PENDING, "False", "Cards are changing, or are left as they are."),
            (ProfilesConditionReason.ORDERS_HELD, "Unknown", "The orders are not followed; the message says why."),
        ),
    ),
    ConditionDoc(
        "status.profiles",
        "RecordIntact",
        "The writer knows what each card had before npufleet changed it.",
        reasons(
            ("RecordRead", "True", "It does."),
            ("RecordUnreadable", "False", "The record was not whole; the message names the file and what to do."),
        ),
    ),
)

_MEANINGS: Final = {
    ProfileReason.TYPED: (DeviceState.READY, "npufleet gave it its profile."),
    ProfileReason.ADOPTED: (DeviceState.READY, "It had its profile already."),
    ProfileReason.UNASSIGNED: (DeviceState.READY, "It carries a type of others that no layout asks for, and may."),
    ProfileReason.TYPING: (DeviceState.PENDING, "It is being changed."),
    ProfileReason.HELD: (DeviceState.PENDING, "The orders are to leave it as it is, and it is not as ordered."),
    ProfileReason.RESTORING: (DeviceState.PENDING, "It is being given back."),
    ProfileReason.LIST_EMPTY: (
        DeviceState.PENDING,
        "The driver offers no type now; the message says what is known.",
    ),
    ProfileReason.RELEASED: (DeviceState.RELEASED, "Nothing of npufleet is left on it."),
    ProfileReason.IN_USE: (DeviceState.BLOCKED, "Somebody uses it; the message names the user."),
    ProfileReason.PUBLISHED: (DeviceState.BLOCKED, "Pods may have it: the publisher has to hand it over first."),
    ProfileReason.VETOED: (DeviceState.BLOCKED, "The host needs it."),
    ProfileReason.DRIVER_MISSING: (DeviceState.BLOCKED, "The card is not on its vGPU host driver."),
    ProfileReason.FRAMEWORK_MISSING: (
        DeviceState.BLOCKED,
        "Its driver makes no vGPUs, or not in the ordered way.",
    ),
    ProfileReason.MIG_ENABLED: (DeviceState.BLOCKED, "MIG mode is on; the message has the command."),
    ProfileReason.PROFILE_UNKNOWN: (
        DeviceState.BLOCKED,
        "The driver has no such profile; the message has its own.",
    ),
    ProfileReason.NO_ROOM: (DeviceState.BLOCKED, "The profile does not fit beside what the card carries."),
    ProfileReason.MIXED_SIZES_FORBIDDEN: (
        DeviceState.BLOCKED,
        "Its layout has several sizes, and its map forbids it.",
    ),
    ProfileReason.TOOL_MISSING: (DeviceState.BLOCKED, "Its layout needs a program that the host lacks."),
    ProfileReason.TYPE_UNKNOWN: (DeviceState.BLOCKED, "It has a type whose name nothing tells."),
    ProfileReason.TOO_FEW_FUNCTIONS: (
        DeviceState.BLOCKED,
        "There are fewer virtual functions than vGPUs ordered.",
    ),
    ProfileReason.IDENTITY_MISMATCH: (DeviceState.BLOCKED, "Another device than the ordered one is at the address."),
    ProfileReason.DEVICE_MISSING: (DeviceState.BLOCKED, "There is no device at the address."),
    ProfileReason.DEVICE_UNREADABLE: (DeviceState.BLOCKED, "It cannot be read."),
    ProfileReason.GROUP_LOCKED: (DeviceState.BLOCKED, "Another process changes the card."),
    ProfileReason.JOURNAL_UNREADABLE: (DeviceState.BLOCKED, "The record cannot be written, so nothing is changed."),
    ProfileReason.CHANGED: (DeviceState.BLOCKED, "It has changed since it was looked at."),
    ProfileReason.FUNCTIONS_FAILED: (DeviceState.FAILED, "Its virtual functions could not be enabled, or disabled."),
    ProfileReason.MIXED_SIZES_FAILED: (DeviceState.FAILED, "Its mixed-size mode could not be set."),
    ProfileReason.TYPE_FAILED: (DeviceState.FAILED, "The driver did not take the type."),
    ProfileReason.RESTORE_FAILED: (DeviceState.FAILED, "It could not be given back."),
    ProfileReason.WRITE_STUCK: (DeviceState.FAILED, "A write, or a program of the vendor, has not come back."),
    ProfileReason.DRIFT_LOOP: (DeviceState.FAILED, "Somebody undoes it again and again."),
    ProfileReason.INTERNAL_ERROR: (DeviceState.FAILED, "A fault of npufleet; the log says more."),
}

VGPUS: Final = ReasonTable(
    "status.profiles.devices[].reason, status.profiles.devices[].vgpus[].reason",
    "Why a card or a vGPU stands where it stands.",
    reasons(*((reason, state, meaning) for reason, (state, meaning) in _MEANINGS.items())),
)
