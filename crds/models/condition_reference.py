"""What the conditions and reasons of each kind mean: the text of the reference and of ``npufleet explain``.

Kept apart from the constants, because code that sets a reason needs no prose. The constants of the controllers and
daemons live beside their plans; a test holds the tables here against them.
"""

from typing import Final

from crds.models.documented import ConditionDoc as ConditionDoc
from crds.models.documented import ReasonDoc as ReasonDoc
from crds.models.documented import ReasonTable as ReasonTable
from crds.models.documented import reasons as _reasons
from crds.models.node_policy import PolicyConditionType, PolicyReason
from crds.models.node_state import DeviceState
from crds.models.publication import PublicationConditionReason, PublicationConditionType, PublicationReason
from crds.models.vgpu_reference import MAP, MAP_PROBLEMS, PROFILES, VGPUS

_SEE_BLOCKERS: Final = "see `blockers`"
_NO_PROGRESS: Final = "Nothing has moved for `rollout.progressDeadlineSeconds`."
_FAILED: Final = f"The host refused a change; {_SEE_BLOCKERS}."
_INVALID: Final = "The policy cannot be understood; its devices stay as they are. The message names the field."
_SILENT: Final = "A daemon of the node has not renewed its Lease for 15 minutes."
_REBOOTED: Final = "The node has booted and a daemon has not reported since."
_MISSING: Final = "The mode needs a daemon that does not report on the node."
_NO_CLASS: Final = (
    "A DeviceClass by which pods ask for its devices does not exist; `npufleet deviceclasses NAME` prints those of a "
    "driver name for Git."
)
_GIVEN_UP: Final = "A drain for the change was given up; the message says when it is tried again."
_IN_VAIN: Final = "The device was drained and did not change; the message says when its users are moved away again."
_NO_MAP: Final = (
    "A rule names a VGPUProfileMap that does not exist, or that cannot be understood: its cards keep what they carry."
)
_NO_LAYOUT: Final = (
    "The VGPUProfileMap that a rule names has no entry for a card of it: the card keeps what it carries."
)

_HELD: Final = "Many policies vanished at once: their devices stay as they are until each is back, or it is confirmed."

_POLICY: Final = (
    ConditionDoc(
        "status",
        PolicyConditionType.READY,
        "Every device that the policy decides is as it asks, on every node, observed in this boot; and published, on "
        "nodes with a publisher.",
        _reasons(
            (PolicyReason.ALL_DEVICES_READY, "True", "All devices are as asked."),
            (PolicyReason.NO_NODES_MATCHED, "True", "The selector selects no node: nothing to do."),
            (PolicyReason.NO_DEVICES_MATCHED, "True", "No device of the nodes matches: nothing to do."),
            (PolicyReason.INVENTORY_PENDING, "False", "A node has not told its devices in this boot yet."),
            (PolicyReason.ROLLING_OUT, "False", "Nodes are changing, or wait for their turn."),
            (
                PolicyReason.DEVICES_BLOCKED,
                "False",
                "Devices may not be touched: in use, needed by the host, or their IOMMU group does not allow it; "
                f"{_SEE_BLOCKERS}.",
            ),
            (PolicyReason.DEVICES_FAILED, "False", _FAILED),
            (PolicyReason.DAEMON_MISSING, "False", _MISSING),
            (PolicyReason.DEVICE_CLASS_MISSING, "False", _NO_CLASS),
            (PolicyReason.PROFILE_MAP_MISSING, "False", _NO_MAP),
            (PolicyReason.NO_LAYOUT_FOR_CARD, "False", _NO_LAYOUT),
            (PolicyReason.INVALID, "False", _INVALID),
            (PolicyReason.DAEMON_SILENT, "Unknown", _SILENT),
            (PolicyReason.REBOOTED, "Unknown", _REBOOTED),
            (PolicyReason.PAUSED, "Unknown", "The policy is paused: what was in force stays, nothing is written."),
            (PolicyReason.REMOVAL_HELD, "Unknown", _HELD),
        ),
    ),
    ConditionDoc(
        "status",
        PolicyConditionType.ACCEPTED,
        "The policy can be carried out as it is written.",
        _reasons(
            (PolicyReason.VALID, "True", "The policy is understood."),
            (PolicyReason.INVALID, "False", _INVALID),
        ),
    ),
    ConditionDoc(
        "status",
        PolicyConditionType.PROGRESSING,
        "The rollout goes on.",
        _reasons(
            (PolicyReason.ROLLING_OUT, "True", "Nodes are changing, or wait for their turn."),
            (PolicyReason.COMPLETE, "False", "Every node has the present orders and has answered them."),
            (PolicyReason.PROGRESS_STALLED, "False", _NO_PROGRESS),
            (PolicyReason.PAUSED, "False", "The policy is paused."),
            (PolicyReason.INVALID, "False", _INVALID),
        ),
    ),
    ConditionDoc(
        "status",
        PolicyConditionType.DEGRADED,
        "Something is wrong that does not mend by waiting.",
        _reasons(
            (PolicyReason.AS_EXPECTED, "False", "Nothing is wrong."),
            (PolicyReason.DEVICES_FAILED, "True", _FAILED),
            (PolicyReason.PROGRESS_STALLED, "True", _NO_PROGRESS),
            (PolicyReason.INVALID, "True", _INVALID),
        ),
    ),
    ConditionDoc(
        "status",
        PolicyConditionType.CONFLICTED,
        "Another policy decides devices of this one differently; see `conflicts`.",
        _reasons(
            (PolicyReason.NO_CONFLICT, "False", "No other policy decides these devices differently."),
            (PolicyReason.LOST_DEVICES, "True", "Another policy wins some of its devices."),
            (PolicyReason.WON_DEVICES, "True", "It wins devices that another policy wants differently."),
        ),
    ),
    ConditionDoc(
        "status",
        PolicyConditionType.BREAK_GLASS,
        "Its spec is not what is in Git; only stated while it is so.",
        _reasons(
            (
                PolicyReason.EDITED_BY_HAND,
                "True",
                "Somebody changed it past Git, and gave a reason; the message tells both, and the fields.",
            ),
        ),
    ),
)

