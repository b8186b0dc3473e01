"""What the catalogue says of a vendor and of a product: the shape of its YAML files."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from crds.models.base import PCIID, PCIClass, ProductName, SubsystemID, api_name
from crds.models.profile_map import ProfileName
from crds.models.quantity import Quantity

NodeGlob = Annotated[str, Field(max_length=128, pattern=r"^/dev/[A-Za-z0-9_/.*\[\]-]+$")]
Sources = Annotated[tuple[Annotated[str, Field(min_length=10, max_length=400)], ...], Field(min_length=1)]


class Entry(BaseModel):
    """Base of the catalogue's records: immutable, camelCase in YAML, nothing unknown."""

    model_config = ConfigDict(alias_generator=api_name, populate_by_name=True, extra="forbid", frozen=True)


class VGPUProfile(Entry):
    """A vGPU type: its name is stable over driver releases, its number is not and stays out."""

    name: ProfileName
    frame_buffer_gib: Annotated[int, Field(alias="frameBufferGiB", ge=1, le=1024)]
    # Most instances on one card when all are of this profile; absent where no public source tells.
    maximum: Annotated[int | None, Field(ge=1, le=256)] = None


class HardTemplate(Entry):
    """A partition that the vendor's tool can make of a card."""

    name: ProfileName
    memory: Quantity
    ai_cores: Annotated[int, Field(ge=1, le=256)]
    ai_cpus: Annotated[int, Field(alias="aiCPUs", ge=0, le=256)]


class PartitionMaking(StrEnum):
    """When partitions are made: when a pod needs one, or before any pod is there."""

    ON_DEMAND = "OnDemand"
    BEFOREHAND = "Beforehand"


class HardSlices(Entry):
    """Partitions that the hardware keeps apart, and what the card has for them."""

    made: PartitionMaking
    ai_cores: Annotated[int, Field(ge=1, le=256)]
    ai_cpus: Annotated[int, Field(alias="aiCPUs", ge=0, le=256)]
    allocatable_memory: Quantity
    templates: Annotated[tuple[HardTemplate, ...], Field(min_length=1)]
    # Templates of a chip that has the same PCI ids: whether a card has them is known on its host only.
    twin_templates: tuple[ProfileName, ...] = ()


class SoftSlices(Entry):
    """Slices that a library keeps apart."""

    max_instances: Annotated[int, Field(ge=1, le=20)]


class ProductEntry(Entry):
    """A product as a vendor's file states it."""

    name: ProductName
    title: Annotated[str, Field(max_length=64)] = ""
    # The name in the PCI ID database; resource names of other device plugins are made from it.
    pci_name: Annotated[str, Field(max_length=128)] = ""
    physical: tuple[PCIID, ...] = ()
    virtual: tuple[PCIID, ...] = ()
    # Only these subsystem ids are this product; empty: any.
    subsystems: tuple[SubsystemID, ...] = ()
    class_code: Annotated[PCIClass | None, Field(alias="class")] = None
    memory: Quantity | None = None
    # How many SR-IOV virtual functions the card makes, whatever the release of its driver.
    virtual_functions: Annotated[int | None, Field(ge=1, le=256)] = None
    # How many somebody saw; another release of the driver may make more, so that it bounds nothing for sure.
    virtual_functions_seen: Annotated[int | None, Field(ge=1, le=256)] = None
    # What the frame buffers of all vGPUs of the card together come to at most, in the GB of profile names.
    frame_buffer_gb: Annotated[int | None, Field(alias="frameBufferGB", ge=1, le=1024)] = None
    # Whether vGPUs of several frame buffers live on one card in mixed-size mode; absent where nothing is known.
    mixes_sizes: bool | None = None
    profiles: tuple[VGPUProfile, ...] = ()
    hard: HardSlices | None = None
    soft: SoftSlices | None = None
    note: Annotated[str, Field(max_length=400)] = ""
    source: Sources

    @model_validator(mode="after")
    def _has_ids(self) -> Self:
        if not self.physical and not self.virtual:
            raise ValueError("a product needs physical or virtual device ids: it could never be found")
        return self


class Vendor(Entry):
    """A vendor: what holds for all of its products. Node patterns are globs of host paths."""

    id: PCIID
    name: Annotated[str, Field(min_length=1, max_length=64)]
    # Nodes of one device each; who has one open uses that device, or a twin where nothing says whose it is.
    device_nodes: tuple[NodeGlob, ...] = ()
    # Nodes that users of several devices open.
    shared_nodes: tuple[NodeGlob, ...] = ()
    # Nodes of a card's partitions.
    slice_nodes: tuple[NodeGlob, ...] = ()
    # Device plugins of the vendor name their resources in these domains, or below them.
    resource_domains: tuple[Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)+$")], ...] = ()
    # Below /sys/class.
    sysfs_class: Annotated[str | None, Field(pattern=r"^[a-z0-9_-]{1,64}$")] = None
    source: Sources


class VendorFile(Vendor):
    """A file of the catalogue: a vendor and its products."""

    products: Annotated[tuple[ProductEntry, ...], Field(min_length=1)]


class Product(ProductEntry):
    """A product together with its vendor."""

    vendor: Vendor

    @property
    def device_nodes(self) -> tuple[str, ...]:
        """Globs of the device nodes, e.g. ``/dev/rbln[0-9]*``."""
        return self.vendor.device_nodes

    def profile(self, name: str) -> VGPUProfile | None:
        """The vGPU profile of that name, or None."""
        return next((profile for profile in self.profiles if profile.name == name), None)
