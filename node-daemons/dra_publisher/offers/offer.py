"""A device as pods may have it: what one entry of a ResourceSlice says, before it is put into the words of the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from crds.device_names import NamedKind
from crds.models.node_state import DesiredDevice
from node_host.handover.entry import shape_digest, vgpu_shape

Attribute = bool | int | str


class TaintKey(StrEnum):
    """Why nobody new gets a device. The value of a taint is a reason in CamelCase, its effect always NoSchedule."""

    NOT_READY = "npufleet.io/not-ready"
    HANDOVER = "npufleet.io/handover"
    VETOED = "npufleet.io/vetoed"
    IN_USE = "npufleet.io/in-use"
    DRIVER_CHANGED = "npufleet.io/driver-changed"
    UNHEALTHY = "npufleet.io/unhealthy"


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A taint of a device; `value` has the form of a label's value."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A device in the pool of its node.

    Names of `attributes` and `capacity` without a domain are in the domain of the driver. `capacity` holds quantities.
    """

    address: str
    kind: NamedKind
    name: str
    driver: str
    entry: DesiredDevice
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()

    @property
    def profile(self) -> str | None:
        """That of a vGPU, None of every other device."""
        found = self.attributes.get("profile")
        return found if self.kind is NamedKind.VGPU and isinstance(found, str) else None

    @property
    def shape(self) -> str:
        """The digest of what its order makes of it; of a vGPU that is the profile, whatever else its card carries."""
        return shape_digest(self.entry) if self.profile is None else vgpu_shape(self.profile)
