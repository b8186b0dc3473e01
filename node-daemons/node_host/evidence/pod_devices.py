"""Which PCI functions the kubelet means: from the names that plugins and drivers give their devices. Pure.

Every device plugin names devices in its own way: by PCI address, by what the kernel calls the device (`rbln0`,
`card0`), by IOMMU group (those that serve VFIO), by UUID (NVIDIA). What none of this explains, of a vendor whose
devices npufleet knows, may be any of the vendor's devices on a driver of the host.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from crds.device_names import address_of
from crds.models.node_state import DeviceUser, UseKind
from node_host.evidence.pod_resources import PluginDevice, PodDevices, PodResources
from node_host.pci.device import PCIDevice
from node_host.pci.vfio_drivers import is_vfio_driver

_ADDRESS: Final = re.compile(
    r"(?<![0-9a-f])([0-9a-f]{4,8})[:_-]([0-9a-f]{2})[:_-]([01][0-9a-f])[._-]([0-7])(?![0-9a-f])", re.IGNORECASE
)
_SHORT: Final = re.compile(r"(?<![0-9a-f:])([0-9a-f]{2}:[01][0-9a-f]\.[0-7])(?![0-9a-f])", re.IGNORECASE)
_REPLICA: Final = re.compile(r"(?:::[0-9]+|-[0-9]+)$")  # of a device that several pods share
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class KnownDevices:
    """What names are judged by. ``names`` are those that the kernel and the vendor's driver give, with their function.

    ``vendors_of`` tells, for the domain of a resource or the name of a DRA driver, the PCI vendors whose devices these
    are; ``may_be_meant`` are the accelerators.
    """

    devices: Mapping[str, PCIDevice]
    names: Mapping[str, str] = field(default_factory=dict)
    vendors_of: Callable[[str], frozenset[str]] = lambda _: frozenset()
    may_be_meant: Callable[[PCIDevice], bool] = lambda _: True

    def of_plugin(self, device: PluginDevice) -> frozenset[str]:
        """The functions that a plugin's device is, or may be."""
        addressed = self._addressed(device.name)
        if addressed is not None:
            return addressed
        for name in (device.name, _REPLICA.sub("", device.name)):
            if name in self.names:
                return frozenset({self.names[name]})
        if device.name.isdecimal():
            group = frozenset(
                address
                for address, one in self.devices.items()
                if str(one.iommu_group) == device.name and is_vfio_driver(one.driver)
            )
            if group:
                return group
        return self._of_vendors(device.resource.partition("/")[0])

    def of_claim(self, driver: str, device: str) -> frozenset[str]:
        """The functions that a device of a DRA driver is, or may be."""
        address = address_of(device)
        if address is not None:
            return frozenset({address})
        if device in self.names:
            return frozenset({self.names[device]})
        return self._of_vendors(driver)

    def _addressed(self, name: str) -> frozenset[str] | None:
        found = _ADDRESS.search(name)
        if found is not None:
            domain, bus, slot, function = found.groups()
            return frozenset({f"{domain}:{bus}:{slot}.{function}".lower()})
        short = _SHORT.search(name)
        if short is None:
            return None
        place = short[1].lower()
        return frozenset(address for address in self.devices if address.partition(":")[2] == place) or None

    def _of_vendors(self, domain: str) -> frozenset[str]:
        vendors = self.vendors_of(domain)
        return frozenset(
            address
            for address, one in self.devices.items()
            if one.vendor in vendors
            and one.driver is not None
            and not is_vfio_driver(one.driver)
            and self.may_be_meant(one)
        )


def pod_users(
    resources: PodResources,
    known: KnownDevices,
    is_to_come: Callable[[str, str], bool] = lambda _claim, _address: False,
) -> dict[str, frozenset[DeviceUser]]:
    """The pods that have each function, by the kubelet's word.

    ``is_to_come`` tells of a claim (`namespace/name`) and a function whether the pod does not have it yet, whatever the
    kubelet says.
    """
    found: dict[str, set[DeviceUser]] = defaultdict(set)
    for pod in resources.pods:
        why: dict[str, set[str]] = defaultdict(set)
        for device in pod.plugin_devices:
            for address in known.of_plugin(device):
                why[address].add(f"{device.resource} {device.name}")
        for one in pod.claimed:
            for address in known.of_claim(one.driver, one.device):
                if not is_to_come(one.claim, address):
                    why[address].add(f"claim {one.claim}")
        for address, words in why.items():
            found[address].add(_user(pod, words))
    return {address: frozenset(users) for address, users in found.items()}


def served_by_plugins(devices: Iterable[PluginDevice], known: KnownDevices) -> dict[str, tuple[str, ...]]:
    """The resources of device plugins under which each function is, or may be, given to pods."""
    found: dict[str, set[str]] = defaultdict(set)
    for device in devices:
        for address in known.of_plugin(device):
            found[address].add(device.resource)
    return {address: tuple(sorted(resources)) for address, resources in found.items()}


def _user(pod: PodDevices, words: set[str]) -> DeviceUser:
    uid = {"pod_uid": pod.uid} if pod.uid is not None else {}
    first = min(words)[:_SHOWN]
    more = f" and {len(words) - 1} more" if len(words) > 1 else ""
    name = f"pod {pod.namespace}/{pod.name}"[:253]
    return DeviceUser(kind=UseKind.POD, name=name, detail=f"the kubelet gave it {first}{more}", **uid)
