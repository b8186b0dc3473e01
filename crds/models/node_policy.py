"""NPUNodePolicy: what becomes of which accelerators of which nodes."""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from crds.models.base import (
    ATOMIC_LIST,
    Counter,
    DriverName,
    Generation,
    KubeObject,
    Model,
    PCIAddressOrEmpty,
    Reason,
    RuleName,
    ShortText,
    absent,
    cel,
    fault,
    schema_notes,
)
from crds.models.conditions import Conditions
from crds.models.device_match import DeviceMatch, Function
from crds.models.modes import (
    MODE_BLOCKS,
    REQUIRED_BLOCKS,
    VGPU,
    YAML_BLOCKS,
    HardVNPU,
    Mode,
    OnRelease,
    Passthrough,
    SoftVNPU,
    settings_of,
)
from crds.models.rollout import Rollout
from crds.models.selectors import LabelSelector

DEFAULT_DRIVER_NAME: Final = "npufleet.io"
_BLOCK_RULES: Final = ("NPF-NP-001", "NPF-NP-002", "NPF-NP-003", "NPF-NP-004")
_REQUIRED_BLOCK_RULES: Final = ("NPF-NP-005", "NPF-NP-006")
_NAMES_TWICE: Final = "the names of the rules must be unique"
_OF_CARDS: Final = "virtual functions are given by cards: leave match.function out, or virtualFunctions"


class PolicyState(StrEnum):
    """Whether the policy acts."""

    ACTIVE = "Active"
    PAUSED = "Paused"


