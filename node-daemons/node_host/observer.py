"""Reading the host: all devices for a plan, or a few of them again right before they are changed.

One device that hangs, vanishes or talks nonsense costs that device only.
"""

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
from node_host.evidence.publication import Published, read_published
from node_host.evidence.usage import as_told_before, users_of
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

    ``node_patterns`` are globs of device nodes that the catalogue knows for a device.
    """

    def __init__(
        self,
        host: Host,
        calls: BoundedCalls,
        *,
        of_interest: Callable[[PCIDevice], bool],
        node_patterns: Callable[[PCIDevice], tuple[str, ...]] = lambda _: (),
    ) -> None:
        self._host = host
        self._calls = calls
        self._of_interest = of_interest
        self._node_patterns = node_patterns
        self._taken: dict[str, str] = {}
        # Users in the words of the last look at each device, and what else they were judged by.
        self._told: dict[str, tuple[DeviceUser, ...]] = {}
        self._judged: dict[str, tuple[PCIDevice, DeviceNodes]] = {}

    async def view(self, named: Collection[str] = ()) -> HostView:
        """The whole host; ``named`` devices are looked at closely whatever they are.

        Raises BootUnknownError or HungError when not even the boot is known.
        """
        problem: str | None = None
        self._taken = {}
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
        boot_id = await self._calls.run("boot id", partial(read_boot_id, self._host))
        groups = await self._safe("iommu groups", read_groups, _groups_unreadable)
        devices, unreadable = await self._devices(addresses)
        close = self._close(devices, groups, named)
        await self._add_serials(sorted(close & devices.keys()), devices)
        evidence = await self._safe("host evidence", read_evidence, _evidence_unreadable)
        return HostView(
            boot_id=boot_id,
            devices=devices,
            unreadable=unreadable,
            groups=groups,
            drivers=await self._safe("pci drivers", _read_drivers, lambda _: frozenset[str]()),
            users=await self._users(close & devices.keys(), devices),
            vetoes=vetoes_of(devices, groups, evidence),
            published=await self._safe(
                "publication", lambda host: read_published(host, boot_id), lambda why: Published(unreadable=why)
            ),
            tokens=await self._safe(
                "tokens", lambda host: read_tokens(TokenFiles(host)), lambda why: Tokens(unreadable=why)
            ),
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
        self, addresses: Collection[str], devices: Mapping[str, PCIDevice]
    ) -> dict[str, tuple[DeviceUser, ...]]:
        if not addresses:
            return {}
        handles = await self._open_handles()
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
        found = {}
        for address in sorted(addresses):
            users = users_of(devices[address], nodes[address], handles, taken_paths=self._taken)
            found[address] = self._told[address] = as_told_before(users, self._told.get(address, ()))
            self._judged[address] = devices[address], nodes[address]
        return found

    async def is_let_go(self, addresses: Collection[str]) -> bool:
        """Whether a device has lost its last user since the last look, or the last that is of no pod.

        Only open handles are looked at again. Whoever has come meanwhile does not count.
        """
        handles = await self._open_handles()
        for address in sorted(addresses & self._judged.keys()):
            device, nodes = self._judged[address]
            before = _who(self._told[address])
            if not _who(users_of(device, nodes, handles, taken_paths=self._taken)) >= before:
                return True
        return False

    async def _open_handles(self) -> OpenHandles:
        return await self._safe("open handles", read_open_handles, lambda why: OpenHandles(unreadable=why))


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