_NODE_STATE: Final = (
    ConditionDoc(
        "status.inventory",
        "Ready",
        "The node's accelerators are listed as they are in this boot.",
        _reasons(
            ("InventoryRead", "True", "All are listed."),
            ("TooManyDevices", "True", "The first 512 are listed."),
            ("BusUnreadable", "False", "The host's PCI devices cannot be read; the list is the last one of this boot."),
        ),
    ),
    ConditionDoc(
        "status.inventory",
        "DevicesReadable",
        "Every device tells all that is asked of it.",
        _reasons(
            ("AllReadable", "True", "Every device does."),
            ("DevicesUnreadable", "False", "Some do not; they count as in use. The message names them."),
        ),
    ),
    ConditionDoc(
        "status.bindings",
        "Ready",
        "Every ordered device is on the driver that its order asks for.",
        _reasons(
            ("AllDevicesBound", "True", "Every device is."),
            ("NothingOrdered", "True", "There are no orders."),
            ("DevicesPending", "False", "Devices are changing."),
            ("DevicesBlocked", "False", "Devices may not be touched; each says why."),
            ("DevicesFailed", "False", "The host refused a change; each device says which step."),
            ("OrdersHeld", "Unknown", "The orders are not for this node as it is now: nothing is written."),
        ),
    ),
    ConditionDoc(
        "status.bindings",
        "JournalIntact",
        "It is known what each device had before npufleet changed it.",
        _reasons(
            ("JournalRead", "True", "The journal is readable."),
            (
                "JournalUnreadable",
                "False",
                "The journal was set aside; devices on a VFIO driver count as bound by others and stay there.",
            ),
        ),
    ),
    ConditionDoc(
        "status.publication",
        PublicationConditionType.READY,
        "Every ordered device is offered to pods and VMs, as far as it should be.",
        _reasons(
            (PublicationConditionReason.ALL_DEVICES_PUBLISHED, "True", "Every device is in a ResourceSlice."),
            (PublicationConditionReason.NOTHING_ORDERED, "True", "There are no orders for devices to publish."),
            (PublicationConditionReason.DEVICES_PENDING, "False", "Devices are being prepared, or handed over."),
            (PublicationConditionReason.DEVICES_BLOCKED, "False", "Nobody new gets some devices; each says why."),
            (
                PublicationConditionReason.NOT_PUBLISHED,
                "False",
                "The API server does not take the slices, or a file cannot be written; the message says which.",
            ),
            (
                PublicationConditionReason.ORDERS_HELD,
                "Unknown",
                "The orders are not for this node as it is now: nothing is published anew or withdrawn.",
            ),
        ),
    ),
    ConditionDoc(
        "status.publication",
        PublicationConditionType.REGISTERED,
        "The kubelet knows the plugin under every driver name in use.",
        _reasons(
            (PublicationConditionReason.REGISTERED, "True", "It does."),
            (
                PublicationConditionReason.NOT_REGISTERED,
                "False",
                "It does not: pods with claims wait on the node. The message has the kubelet's words.",
            ),
        ),
    ),
    ConditionDoc(
        "status.publication",
        PublicationConditionType.CHECKPOINT_INTACT,
        "It is known which claims pods were prepared for.",
        _reasons(
            (PublicationConditionReason.CHECKPOINT_READ, "True", "The checkpoint is readable."),
            (
                PublicationConditionReason.CHECKPOINT_LOST,
                "False",
                "The checkpoint was set aside; devices that somebody may have are withheld. The message names it.",
            ),
        ),
    ),
    ConditionDoc(
        "status.rollout",
        "Available",
        "No device of the node is away for the rollout.",
        _reasons(
            ("NoDisruption", "True", "All devices are as ordered, or were never touched."),
            ("Changing", "False", "Devices are changing, or are about to once their users are gone."),
            ("DevicesFailed", "False", "A change failed."),
            ("DaemonMissing", "False", _MISSING),
            ("DaemonSilent", "Unknown", _SILENT),
            ("Rebooted", "Unknown", _REBOOTED),
            ("NodeGone", "Unknown", "The Node does not exist."),
        ),
    ),
    ConditionDoc(
        "status.rollout",
        "Updated",
        "The node has the orders that the present policies give.",
        _reasons(
            ("Current", "True", "It has."),
            ("WaitingForBudget", "False", "A policy's `maxUnavailable` leaves no room yet; the message names it."),
            (
                "InUse",
                "False",
                "Somebody uses a device that has to change, and is not moved away; the message names it.",
            ),
            ("DrainTimedOut", "False", _GIVEN_UP),
            ("Uncordoned", "False", _GIVEN_UP),
            ("ChangeFailed", "False", _IN_VAIN),
            ("InventoryPending", "Unknown", "The node has not told its devices in this boot yet."),
            ("StateUnreadable", "Unknown", "This object cannot be understood; the message names the field."),
        ),
    ),
    ConditionDoc(
        "status.rollout",
        "Draining",
        "Who uses devices that have to change is being moved away; afterwards, how that ended.",
        _reasons(
            ("WaitingForPublisher", "True", "The publisher has not handed the devices over yet."),
            ("Evicting", "True", "Pods are asked to go; the message says who stands in the way, and why."),
            ("WaitingForDrainer", "True", "Another tool was asked to, by `npufleet.io/drain-request` of the Node."),
            ("WaitingForChange", "True", "The users are gone; the host changes the devices."),
            ("Drained", "False", "The devices have changed."),
            ("Withdrawn", "False", "No change needs it any more."),
            (
                "DrainTimedOut",
                "False",
                "Given up after `drainTimeoutSeconds`; the message says what was in the way, and when it goes on.",
            ),
            ("Uncordoned", "False", "Given up, because somebody made the node schedulable; tried again later."),
            (
                "ChangeFailed",
                "False",
                "The users went and the devices did not change; the message says why, and when it is tried again.",
            ),
        ),
    ),
    ConditionDoc(
        "status.rollout",
        "NodePresent",
        "The Node exists; only stated when it does not.",
        _reasons(
            (
                "NodeGone",
                "False",
                "The Node is gone; this object follows after a grace. While most nodes with orders are gone, it does "
                "not: the message says how to confirm.",
            ),
        ),
    ),
    ConditionDoc(
        "status.rollout",
        "NodeRenewed",
        "The Node was created anew; only stated for the grace that begins then.",
        _reasons(
            (
                "NodeCreatedAnew",
                "True",
                "Devices that no policy decides any more are held: the Node's labels may be on their way.",
            ),
        ),
    ),
    ConditionDoc(
        "status.rollout",
        "RemovalHeld",
        "Devices whose policies or orders vanished in great number stay as they are; only stated when some do.",
        _reasons(
            (
                "RemovalHeld",
                "True",
                "Many policies vanished at once, or many devices that npufleet changed are in no orders and in no "
                "policy: they stay as they are until they are back or the removal is confirmed.",
            ),
        ),
    ),
)

