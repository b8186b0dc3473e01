"""Reading the host: all devices for a plan, or a few of them again right before they are changed.

One device that hangs, vanishes or talks nonsense costs that device only.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from crds.models.node_state import DeviceUser, UseKind
from node_host.boot import read_boot_id
from node_host.bounded_call import BoundedCalls, HungError
from node_host.evidence.device_nodes import DeviceNodes, read_device_nodes
from node_host.evidence.disks import DiskEvidence
from node_host.evidence.open_handles import OpenHandles, read_open_handles
from node_host.evidence.pod_devices import KnownDevices, pod_users, served_by_plugins
from node_host.evidence.pod_resources import PluginDevices, PodResources, read_plugin_devices, read_pod_resources
from node_host.evidence.prepared import Prepared, read_prepared
from node_host.evidence.publication import Published, read_published
from node_host.evidence.usage import as_told_before, unreadable_use, users_of
from node_host.evidence.vetoes import HostEvidence, read_evidence, vetoes_of
from node_host.handover.token_files import TokenFiles
from node_host.handover.tokens import Tokens, read_tokens
from node_host.host import Host
from node_host.pci.device import (
    DEVICES,
    DRIVERS,
    SERIAL,
    DeviceGoneError,
    PCIDevice,
    list_addresses,
    read_device,
    read_serial,
)
from node_host.pci.iommu import IOMMUGroups, read_groups
from node_host.pci.vfio_drivers import VFIOAliases, read_aliases
from node_host.pci.vfio_nodes import read_vfio_nodes
from node_host.view import HostView

R = TypeVar("R")

# What is asked has a name of its own, so that one answer that hangs does not keep the others of the device away.
_SERIAL_OF: Final = "serial number of "
_NODES_OF: Final = "nodes of "


class Observer:
    """Reads one host. ``of_interest`` picks the devices whose users and serial number are looked at.

    ``node_patterns`` are globs of device nodes that the catalogue knows for a device, ``vendors_of`` the PCI vendors
    whose device plugins use a domain. With ``asks_plugins`` a view also says what device plugins serve.
    """

    def __init__(
        self,
        host: Host,
        calls: BoundedCalls,
        *,
        of_interest: Callable[[PCIDevice], bool],
        node_patterns: Callable[[PCIDevice], tuple[str, ...]] = lambda _: (),
        vendors_of: Callable[[str], frozenset[str]] = lambda _: frozenset(),
        asks_plugins: bool = False,
    ) -> None:
        self._host = host
        self._calls = calls
        self._of_interest = of_interest
        self._node_patterns = node_patterns
        self._vendors_of = vendors_of
        self._asks_plugins = asks_plugins
        self._taken: dict[str, str] = {}
        # All devices as they were last seen, and what else they are called: a name may mean one that is not looked at.
        self._seen: dict[str, PCIDevice] = {}
        self._names: dict[str, str] = {}
        # Users in the words of the last look at each device, and what else they were judged by.
        self._told: dict[str, tuple[DeviceUser, ...]] = {}
        self._judged: dict[str, tuple[PCIDevice, DeviceNodes]] = {}
        self._boot_id = ""

    async def view(self, named: Collection[str] = ()) -> HostView:
        """The whole host; ``named`` devices are looked at closely whatever they are.

        Raises BootUnknownError or HungError when not even the boot is known.
        """
        problem: str | None = None
        self._taken, self._seen, self._names = {}, {}, {}
        try:
            addresses = await self._calls.run(DEVICES, partial(list_addresses, self._host))
        except (OSError, HungError) as error:
            addresses, problem = [], f"{DEVICES} cannot be listed: {getattr(error, 'strerror', None) or error}"
        view = await self._view(addresses, named, problem)
        return replace(view, aliases=await self._safe("module aliases", read_aliases, lambda _: VFIOAliases()))

    async def again(self, addresses: Collection[str]) -> HostView:
        """The devices named, read anew, and nothing else; all are looked at closely."""
        return await self._view(addresses, addresses, None)

    async def _view(self, addresses: Iterable[str], named: Collection[str], problem: str | None) -> HostView:
        """Without module aliases, which only a plan asks for."""
        boot_id = self._boot_id = await self._calls.run("boot id", partial(read_boot_id, self._host))
        groups = await self._safe("iommu groups", read_groups, _groups_unreadable)
        devices, unreadable = await self._devices(addresses)
        close = self._close(devices, groups, named)
        await self._add_serials(sorted(close & devices.keys()), devices)
        evidence = await self._safe("host evidence", read_evidence, _evidence_unreadable)
        self._seen |= devices
        prepared = await self._prepared()
        users = await self._users(close & devices.keys(), devices, boot_id, prepared)
        plugins = await self._plugin_devices()
        return HostView(
            boot_id=boot_id,
            devices=devices,
            unreadable=unreadable,
            groups=groups,
            drivers=await self._safe("pci drivers", _read_drivers, lambda _: frozenset[str]()),
            users=users,
            vetoes=vetoes_of(devices, groups, evidence),
            published=await self._safe(
                "publication", lambda host: read_published(host, boot_id), lambda why: Published(unreadable=why)
            ),
            tokens=await self._safe(
                "tokens", lambda host: read_tokens(TokenFiles(host)), lambda why: Tokens(unreadable=why)
            ),
            prepared=prepared,
            plugin_resources=served_by_plugins(plugins.devices, self._known()),
            plugins_unreadable=plugins.unreadable,
            vfio_nodes=await self._safe("vfio nodes", read_vfio_nodes, lambda _: frozenset[str]()),
            problem=problem,
        )

    async def _safe(self, key: str, read: Callable[[Host], R], unreadable: Callable[[str], R]) -> R:
        try:
            return await self._calls.run(key, partial(read, self._host))
        except (OSError, HungError) as error:
            return unreadable(str(error))

    async def _devices(self, addresses: Iterable[str]) -> tuple[dict[str, PCIDevice], dict[str, str]]:
        reads = {address: partial(read_device, self._host, address) for address in sorted(addresses)}
        devices: dict[str, PCIDevice] = {}
        unreadable: dict[str, str] = {}
        for address, result in (await self._calls.each(reads)).items():
            if isinstance(result, PCIDevice):
                devices[address] = result
            elif not isinstance(result, DeviceGoneError):
                unreadable[address] = str(result)
        return devices, unreadable

    async def _add_serials(self, addresses: Iterable[str], devices: dict[str, PCIDevice]) -> None:
        """A serial number that does not come back is unknown, as that of a device that has none; it is a fault."""
        reads = {_SERIAL_OF + address: partial(read_serial, self._host, devices[address]) for address in addresses}
        for key, result in (await self._calls.each(reads)).items():
            address = key.removeprefix(_SERIAL_OF)
            if isinstance(result, PCIDevice):
                devices[address] = result
            else:
                faults = {**devices[address].faults, SERIAL: str(result)}
                devices[address] = replace(devices[address], faults=faults)

    def _close(self, devices: Mapping[str, PCIDevice], groups: IOMMUGroups, named: Collection[str]) -> set[str]:
        """Devices of interest, named ones, their virtual functions, and all that share a group with one."""
        close = set(named) | {address for address, device in devices.items() if self._of_interest(device)}
        close |= {function for address in close & devices.keys() for function in devices[address].virtual_functions}
        for address in tuple(close):
            if address in devices:
                close.update(groups.of(devices[address].iommu_group))
        return close

    async def _users(
        self, addresses: Collection[str], devices: Mapping[str, PCIDevice], boot_id: str, prepared: Prepared
    ) -> dict[str, tuple[DeviceUser, ...]]:
        if not addresses:
            return {}
        handles, resources = await asyncio.gather(self._open_handles(), self._pod_resources())
        reads = {
            _NODES_OF + address: partial(
                read_device_nodes, self._host, devices[address], self._node_patterns(devices[address])
            )
            for address in sorted(addresses)
        }
        nodes: dict[str, DeviceNodes] = {}
        for key, result in (await self._calls.each(reads)).items():
            address = key.removeprefix(_NODES_OF)
            nodes[address] = result if isinstance(result, DeviceNodes) else DeviceNodes(unreadable=str(result))
        # Twins that this look leaves out keep the nodes that they had in the last one.
        self._taken |= {path: address for address in sorted(nodes) for path in nodes[address].paths}
        self._names |= {name: address for address in sorted(nodes) for name in nodes[address].names}
        told = _Told(boot_id, prepared, resources, self._known())
        found = {}
        for address in sorted(addresses):
            users = users_of(
                devices[address], nodes[address], handles, taken_paths=self._taken, told=told.users(address)
            )
            found[address] = self._told[address] = as_told_before(users, self._told.get(address, ()))
            self._judged[address] = devices[address], nodes[address]
        return found

    async def is_let_go(self, addresses: Collection[str]) -> bool:
        """Whether a device has lost its last user since the last look, or the last that is of no pod.

        Only open handles, prepared claims and the kubelet are looked at again. Whoever has come meanwhile does not
        count.
        """
        handles, resources, prepared = await asyncio.gather(
            self._open_handles(), self._pod_resources(), self._prepared()
        )
        told = _Told(self._boot_id, prepared, resources, self._known())
        for address in sorted(addresses & self._judged.keys()):
            device, nodes = self._judged[address]
            before = _who(self._told[address])
            users = users_of(device, nodes, handles, taken_paths=self._taken, told=told.users(address))
            if not _who(users) >= before:
                return True
        return False

    async def _open_handles(self) -> OpenHandles:
        return await self._safe("open handles", read_open_handles, lambda why: OpenHandles(unreadable=why))

    async def _pod_resources(self) -> PodResources:
        return await self._safe("the kubelet", read_pod_resources, lambda why: PodResources(unreadable=why))

    async def _prepared(self) -> Prepared:
        return await self._safe("checkpoint", read_prepared, lambda why: Prepared(unreadable=why))

    async def _plugin_devices(self) -> PluginDevices:
        if not self._asks_plugins:
            return PluginDevices()
        return await self._safe("device plugins", read_plugin_devices, lambda why: PluginDevices(unreadable=why))

    def _known(self) -> KnownDevices:
        return KnownDevices(self._seen, self._names, self._vendors_of, self._of_interest)


class _Told:
    """Users that the publisher's checkpoint and the kubelet tell of."""

    def __init__(self, boot_id: str, prepared: Prepared, resources: PodResources, known: KnownDevices) -> None:
        self._boot_id = boot_id
        self._prepared = prepared
        self._pods = pod_users(resources, known, lambda claim, address: prepared.is_to_come(claim, address, boot_id))
        self._doubts = [unreadable_use(doubt) for doubt in (prepared.doubt, resources.doubt) if doubt is not None]

    def users(self, address: str) -> tuple[DeviceUser, ...]:
        return (*self._prepared.users(address, self._boot_id), *self._pods.get(address, ()), *self._doubts)


def _who(users: Iterable[DeviceUser]) -> frozenset[str]:
    """Whether there are any, and whether one is of no pod. Virtual functions are counted, not used, by the card."""
    kinds = (user for user in users if user.kind is not UseKind.VIRTUAL_FUNCTIONS)
    return frozenset(word for user in kinds for word in (("some",) if user.pod_uid else ("some", "of no pod")))


def _read_drivers(host: Host) -> frozenset[str]:
    return frozenset(host.list(DRIVERS))


def _groups_unreadable(why: str) -> IOMMUGroups:
    return IOMMUGroups(unreadable={None: why})


def _evidence_unreadable(why: str) -> HostEvidence:
    return HostEvidence(disks=DiskEvidence(unreadable=(why,)))
