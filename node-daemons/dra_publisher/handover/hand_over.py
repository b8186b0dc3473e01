"""The steps that follow from the verdicts of one look, in the order in which a death after any of them is harmless.

A device is noted on the host before it enters a slice, and leaves the note after it left the slices. A token is written
when the slices keep new users away and nobody has the device; tokens go before the device is published anew.
"""

import errno
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from crds.device_names import device_name
from crds.models.node_state import DesiredDevice
from crds.models.publication import PublicationReason
from dra_publisher.handover.ports import Allocation, Build, Claimed, Ledger, PublishError, Reread, Slices
from dra_publisher.handover.situation import Offered, Situation
from dra_publisher.handover.stages import Stage, Verdict, judge
from dra_publisher.offers.offer import Offer, Taint, TaintKey
from node_host.acting.locks import LockedError
from node_host.evidence.publication import PUBLISHED, Published, read_published
from node_host.handover.publisher_half import PublisherHalf
from node_host.host import Host

_log = logging.getLogger(__name__)

WITHHOLDING: Final = frozenset({TaintKey.HANDOVER, TaintKey.NOT_READY, TaintKey.DRIVER_CHANGED})
"""Taints that say how far the device is; the others come and go with what is seen of it."""
VALUES: Final[Mapping[TaintKey, str]] = {
    TaintKey.HANDOVER: PublicationReason.HAND_OVER,
    TaintKey.NOT_READY: PublicationReason.NOT_READY,
    TaintKey.DRIVER_CHANGED: PublicationReason.DRIVER_CHANGED,
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one look starts from, besides what the hand-over knows itself.

    ``barred`` are devices that may not be published, and why; ``taints`` gives what is seen of a device that should
    keep new users away.
    """

    situation: Situation
    barred: Mapping[str, str] = field(default_factory=dict)
    taints: Callable[[str], tuple[Taint, ...]] = lambda _: ()


@dataclass(slots=True)
class Looked:
    """What came of a look. ``waits`` are the claims that a device waits for, ``handed_over`` devices with a token now,
    ``invalid`` devices that cannot be published; ``problem`` says why the look ended before its end, or None.
    """

    situation: Situation
    verdicts: dict[str, Verdict]
    offers: dict[str, Offer] = field(default_factory=dict)
    waits: dict[str, tuple[str, ...]] = field(default_factory=dict)
    handed_over: set[str] = field(default_factory=set)
    invalid: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    unfinished: bool = False


class HandOver:
    """What the publisher has offered to pods, and the steps to what it should offer.

    ``step`` is called with words before each thing that is done; a test may end the process there.
    """

    def __init__(
        self,
        host: Host,
        half: PublisherHalf,
        slices: Slices,
        ledger: Ledger,
        claimed: Claimed,
        build: Build,
        reread: Reread,
        *,
        step: Callable[[str], None] = lambda what: _log.info("%s", what),
    ) -> None:
        self._host = host
        self._half = half
        self._slices = slices
        self._ledger = ledger
        self._claimed = claimed
        self._build = build
        self._reread = reread
        self._step = step
        self._offers: dict[str, Offer] = {}

    def adopt(self, offers: Iterable[Offer]) -> None:
        """At start, or in another boot: what the slices hold is what was offered before."""
        self._offers = {}
        for offer in offers:
            known = self._offers.get(offer.address)
            # Of two names of a device the one that new users are kept from: then it is asked who has it.
            if known is None or not is_withheld(known):
                self._offers[offer.address] = offer

    @property
    def offers(self) -> Mapping[str, Offer]:
        """What pods may have, or had until they let it go, by address."""
        return self._offers

    def offered(self) -> dict[str, Offered]:
        """The same as the stages need it."""
        return {
            address: Offered(offer.kind, offer.driver, is_withheld(offer)) for address, offer in self._offers.items()
        }

    async def repeat(self) -> None:
        """Put what is offered into the slices once more, and nothing else. Raises PublishError."""
        await self._slices.publish(self._offers.values())

    async def look(self, inputs: Inputs) -> Looked:
        """Do what can be done now. What fails is done by a later look."""
        problem: str | None = None
        try:
            inputs = self._with_note(inputs)
        except OSError as error:
            problem = f"{PUBLISHED}: {error.strerror or error}"
        looked = Looked(inputs.situation, judge(inputs.situation, inputs.situation.known()))
        if problem is not None:
            looked.problem, looked.offers = problem, dict(self._offers)
            return looked
        for address, verdict in looked.verdicts.items():
            if verdict.has_token:
                looked.handed_over.add(address)
        try:
            if self._ledger.doubt() is None:
                ready = [one for one, verdict in looked.verdicts.items() if verdict.stage is Stage.PUBLISHING]
                await self._enter(looked, inputs, ready, Stage.PUBLISHING)
            await self._publish(looked, inputs)
            if self._ledger.doubt() is None:
                await self._let_go(looked, inputs)
        except PublishError as error:
            looked.problem = str(error)
        return looked

    # Into the slices.

    async def _enter(self, looked: Looked, inputs: Inputs, addresses: Iterable[str], stage: Stage) -> None:
        """Note devices that pods are to have, look at them under their locks, and take their tokens away."""
        shapes: dict[str, str] = {}
        for address in addresses:
            if address in inputs.barred:
                continue
            with self._patiently(looked, address):
                offer = await self._confirm(looked, inputs, address, stage)
                if offer is not None:
                    looked.offers[address] = offer
                    shapes[address] = offer.shape
        if not await self._remember(looked, shapes):
            # Nobody gets these. What others have to be withheld, tainted or taken out for cannot wait for it.
            looked.offers = {address: offer for address, offer in looked.offers.items() if address not in shapes}

    async def _remember(self, looked: Looked, shapes: Mapping[str, str]) -> bool:
        """Whether it is on disk, for whoever changes devices after a reboot."""
        before = self._ledger.published()
        changed = {address: shape for address, shape in shapes.items() if before.get(address) != shape}
        if changed:
            self._step(f"remember {', '.join(changed)}")
            try:
                await self._ledger.note(changed)
            except PublishError as error:
                looked.problem = str(error)
                return False
        return True

    async def _confirm(self, looked: Looked, inputs: Inputs, address: str, stage: Stage) -> Offer | None:
        situation = looked.situation
        locks = situation.view.locks(address)
        if not situation.listed(address):
            self._step(f"list {address}")
            listed = {*self._listed(looked), address}
            self._half.write_published(listed, situation.view.boot_id, locks=locks)
        with self._half.locked(locks):
            view = await self._reread(situation.view, set(situation.around(address)))
            looked.situation = now = replace(situation, view=view)
            verdict = judge(now, [address])[address]
            if verdict.stage not in (stage, Stage.KEPT) or verdict.kind is None:
                looked.unfinished = True
                return None
            entry = self._entry(now, address, verdict)
            if entry is None:
                return None
            offer = await self._build(entry, address, view)
            if isinstance(offer, str):
                looked.invalid[address] = offer
                return None
            if now.refused(address):
                self._step(f"finish {address}")
                self._half.finish_locked(address)
            looked.handed_over.discard(address)
            return offer

    async def _publish(self, looked: Looked, inputs: Inputs) -> None:
        """Write the slices: with those that were confirmed, those that stay, and those that are withheld."""
        for address, verdict in looked.verdicts.items():
            if address in inputs.barred or verdict.stage in (Stage.ABSENT, Stage.LEAVING) or address in looked.offers:
                continue
            offer = await self._standing(looked, address, verdict)
            if offer is not None:
                looked.offers[address] = offer
        kept = [one for one, verdict in looked.verdicts.items() if verdict.stage is Stage.KEPT and one in looked.offers]
        if self._ledger.doubt() is None:
            await self._remember(looked, {address: looked.offers[address].shape for address in kept})
        tainted = {address: _with(offer, inputs.taints(address)) for address, offer in looked.offers.items()}
        looked.offers = tainted
        self._tell_changes(tainted)
        # Until it is known what is in the slices, nothing more than before, and nothing that is withheld, may be had.
        self._offers = {
            address: tainted[address] if address in tainted and _same(tainted[address], offer) else offer
            for address, offer in self._offers.items()
        }
        await self._slices.publish(tainted.values())
        self._offers = dict(tainted)

    async def _standing(self, looked: Looked, address: str, verdict: Verdict) -> Offer | None:
        """A device that was published before: as it is now, or, withheld, as it was."""
        before = self._offers.get(address)
        if before is None or (verdict.stage is Stage.HANDING_OVER and verdict.kind is None):
            return None
        if verdict.stage is Stage.KEPT:
            entry = self._entry(looked.situation, address, verdict) or before.entry
            offer = await self._build(entry, address, looked.situation.view)
            if not isinstance(offer, str):
                return offer
            looked.invalid[address] = offer
            return replace(before, taints=(Taint(TaintKey.UNHEALTHY, PublicationReason.UNHEALTHY),))
        taint = verdict.taint or TaintKey.HANDOVER
        return replace(before, taints=(Taint(taint, VALUES[taint]),))

    def _entry(self, situation: Situation, address: str, verdict: Verdict) -> DesiredDevice | None:
        """The order that a device is published for: its present one, or that of before where it is left as it is."""
        entry = verdict.entry
        wanted = situation.wanted(address)
        if entry is not None and (wanted, entry.driver_name) == (verdict.kind, verdict.driver):
            return entry
        before = self._offers.get(address)
        return before.entry if before is not None else None

    # Out of them, and into other hands.

    async def _let_go(self, looked: Looked, inputs: Inputs) -> None:
        """Hand over, rename and forget devices that nobody has."""
        asked = {address for address, verdict in looked.verdicts.items() if _asks(looked.situation, address, verdict)}
        if not asked:
            return
        allocated = await self._claimed()
        renamed = False
        async with self._ledger.exclusive():
            for address in sorted(asked):
                verdict = looked.verdicts[address]
                users = self._users(address, verdict, allocated)
                if users:
                    looked.waits[address] = users
                    continue
                with self._patiently(looked, address):
                    match verdict.stage:
                        case Stage.HANDING_OVER:
                            self._hand_over(looked, address, verdict)
                        case Stage.RENAMING:
                            # From here on nobody is prepared with it under the name of before.
                            self._offers.pop(address, None)
                            renamed = True
                        case _:
                            await self._forget(looked, address)
        if renamed:
            await self._rename(looked, inputs)

    def _users(
        self, address: str, verdict: Verdict, allocated: Mapping[str, tuple[Allocation, ...]]
    ) -> tuple[str, ...]:
        """Who has a device; who has it under the name that it is to get may keep it."""
        found = {*allocated.get(address, ()), *self._ledger.holders(address)}
        if verdict.stage is Stage.RENAMING and verdict.kind is not None:
            name = device_name(verdict.kind, address)
            found = {one for one in found if (one.driver, one.device) != (verdict.driver, name)}
        return tuple(sorted({one.claim for one in found}))

    def _hand_over(self, looked: Looked, address: str, verdict: Verdict) -> None:
        boot_id = looked.situation.view.boot_id
        tokens = self._half.tokens(address)
        if address in tokens.taken or address in tokens.faults:
            self._step(f"renew {address}")
            self._half.renew(address, boot_id, verdict.token, locks=looked.situation.view.locks(address))
        else:
            self._step(f"offer {address}")
            self._half.offer(address, boot_id, verdict.token)
        looked.handed_over.add(address)

    async def _forget(self, looked: Looked, address: str) -> None:
        """It is no longer given to pods: whoever changes it need not ask."""
        if looked.situation.refused(address):
            self._step(f"finish {address}")
            self._half.finish(address, locks=looked.situation.view.locks(address))
        if looked.situation.listed(address):
            self._step(f"unlist {address}")
            self._half.write_published(self._listed(looked) - {address}, looked.situation.view.boot_id)
        if address in self._ledger.published():
            self._step(f"forget {address}")
            await self._ledger.forget([address])

    async def _rename(self, looked: Looked, inputs: Inputs) -> None:
        freed = [
            address
            for address, verdict in looked.verdicts.items()
            if verdict.stage is Stage.RENAMING and address not in self._offers and address not in looked.waits
        ]
        looked.offers = {address: offer for address, offer in looked.offers.items() if address not in freed}
        await self._enter(looked, inputs, freed, Stage.RENAMING)
        await self._publish(looked, inputs)

    # What is there.

    def _with_note(self, inputs: Inputs) -> Inputs:
        """A note that cannot be read is written anew, with all that pods may have: each too many costs a hand-over."""
        view = inputs.situation.view
        if view.published.doubt is None:
            return inputs
        addresses = frozenset({*self._offers, *self._ledger.published()})
        self._step(f"list {', '.join(sorted(addresses)) or 'nothing'} anew")
        self._half.write_published(addresses, view.boot_id)
        return replace(inputs, situation=replace(inputs.situation, view=replace(view, published=Published(addresses))))

    def _listed(self, looked: Looked) -> frozenset[str]:
        found = read_published(self._host, looked.situation.view.boot_id)
        if found.doubt is not None:
            raise OSError(errno.EIO, found.doubt)
        return found.addresses

    @contextmanager
    def _patiently(self, looked: Looked, address: str) -> Iterator[None]:
        """Somebody is at work on the device, or a file cannot be written: a later look goes on with it."""
        try:
            yield
        except LockedError as error:
            looked.unfinished = True
            _log.debug("Device %s: %s", address, error)
        except OSError as error:
            looked.unfinished = True
            looked.problem = f"{address}: {error.strerror or error}"
            _log.warning("Device %s: the hand-over does not go on: %s", address, error)

    def _tell_changes(self, offers: Mapping[str, Offer]) -> None:
        changed = [
            address for address in sorted({*offers, *self._offers}) if offers.get(address) != self._offers.get(address)
        ]
        if changed:
            self._step(f"publish {', '.join(changed)}")


def _asks(situation: Situation, address: str, verdict: Verdict) -> bool:
    """Whether it has to be known who has the device."""
    match verdict.stage:
        case Stage.HANDING_OVER:
            return not verdict.has_token
        case Stage.RENAMING:
            return True
        case Stage.LEAVING:
            return situation.listed(address) or address in situation.remembered or situation.refused(address)
        case _:
            return False


def is_withheld(offer: Offer) -> bool:
    """Whether a taint of this module keeps new users from the device."""
    return any(taint.key in WITHHOLDING for taint in offer.taints)


def _same(one: Offer, other: Offer) -> bool:
    return (one.kind, one.driver, one.name) == (other.kind, other.driver, other.name)


def _with(offer: Offer, taints: Collection[Taint]) -> Offer:
    """With what is seen of it; of one that is withheld nobody asks."""
    if is_withheld(offer):
        return offer
    keys = {taint.key for taint in offer.taints}
    more = [taint for taint in taints if taint.key not in keys]
    return replace(offer, taints=tuple(sorted((*offer.taints, *more)))) if more else offer
