"""What the planner knows of the world: compact records of the objects, and nothing about where they came from.

Stores hold these records, not API objects: a fleet of thousands of nodes fits in tens of megabytes. Whatever an object
contains, reading it gives a record; what cannot be understood is named in the record's `error` and holds what depends
on it, because absence is not an order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controllers.break_glass import HandEdit
from controllers.node_policy.plan.orders import Orders, Shape
from crds.models.device_match import Function
from crds.models.node_policy import NodePolicySpec, NodePolicyStatus, PolicyState
from crds.models.node_state import DeviceState, NodeRollout
from crds.models.profile_map import ProfileMapSpec

DEFAULT_GRACE_SECONDS = 1800
EMPTY: Mapping[str, frozenset[str]] = {}
NO_FACTS: "Mapping[str, DrainFacts]" = {}


class Subtree(StrEnum):
    """The reports in the status of an NPUNodeState that say how far a daemon has come with its devices."""

    BINDINGS = "bindings"
    PROFILES = "profiles"
    PUBLICATION = "publication"
    LIBRARIES = "libraries"


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Node: `boot_id` is "" until its kubelet has told one.

    `cordoned_by`, `drain_request` and `drain_done` are the annotations of these names, "" where there is none.
    """

    name: str
    uid: str
    labels: Mapping[str, str]
    boot_id: str
    unschedulable: bool = False
    cordoned_by: str = ""
    drain_request: str = ""
    drain_done: str = ""


@dataclass(frozen=True, slots=True)
class PolicyView:
    """An NPUNodePolicy. `spec` None: the object exists but cannot be understood, `error` says why.

    `shapes` are what its rules make of a device, in their order. `by_hand` is a change past Git that still stands.
    """

    name: str
    uid: str
    generation: int
    spec: NodePolicySpec | None
    shapes: tuple[Shape, ...]
    error: str
    status: NodePolicyStatus | None
    by_hand: HandEdit | None = None

    @property
    def paused(self) -> bool:
        return self.spec is not None and self.spec.state is PolicyState.PAUSED

    @property
    def precedence(self) -> tuple[int, str]:
        """Sorts policies as they decide: higher priority first, then by name. Invalid ones go last."""
        return (-self.spec.priority if self.spec is not None else 1, self.name)


@dataclass(frozen=True, slots=True)
class MapView:
    """A VGPUProfileMap. `spec` None: the object exists but cannot be understood, `error` says why."""

    name: str
    uid: str
    generation: int
    spec: ProfileMapSpec | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device of an inventory. `users` and `vetoes` are texts for people; each non-empty one stands in the way.

    `pods` are the UIDs of the pods among the users, `others` the texts of those that no eviction moves.
    `own_functions` tells of its virtual functions, "" when it has none: they are in the way of the card itself, not of
    an order for its functions. `card` is the card of a virtual function.
    """

    address: str
    vendor: str
    device: str
    subsystem: str | None
    class_code: str
    product: str | None
    serial: str | None
    numa_node: int | None
    function: Function
    users: tuple[str, ...]
    vetoes: tuple[str, ...]
    own_functions: str = ""
    card: str | None = None
    pods: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()
    iommu_group: int | None = None


@dataclass(frozen=True, slots=True)
class InventoryView:
    """The binder's inventory. `ready` is its condition Ready, with `reason` and `message`."""

    boot_id: str
    ready: bool
    reason: str
    message: str
    devices: tuple[DeviceView, ...]


@dataclass(frozen=True, slots=True)
class DeviceReportView:
    """What a daemon says of one device. `former_driver` None: npufleet did not change the device.

    `begun`: npufleet made virtual functions of it, and not all of them are as they should be. `vgpus`: the virtual
    functions of a card that are as its layout wants them, with their profiles.
    """

    state: DeviceState
    reason: str
    message: str
    former_driver: str | None
    begun: bool = False
    vgpus: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReportView:
    """One daemon's report, with the generation that it answers and the boot in which it was made."""

    generation: int
    boot_id: str
    devices: Mapping[str, DeviceReportView]
    error: str = ""


@dataclass(frozen=True, slots=True)
class StateView:
    """An NPUNodeState. `error` says what of its spec cannot be understood; such orders are never rewritten.

    `revision` is what the spec itself says.
    """

    name: str
    uid: str
    generation: int
    node_uid: str
    orders: Orders
    inventory: InventoryView | None
    reports: Mapping[Subtree, ReportView]
    rollout: NodeRollout | None
    error: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True)
