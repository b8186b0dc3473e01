"""Kernel modules and the PCI drivers in them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from simulated_node.description.base import Described, Hex4, HostPath, Name


class DriverKind(StrEnum):
    NATIVE = "Native"
    VFIO = "VFIO"
    PORT = "Port"
    STUB = "Stub"


class WhenOpen(StrEnum):
    SUCCEEDS = "Succeeds"
    BLOCKS = "Blocks"


class VfsOnUnbind(StrEnum):
    DESTROYED = "Destroyed"
    LEFT = "Left"


class DriverSriov(Described):
    """A driver that sets the number of VFs through sysfs: ``maximum`` is its own limit, ``on_unbind`` what becomes of
    the VFs when it leaves.
    """

    maximum: Annotated[int, Field(ge=1)] | None = None
    on_unbind: VfsOnUnbind = VfsOnUnbind.DESTROYED


class MatchId(Described):
    """A row of a driver's id table; what is absent matches anything. ``class`` may be a prefix ("12", "0604")."""

    vendor: Hex4 | None = None
    device: Hex4 | None = None
    pci_class: Annotated[str, Field(pattern=r"^[0-9a-f]{2,6}$")] | None = Field(default=None, alias="class")


class NodeTemplate(Described):
    """A character device that a native driver makes for each device: "rbln{index}" below /dev, lowest free index
    first.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_/-]+\{index\}[a-z0-9_/-]*$")]
    first: Annotated[int, Field(ge=0)] = 0
    major: Annotated[int, Field(ge=1)]
    sysfs_class: Name | None = None
    index_attribute: Name | None = None


class Driver(Described):
    """A PCI driver: its name is the directory's ("vfio-pci"), its module the file's ("vfio_pci").

    Without ``sriov`` it neither makes VFs nor destroys them. With ``vgpu`` it gives the VFs of a vGPU card to virtual
    machines itself.
    """

    name: Name
    module: Name
    kind: DriverKind = DriverKind.NATIVE
    ids: tuple[MatchId, ...] = ()
    override_only_ids: tuple[MatchId, ...] = ()
    nodes: tuple[NodeTemplate, ...] = ()
    shared_nodes: tuple[Annotated[str, Field(pattern=r"^[a-z0-9_/-]+$")], ...] = ()
    listing: HostPath | None = None
    unbind_when_open: WhenOpen = WhenOpen.SUCCEEDS
    sriov: DriverSriov | None = None
    vgpu: bool = False


class ModuleState(StrEnum):
    ABSENT = "Absent"
    LOADABLE = "Loadable"
    LOADED = "Loaded"
    BUILTIN = "Builtin"


class Module(Described):
    """A kernel module. ``ids`` are the "vendor:device" pairs of vfio-pci.ids: ids its drivers take from the start;
    ``release`` is what it tells as its version.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    state: ModuleState = ModuleState.LOADABLE
    requires: tuple[Name, ...] = ()
    ids: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")], ...] = ()
    release: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]+$")] | None = None


class KnownDrivers(Described):
    modules: tuple[Module, ...]
    drivers: tuple[Driver, ...]
