"""VNPUQuota: what the pods of a namespace may use of accelerators and their slices."""

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from crds.models.base import (
    ATOMIC_LIST,
    UID,
    Counter,
    Distinct,
    Generation,
    KubeObject,
    Model,
    ObjectName,
    ProductName,
    ShortText,
    absent,
    cel,
    fault,
    key_rule,
    schema_notes,
)
from crds.models.conditions import Conditions
from crds.models.profile_map import PROFILE_NAME_LENGTH, PROFILE_NAME_PATTERN, ProfileName
from crds.models.quantity import Quantity

_NO_LIMIT: Final = absent("no limit")
_BOUNDS_CROSS: Final = "min{0} must not be above max{0}"
_NO_BOUND: Final = absent("no bound")
Count = Annotated[int, Field(ge=0, le=1_000_000)]


class WhenExceeded(StrEnum):
    """What becomes of a pod that does not fit."""

    REJECT = "Reject"
    QUEUE = "Queue"


class Enforcement(StrEnum):
    """Whether the limits bind or are only watched."""

    ENFORCE = "Enforce"
    AUDIT = "Audit"


class Amounts(Model):
    """Amounts of accelerators; absent means no limit, 0 means none."""

    devices: Annotated[Count | None, Field(description="Whole devices.", json_schema_extra=_NO_LIMIT)] = None
    cores: Annotated[
        Count | None, Field(description="Percent of one NPU; a whole NPU is 100.", json_schema_extra=_NO_LIMIT)
    ] = None
    memory: Annotated[Quantity | None, Field(description="Memory of the devices.", json_schema_extra=_NO_LIMIT)] = None
    profiles: Annotated[
        dict[ProfileName, Count],
        Field(
            max_length=64,
            description="vGPUs by profile name; a profile that is not named has no limit.",
            json_schema_extra=_NO_LIMIT
            | schema_notes(
                key_rule(
                    "NPF-VQ-001",
                    PROFILE_NAME_PATTERN,
                    PROFILE_NAME_LENGTH,
                    "a key of profiles must be a profile name, e.g. L40S-24Q",
                )
            ),
        ),
    ] = Field(default_factory=dict)


class PerPod(Model):
    """Bounds for each pod."""

    model_config = ConfigDict(
        json_schema_extra=schema_notes(
            cel(
                "NPF-VQ-002",
                "!has(self.minCores) || !has(self.maxCores) || self.minCores <= self.maxCores",
                _BOUNDS_CROSS.format("Cores"),
                ".minCores",
            ),
            cel(
                "NPF-VQ-003",
                "!has(self.minDevices) || !has(self.maxDevices) || self.minDevices <= self.maxDevices",
                _BOUNDS_CROSS.format("Devices"),
                ".minDevices",
            ),
        )
    )

    min_devices: Annotated[
        Count | None,
        Field(description="At least this many whole devices, where a pod asks for any.", json_schema_extra=_NO_BOUND),
    ] = None
    max_devices: Annotated[
        Count | None,
        Field(description="At most this many whole devices.", json_schema_extra=_NO_BOUND),
    ] = None
    min_cores: Annotated[
        Count | None,
        Field(description="At least this percentage of an NPU, where a pod asks for any.", json_schema_extra=_NO_BOUND),
    ] = None
    max_cores: Annotated[
        Count | None,
        Field(description="At most this percentage of an NPU.", json_schema_extra=_NO_BOUND),
    ] = None
    min_memory: Annotated[
        Quantity | None,
        Field(description="At least this much memory, where a pod asks for any.", json_schema_extra=_NO_BOUND),
    ] = None
    max_memory: Annotated[
        Quantity | None,
        Field(description="At most this much memory.", json_schema_extra=_NO_BOUND),
    ] = None

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        for what, low, high in (
            ("Cores", self.min_cores, self.max_cores),
            ("Devices", self.min_devices, self.max_devices),
        ):
            if low is not None and high is not None and low > high:
                raise fault(_BOUNDS_CROSS.format(what), f"min{what}")
        return self


_NOT_EMPTY: Final = "match needs at least one of products, deviceClasses"


class ChargedDevices(Model):
    """Which devices are charged; all that is given must hold."""

    model_config = ConfigDict(
        json_schema_extra=schema_notes(cel("NPF-VQ-004", "has(self.products) || has(self.deviceClasses)", _NOT_EMPTY))
    )

    products: Annotated[
        tuple[ProductName, ...],
        Field(
            min_length=1,
            max_length=32,
            description="Product names of the catalogue.",
            json_schema_extra=ATOMIC_LIST | absent("no criterion"),
        ),
    ] = ()
    device_classes: Annotated[
        tuple[ObjectName, ...],
        Field(
            min_length=1,
            max_length=32,
            description="Names of DeviceClasses.",
            json_schema_extra=ATOMIC_LIST | absent("no criterion"),
        ),
    ] = ()

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if not self.products and not self.device_classes:
            raise fault(_NOT_EMPTY)
        return self


class QuotaSpec(Model):
    """What the platform team allows."""

    limits: Annotated[Amounts, Field(description="What all pods of the namespace may use together.")] = Amounts()
    per_pod: Annotated[PerPod, Field(description="Bounds for each pod.")] = PerPod()
    match: Annotated[
        ChargedDevices | None,
        Field(description="Which devices are charged.", json_schema_extra=absent("all of npufleet's")),
    ] = None
    when_exceeded: Annotated[
        WhenExceeded, Field(description="`Reject` refuses a pod that does not fit, `Queue` lets it wait its turn.")
    ] = WhenExceeded.REJECT
    enforcement: Annotated[Enforcement, Field(description="`Audit` only shows what would be refused.")] = (
        Enforcement.ENFORCE
    )


class InFlight(Model):
    """A charge that is promised to a claim and not yet seen in use."""

    claim_uid: Annotated[UID, Field(alias="claimUID", description="UID of the ResourceClaim.")]
    charge: Annotated[Amounts, Field(description="What it is charged.")]


class PodCounts(Model):
    """Pods that the quota has seen."""

    admitted: Annotated[Counter, Field(description="Pods that were let through.")]
    queued: Annotated[Counter, Field(description="Pods that wait.")]


class QueuedPod(Model):
    """A pod that waits."""

    pod: Annotated[str, Field(max_length=253, description="The pod.")]
    message: Annotated[ShortText, Field(description="What it asked for and what is free.")]


class QuotaStatus(Model):
    """What is used of it; written by the quota controller."""

    observed_generation: Annotated[
        Generation | None, Field(description="The metadata.generation that this status was computed from.")
    ] = None
    conditions: Conditions = ()
    used: Annotated[Amounts | None, Field(description="Charges of all marked claims.")] = None
    in_flight: Annotated[
        tuple[InFlight, ...],
        Field(
            max_length=64,
            description="Charges that are promised.",
        ),
        Distinct("claimUID"),
    ] = ()
    pods: Annotated[PodCounts | None, Field(description="Pods that the quota has seen.")] = None
    queue: Annotated[
        tuple[QueuedPod, ...],
        Field(
            max_length=16,
            description="Pods that wait, the first 16.",
            json_schema_extra=ATOMIC_LIST,
        ),
    ] = ()


class VNPUQuota(KubeObject):
    """What the pods of a namespace may use of accelerators and their slices."""

    kind: Literal["VNPUQuota"] = "VNPUQuota"
    spec: Annotated[QuotaSpec, Field(description="What the platform team allows.")]
    status: Annotated[QuotaStatus | None, Field(description="What is used of it.")] = None