class DrainFacts:
    """What the drainer saw when it last looked at a node.

    `revision`: of the orders for which it looked. `needs_cordon`: a user is there that no withheld device keeps from
    coming back. `blockers`: what stands in the way, as sorted texts, at most 16. `claims`: `namespace/name` of claims
    that are still allocated to devices being handed over. `evicted`: UIDs of pods whose eviction was accepted.
    """

    revision: str
    needs_cordon: bool
    blockers: tuple[str, ...]
    claims: tuple[str, ...]
    evicted: frozenset[str]


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a plan is made from; the same objects in whatever order give the same plan."""

    policies: Mapping[str, PolicyView]
    nodes: Mapping[str, NodeView]
    states: Mapping[str, StateView]
    states_known: bool = True
    """The API server shows its NPUNodeStates at present: one that is not among `states` does not exist."""
    silent: Mapping[str, frozenset[str]] = field(default_factory=lambda: EMPTY)
    """By node: the components whose Lease has run out."""
    in_flight: Mapping[str, frozenset[str]] = field(default_factory=lambda: EMPTY)
    """By node: policies charged for a change of orders that was sent and whose outcome is not known yet."""
    refused: frozenset[str] = frozenset()
    """Nodes whose last orders the API server would not take."""
    confirmation: str = ""
    """Value of the annotation npufleet.io/confirm-removal."""
    confirmed: frozenset[str] = frozenset()
    """What is missing and was confirmed earlier under the present value of the annotation (`Holds.confirmed`)."""
    held: frozenset[str] | None = None
    """What the last plan of this process held (`Holds.held`); None: it has made none, and knows what objects say."""
    grace_seconds: int = DEFAULT_GRACE_SECONDS
    drains: Mapping[str, DrainFacts] = field(default_factory=lambda: NO_FACTS)
    """By node under drain: what the drainer saw there last. None of a node: it has not looked yet."""
    resting: Mapping[str, frozenset[str]] = field(default_factory=lambda: EMPTY)
    """By node: devices that were taken into use just as they were ordered to change, and are not ordered again yet."""
    unsettled: frozenset[str] = frozenset()
    """Nodes whose labels were never seen to stand still: they keep their orders."""
    maps: Mapping[str, MapView] | None = field(default_factory=dict)
    """The settled VGPUProfileMaps by name; None while nobody knows which there are."""
    device_classes: frozenset[str] | None = None
    """Names of the DeviceClasses that exist; None while nobody knows."""
    external_drainer: bool = False
    """Somebody else empties nodes: they are asked by an annotation, and neither cordoned nor emptied from here."""


class BlockerReason(StrEnum):
    """Reasons in `status.blockers` that the controller itself gives; others are quoted from the daemons."""

    ADDRESS_OF_ANOTHER_KIND = "AddressOfAnotherKind"
    IN_USE = "InUse"
    VETOED = "Vetoed"
    REMOVAL_HELD = "RemovalHeld"
    INVENTORY_PENDING = "InventoryPending"
    STATE_UNREADABLE = "StateUnreadable"
    REPORT_UNREADABLE = "ReportUnreadable"
    DAEMON_MISSING = "DaemonMissing"
    DEVICE_CLASS_MISSING = "DeviceClassMissing"
    DAEMON_SILENT = "DaemonSilent"
    REBOOTED = "Rebooted"
    PROFILE_MAP_MISSING = "ProfileMapMissing"
    NO_LAYOUT_FOR_CARD = "NoLayoutForCard"
    TOO_MANY_DEVICES = "TooManyDevices"
    DRAINING = "Draining"
    DRAIN_TIMED_OUT = "DrainTimedOut"
    UNCORDONED = "Uncordoned"
    CHANGE_FAILED = "ChangeFailed"
    WAITING_FOR_BUDGET = "WaitingForBudget"
    INTERNAL_ERROR = "InternalError"


class NodeConditionType(StrEnum):
    """Conditions in `status.rollout` of an NPUNodeState."""

    AVAILABLE = "Available"
    UPDATED = "Updated"
    NODE_PRESENT = "NodePresent"
    NODE_RENEWED = "NodeRenewed"
    REMOVAL_HELD = "RemovalHeld"
    DRAINING = "Draining"


class NodeReason(StrEnum):
    """Stable reasons of those conditions."""

    NO_DISRUPTION = "NoDisruption"
    CHANGING = "Changing"
    DEVICES_FAILED = "DevicesFailed"
    DAEMON_MISSING = "DaemonMissing"
    DAEMON_SILENT = "DaemonSilent"
    REBOOTED = "Rebooted"
    CURRENT = "Current"
    WAITING_FOR_BUDGET = "WaitingForBudget"
    INVENTORY_PENDING = "InventoryPending"
    STATE_UNREADABLE = "StateUnreadable"
    NODE_GONE = "NodeGone"
    NODE_CREATED_ANEW = "NodeCreatedAnew"
    REMOVAL_HELD = "RemovalHeld"
    IN_USE = "InUse"
    WAITING_FOR_PUBLISHER = "WaitingForPublisher"
    EVICTING = "Evicting"
    WAITING_FOR_DRAINER = "WaitingForDrainer"
    WAITING_FOR_CHANGE = "WaitingForChange"
    DRAINED = "Drained"
    DRAIN_TIMED_OUT = "DrainTimedOut"
    UNCORDONED = "Uncordoned"
    CHANGE_FAILED = "ChangeFailed"
    WITHDRAWN = "Withdrawn"
