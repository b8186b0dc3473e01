"""NPUNodePolicy: what becomes of which accelerators of which nodes."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from crds.models.base import (
    KernelDriverName,
    KubeObject,
    Model,
    ObjectName,
    PCIAddress,
    Reason,
    RuleName,
    ShortText,
    cel,
    schema_notes,
)
from crds.models.conditions import Conditions
from crds.models.device_match import DeviceMatch
from crds.models.quantity import Quantity
from crds.models.rollout import Rollout
from crds.models.selectors import LabelSelector

DEFAULT_DRIVER_NAME = "npufleet.io"
DriverName = Annotated[
    str,
    Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
]


class PolicyState(StrEnum):
    """Whether the policy acts."""

    ACTIVE = "Active"
    PAUSED = "Paused"


class Mode(StrEnum):
    """What becomes of a device."""

    PASSTHROUGH = "Passthrough"
    VGPU = "VGPU"
    SOFT_VNPU = "SoftVNPU"
    HARD_VNPU = "HardVNPU"
    CONTAINER = "Container"
    UNMANAGED = "Unmanaged"


class Companions(StrEnum):
    """What is done with the other devices of an IOMMU group that goes to a VM."""

    BIND = "Bind"
    REFUSE = "Refuse"


class IOMMUBackend(StrEnum):
    """Which VFIO interface a VM gets: the group node, the IOMMUFD device, or what the host has."""

    AUTO = "Auto"
    LEGACY = "Legacy"
    IOMMUFD = "IOMMUFD"


class OnRelease(StrEnum):
    """What becomes of a device that no policy decides any more."""

    RESTORE = "Restore"
    LEAVE = "Leave"


class SchedulingPolicy(StrEnum):
    """How soft slices share the cores of a card."""

    FIXED_SHARE = "FixedShare"
    ELASTIC = "Elastic"
    BEST_EFFORT = "BestEffort"


class Placement(StrEnum):
    """Which card of a node the next slice comes from."""

    BINPACK = "Binpack"
    SPREAD = "Spread"


class Passthrough(Model):
    """Whole devices to VMs through VFIO."""

    driver: Annotated[
        Literal["Auto"] | KernelDriverName,
        Field(
            description=(
                "The VFIO driver: `Auto` takes the variant driver that the kernel names for the device (modalias), "
                "else vfio-pci; a name takes that driver."
            )
        ),
    ] = "Auto"
    companions: Annotated[
        Companions,
        Field(
            description=(
                "Other devices of the same IOMMU group: `Bind` binds them to vfio-pci as well and restores each on "
                "release; `Refuse` leaves the whole group alone while one of them is on a host driver."
            )
        ),
    ] = Companions.REFUSE
    iommu: Annotated[IOMMUBackend, Field(description="The VFIO interface that VMs get.")] = IOMMUBackend.AUTO
    virtual_functions: Annotated[
        int | None,
        Field(
            ge=1,
            le=256,
            description="Give this many plain SR-IOV virtual functions to VMs instead of the device itself.",
        ),
    ] = None


class ProfileMapReference(Model):
    """Names a VGPUProfileMap."""

    name: Annotated[ObjectName, Field(description="Name of the VGPUProfileMap.")]


class VGPU(Model):
    """SR-IOV vGPUs, carved by a profile map."""

    profile_map_ref: Annotated[ProfileMapReference, Field(description="The VGPUProfileMap that says which profiles.")]


class Library(Model):
    """A version of the hijack library that soft slices run under."""

    name: Annotated[RuleName, Field(description="The library, e.g. `vcann-rt`.")]
    version: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern=r"^[0-9A-Za-z][0-9A-Za-z._+-]*$",
            description="Its version, e.g. `1.2.0`.",
        ),
    ]


class SoftVNPU(Model):
    """Slices of a card that a library in the container keeps apart."""

    library: Annotated[Library, Field(description="The library that limits what a container may use.")]
    max_instances: Annotated[int, Field(ge=1, le=20, description="At most this many slices per card.")] = 20
    scheduling_policies: Annotated[
        tuple[SchedulingPolicy, ...],
        Field(
            min_length=1,
            max_length=3,
            description="The ways of sharing that the card offers; the pod's class chooses. Absent: all.",
            json_schema_extra=schema_notes(list_type="set"),
        ),
    ] = tuple(SchedulingPolicy)
    memory_reserve: Annotated[Quantity, Field(description="Memory of the card that no slice gets.")] = "1Gi"
    placement: Annotated[Placement, Field(description="Which card the next slice comes from.")] = Placement.BINPACK


class HardVNPU(Model):
    """Partitions of a card that the hardware keeps apart."""

    templates: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")], ...],
        Field(
            min_length=1,
            max_length=16,
            description="The partition templates that are offered. Absent: all that the catalogue knows for the card.",
            json_schema_extra=schema_notes(list_type="set"),
        ),
    ] = ()
    placement: Annotated[Placement, Field(description="Which card the next partition comes from.")] = Placement.BINPACK


# The block of each mode, by field name; a mode that is not named has none.
MODE_BLOCKS = {
    Mode.PASSTHROUGH: "passthrough",
    Mode.VGPU: "vgpu",
    Mode.SOFT_VNPU: "soft_vnpu",
    Mode.HARD_VNPU: "hard_vnpu",
}
_YAML_BLOCKS = {
    Mode.PASSTHROUGH: "passthrough",
    Mode.VGPU: "vgpu",
    Mode.SOFT_VNPU: "softVNPU",
    Mode.HARD_VNPU: "hardVNPU",
}
_REQUIRED_BLOCKS = (Mode.VGPU, Mode.SOFT_VNPU)


class DeviceRule(Model):
    """One rule: these devices, this mode."""

    model_config = ConfigDict(
        json_schema_extra=schema_notes(
            *(
                cel(
                    f"!has(self.{block}) || self.mode == '{mode}'",
                    f"{block} is the block of mode {mode}: remove it, or set mode to {mode}",
                    f".{block}",
                )
                for mode, block in _YAML_BLOCKS.items()
            ),
            *(
                cel(
                    f"self.mode != '{mode}' || has(self.{_YAML_BLOCKS[mode]})",
                    f"mode {mode} needs the block {_YAML_BLOCKS[mode]}",
                )
                for mode in _REQUIRED_BLOCKS
            ),
        )
    )

    name: Annotated[RuleName, Field(description="Names the rule in status and messages; unique in the policy.")]
    match: Annotated[DeviceMatch, Field(description="Which devices.")]
    limit: Annotated[
        int | None,
        Field(
            ge=1,
            le=512,
            description=(
                "At most this many devices per node: first those that the rule has already, then by lowest address. "
                "Devices in use by others or vetoed are not counted and are reported; the rest falls to the next rule, "
                "then to the next policy. Absent: all."
            ),
        ),
    ] = None
    mode: Annotated[
        Mode,
        Field(
            description=(
                "`Passthrough`: whole to VMs. `VGPU`: SR-IOV vGPUs. `SoftVNPU`, `HardVNPU`: slices. `Container`: "
                "whole, on the vendor's driver, to pods. `Unmanaged`: left alone on purpose."
            )
        ),
    ]
    passthrough: Annotated[Passthrough | None, Field(description="Settings of mode Passthrough.")] = None
    vgpu: Annotated[VGPU | None, Field(description="Settings of mode VGPU; required there.")] = None
    soft_vnpu: Annotated[SoftVNPU | None, Field(description="Settings of mode SoftVNPU; required there.")] = None
    hard_vnpu: Annotated[HardVNPU | None, Field(description="Settings of mode HardVNPU.")] = None

    @model_validator(mode="after")
    def _block_fits_mode(self) -> "DeviceRule":
        for mode, attribute in MODE_BLOCKS.items():
            given = getattr(self, attribute) is not None
            if given and mode is not self.mode:
                raise ValueError(f"{_YAML_BLOCKS[mode]} is the block of mode {mode}: remove it, or set mode to {mode}")
            if not given and mode is self.mode and mode in _REQUIRED_BLOCKS:
                raise ValueError(f"mode {mode} needs the block {_YAML_BLOCKS[mode]}")
        return self


class NodePolicySpec(Model):
    """What the platform team wants."""

    state: Annotated[
        PolicyState,
        Field(
            description=(
                "`Paused` keeps what is in force for the policy's devices, writes nothing, and lets no lower "
                "priority take over."
            )
        ),
    ] = PolicyState.ACTIVE
    priority: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="Higher wins; ties go to the name that sorts first. Creation order never matters.",
        ),
    ] = 100
    node_selector: Annotated[LabelSelector, Field(description="Which nodes; `{}` is every node.")]
    driver_name: Annotated[
        DriverName, Field(description="The DRA driver name under which the devices are published.")
    ] = DEFAULT_DRIVER_NAME
    devices: Annotated[
        tuple[DeviceRule, ...],
        Field(
            min_length=1,
            max_length=32,
            description="Rules; the first that matches a device decides it.",
            json_schema_extra=schema_notes(
                cel("self.all(a, self.exists_one(b, b.name == a.name))", "the names of the rules must be unique"),
                list_type="atomic",
            ),
        ),
    ]
    on_release: Annotated[
        OnRelease,
        Field(
            description=(
                "When no policy decides a device any more: `Restore` gives it back the driver that it had, "
                "`Leave` leaves it as it is."
            )
        ),
    ] = OnRelease.RESTORE
    rollout: Annotated[Rollout, Field(description="How fast nodes may change.")] = Rollout()

    @model_validator(mode="after")
    def _names_are_unique(self) -> "NodePolicySpec":
        if len({rule.name for rule in self.devices}) != len(self.devices):
            raise ValueError("the names of the rules must be unique")
        return self


class PolicyConditionType(StrEnum):
    """The conditions of a policy."""

    READY = "Ready"
    ACCEPTED = "Accepted"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    CONFLICTED = "Conflicted"


class PolicyReason(StrEnum):
    """Stable reasons in a policy's conditions."""

    # Ready
    ALL_DEVICES_READY = "AllDevicesReady"
    NO_NODES_MATCHED = "NoNodesMatched"
    NO_DEVICES_MATCHED = "NoDevicesMatched"
    INVENTORY_PENDING = "InventoryPending"
    ROLLING_OUT = "RollingOut"
    DEVICES_BLOCKED = "DevicesBlocked"
    DEVICES_FAILED = "DevicesFailed"
    DAEMON_MISSING = "DaemonMissing"
    DAEMON_SILENT = "DaemonSilent"
    REBOOTED = "Rebooted"
    PAUSED = "Paused"
    REMOVAL_HELD = "RemovalHeld"
    # Accepted
    VALID = "Valid"
    INVALID = "Invalid"
    # Progressing
    COMPLETE = "Complete"
    PROGRESS_STALLED = "ProgressStalled"
    # Degraded
    AS_EXPECTED = "AsExpected"
    # Conflicted
    NO_CONFLICT = "NoConflict"
    LOST_DEVICES = "LostDevices"
    WON_DEVICES = "WonDevices"