_DEVICES: Final = ReasonTable(
    "status.bindings.devices[].reason",
    "Why a device stands where it stands. `Blocked` means that what is named was not touched.",
    _reasons(
        ("Bound", DeviceState.READY, "npufleet bound it to a VFIO driver."),
        ("Adopted", DeviceState.READY, "It was on a VFIO driver already, and stays there on release."),
        ("NativeDriver", DeviceState.READY, "It is on the vendor's driver."),
        ("LeftAlone", DeviceState.READY, "Its mode is Unmanaged."),
        ("Companion", DeviceState.READY, "It is on a VFIO driver for the sake of another device of its IOMMU group."),
        (
            "FunctionsBound",
            DeviceState.READY,
            "It stays with the host; its virtual functions are there, each on a VFIO driver.",
        ),
        ("Binding", DeviceState.PENDING, "It, or a virtual function of it, is being made or bound."),
        ("Restoring", DeviceState.PENDING, "It is being given back."),
        ("Held", DeviceState.PENDING, "Its order is to leave it as it is, and that is not as the mode asks."),
        ("Orphaned", DeviceState.PENDING, "npufleet bound it and no order names it: it waits for one."),
        ("Released", DeviceState.RELEASED, "It was given back."),
        ("InUse", DeviceState.BLOCKED, "Somebody uses it; the message says who."),
        ("Published", DeviceState.BLOCKED, "It is offered to pods and was not handed over."),
        ("Vetoed", DeviceState.BLOCKED, "The host needs it."),
        (
            "CompanionsRefused",
            DeviceState.BLOCKED,
            "Its IOMMU group has other devices on host drivers, and `companions` does not allow to bind them.",
        ),
        ("CompanionInUse", DeviceState.BLOCKED, "Somebody uses another device of its IOMMU group."),
        ("CompanionVetoed", DeviceState.BLOCKED, "The host needs another device of its IOMMU group."),
        (
            "CompanionManaged",
            DeviceState.BLOCKED,
            "Another order wants a device of its IOMMU group, or a virtual function of it, otherwise.",
        ),
        ("NoIOMMU", DeviceState.BLOCKED, "It has no IOMMU group: turn on the IOMMU."),
        ("NoDriver", DeviceState.BLOCKED, "It has no driver, and npufleet binds none that it did not take away."),
        ("BoundByOthers", DeviceState.BLOCKED, "Somebody else put it on its driver."),
        ("ModuleMissing", DeviceState.BLOCKED, "The driver's kernel module cannot be loaded."),
        ("DriverMissing", DeviceState.BLOCKED, "There is no such driver, or it is no VFIO driver."),
        ("IdentityMismatch", DeviceState.BLOCKED, "The device at the address is another one."),
        (
            "DeviceMissing",
            DeviceState.BLOCKED,
            "There is no device at the address (Failed: it was bound, and is gone).",
        ),
        ("DeviceUnreadable", DeviceState.BLOCKED, "The host does not tell enough of it."),
        ("Bridge", DeviceState.BLOCKED, "It is a bridge; bridges stay with the host."),
        (
            "GroupLocked",
            DeviceState.BLOCKED,
            "Something else is changing its IOMMU group; the message says what (Failed: a change of it was cut short).",
        ),
        ("JournalUnreadable", DeviceState.BLOCKED, "Nothing is changed while it cannot be remembered."),
        (
            "NoSRIOV",
            DeviceState.BLOCKED,
            "The device, or its driver, makes no virtual functions (Failed: the driver said so when it was asked).",
        ),
        ("TooManyFunctions", DeviceState.BLOCKED, "The order wants more virtual functions than the device can have."),
        (
            "FunctionsOfOthers",
            DeviceState.BLOCKED,
            "It has virtual functions that npufleet did not make, in another number than ordered.",
        ),
        ("Changed", DeviceState.BLOCKED, "It changed between the look and the write; it is looked at again."),
        (
            "BindFailed",
            DeviceState.FAILED,
            "Binding failed; the message names the step and the error, and says whether it was undone.",
        ),
        (
            "FunctionsFailed",
            DeviceState.FAILED,
            "Making virtual functions failed; the message names step and error, and says whether it was undone.",
        ),
        ("RestoreFailed", DeviceState.FAILED, "Giving it back, or removing its virtual functions, failed."),
        (
            "VerifyFailed",
            DeviceState.FAILED,
            "The writes succeeded, and the device is not as they should have made it.",
        ),
        (
            "WriteStuck",
            DeviceState.FAILED,
            "A change of it hangs in the kernel (Blocked: one of another device of its IOMMU group does).",
        ),
        ("DriftLoop", DeviceState.FAILED, "Somebody else moves it again and again; npufleet stopped taking part."),
        ("InternalError", DeviceState.FAILED, "A fault of npufleet; how far it came is not known, its log says more."),
    ),
)

