"""Other plugins that serve the same devices: a device that two give to pods is given twice. Pure.

What tells: slices of somebody else, which `dra_publisher/slices/foreign.py` finds, and resources of device plugins that
the kubelet or the Node advertises.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from crds.device_names import NamedKind
from crds.models.quantity import parse_quantity

# Resources for VMs as plugins name them, `…_PT`, `…-vfio`, `…_PASSTHROUGH`; and KubeVirt's rule, the PCI name in
# capitals (`GH100_H100_PCIE`), which a plugin for containers may use as well.
_FOR_VMS: Final = re.compile(r"(?i:vfio|passthrough|[-_.]pt$)")
# A vGPU profile, as KubeVirt's users name the resource of one: `L40S-24Q`.
_FOR_VGPU: Final = re.compile(r"-[0-9]+[ABCQ]$")
_FOR_EITHER: Final = re.compile(r"(?=.*[0-9])[A-Z0-9_]+")


@dataclass(frozen=True, slots=True)
class Others:
    """Who else serves a driver's pool, by driver, or a device, by address: one sentence each, with the other's name."""

    drivers: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)

    def of(self, driver: str, address: str) -> str | None:
        """Who else serves the device, or None."""
        return self.drivers.get(driver) or self.addresses.get(address)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that might be published: what a resource without names of devices is judged by."""

    address: str
    kind: NamedKind
    vendor: str


def others_by_plugins(served: Mapping[str, Collection[str]]) -> Others:
    """By the kubelet's word (GetAllocatableResources): the resources under which each address is given to pods."""
    return Others(
        addresses={
            address: f"a device plugin gives it to pods too, as {', '.join(sorted(resources))}"
            for address, resources in served.items()
            if resources
        }
    )


def others_by_node(
    allocatable: Mapping[str, str],
    candidates: Collection[Candidate],
    vendors_of: Callable[[str], frozenset[str]],
    *,
    told: Collection[str] = frozenset(),
) -> Others:
    """By what the Node advertises, where the kubelet does not say which devices it means: any of the vendor's.

    `allocatable` is the Node's; resources that the kubelet has named the devices of are `told` and left out.
    `vendors_of` gives the PCI vendors for the domain of a resource. A resource whose name says that it is for VMs means
    devices on VFIO, one that may be a PCI name either, any other those on their own driver.
    """
    found: dict[str, str] = {}
    advertised = sorted(name for name, amount in allocatable.items() if name not in told and _is_some(amount))
    for name in advertised:
        domain, _, rest = name.partition("/")
        vendors = vendors_of(domain) if rest else frozenset()
        kinds = _kinds(rest)
        text = f"the node advertises {name}, and a device plugin may give it to pods too"
        for one in candidates if vendors else ():
            if one.vendor in vendors and one.kind in kinds:
                found.setdefault(one.address, text)
    return Others(addresses=found)


def merged(*parts: Others) -> Others:
    """All of them; what comes first is told first."""
    drivers: dict[str, str] = {}
    addresses: dict[str, str] = {}
    for part in parts:
        for known, more in ((drivers, part.drivers), (addresses, part.addresses)):
            for key, text in more.items():
                known.setdefault(key, text)
    return Others(drivers, addresses)


def _kinds(resource: str) -> Collection[NamedKind]:
    if _FOR_VGPU.search(resource):
        return (NamedKind.VGPU,)
    if _FOR_VMS.search(resource):
        return (NamedKind.VFIO,)
    return (NamedKind.NPU, NamedKind.VFIO) if _FOR_EITHER.fullmatch(resource) else (NamedKind.NPU,)


def _is_some(amount: str) -> bool:
    try:
        return parse_quantity(amount) > 0
    except ValueError:
        return True