class NodeCounts(Model):
    """Nodes of a policy."""

    matched: Annotated[int, Field(ge=0, description="Nodes that the selector selects.")]
    updated: Annotated[int, Field(ge=0, description="Nodes whose orders are those of the present policy.")]
    ready: Annotated[int, Field(ge=0, description="Updated nodes on which every device of the policy is ready.")]
    blocked: Annotated[int, Field(ge=0, description="Nodes with a device that cannot go on; see `blockers`.")]


class DeviceCounts(Model):
    """Devices of a policy, over all nodes."""

    matched: Annotated[int, Field(ge=0, description="Devices that the policy decides.")]
    ready: Annotated[int, Field(ge=0, description="Devices that are as the policy asks, in this boot.")]


class Blocker(Model):
    """Why a device is not as the policy asks."""

    node: Annotated[str, Field(max_length=253, description="The node.")]
    device: Annotated[
        PCIAddress | Literal[""], Field(description="The device's address; empty when the whole node waits.")
    ]
    reason: Annotated[Reason, Field(description="One stable CamelCase word.")]
    message: Annotated[ShortText, Field(description="The same for a human, with the name of the user or the fix.")]


class ConflictOutcome(StrEnum):
    """Which side of a conflict this policy is on."""

    WON = "Won"
    LOST = "Lost"