_PUBLISHED: Final = ReasonTable(
    "status.publication.devices[].reason",
    "How far a device is on its way to pods and VMs. Besides `Ready`, nobody new gets it; who has it keeps it.",
    _reasons(
        (PublicationReason.PUBLISHED, DeviceState.READY, "It is in a ResourceSlice."),
        (
            PublicationReason.NOT_BY_CLAIMS,
            DeviceState.READY,
            "As ordered; VMs get it in another way than by claims: mediated devices, by KubeVirt's own plugin.",
        ),
        (
            PublicationReason.WAITS_FOR_BINDING,
            DeviceState.PENDING,
            "A daemon that prepares it has not reported it ready, for these orders and in this boot.",
        ),
        (
            PublicationReason.HAND_OVER,
            DeviceState.PENDING,
            "It has to change and is withheld; the message names the claims that still have it.",
        ),
        (PublicationReason.HANDED_OVER, DeviceState.PENDING, "It has to change and nobody has it: the binder may."),
        (PublicationReason.OTHER_PLUGIN, DeviceState.BLOCKED, "Another plugin offers it; the message names which."),
        (
            PublicationReason.INVALID_DEVICE,
            DeviceState.BLOCKED,
            "The API server would refuse it, and every other device of its slice with it; the message says why.",
        ),
        (
            PublicationReason.MODE_NOT_PUBLISHED,
            DeviceState.BLOCKED,
            "The publisher of this version does not publish devices of its mode.",
        ),
        (
            PublicationReason.NOT_READY,
            DeviceState.BLOCKED,
            "It was published, and a daemon that prepares it does not call it ready any more.",
        ),
        (PublicationReason.VETOED, DeviceState.BLOCKED, "It was published, and now the host needs it."),
        (
            PublicationReason.USED_OUTSIDE,
            DeviceState.BLOCKED,
            "A process of no pod, or of a pod without a claim on it, uses it.",
        ),
        (
            PublicationReason.DRIVER_CHANGED,
            DeviceState.BLOCKED,
            "Somebody else has put it on another driver since it was published.",
        ),
        (PublicationReason.UNHEALTHY, DeviceState.BLOCKED, "The host says that it does not work."),
        (PublicationReason.WITHDRAWN, DeviceState.RELEASED, "It is offered to nobody any more."),
    ),
)

