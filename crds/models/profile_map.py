"""VGPUProfileMap: which vGPU profile each SR-IOV function of a card carries."""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from crds.models.base import (
    ATOMIC_LIST,
    Counter,
    Distinct,
    Generation,
    KubeObject,
    Model,
    ObjectName,
    PCIAddress,
    Reason,
    ShortText,
    absent,
)
from crds.models.conditions import Conditions
from crds.models.device_match import DeviceMatch

MOST_PROBLEMS: Final = 16
MOST_PROFILES: Final = 64
PROFILE_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
PROFILE_NAME_LENGTH: Final = 63
ProfileName = Annotated[str, Field(min_length=1, max_length=PROFILE_NAME_LENGTH, pattern=PROFILE_NAME_PATTERN)]
ExtendedResourceName = Annotated[
    str,
    Field(
        min_length=3,
        max_length=317,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    ),
]


class MixedSizes(StrEnum):
    """Whether one card may carry profiles of different frame buffer sizes."""

    FORBID = "Forbid"
    ALLOW = "Allow"


class Unassigned(StrEnum):
    """What is done with virtual functions that the layout does not use."""

    CLEAR = "Clear"
    LEAVE = "Leave"


class Framework(StrEnum):
    """How the driver offers vGPUs: vendor-specific VFIO on virtual functions, mediated devices, or what is there."""

    AUTO = "Auto"
    VENDOR_VFIO = "VendorVFIO"
    MDEV = "Mdev"


class LayoutEntry(Model):
    """So many vGPUs of one profile on each card."""

    profile: Annotated[
        ProfileName,
        Field(
            description=(
                "The profile by name, e.g. `L40S-24Q`; numeric ids differ by driver release and are looked up on the "
                "host."
            )
        ),
    ]
    count: Annotated[int, Field(ge=1, le=256, description="How many on each card.")]
    resource_name: Annotated[
        ExtendedResourceName | None,
        Field(
            description="The extended resource under which KubeVirt offers it, e.g. `nvidia.com/L40S-24Q`.",
            json_schema_extra=absent("it is offered by its DeviceClass only"),
        ),
    ] = None


class CardLayout(Model):
    """What the matched cards carry."""

    match: Annotated[DeviceMatch, Field(description="Which cards; the first match wins.")]
    layout: Annotated[
        tuple[LayoutEntry, ...],
        Field(
            min_length=1,
            max_length=32,
            description="The profiles of each card.",
            json_schema_extra=ATOMIC_LIST,
        ),
    ]
    mixed_sizes: Annotated[
        MixedSizes, Field(description="`Allow` turns on the card's mixed-size mode where frame buffer sizes differ.")
    ] = MixedSizes.FORBID
    unassigned: Annotated[
        Unassigned,
        Field(
            description="Virtual functions beyond the layout: `Clear` takes an unused profile off, `Leave` leaves it."
        ),
    ] = Unassigned.LEAVE
    framework: Annotated[Framework, Field(description="How vGPUs are made; `Auto` takes what the host offers.")] = (
        Framework.AUTO
    )


class ProfileMapSpec(Model):
    """What the platform team wants."""

    gpus: Annotated[
        tuple[CardLayout, ...],
        Field(
            min_length=1,
            max_length=32,
            description="Layouts; the first that matches a card decides it.",
            json_schema_extra=ATOMIC_LIST,
        ),
    ]


class VGPUTotals(Model):
    """vGPUs of all profiles, over all nodes."""

    desired: Annotated[Counter, Field(description="vGPUs that the map asks for.")]
    ready: Annotated[Counter, Field(description="vGPUs that exist and were verified in this boot.")]
    failed: Annotated[Counter, Field(description="vGPUs that could not be made.")]
    in_use: Annotated[Counter, Field(description="vGPUs that a VM holds.")]


class ProfileCounts(VGPUTotals):
    """vGPUs of one profile, over all nodes."""

    profile: Annotated[ProfileName, Field(description="The profile.")]


class MapConditionType(StrEnum):
    """Conditions of a map."""

    READY = "Ready"
    ACCEPTED = "Accepted"


class MapReason(StrEnum):
    """Stable reasons in them."""

    # Ready
    ALL_TYPED = "AllTyped"
    NOT_USED = "NotUsed"
    CARDS_FAILED = "CardsFailed"
    CARDS_BLOCKED = "CardsBlocked"
    CARDS_PENDING = "CardsPending"
    DAEMON_MISSING = "DaemonMissing"
    DAEMON_SILENT = "DaemonSilent"
    REBOOTED = "Rebooted"
    NODES_UNREADABLE = "NodesUnreadable"
    # Accepted
    VALID = "Valid"
    INVALID = "Invalid"


class MapProblem(Model):
    """A vGPU, or a card, that is not as the map asks."""

    node: Annotated[ObjectName, Field(description="The node.")]
    device: Annotated[
        PCIAddress | None, Field(description="The virtual function, or the card; absent for a whole node.")
    ] = None
    profile: Annotated[ProfileName | None, Field(description="The profile; absent for a card.")] = None
    reason: Annotated[Reason, Field(description="One stable CamelCase word, as the profile writer says it.")]
    message: Annotated[ShortText, Field(description="The same for a human, with the fix.")] = ""


class ProfileMapStatus(Model):
    """What has become of it; written by the profile-map controller."""

    observed_generation: Annotated[
        Generation | None, Field(description="The metadata.generation that this status was computed from.")
    ] = None
    conditions: Conditions = ()
    totals: Annotated[VGPUTotals | None, Field(description="vGPUs of all profiles.")] = None
    profiles: Annotated[
        tuple[ProfileCounts, ...],
        Field(
            max_length=MOST_PROFILES,
            description="vGPUs by profile.",
        ),
        Distinct("profile"),
    ] = ()
    problems: Annotated[
        tuple[MapProblem, ...],
        Field(
            max_length=MOST_PROBLEMS,
            description="What stands in the way, the worst first.",
            json_schema_extra=ATOMIC_LIST,
        ),
    ] = ()


class VGPUProfileMap(KubeObject):
    """Which vGPU profile each SR-IOV function of a card carries; a policy with mode VGPU refers to it."""

    kind: Literal["VGPUProfileMap"] = "VGPUProfileMap"
    spec: Annotated[ProfileMapSpec, Field(description="What the platform team wants.")]
    status: Annotated[ProfileMapStatus | None, Field(description="What has become of it.")] = None