class DeviceRule(Model):
    """One rule: these devices, this mode."""

    model_config = ConfigDict(
        json_schema_extra=schema_notes(
            *(
                cel(
                    id,
                    f"!has(self.{block}) || self.mode == '{mode}'",
                    f"{block} is the block of mode {mode}: remove it, or set mode to {mode}",
                    f".{block}",
                )
                for id, (mode, block) in zip(_BLOCK_RULES, YAML_BLOCKS.items(), strict=True)
            ),
            *(
                cel(
                    id,
                    f"self.mode != '{mode}' || has(self.{YAML_BLOCKS[mode]})",
                    f"mode {mode} needs the block {YAML_BLOCKS[mode]}",
                )
                for id, mode in zip(_REQUIRED_BLOCK_RULES, REQUIRED_BLOCKS, strict=True)
            ),
            cel(
                "NPF-NP-007",
                "!has(self.passthrough) || !has(self.passthrough.virtualFunctions) || !has(self.match.function) || "
                f"self.match.function != '{Function.VIRTUAL}'",
                _OF_CARDS,
                ".passthrough",
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
                "then to the next policy."
            ),
            json_schema_extra=absent("all"),
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
    passthrough: Annotated[
        Passthrough | None,
        Field(
            description="Settings of mode Passthrough; forbidden with other modes.",
            json_schema_extra=absent("the effective value of each of its fields"),
        ),
    ] = None
    vgpu: Annotated[
        VGPU | None,
        Field(
            description="Settings of mode VGPU; required there, forbidden with other modes.",
            json_schema_extra=absent("only with another mode"),
        ),
    ] = None
    soft_vnpu: Annotated[
        SoftVNPU | None,
        Field(
            description="Settings of mode SoftVNPU; required there, forbidden with other modes.",
            json_schema_extra=absent("only with another mode"),
        ),
    ] = None
    hard_vnpu: Annotated[
        HardVNPU | None,
        Field(
            description="Settings of mode HardVNPU; forbidden with other modes.",
            json_schema_extra=absent("the effective value of each of its fields"),
        ),
    ] = None

    @property
    def settings(self) -> Passthrough | VGPU | SoftVNPU | HardVNPU | None:
        """The block of the rule's mode, with effective values where it is absent; None for modes without one."""
        return settings_of(self)

    @model_validator(mode="after")
    def _block_fits_mode(self) -> "DeviceRule":
        for mode, attribute in MODE_BLOCKS.items():
            given = getattr(self, attribute) is not None
            if given and mode is not self.mode:
                block = YAML_BLOCKS[mode]
                raise fault(f"{block} is the block of mode {mode}: remove it, or set mode to {mode}", block)
            if not given and mode is self.mode and mode in REQUIRED_BLOCKS:
                raise fault(f"mode {mode} needs the block {YAML_BLOCKS[mode]}")
        gives_functions = self.passthrough is not None and self.passthrough.virtual_functions is not None
        if gives_functions and self.match.function is Function.VIRTUAL:
            raise fault(_OF_CARDS, YAML_BLOCKS[Mode.PASSTHROUGH])
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
                cel("NPF-NP-008", "self.all(a, self.exists_one(b, b.name == a.name))", _NAMES_TWICE),
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
            raise fault(_NAMES_TWICE, "devices")
        return self


class PolicyConditionType(StrEnum):
    """The conditions of a policy."""

    READY = "Ready"
    ACCEPTED = "Accepted"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    CONFLICTED = "Conflicted"
    BREAK_GLASS = "BreakGlass"


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
    DEVICE_CLASS_MISSING = "DeviceClassMissing"
    PROFILE_MAP_MISSING = "ProfileMapMissing"
    NO_LAYOUT_FOR_CARD = "NoLayoutForCard"
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
    # BreakGlass
    EDITED_BY_HAND = "EditedByHand"


class NodeCounts(Model):
    """Nodes of a policy."""

    matched: Annotated[Counter, Field(description="Nodes that the selector selects.")]
    updated: Annotated[Counter, Field(description="Nodes whose orders are those of the present policy.")]
    ready: Annotated[Counter, Field(description="Updated nodes on which every device of the policy is ready.")]
    blocked: Annotated[Counter, Field(description="Nodes with a device that cannot go on; see `blockers`.")]


class DeviceCounts(Model):
    """Devices of a policy, over all nodes."""

    matched: Annotated[Counter, Field(description="Devices that the policy decides.")]
    ready: Annotated[Counter, Field(description="Devices that are as the policy asks, in this boot.")]


class Blocker(Model):
    """Why a device is not as the policy asks."""

    node: Annotated[str, Field(max_length=253, description="The node; empty when it is about no single one.")]
    device: Annotated[PCIAddressOrEmpty, Field(description="The device's address; empty when the whole node waits.")]
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
    nodes: Annotated[Counter, Field(description="On how many nodes.")]
    outcome: Annotated[ConflictOutcome, Field(description="Whether this policy won or lost there.")]


class NodePolicyStatus(Model):
    """What has become of it; written by the node-policy controller."""

    observed_generation: Annotated[
        Generation | None, Field(description="The metadata.generation that this status was computed from.")
    ] = None
    conditions: Conditions = ()
    nodes: Annotated[NodeCounts | None, Field(description="Nodes of the policy.")] = None
    devices: Annotated[DeviceCounts | None, Field(description="Devices of the policy.")] = None
    blockers: Annotated[
        tuple[Blocker, ...],
        Field(
            max_length=16,
            description="What stands in the way, the first 16.",
            json_schema_extra=ATOMIC_LIST,
        ),
    ] = ()
    conflicts: Annotated[
        tuple[Conflict, ...],
        Field(
            max_length=16,
            description="Where another policy decides devices differently, the first 16.",
            json_schema_extra=ATOMIC_LIST,
        ),
    ] = ()


class NPUNodePolicy(KubeObject):
    """Which accelerators of which nodes go to VMs, whole or as functions, become slices, or stay with containers."""

    kind: Literal["NPUNodePolicy"] = "NPUNodePolicy"
    spec: Annotated[NodePolicySpec, Field(description="What the platform team wants.")]
    status: Annotated[NodePolicyStatus | None, Field(description="What has become of it.")] = None
