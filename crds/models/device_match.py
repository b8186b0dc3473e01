"""Which devices of a node a rule means; the same model in NPUNodePolicy and VGPUProfileMap."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field, model_validator

from crds.models.base import (
    ATOMIC_LIST,
    PCIID,
    Model,
    PCIAddress,
    PCIClass,
    ProductName,
    SerialNumber,
    SubsystemID,
    absent,
    cel,
    fault,
    schema_notes,
)

_CRITERIA: Final = ("vendors", "devices", "subsystems", "classes", "products", "addresses", "serials", "numaNodes")
_CRITERION: Final = ATOMIC_LIST | absent("no criterion")
_NOT_EMPTY: Final = "match needs at least one of " + ", ".join(_CRITERIA)
_ADDRESSES_ALONE: Final = (
    "addresses needs products, or vendors and devices, beside it: "
    "an address alone may belong to another card after a reboot"
)
_DEVICES_ALONE: Final = "devices needs vendors beside it: device ids are unique within a vendor only"


class Function(StrEnum):
    """Which PCI functions a rule means: physical functions, SR-IOV virtual functions, or both."""

    PHYSICAL = "Physical"
    VIRTUAL = "Virtual"
    ANY = "Any"


class DeviceMatch(Model):
    """Criteria for devices; all that are given must hold, and each list is an alternative within itself."""

    model_config = ConfigDict(
        json_schema_extra=schema_notes(
            cel("NPF-ALL-031", " || ".join(f"has(self.{name})" for name in _CRITERIA), _NOT_EMPTY),
            cel(
                "NPF-ALL-032",
                "!has(self.addresses) || has(self.products) || has(self.devices)",
                _ADDRESSES_ALONE,
                ".addresses",
            ),
            cel("NPF-ALL-033", "!has(self.devices) || has(self.vendors)", _DEVICES_ALONE, ".devices"),
        )
    )

    vendors: Annotated[
        tuple[PCIID, ...],
        Field(
            min_length=1,
            max_length=32,
            description="PCI vendor ids, 4 hex digits without 0x.",
            json_schema_extra=_CRITERION,
        ),
    ] = ()
    devices: Annotated[
        tuple[PCIID, ...],
        Field(
            min_length=1,
            max_length=32,
            description="PCI device ids, 4 hex digits without 0x; needs `vendors` beside it.",
            json_schema_extra=_CRITERION,
        ),
    ] = ()
    subsystems: Annotated[
        tuple[SubsystemID, ...],
        Field(
            min_length=1,
            max_length=32,
            description="PCI subsystem ids as `vendor:device`, e.g. `10de:16a1`.",
            json_schema_extra=_CRITERION,
        ),
    ] = ()
    classes: Annotated[
        tuple[PCIClass, ...],
        Field(
            min_length=1,
            max_length=32,
            description="PCI classes: 6 hex digits, or 4 for every programming interface of the class.",
            json_schema_extra=_CRITERION,
        ),
    ] = ()
    products: Annotated[
        tuple[ProductName, ...],
        Field(
            min_length=1,
            max_length=32,
            description="Product names of the catalogue, e.g. `RBLN-CA25`; looked up by PCI ids, never guessed.",
            json_schema_extra=_CRITERION,
        ),
    ] = ()
    addresses: Annotated[
        tuple[PCIAddress, ...],
        Field(
            min_length=1,
            max_length=64,
            description=(
                "PCI addresses (BDF), e.g. `0000:23:00.0`. Needs `products`, or `vendors` and `devices`, beside it; "
                "a device at the address that is of another kind is reported and never touched."
            ),
            json_schema_extra=_CRITERION,
        ),
    ] = ()
    serials: Annotated[
        tuple[SerialNumber, ...],
        Field(
            min_length=1,
            max_length=64,
            description="Serial numbers as the inventory shows them.",
            json_schema_extra=_CRITERION,
        ),
    ] = ()
    numa_nodes: Annotated[
        tuple[Annotated[int, Field(ge=0, le=1023)], ...],
        Field(
            min_length=1,
            max_length=32,
            description="NUMA nodes; a device whose node is unknown does not match.",
            json_schema_extra=_CRITERION,
        ),
    ] = ()
    function: Annotated[
        Function,
        Field(description="`Physical` functions, SR-IOV `Virtual` functions, or `Any`."),
    ] = Function.PHYSICAL

    @model_validator(mode="after")
    def _says_which(self) -> "DeviceMatch":
        if not any(
            (
                self.vendors,
                self.devices,
                self.subsystems,
                self.classes,
                self.products,
                self.addresses,
                self.serials,
                self.numa_nodes,
            )
        ):
            raise fault(_NOT_EMPTY)
        if self.addresses and not (self.products or self.devices):
            raise fault(_ADDRESSES_ALONE, "addresses")
        if self.devices and not self.vendors:
            raise fault(_DEVICES_ALONE, "devices")
        return self
