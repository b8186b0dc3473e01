"""NPUNodeState: one per node, written by npufleet only: orders in spec, one report per daemon in status.

The spec has one writer, the node-policy controller. Each subtree of the status has one writer, replaces as a whole, and
carries the generation that it answers and the boot in which it was observed.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from crds.models.base import (
    ATOMIC_LIST,
    PCIID,
    UID,
    BootID,
    Counter,
    Distinct,
    DriverName,
    Generation,
    KernelDriverName,
    KernelDriverNameOrEmpty,
    KubeObject,
    Model,
    ObjectName,
    ObjectNameOrEmpty,
    PCIAddress,
    PCIClass,
    ProductName,
    RuleName,
    SerialNumber,
    ShortText,
    SubsystemID,
    schema_notes,
)
from crds.models.conditions import Conditions
from crds.models.device_match import Function
from crds.models.device_report import DeviceReport as DeviceReport
from crds.models.device_report import DeviceState as DeviceState
from crds.models.modes import HardVNPU, Mode, OnRelease, Passthrough, SoftVNPU
from crds.models.node_policy import DEFAULT_DRIVER_NAME
from crds.models.rollout import Rollout
from crds.models.vgpu_state import ProfiledCard, VGPUOrder

MAX_DEVICES: Final = 512
_BY_ADDRESS: Final = Distinct("address")


class Intent(StrEnum):
    """What a daemon does with an entry: make it so, leave it as it is, or give the device back."""

    APPLY = "Apply"
    HOLD = "Hold"
    RELEASE = "Release"


class DeviceIdentity(Model):
    """What the device must be; a device at the address that is another is never touched."""

    vendor: Annotated[PCIID, Field(description="PCI vendor id.")]
    device: Annotated[PCIID, Field(description="PCI device id.")]
    serial: Annotated[SerialNumber | None, Field(description="Serial number, where the device tells one.")] = None


class DecidedBy(Model):
    """The rule that decided."""

    policy: Annotated[ObjectName, Field(description="The NPUNodePolicy.")]
    rule: Annotated[RuleName, Field(description="Its rule.")]


class DesiredDevice(Model):
    """The order for one device."""

    address: Annotated[PCIAddress, Field(description="PCI address (BDF).")]
    identity: Annotated[DeviceIdentity, Field(description="What the device must be.")]
    mode: Annotated[Mode, Field(description="What becomes of it.")]
    intent: Annotated[Intent, Field(description="`Apply`, `Hold` (leave as it is) or `Release` (give it back).")]
    driver_name: Annotated[DriverName, Field(description="The DRA driver name under which it is published.")] = (
        DEFAULT_DRIVER_NAME
    )
    passthrough: Annotated[Passthrough | None, Field(description="Settings of mode Passthrough.")] = None
    vgpu: Annotated[
        VGPUOrder | None, Field(description="Settings of mode VGPU, with what the profile map says of this card.")
    ] = None
    soft_vnpu: Annotated[SoftVNPU | None, Field(description="Settings of mode SoftVNPU.")] = None
    hard_vnpu: Annotated[HardVNPU | None, Field(description="Settings of mode HardVNPU.")] = None
    on_release: Annotated[OnRelease, Field(description="What becomes of it on release.")] = OnRelease.RESTORE
    decided_by: Annotated[DecidedBy, Field(description="The rule that decided.")]


class Removal(StrEnum):
    """What is known of a policy's removal."""

    CONFIRMED = "Confirmed"
    HELD = "Held"


class PolicyRollout(Rollout):
    """The limits of a deciding policy, kept here so that a deleted policy is still rolled back within them."""

    policy: Annotated[ObjectName, Field(description="The NPUNodePolicy.")]
    removal: Annotated[
        Removal | None,
        Field(
            description=(
                "`Held`: the policy is gone, together with many others; its devices stay as they are until it is back "
                "or somebody confirms that this is meant, however few of the others are still missing by then. "
                "`Confirmed`: somebody did; its devices are given back. Absent otherwise."
            )
        ),
    ] = None


class NodeStateSpec(Model):
    """Orders for the daemons of one node; written by the node-policy controller."""

    revision: Annotated[
        str,
        Field(max_length=64, pattern=r"^[0-9a-f]*$", description="Hash of the orders: equal orders, equal revision."),
    ]
    node_uid: Annotated[UID, Field(description="UID of the Node; daemons of a node with another UID write nothing.")]
    devices: Annotated[
        tuple[DesiredDevice, ...],
        Field(max_length=MAX_DEVICES, description="Orders by device."),
        _BY_ADDRESS,
    ] = ()
    rollouts: Annotated[
        tuple[PolicyRollout, ...],
        Field(
            max_length=64,
            description="The limits of the deciding policies.",
        ),
        Distinct("policy"),
    ] = ()


