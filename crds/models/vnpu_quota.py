"""VNPUQuota: what the pods of a namespace may use of accelerators and their slices."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from crds.models.base import UID, KubeObject, Model, ObjectName, ProductName, ShortText, cel, schema_notes
from crds.models.conditions import Conditions
from crds.models.profile_map import ProfileName
from crds.models.quantity import Quantity

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

    devices: Annotated[Count | None, Field(description="Whole devices.")] = None
    cores: Annotated[Count | None, Field(description="Percent of one NPU; a whole NPU is 100.")] = None
    memory: Annotated[Quantity | None, Field(description="Memory of the devices.")] = None
    profiles: Annotated[
        dict[ProfileName, Count],
        Field(max_length=64, description="vGPUs by profile name."),
    ] = Field(default_factory=dict)


class PerPod(Model):
    """Bounds for each pod."""

    model_config = ConfigDict(
        json_schema_extra=schema_notes(
            cel(
                "!has(self.minCores) || !has(self.maxCores) || self.minCores <= self.maxCores",
                "minCores must not be above maxCores",
                ".minCores",
            ),
            cel(
                "!has(self.minDevices) || !has(self.maxDevices) || self.minDevices <= self.maxDevices",
                "minDevices must not be above maxDevices",
                ".minDevices",
            ),
        )
    )

    min_devices: Annotated[
        Count | None, Field(description="At least this many whole devices, where a pod asks for any.")
    ] = None
    max_devices: Annotated[Count | None, Field(description="At most this many whole devices.")] = None
    min_cores: Annotated[
        Count | None, Field(description="At least this many percent of an NPU, where a pod asks for any.")
    ] = None
    max_cores: Annotated[Count | None, Field(description="At most this many percent of an NPU.")] = None
    min_memory: Annotated[
        Quantity | None, Field(description="At least this much memory, where a pod asks for any.")
    ] = None
    max_memory: Annotated[Quantity | None, Field(description="At most this much memory.")] = None


class ChargedDevices(Model):
    """Which devices are charged; all that is given must hold."""

    model_config = ConfigDict(
        json_schema_extra=schema_notes(
            cel("has(self.products) || has(self.deviceClasses)", "match needs at least one of products, deviceClasses")
        )
    )

    products: Annotated[
        tuple[ProductName, ...],
        Field(
            min_length=1,
            max_length=32,
            description="Product names of the catalogue.",
            json_schema_extra=schema_notes(list_type="atomic"),
        ),
    ] = ()
    device_classes: Annotated[
        tuple[ObjectName, ...],
        Field(
            min_length=1,
            max_length=32,
            description="Names of DeviceClasses.",
            json_schema_extra=schema_notes(list_type="atomic"),
        ),
    ] = ()


class QuotaSpec(Model):
    """What the platform team allows."""

    limits: Annotated[Amounts, Field(description="What all pods of the namespace may use together.")] = Amounts()
    per_pod: Annotated[PerPod, Field(description="Bounds for each pod.")] = PerPod()
    match: Annotated[
        ChargedDevices | None, Field(description="Which devices are charged. Absent: all of npufleet's.")
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

    admitted: Annotated[int, Field(ge=0, description="Pods that were let through.")]
    queued: Annotated[int, Field(ge=0, description="Pods that wait.")]


class QueuedPod(Model):
    """A pod that waits."""

    pod: Annotated[str, Field(max_length=253, description="The pod.")]
    message: Annotated[ShortText, Field(description="What it asked for and what is free.")]


class QuotaStatus(Model):
    """What is used of it; written by the quota controller."""

    observed_generation: Annotated[
        int | None, Field(ge=0, description="The metadata.generation that this status was computed from.")
    ] = None
    conditions: Conditions = ()
    used: Annotated[Amounts | None, Field(description="Charges of all marked claims.")] = None
    in_flight: Annotated[
        tuple[InFlight, ...],
        Field(
            max_length=64,
            description="Charges that are promised.",
            json_schema_extra=schema_notes(list_type="map", list_map_keys=["claimUID"]),
        ),
    ] = ()
    pods: Annotated[PodCounts | None, Field(description="Pods that the quota has seen.")] = None
    queue: Annotated[
        tuple[QueuedPod, ...],
        Field(
            max_length=16,
            description="Pods that wait, the first 16.",
            json_schema_extra=schema_notes(list_type="atomic"),
        ),
    ] = ()


class VNPUQuota(KubeObject):
    """What the pods of a namespace may use of accelerators and their slices."""

    kind: Literal["VNPUQuota"] = "VNPUQuota"
    spec: Annotated[QuotaSpec, Field(description="What the platform team allows.")]
    status: Annotated[QuotaStatus | None, Field(description="What is used of it.")] = None