_BLOCKERS: Final = ReasonTable(
    "status.blockers[].reason",
    "Why a device or a node is not as the policy asks; besides these, the reasons of its daemons (see NPUNodeState).",
    _reasons(
        ("AddressOfAnotherKind", "", "The device at an address of `match.addresses` is of another kind."),
        (
            "InUse",
            "",
            "Somebody uses the device: a change of it is put off, or the rule's `limit` does not count it; the message "
            "says which.",
        ),
        ("WaitingForBudget", "", "The node waits for room in `maxUnavailable`; the message names the policies."),
        ("Draining", "", "Who uses the device is being moved away; the message says who stands in the way."),
        ("DrainTimedOut", "", _GIVEN_UP),
        ("Uncordoned", "", f"Somebody made the node schedulable in the middle of a drain. {_GIVEN_UP}"),
        ("ChangeFailed", "", _IN_VAIN),
        ("Vetoed", "", "The host needs the device: the rule's `limit` does not count it."),
        ("RemovalHeld", "", _HELD),
        ("InventoryPending", "", "The node has not told its devices in this boot yet."),
        ("StateUnreadable", "", "The node's NPUNodeState cannot be understood."),
        ("ReportUnreadable", "", "A daemon's report cannot be understood."),
        ("DaemonMissing", "", _MISSING),
        ("DeviceClassMissing", "", f"{_NO_CLASS} `node` is empty."),
        ("ProfileMapMissing", "", _NO_MAP),
        ("NoLayoutForCard", "", _NO_LAYOUT),
        ("DaemonSilent", "", _SILENT),
        ("Rebooted", "", _REBOOTED),
        ("InternalError", "", "A fault of npufleet: the node stays as it is; the log of the controller says more."),
        ("TooManyDevices", "", "The node has more devices than one NPUNodeState holds."),
    ),
)

CONDITIONS: Final[dict[str, tuple[ConditionDoc, ...]]] = {
    "NPUNodePolicy": _POLICY,
    "NPUNodeState": (*_NODE_STATE, *PROFILES),
    "VGPUProfileMap": MAP,
}
REASONS: Final[dict[str, tuple[ReasonTable, ...]]] = {
    "NPUNodePolicy": (_BLOCKERS,),
    "NPUNodeState": (_DEVICES, _PUBLISHED, VGPUS),
    "VGPUProfileMap": (MAP_PROBLEMS,),
}
