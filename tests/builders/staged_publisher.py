"""The publisher's real stages and steps on a simulated machine, with everything else made up: slices are a dictionary,
claims are told by a function. The checkpoint is a file, and read by the binder too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from crds.device_names import NamedKind, device_name
from crds.models.node_state import DesiredDevice, DeviceReport
from dra_publisher.checkpoint.store import CheckpointStore
from dra_publisher.handover.hand_over import HandOver, Inputs, Looked
from dra_publisher.handover.ports import Allocation
from dra_publisher.handover.situation import Situation
from dra_publisher.offers.offer import Offer
from dra_publisher.offers.prerequisites import recipe
from node_host.boot import read_boot_id
from node_host.evidence.publication import read_published
from node_host.handover.entry import shape_digest
from node_host.handover.publisher_half import PublisherHalf
from node_host.handover.token_files import TokenFiles
from node_host.handover.tokens import read_tokens
from node_host.host import Host
from node_host.pci.device import DeviceGoneError, PCIDevice, list_addresses, read_device
from node_host.pci.iommu import read_groups
from node_host.pci.vfio_drivers import is_vfio_driver
from node_host.view import HostView
from tests.builders.binder import order, spec

T = TypeVar("T")
_CONTAINER = shape_digest(spec(order(mode="Container")).devices[0])


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of what never waits; it may be called while a loop runs."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


def read_view(host: Host) -> HostView:
    """What the stages look at of a host; nothing hangs there."""
    boot_id = read_boot_id(host)
    devices: dict[str, PCIDevice] = {}
    for address in list_addresses(host):
        try:
            devices[address] = read_device(host, address)
        except DeviceGoneError:
            continue
    return HostView(
        boot_id,
        devices=devices,
        groups=read_groups(host),
        published=read_published(host, boot_id),
        tokens=read_tokens(TokenFiles(host)),
    )


class PaperSlices:
    """What pods may have, by address."""

    def __init__(self, held: MutableMapping[str, Offer]) -> None:
        self.held = held

    async def publish(self, offers: Collection[Offer]) -> None:
        self.held.clear()
        self.held.update({offer.address: offer for offer in offers})


class FileLedger:
    """The checkpoint of the host, written where it stands."""

    def __init__(self, host: Host) -> None:
        self.store = CheckpointStore(host)

    def doubt(self) -> str | None:
        return self.store.checkpoint().doubt

    def published(self) -> Mapping[str, str]:
        return self.store.checkpoint().published

    def holders(self, address: str) -> tuple[Allocation, ...]:
        claims = self.store.checkpoint().claims_of(address)
        return tuple(Allocation(one.devices[0].driver, one.devices[0].device, one.title) for one in claims)

    def drivers(self) -> frozenset[str] | None:
        return frozenset()

    async def note(self, shapes: Mapping[str, str]) -> None:
        self.store.note_published(shapes)

    async def forget(self, addresses: Collection[str]) -> None:
        self.store.forget_published(addresses)

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        yield


async def build(entry: DesiredDevice, address: str, view: HostView) -> Offer | str:
    """The device as its order's mode wants it, if the host has it so."""
    found = recipe(entry.mode)
    device = view.devices.get(address)
    if found is None or device is None or device.driver is None:
        return f"{address} has no driver"
    if is_vfio_driver(device.driver) is not (found.kind is NamedKind.VFIO):
        return f"{address} is on {device.driver}"
    return Offer(address, found.kind, device_name(found.kind, address), entry.driver_name, entry)


class StagedPublisher:
    """One process of it, that keeps in memory what the real one keeps: what it last wrote into the slices."""

    def __init__(
        self,
        host: Host,
        slices: MutableMapping[str, Offer],
        claims: Callable[[], Iterable[str]],
        *,
        said: Callable[[], Mapping[str, DeviceReport]] = lambda: {},
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._host = host
        self._half = PublisherHalf(host)
        self._said = said
        self._boot_id = read_boot_id(host)
        self.ledger = FileLedger(host)

        async def claimed() -> Mapping[str, tuple[Allocation, ...]]:
            return {address: (Allocation("", "", f"claim demo/{address}"),) for address in claims()}

        async def reread(view: HostView, addresses: Collection[str]) -> HostView:
            now = read_view(host)
            seen = {address: device for address, device in now.devices.items() if address in addresses}
            return replace(now, devices={**view.devices, **seen})

        self.steps = HandOver(host, self._half, PaperSlices(slices), self.ledger, claimed, build, reread, step=step)
        self.steps.adopt(list(slices.values()))

    def start(self) -> None:
        """What is done once at start."""
        self._half.clean(self._boot_id)

    def look(self, entries: Iterable[DesiredDevice]) -> Looked:
        """One look at everything, and all that can be done now."""
        situation = Situation(
            entries={entry.address: entry for entry in entries},
            view=read_view(self._host),
            offered=self.steps.offered(),
            said=self._said(),
            remembered=self.ledger.published(),
        )
        return at_once(self.steps.look(Inputs(situation)))

    def prepare_refused(self, address: str) -> str | None:
        """Why no pod may be prepared with the device now, or None."""
        offer = self.steps.offers.get(address)
        if offer is None:
            return f"{address} is not published"
        device = read_view(self._host).devices.get(address)
        if device is None or is_vfio_driver(device.driver) is not (offer.kind is NamedKind.VFIO):
            return f"{address} is not as it is published"
        return self._half.prepare_refused(address)

    def prepared_as(self, address: str, before: str | None) -> str | None:
        """In which shape (a digest) a claim gets the device now, None when it does not; ``before``: the one in which it
        had it before the last boot, and gets it again whatever is offered.
        """
        offer = self.steps.offers.get(address)
        if before is None:
            return offer.shape if offer is not None and self.prepare_refused(address) is None else None
        device = read_view(self._host).devices.get(address)
        is_vm = before != _CONTAINER
        as_then = device is not None and device.driver is not None and is_vfio_driver(device.driver) is is_vm
        return before if as_then and self._half.prepare_refused(address) is None else None