class Report(Model):
    """What every report of a daemon says."""

    observed_generation: Annotated[
        Generation | None, Field(description="The generation of the orders that it answers.")
    ] = None
    boot_id: Annotated[
        BootID | None, Field(description="The boot in which it was observed; a report of another boot says nothing.")
    ] = None
    conditions: Conditions = ()


class GroupViability(StrEnum):
    """Whether the kernel would give the device's IOMMU group to a VM."""

    VIABLE = "Viable"
    NOT_VIABLE = "NotViable"
    NO_GROUP = "NoGroup"


class UseKind(StrEnum):
    """What kind of evidence shows that a device is in use."""

    PROCESS = "Process"
    VIRTUAL_FUNCTIONS = "VirtualFunctions"
    HOLDER = "Holder"
    CLAIM = "Claim"
    POD = "Pod"
    PUBLISHED = "Published"
    UNREADABLE = "Unreadable"


class DeviceUser(Model):
    """Who uses a device."""

    kind: Annotated[UseKind, Field(description="The kind of evidence.")]
    name: Annotated[str, Field(max_length=253, description="The user's name, e.g. of a process.")]
    detail: Annotated[ShortText, Field(description="What was seen, e.g. the process id and the open device node.")] = ""
    pod_uid: Annotated[
        UID | None,
        Field(description="UID of the pod that it is, or whose process; absent when it is of no pod, or not known."),
    ] = None


class VetoReason(StrEnum):
    """Why the host itself needs a device."""

    DEFAULT_ROUTE = "DefaultRoute"
    NETWORK_ADDRESS = "NetworkAddress"
    MOUNTED_DISK = "MountedDisk"
    BOOT_DISPLAY = "BootDisplay"
    GROUP_MEMBER = "GroupMember"
    UNREADABLE = "Unreadable"


class Veto(Model):
    """Why a device is never touched, whatever policies say."""

    reason: Annotated[VetoReason, Field(description="The kind of veto.")]
    message: Annotated[ShortText, Field(description="What was seen, with names.")]


class InventoryDevice(Model):
    """One device as the host has it."""

    address: Annotated[PCIAddress, Field(description="PCI address (BDF).")]
    vendor: Annotated[PCIID, Field(description="PCI vendor id.")]
    device: Annotated[PCIID, Field(description="PCI device id.")]
    subsystem: Annotated[SubsystemID | None, Field(description="PCI subsystem ids as `vendor:device`.")] = None
    class_code: Annotated[PCIClass, Field(alias="class", description="PCI class, 6 hex digits.")]
    product: Annotated[
        ProductName | None, Field(description="Product name of the catalogue; absent when it has none.")
    ] = None
    serial: Annotated[SerialNumber | None, Field(description="Serial number; absent when the device tells none.")] = (
        None
    )
    driver: Annotated[
        KernelDriverName | None, Field(description="The bound kernel driver; absent when there is none.")
    ] = None
    iommu_group: Annotated[Counter | None, Field(description="IOMMU group of this boot; absent without an IOMMU.")] = (
        None
    )
    group_viability: Annotated[GroupViability, Field(description="Whether the IOMMU group could go to a VM as it is.")]
    numa_node: Annotated[int | None, Field(ge=0, le=1023, description="NUMA node; absent when unknown.")] = None
    pcie_root: Annotated[str | None, Field(max_length=64, description="PCIe root, e.g. `pci0000:20`.")] = None
    function: Annotated[Function, Field(description="`Physical` or `Virtual`.")] = Function.PHYSICAL
    physical_function: Annotated[
        PCIAddress | None, Field(description="The card of a virtual function; absent on physical ones.")
    ] = None
    used_by: Annotated[
        tuple[DeviceUser, ...],
        Field(max_length=16, description="Who uses it.", json_schema_extra=ATOMIC_LIST),
    ] = ()
    vetoes: Annotated[
        tuple[Veto, ...],
        Field(
            max_length=16,
            description="Why the host itself needs it.",
            json_schema_extra=ATOMIC_LIST,
        ),
    ] = ()


class Inventory(Report):
    """The accelerators of the node; written by the VFIO binder."""

    devices: Annotated[
        tuple[InventoryDevice, ...],
        Field(max_length=MAX_DEVICES, description="Accelerators, by address."),
        _BY_ADDRESS,
    ] = ()


class BoundDevice(DeviceReport):
    """What the binder says of one device, and of its virtual functions where VMs get them instead of it."""

    former_driver: Annotated[
        KernelDriverNameOrEmpty | None,
        Field(
            description=(
                "The driver that the device had before npufleet changed it, empty when it had none; absent when "
                "npufleet did not change it."
            )
        ),
    ] = None
    virtual_functions: Annotated[
        tuple[DeviceReport, ...],
        Field(
            max_length=256,
            description=(
                "Its plain virtual functions, by address, where they go to VMs instead of it; it is `Ready` when each "
                "of them is."
            ),
        ),
        _BY_ADDRESS,
    ] = ()