class Conflict(Model):
    """Another policy decides devices of this one differently."""

    policy: Annotated[str, Field(max_length=253, description="The other policy.")]
    rule: Annotated[str, Field(max_length=63, description="The other policy's rule.")]
    nodes: Annotated[int, Field(ge=0, description="On how many nodes.")]
    outcome: Annotated[ConflictOutcome, Field(description="Whether this policy won or lost there.")]


class NodePolicyStatus(Model):
    """What has become of it; written by the node-policy controller."""

    observed_generation: Annotated[
        int | None, Field(ge=0, description="The metadata.generation that this status was computed from.")
    ] = None
    conditions: Conditions = ()
    nodes: Annotated[NodeCounts | None, Field(description="Nodes of the policy.")] = None
    devices: Annotated[DeviceCounts | None, Field(description="Devices of the policy.")] = None
    blockers: Annotated[
        tuple[Blocker, ...],
        Field(
            max_length=16,
            description="What stands in the way, the first 16.",
            json_schema_extra=schema_notes(list_type="atomic"),
        ),
    ] = ()
    conflicts: Annotated[
        tuple[Conflict, ...],
        Field(
            max_length=16,
            description="Where another policy decides devices differently, the first 16.",
            json_schema_extra=schema_notes(list_type="atomic"),
        ),
    ] = ()


class NPUNodePolicy(KubeObject):
    """Which accelerators of which nodes go whole to VMs, become slices, or stay with containers."""

    kind: Literal["NPUNodePolicy"] = "NPUNodePolicy"
    spec: Annotated[NodePolicySpec, Field(description="What the platform team wants.")]
    status: Annotated[NodePolicyStatus | None, Field(description="What has become of it.")] = None
