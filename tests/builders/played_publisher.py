"""A publisher of devices for tests: plays the publisher's half of a hand-over, with everything else made up.

Slices are a dictionary (what claims may get), claims are told by a function, prepared devices by a set that outlives it
as a checkpoint would. It keeps nothing in memory: killed at any step, a new one goes on from what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from enum import StrEnum

from crds.models.modes import Mode
from crds.models.node_state import DesiredDevice, DeviceState, Intent
from node_host.acting.locks import LockedError, lock_names
from node_host.boot import read_boot_id
from node_host.evidence.publication import read_published
from node_host.handover.entry import entry_digest
from node_host.handover.publisher_half import PublisherHalf
from node_host.host import Host
from node_host.pci.device import DEVICES, DeviceGoneError, PCIDevice, read_device
from node_host.pci.vfio_drivers import is_vfio_driver


class Shape(StrEnum):
    """As what a device is published."""

    VFIO = "vfio"
    NATIVE = "npu"


@dataclass(frozen=True)
class Offer:
    """A device in a slice. ``withheld``: with a taint, so that no claim gets it that does not have it."""

    shape: Shape
    withheld: bool = False


class Stand(StrEnum):
    """How far a device is; reasons of status.publication."""

    PUBLISHED = "Published"
    HAND_OVER = "HandOver"
    HANDED_OVER = "HandedOver"
    NOT_PUBLISHED = "NotPublished"


@dataclass(frozen=True)
class Rules:
    """What the publisher keeps to; each can be broken by a test.

    ``publishes_last``: tokens go before the device is offered again; else after, as by a death in between.
    """

    withholds: bool = True
    lists_first: bool = True
    waits_for_claims: bool = True
    publishes_last: bool = True


GOOD = Rules()


class PlayedPublisher:
    """One process of it. ``step`` is called with words before each thing that is done, and may end the process."""

    def __init__(
        self,
        host: Host,
        slices: MutableMapping[str, Offer],
        claims: Callable[[], Collection[str]],
        *,
        prepared: Collection[str] = frozenset(),
        report: Callable[[str], DeviceState | None] = lambda _: None,
        step: Callable[[str], None] = lambda _: None,
        rules: Rules = GOOD,
    ) -> None:
        """``report`` gives the state that the binder has reported of an ordered device for the present orders.

        It only tells that there is something to do that cannot be seen here, or that all is done; whether a device may
        be handed over is never read from it.
        """
        self._host = host
        self._half = PublisherHalf(host)
        self._slices = slices
        self._claims = claims
        self._prepared = prepared
        self._report = report
        self._step = step
        self._rules = rules
        self._boot_id = read_boot_id(host)
        self._entries: dict[str, DesiredDevice] = {}
        self._devices: dict[str, PCIDevice | None] = {}

    def prepare_refused(self, address: str) -> str | None:
        """Why no pod may be prepared with the device now, or None."""
        if self._slices.get(address) is None:
            return f"{address} is not published"
        if self._actual(address) is not self._slices[address].shape:
            return f"{address} is not as it is published"
        return self._half.prepare_refused(address)

    def start(self) -> None:
        """What is done once at start."""
        self._half.clean(self._boot_id)

    def look(self, entries: Iterable[DesiredDevice]) -> dict[str, Stand]:
        """One look at everything, and all that can be done now; how far each device is."""
        self._entries = {entry.address: entry for entry in entries}
        self._devices = {}
        known = {*self._entries, *self._slices, *self._listed()}
        known |= {function for address in self._entries for function in self._functions(address)}
        return {address: self._one(address) for address in sorted(known)}

    def _one(self, address: str) -> Stand:
        entry = self._responsible(address)
        try:
            if entry is None or entry.intent is Intent.HOLD:
                return self._left_as_it_is(address)
            if self._is_disturbed(address):
                return self._handed_over(address, entry)
            return self._as_ordered(address)
        except LockedError:
            return Stand.HANDED_OVER  # somebody is at work on it: later

    def _left_as_it_is(self, address: str) -> Stand:
        """Held, or no order speaks of it: nothing is handed over, and what was not changed is published again."""
        offer = self._slices.get(address)
        if self._half.prepare_refused(address) is not None:
            self._step(f"withdraw {address}")
            self._half.withdraw(address)
        if offer is None:
            return Stand.NOT_PUBLISHED
        if offer.withheld and self._actual(address) is offer.shape and not self._mates_move(address):
            self._publish(address, lambda: offer.shape)
        return Stand.PUBLISHED if not self._slices[address].withheld else Stand.HAND_OVER

    def _handed_over(self, address: str, entry: DesiredDevice) -> Stand:
        """Withheld, then free of claims, then a token for the present orders."""
        if address not in self._listed():
            return Stand.NOT_PUBLISHED
        offer = self._slices.get(address)
        if offer is not None and not offer.withheld and self._rules.withholds:
            self._step(f"withhold {address}")
            self._slices[address] = replace(offer, withheld=True)
        if self._rules.waits_for_claims and (address in self._claims() or address in self._prepared):
            return Stand.HAND_OVER
        tokens, digest = self._half.tokens(address), entry_digest(entry)
        taken, offered = tokens.taken.get(address), tokens.offered.get(address)
        fits = [
            token is not None and (token.boot_id, token.entry) == (self._boot_id, digest) for token in (taken, offered)
        ]
        if taken is not None and not fits[0]:
            self._step(f"renew {address}")
            self._half.renew(address, self._boot_id, digest, locks=self._locks(address))
        elif not any(fits):
            self._step(f"offer {address}")
            self._half.offer(address, self._boot_id, digest)
        return Stand.HANDED_OVER

    def _as_ordered(self, address: str) -> Stand:
        wanted = self._wanted(address)
        if wanted is None:
            self._take_out(address)
            return Stand.NOT_PUBLISHED
        if address not in self._listed() and self._rules.lists_first:
            self._list(address)
        is_settled = self._slices.get(address) == Offer(wanted) and self._half.prepare_refused(address) is None
        entry = self._responsible(address)
        if not is_settled and entry is not None and self._report(entry.address) is DeviceState.READY:
            self._publish(address, lambda: None if self._is_disturbed(address) else self._wanted(address))
        if address not in self._listed():
            self._list(address)
        return Stand.PUBLISHED if self._slices.get(address) == Offer(wanted) else Stand.HANDED_OVER

    def _publish(self, address: str, shape: Callable[[], Shape | None]) -> None:
        """Under the locks, and as it is found under them: tokens away, then offered to pods (or the other way)."""
        with self._half.locked(self._locks(address)):
            self._devices = {}
            found = shape()
            if found is None:
                return
            if self._rules.publishes_last:
                self._finish(address)
            self._step(f"publish {address}")
            self._slices[address] = Offer(found)
            if not self._rules.publishes_last:
                self._finish(address)

    def _finish(self, address: str) -> None:
        if self._half.prepare_refused(address) is not None:
            self._step(f"finish {address}")
            self._half.finish_locked(address)

    def _take_out(self, address: str) -> None:
        """No longer published: out of the slice, and off the list once nobody has it."""
        if address in self._slices:
            self._step(f"take {address} out")
            del self._slices[address]
        if address in self._claims() or address in self._prepared:
            return
        with self._half.locked(self._locks(address)):
            self._finish(address)
        if address in self._listed():
            self._step(f"unlist {address}")
            self._half.write_published(self._listed() - {address}, self._boot_id)

    def _list(self, address: str) -> None:
        self._step(f"list {address}")
        self._half.write_published(self._listed() | {address}, self._boot_id, locks=self._locks(address))
        self._devices = {}

    def _listed(self) -> frozenset[str]:
        return read_published(self._host, self._boot_id).addresses

    # What is ordered, and what is there: read by itself, so that it shares no mistake with the binder.

    def _responsible(self, address: str) -> DesiredDevice | None:
        if address in self._entries:
            return self._entries[address]
        device = self._device(address)
        card = device.physical_function if device is not None else _card_of(address, self._entries)
        if card is not None:
            return self._entries.get(card)
        wanting = [one for one in self._mates(address) if self._wants_vfio(one)]
        return self._entries[min(wanting)] if wanting else None

    def _wanted(self, address: str) -> Shape | None:
        entry = self._responsible(address)
        if entry is None or entry.intent is not Intent.APPLY:
            return None
        is_own = entry.address == address
        if is_own and entry.mode is not Mode.PASSTHROUGH:
            return Shape.NATIVE
        number = _number(entry)
        if is_own:
            return Shape.VFIO if number is None else None
        device = self._device(address)
        return Shape.VFIO if number is not None and device is not None and device.physical_function else None

    def _is_disturbed(self, address: str) -> bool:
        """Whether it is not as its orders say, or something that takes it along is not."""
        entry = self._responsible(address)
        return (entry is not None and not self._is_done(entry)) or self._mates_move(address)

    def _mates_move(self, address: str) -> bool:
        if self._actual(address) is not Shape.VFIO:
            return False
        mates = [self._entries[mate] for mate in self._mates(address) if mate != address and mate in self._entries]
        return any(mate.intent is not Intent.HOLD and not self._is_done(mate) for mate in mates)

    def _is_done(self, entry: DesiredDevice) -> bool:
        if entry.intent is Intent.HOLD:
            return True
        state = self._report(entry.address)
        if entry.intent is Intent.RELEASE:
            return state is DeviceState.RELEASED
        if state not in (DeviceState.READY, None):
            return False
        if entry.mode is not Mode.PASSTHROUGH:
            return self._actual(entry.address) is Shape.NATIVE and not self._functions(entry.address)
        number = _number(entry)
        if number is None:
            return self._actual(entry.address) is Shape.VFIO and not any(
                self._actual(mate) is Shape.NATIVE for mate in self._mates(entry.address)
            )
        functions = self._functions(entry.address)
        return len(functions) == number and all(self._actual(one) is Shape.VFIO for one in functions)

    def _wants_vfio(self, address: str) -> bool:
        entry = self._entries.get(address)
        is_vm = entry is not None and entry.intent is Intent.APPLY and entry.mode is Mode.PASSTHROUGH
        return is_vm and entry is not None and _number(entry) is None

    def _actual(self, address: str) -> Shape | None:
        device = self._device(address)
        if device is None or device.driver is None:
            return None
        return Shape.VFIO if is_vfio_driver(device.driver) else Shape.NATIVE

    def _functions(self, address: str) -> tuple[str, ...]:
        device = self._device(address)
        return device.virtual_functions if device is not None else ()

    def _mates(self, address: str) -> tuple[str, ...]:
        device = self._device(address)
        if device is None or device.iommu_group is None:
            return (address,)
        return tuple(self._host.list(f"/sys/kernel/iommu_groups/{device.iommu_group}/devices"))

    def _device(self, address: str) -> PCIDevice | None:
        if address not in self._devices:
            try:
                there = self._host.exists(f"{DEVICES}/{address}")
                self._devices[address] = read_device(self._host, address) if there else None
            except DeviceGoneError:
                self._devices[address] = None
        return self._devices[address]

    def _locks(self, address: str) -> tuple[str, ...]:
        device = self._device(address)
        if device is None:
            return lock_names(address, group=None)
        return lock_names(
            address,
            group=device.iommu_group,
            physical_function=device.physical_function,
            is_physical=device.total_vfs is not None or device.num_vfs != 0,
        )


def _number(entry: DesiredDevice) -> int | None:
    return entry.passthrough.virtual_functions if entry.passthrough is not None else None


def _card_of(function: str, entries: Mapping[str, DesiredDevice]) -> str | None:
    """The card of a function that is gone: on the same bus, and ordered for functions or released."""
    bus = function.rpartition(":")[0]
    return next((one for one in sorted(entries) if one != function and one.rpartition(":")[0] == bus), None)
