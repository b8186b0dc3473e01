"""What a rule may know of everything around the object that it judges: read-only, honest about what is not known."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final, Protocol

from controllers.node_policy.plan.view import DeviceView
from crds.catalogue import Catalogue
from crds.models.node_policy import NPUNodePolicy
from crds.models.profile_map import VGPUProfileMap
from crds.models.vnpu_quota import Amounts, VNPUQuota

Labels = Mapping[str, str]


class Unknown(Enum):
    """The type of UNKNOWN, so that a check against it narrows."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
"""Not asked, or cannot say. A rule that needs what is UNKNOWN says nothing."""


class View(Protocol):
    """The catalogue, and what else there is: in a cluster as of a moment ago, or in a rendered set of files.

    Objects that cannot be understood are left out. All answers of one view are of one moment as far as possible; no
    rule may turn on two of them being of the same one.
    """

    @property
    def catalogue(self) -> Catalogue:
        """The hardware that is known."""
        ...

    @property
    def now(self) -> datetime | Unknown:
        """The present time, with its time zone."""
        ...

    def policies(self) -> Mapping[str, NPUNodePolicy] | Unknown:
        """All node policies by name."""
        ...

    def profile_maps(self) -> Mapping[str, VGPUProfileMap] | Unknown:
        """All profile maps by name."""
        ...

    def quotas(self, namespace: str) -> Mapping[str, VNPUQuota] | Unknown:
        """The quotas of a namespace by name."""
        ...

    def used(self, namespace: str, quota: str) -> Amounts | Unknown:
        """What is used of a quota at present, as its status says."""
        ...

    def nodes(self) -> Mapping[str, Labels] | Unknown:
        """The labels of every Node by name."""
        ...

    def inventory(self, node: str) -> tuple[DeviceView, ...] | Unknown:
        """The devices of a node, as its binder reported them."""
        ...

    def namespaces(self) -> Mapping[str, Labels] | Unknown:
        """The labels of every Namespace by name."""
        ...

    def writers(self) -> Collection[str] | Unknown:
        """The users who apply what is in Git, as ConfigMap npufleet-writers lists them."""
        ...


@dataclass(frozen=True, slots=True)
class KnownView:
    """A view that is written down. What is not given is UNKNOWN."""

    catalogue: Catalogue
    now: datetime | Unknown = UNKNOWN
    known_policies: Mapping[str, NPUNodePolicy] | Unknown = UNKNOWN
    known_maps: Mapping[str, VGPUProfileMap] | Unknown = UNKNOWN
    known_quotas: Mapping[tuple[str, str], VNPUQuota] | Unknown = UNKNOWN
    known_nodes: Mapping[str, Labels] | Unknown = UNKNOWN
    known_namespaces: Mapping[str, Labels] | Unknown = UNKNOWN
    known_inventories: Mapping[str, tuple[DeviceView, ...]] = field(default_factory=dict)
    known_writers: Collection[str] | Unknown = UNKNOWN

    def policies(self) -> Mapping[str, NPUNodePolicy] | Unknown:
        return self.known_policies

    def profile_maps(self) -> Mapping[str, VGPUProfileMap] | Unknown:
        return self.known_maps

    def quotas(self, namespace: str) -> Mapping[str, VNPUQuota] | Unknown:
        if self.known_quotas is UNKNOWN:
            return UNKNOWN
        return {name: quota for (space, name), quota in self.known_quotas.items() if space == namespace}

    def used(self, namespace: str, quota: str) -> Amounts | Unknown:
        found = UNKNOWN if self.known_quotas is UNKNOWN else self.known_quotas.get((namespace, quota))
        if found is UNKNOWN or found is None or found.status is None or found.status.used is None:
            return UNKNOWN
        return found.status.used

    def nodes(self) -> Mapping[str, Labels] | Unknown:
        return self.known_nodes

    def inventory(self, node: str) -> tuple[DeviceView, ...] | Unknown:
        return self.known_inventories.get(node, UNKNOWN)

    def namespaces(self) -> Mapping[str, Labels] | Unknown:
        return self.known_namespaces

    def writers(self) -> Collection[str] | Unknown:
        return self.known_writers
