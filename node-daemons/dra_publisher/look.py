"""One look of the publisher: the live host, the orders and the answers of other daemons, and all that follows now.

The host alone says what a device is. An old status, a cache or a memory only decides when the next look is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from crds.catalogue import Catalogue
from crds.device_names import NamedKind, address_of
from crds.models.modes import IOMMUBackend, Mode
from crds.models.node_state import DesiredDevice, DeviceReport, Intent
from dra_publisher.claims.shape import NotRealisedError, Wanted, nodes_of
from dra_publisher.handover.adoption import adopted
from dra_publisher.handover.answers import Answers
from dra_publisher.handover.hand_over import HandOver, Inputs, Looked
from dra_publisher.handover.node_slices import NodeSlices
from dra_publisher.handover.ports import Claimed, Ledger, PublishError
from dra_publisher.handover.situation import Situation
from dra_publisher.handover.stages import judge
from dra_publisher.offers.offer import Offer, Taint
from dra_publisher.offers.offering import offer_of
from dra_publisher.offers.others import Candidate, Others, merged, others_by_node, others_by_plugins
from dra_publisher.offers.prerequisites import recipe
from dra_publisher.offers.taints import taints_seen, unknown_users
from dra_publisher.report import Seen, device_reports
from node_host.bounded_call import BoundedCalls, HungError
from node_host.evidence.publication import Published, read_published
from node_host.handover.publisher_half import PublisherHalf
from node_host.handover.token_files import TokenFiles
from node_host.handover.tokens import Tokens, read_tokens
from node_host.host import Host
from node_host.observer import Observer
from node_host.orders import Orders
from node_host.pci.device import PCIDevice, read_device
from node_host.pci.iommu import read_groups
from node_host.pci.vfio_nodes import read_vfio_nodes
from node_host.selection import vendors_of
from node_host.vgpu.live import LiveProfile, live_profile
from node_host.view import HostView

T = TypeVar("T")


ABSENCE_SECONDS: Final = 60.0
"""How long no order may speak of a device that pods may have, until that is meant: orders are written anew at times."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a look has found and done. ``held`` says why orders were not followed, ``problem`` why it did not end.

    ``waits`` are devices that wait for claims, ``unfinished`` whether somebody else was at work on a device.
    """

    boot_id: str
    devices: tuple[DeviceReport, ...]
    drivers: frozenset[str] = frozenset()
    held: str | None = None
    problem: str | None = None
    waits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unfinished: bool = False
    watched: bool = False
    looked: Looked | None = None


class Look:
    """Looks at one host."""

    def __init__(
        self,
        host: Host,
        catalogue: Catalogue,
        observer: Observer,
        calls: BoundedCalls,
        slices: NodeSlices,
        ledger: Ledger,
        claimed: Claimed,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._host = host
        self._catalogue = catalogue
        self._observer = observer
        self._calls = calls
        self._slices = slices
        self._ledger = ledger
        self.other_plugins: Callable[[frozenset[str]], Mapping[str, str]] = lambda _: {}
        """Which of these driver names another plugin has with the kubelet, named."""
        self.waits_for_claims = True
        """Whether something is to be done when a claim goes; else a claim that comes or goes needs no look."""
        self._clock = clock
        self._half = PublisherHalf(host)
        self._answers = Answers()
        self._absent: dict[str, float] = {}
        self._plugins: Mapping[str, Collection[str]] = {}
        self._boot_id: str | None = None
        self._drivers: frozenset[str] = frozenset()
        self._active = False
        self.hand_over = HandOver(host, self._half, slices, ledger, claimed, self._build, self._reread)

    @property
    def drivers(self) -> frozenset[str]:
        """Driver names in use, as of the last look."""
        return self._drivers

    def offered(self, driver: str, device: str) -> Offer | None:
        """What pods may have under a name now, for whoever prepares claims."""
        offer = self.hand_over.offers.get(address_of(device) or "")
        return offer if offer is not None and (offer.driver, offer.name) == (driver, device) else None

    async def run(self, orders: Orders, *, active: bool) -> Done:
        """One look. Only the ``active`` one of two publishers of a node changes anything; the other one follows.

        Raises BootUnknownError or HungError when not even the boot of the host can be read: then nothing was done.
        """
        self.waits_for_claims = True  # one that goes meanwhile may have been looked at before
        done = await self._run(orders, active)
        self.waits_for_claims = bool(done.waits) or done.watched or self._ledger.doubt() is not None
        return done

    async def _run(self, orders: Orders, active: bool) -> Done:
        entries = orders.spec.devices if orders.spec is not None else ()
        view = await self._observer.view(self._named(entries))
        situation = self._situation(orders, view, await self._profiles(entries, view))
        if view.boot_id != self._boot_id or not active or not self._active:
            self.hand_over.adopt(
                adopted(self._slices.writer.existing(), self._slices.writer.existing_device, situation)
            )
            situation = replace(situation, offered=self.hand_over.offered())
        if active and (view.boot_id != self._boot_id or not self._active):
            self._half.clean(view.boot_id)
        self._boot_id, self._active = view.boot_id, active
        self._slices.node_uid = orders.node_uid
        self._slices.drivers = self._wanted_drivers(orders)
        if not active:
            return self._done(orders, situation, None)
        if orders.held is not None:
            return await self._hold(orders, situation)
        inputs, seen = self._inputs(situation, orders)
        looked = await self.hand_over.look(inputs)
        refused = self._refused()
        devices = device_reports(entries, looked, replace(seen, refused=refused))
        done = self._done(orders, looked.situation, looked)
        return replace(done, devices=devices, watched=any(seen.taints.values()))

    async def plan(self, orders: Orders) -> tuple[Situation, Looked, Seen]:
        """What the next look would find; nothing is written anywhere."""
        entries = orders.spec.devices if orders.spec is not None else ()
        view = await self._observer.view(self._named(entries))
        situation = self._adopt(self._situation(orders, view, await self._profiles(entries, view)))
        looked = Looked(situation, judge(situation, situation.known()), dict(self.hand_over.offers))
        return situation, looked, self._inputs(situation, orders)[1]

    def _adopt(self, situation: Situation) -> Situation:
        """What the slices hold is what was offered before."""
        published = self._slices.writer
        self.hand_over.adopt(adopted(published.existing(), published.existing_device, situation))
        return replace(situation, offered=self.hand_over.offered())

    async def _hold(self, orders: Orders, situation: Situation) -> Done:
        """Orders that are not followed change nothing: what is offered stays, and comes back when it was deleted."""
        done = self._done(orders, situation, None)
        former = orders.status.publication
        done = replace(done, held=orders.held, devices=former.devices if former is not None else ())
        try:
            await self.hand_over.repeat()
        except PublishError as error:
            return replace(done, problem=str(error))
        return done

    def _done(self, orders: Orders, situation: Situation, looked: Looked | None) -> Done:
        return Done(
            boot_id=situation.view.boot_id,
            devices=(),
            drivers=self.in_use(orders),
            problem=looked.problem if looked is not None else None,
            waits=looked.waits if looked is not None else {},
            unfinished=looked.unfinished if looked is not None else False,
            looked=looked,
        )

    async def _profiles(self, entries: Iterable[DesiredDevice], view: HostView) -> dict[str, str]:
        """The vGPU profiles that functions of the cards in mode VGPU have now, by address."""
        reads = {
            function: partial(self._live_profile, card, function, view.boot_id)
            for entry in entries
            if entry.mode is Mode.VGPU and (card := view.devices.get(entry.address)) is not None
            for function in card.virtual_functions
        }
        found = await self._calls.each({f"profile of {one}": read for one, read in reads.items()})
        live = {one: found[f"profile of {one}"] for one in reads}
        return {
            one: answer.profile for one, answer in live.items() if isinstance(answer, LiveProfile) and answer.profile
        }

    def _live_profile(self, card: PCIDevice, function: str, boot_id: str) -> LiveProfile:
        return live_profile(self._host, function, f"{card.vendor}:{card.device}", boot_id)

    def _situation(self, orders: Orders, view: HostView, profiles: Mapping[str, str]) -> Situation:
        entries = orders.spec.devices if orders.spec is not None else ()
        self._answers.take_up(entries, orders.generation)
        situation = Situation(
            entries={entry.address: entry for entry in entries},
            view=view,
            offered=self.hand_over.offered(),
            said=self._answers.said(entries, orders.status, view.boot_id),
            remembered=self._ledger.published(),
            profiles=profiles,
            given=_given(orders, view.boot_id),
            mediated=_mediated(orders, view.boot_id),
            answered=self._answers.functions(entries, orders.status, view.boot_id),
        )
        if orders.held is not None:
            self._absent.clear()
            return situation
        return replace(situation, unordered=self._unordered(situation))

    def _unordered(self, situation: Situation) -> frozenset[str]:
        now = self._clock()
        absent = {one for one in situation.known() if situation.responsible(one) is None}
        self._absent = {address: self._absent.get(address, now) for address in absent}
        return frozenset(address for address, since in self._absent.items() if now - since >= ABSENCE_SECONDS)

    def _inputs(self, situation: Situation, orders: Orders) -> tuple[Inputs, Seen]:
        view, doubt = situation.view, self._ledger.doubt()
        known = situation.known()
        vgpus = situation.profiles
        taints = {
            address: unknown_users(doubt) if doubt else taints_seen(address, view, is_vgpu=address in vgpus)
            for address in known
        }
        barred = self._barred(situation, known, orders)
        of: Callable[[str], tuple[Taint, ...]] = lambda address: tuple(taints.get(address, ()))  # noqa: E731
        return Inputs(situation, barred, of), Seen(barred, taints)

    def _barred(self, situation: Situation, known: Iterable[str], orders: Orders) -> dict[str, str]:
        """Devices that another plugin gives to pods as well."""
        served = self._plugin_resources(situation.view)
        found: Others = merged(
            Others(drivers=self.other_plugins(self._slices.drivers)),
            self._slices.writer.others(self._slices.drivers),
            others_by_plugins(served),
            others_by_node(
                orders.advertised,
                _candidates(situation),
                vendors_of(self._catalogue),
                told={resource for resources in served.values() for resource in resources},
            ),
        )
        barred = {}
        for address in known:
            entry = situation.responsible(address)
            text = found.of(entry.driver_name, address) if entry is not None else found.addresses.get(address)
            if text is not None:
                barred[address] = text
        return barred

    def _plugin_resources(self, view: HostView) -> Mapping[str, Collection[str]]:
        """What device plugins serve; while the kubelet does not say, what it said last."""
        if view.plugins_unreadable is None:
            self._plugins = view.plugin_resources
        return self._plugins

    def _refused(self) -> dict[str, str]:
        """Devices that were offered and are in no slice, because the API server does not take them."""
        left_out = self._slices.last.left_out
        return {address: text for (_, name), text in left_out.items() if (address := address_of(name)) is not None}

    def _named(self, entries: Iterable[DesiredDevice]) -> set[str]:
        listed = {entry.address for entry in entries} | self.hand_over.offers.keys() | self._ledger.published().keys()
        return set(listed)

    def in_use(self, orders: Orders) -> frozenset[str]:
        """Driver names of the orders, of what is offered, and of claims that the kubelet has yet to take back."""
        offered = {offer.driver for offer in self.hand_over.offers.values()}
        self._drivers = self._wanted_drivers(orders) | offered
        return self._drivers

    def _wanted_drivers(self, orders: Orders) -> frozenset[str]:
        """The same without those of which the last device may go now."""
        entries = orders.spec.devices if orders.spec is not None else ()
        ordered = {entry.driver_name for entry in entries if recipe(entry.mode) and entry.intent is not Intent.RELEASE}
        claimed = self._ledger.drivers()
        return frozenset({*ordered, *(self._drivers if claimed is None else claimed)})

    async def _build(self, entry: DesiredDevice, address: str, view: HostView) -> Offer | str:
        how = recipe(entry.mode)
        if how is not None and how.kind is NamedKind.NPU:
            wanted = Wanted(address, how.kind, IOMMUBackend.AUTO)
            try:
                await self._calls.run(f"nodes of {address} for pods", partial(nodes_of, self._host, wanted))
            except (NotRealisedError, HungError, OSError) as error:
                return str(error)
        profile: str | None = None
        if how is not None and how.kind is NamedKind.VGPU and entry.address in view.devices:
            # Not as it was before the locks: as it is.
            read = partial(self._live_profile, view.devices[entry.address], address, view.boot_id)
            try:
                profile = (await self._calls.run(f"profile of {address}", read)).profile
            except HungError as error:
                return str(error)
        return offer_of(entry, address, view, self._catalogue, profile=profile)

    async def _reread(self, view: HostView, addresses: Collection[str]) -> HostView:
        reads = {address: partial(read_device, self._host, address) for address in sorted(addresses)}
        found = await self._calls.each(reads)
        devices = {address: one for address, one in found.items() if isinstance(one, PCIDevice)}
        kept = {address: device for address, device in view.devices.items() if address not in addresses}
        return replace(
            view,
            devices={**kept, **devices},
            groups=await self._safe("iommu groups", partial(read_groups, self._host), view.groups),
            vfio_nodes=await self._safe("vfio nodes", partial(read_vfio_nodes, self._host), view.vfio_nodes),
            published=await self._note(view.boot_id),
            tokens=await self._tokens(),
        )

    async def _safe(self, key: str, read: Callable[[], T], before: T) -> T:
        try:
            return await self._calls.run(key, read)
        except (OSError, HungError):
            return before

    async def _note(self, boot_id: str) -> Published:
        try:
            return await self._calls.run("publication", partial(read_published, self._host, boot_id))
        except (OSError, HungError) as error:
            return Published(unreadable=str(error))

    async def _tokens(self) -> Tokens:
        try:
            return await self._calls.run("tokens", partial(read_tokens, TokenFiles(self._host)))
        except (OSError, HungError) as error:
            return Tokens(unreadable=str(error))


def _given(orders: Orders, boot_id: str) -> dict[str, str]:
    """The profiles that the writer calls its layouts' own, by virtual function; nothing of another boot."""
    report = orders.status.profiles
    if report is None or report.boot_id != boot_id:
        return {}
    return {
        vgpu.address: vgpu.profile
        for card in report.devices
        for vgpu in card.vgpus
        if vgpu.is_of_layout and vgpu.profile is not None
    }


def _mediated(orders: Orders, boot_id: str) -> frozenset[str]:
    """Cards whose vGPUs are mediated devices, as their writer tells."""
    report = orders.status.profiles
    cards = report.devices if report is not None and report.boot_id == boot_id else ()
    return frozenset(card.address for card in cards if any(vgpu.uuid is not None for vgpu in card.vgpus))


def _candidates(situation: Situation) -> tuple[Candidate, ...]:
    """Devices that are, or might be, published, and as what."""
    return tuple(
        Candidate(address, kind, device.vendor)
        for address, device in situation.view.devices.items()
        if (kind := situation.wanted(address)) is not None
    )