class Bindings(Report):
    """Drivers of the ordered devices; written by the VFIO binder."""

    devices: Annotated[
        tuple[BoundDevice, ...],
        Field(max_length=MAX_DEVICES, description="By address."),
        _BY_ADDRESS,
    ] = ()


class Profiles(Report):
    """vGPUs of the ordered cards; written by the profile writer."""

    devices: Annotated[
        tuple[ProfiledCard, ...],
        Field(max_length=MAX_DEVICES, description="By address."),
        _BY_ADDRESS,
    ] = ()


class DaemonReport(Report):
    """What a daemon says of the ordered devices that are its own."""

    devices: Annotated[
        tuple[DeviceReport, ...],
        Field(max_length=MAX_DEVICES, description="By address."),
        _BY_ADDRESS,
    ] = ()


class Admission(StrEnum):
    """Whether the node may change now."""

    ADMITTED = "Admitted"
    WAITING = "Waiting"
    DRAINING = "Draining"
    ABORTED = "Aborted"


class NodeDrain(Model):
    """The drain under way, or the last one while what it was for is still to be done."""

    policy: Annotated[ObjectName, Field(description="The policy to which the drain is laid.")]
    target: Annotated[
        str,
        Field(
            max_length=64,
            pattern=r"^[0-9a-f]*$",
            description="Hash of what its devices are to become; another target does not wait for the next attempt.",
        ),
    ]
    aborts: Annotated[
        Counter | None,
        Field(
            description=(
                "How often in a row it was given up, or the change was not made after it; absent when it never was."
            )
        ),
    ] = None
    devices: Annotated[
        tuple[PCIAddress, ...],
        Field(
            max_length=MAX_DEVICES,
            description="The devices that it is for.",
            json_schema_extra=ATOMIC_LIST,
        ),
    ] = ()
    unseen: Annotated[
        tuple[PCIAddress, ...],
        Field(
            max_length=MAX_DEVICES,
            description="Devices that could not change when it was given up, although nobody was seen to use them.",
            json_schema_extra=ATOMIC_LIST,
        ),
    ] = ()


class NodeRollout(Model):
    """Where the node stands in the rollouts; written by the node-policy controller."""

    observed_generation: Annotated[
        Generation | None, Field(description="The generation of the orders that it speaks of.")
    ] = None
    admitted: Annotated[Admission, Field(description="`Admitted`, `Waiting`, `Draining` or `Aborted`.")]
    cordoned_by: Annotated[
        ObjectNameOrEmpty,
        Field(description="The policy for which the node was cordoned; empty when it was not."),
    ] = ""
    drain: Annotated[
        NodeDrain | None,
        Field(description="The drain under way or given up; absent when there is none, or it has done its work."),
    ] = None
    conditions: Conditions = ()


# Each has one writer, who writes it whole. Who owns which field of it would be a third of the object, and of the API
# server's time for every write of anybody.
_ATOMIC = schema_notes(map_type="atomic")


class NodeStateStatus(Model):
    """One report per daemon."""

    inventory: Annotated[
        Inventory | None, Field(description="Accelerators of the node (vfio-binder).", json_schema_extra=_ATOMIC)
    ] = None
    bindings: Annotated[Bindings | None, Field(description="Drivers (vfio-binder).", json_schema_extra=_ATOMIC)] = None
    profiles: Annotated[
        Profiles | None, Field(description="vGPU profiles (profile-writer).", json_schema_extra=_ATOMIC)
    ] = None
    publication: Annotated[
        DaemonReport | None, Field(description="Published devices (dra-publisher).", json_schema_extra=_ATOMIC)
    ] = None
    libraries: Annotated[
        DaemonReport | None, Field(description="Hijack libraries (vnpu-installer).", json_schema_extra=_ATOMIC)
    ] = None
    telemetry: Annotated[
        DaemonReport | None, Field(description="Usage (ebpf-exporter).", json_schema_extra=_ATOMIC)
    ] = None
    rollout: Annotated[NodeRollout | None, Field(description="Rollout (node-policy).", json_schema_extra=_ATOMIC)] = (
        None
    )


class NPUNodeState(KubeObject):
    """What one node is ordered to do and what its daemons report; written by npufleet only, never kept in Git."""

    kind: Literal["NPUNodeState"] = "NPUNodeState"
    spec: Annotated[NodeStateSpec, Field(description="Orders for the node's daemons.", json_schema_extra=_ATOMIC)]
    status: Annotated[NodeStateStatus | None, Field(description="Reports of the node's daemons.")] = None
