"""What can become of a device: the modes, and the settings of each.

The same blocks stand in a policy's rules and, resolved, in the orders of NPUNodeState.
"""

from enum import StrEnum
from typing import Annotated, Final, Protocol

from pydantic import Field

from crds.models.base import Distinct, KernelDriverName, Model, ObjectName, RuleName, absent, api_name
from crds.models.quantity import Quantity


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
        KernelDriverName,
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
                "What is done with the other devices of the same IOMMU group: `Bind` binds them to vfio-pci as well "
                "and restores each on release; `Refuse` leaves the whole group alone while one of them is on a host "
                "driver."
            )
        ),
    ] = Companions.REFUSE
    iommu: Annotated[
        IOMMUBackend,
        Field(
            description=(
                "The VFIO interface that VMs get: `Legacy` the group node, `IOMMUFD` the device's own node, `Auto` "
                "what the host has."
            )
        ),
    ] = IOMMUBackend.AUTO
    virtual_functions: Annotated[
        int | None,
        Field(
            ge=1,
            le=256,
            description=(
                "Give this many plain SR-IOV virtual functions to VMs instead of the device itself, which stays on "
                "its driver. Functions that others made are adopted when they are as many, and block another number."
            ),
            json_schema_extra=absent("the device itself goes to a VM"),
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
            description="The ways of sharing that the card offers; the pod's class chooses.",
            json_schema_extra=absent("all of them"),
        ),
        Distinct(),
    ] = tuple(SchedulingPolicy)
    memory_reserve: Annotated[Quantity, Field(description="Memory of the card that no slice gets.")] = "1Gi"
    placement: Annotated[
        Placement,
        Field(
            description="Which card the next slice comes from: `Binpack` fills one first, `Spread` takes the emptiest."
        ),
    ] = Placement.BINPACK


class HardVNPU(Model):
    """Partitions of a card that the hardware keeps apart."""

    templates: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")], ...],
        Field(
            min_length=1,
            max_length=16,
            description="The partition templates that are offered, e.g. `vir02`.",
            json_schema_extra=absent("all that the catalogue knows for the card"),
        ),
        Distinct(),
    ] = ()
    placement: Annotated[
        Placement,
        Field(
            description=(
                "Which card the next partition comes from: `Binpack` fills one first, `Spread` takes the emptiest."
            )
        ),
    ] = Placement.BINPACK


# The block of each mode, by attribute and by YAML name; a mode that is not named has none.
MODE_BLOCKS: Final = {
    Mode.PASSTHROUGH: "passthrough",
    Mode.VGPU: "vgpu",
    Mode.SOFT_VNPU: "soft_vnpu",
    Mode.HARD_VNPU: "hard_vnpu",
}
YAML_BLOCKS: Final = {mode: api_name(attribute) for mode, attribute in MODE_BLOCKS.items()}
REQUIRED_BLOCKS: Final = (Mode.VGPU, Mode.SOFT_VNPU)
# Where the block may be left out: the effective values of an empty one.
_EMPTY_BLOCKS: Final[dict[Mode, Passthrough | HardVNPU]] = {
    Mode.PASSTHROUGH: Passthrough(),
    Mode.HARD_VNPU: HardVNPU(),
}


class ModeHolder(Protocol):
    """A model with a mode, and an attribute for the block of each mode that has one."""

    @property
    def mode(self) -> Mode: ...


def settings_of(holder: ModeHolder) -> Passthrough | VGPU | SoftVNPU | HardVNPU | None:
    """The block of the holder's mode, with effective values where it is absent; None for modes without one."""
    attribute = MODE_BLOCKS.get(holder.mode)
    if attribute is None:
        return None
    given: Passthrough | VGPU | SoftVNPU | HardVNPU | None = getattr(holder, attribute)
    return _EMPTY_BLOCKS.get(holder.mode) if given is None else given
