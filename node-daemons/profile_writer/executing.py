"""One card at work: look, take the next step, make it, look again, until there is no step left.

Everything is decided under the card's locks and from a look that is newer than the last write. A function that somebody
may have is changed only once its token was taken, and then looked at once more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from crds.models.modes import OnRelease
from crds.models.node_state import DesiredDevice, DeviceState, Intent
from crds.models.profiling import ProfileReason as Reason
from crds.models.vgpu_state import VGPUOrder
from node_host.acting.bounded_tool import BoundedTools
from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.locks import LockedError, Locks
from node_host.bounded_call import BoundedCalls, HungError
from node_host.handover.binder_half import BinderHalf
from node_host.host import HostWithTools
from node_host.observer import Observer
from node_host.pci.device import DeviceGoneError, DeviceUnreadableError, PCIDevice, read_device
from node_host.records_file import RecordsError
from node_host.view import HostView
from profile_writer.card import (
    CardSeen,
    ClearType,
    CreateMdev,
    DisableFunctions,
    EnableFunctions,
    FindDriver,
    MixSizes,
    Obstacle,
    Rearranged,
    RemoveMdev,
    SetType,
    Step,
    Verdict,
    describe,
)
from profile_writer.changing import CardSteps
from profile_writer.looking import Looking, orders_of
from profile_writer.plan import next_step
from profile_writer.record import CardEntry, Record
from profile_writer.tools import UNBIND_LOCK, CardModes, ToolPaths

_log = logging.getLogger(__name__)

COMPONENT: Final = "npufleet-profile-writer"
LOCK_TRIES: Final = 5
LOCK_PAUSE_SECONDS: Final = 1.0
_MOST_STEPS: Final = 600
"""Each of 256 functions is cleared and typed, with room for the rest; a plan that wants more goes in a circle."""


@dataclass(frozen=True, slots=True)
class CardOutcome:
    """What became of a card in a pass: the last verdict, what was seen then, and what was done."""

    entry: DesiredDevice
    verdict: Verdict
    seen: CardSeen
    steps: tuple[Step, ...] = ()
    unfinished: bool = False
    rearranged: Rearranged = field(default_factory=Rearranged)
    failed: Mapping[str, Obstacle] = field(default_factory=dict)
    intent: Intent = Intent.APPLY


class KnownModes:
    """What nvidia-smi said of cards, for as long as nothing shows that it may have changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, CardModes]] = {}

    def get(self, address: str, key: object) -> CardModes | None:
        """The modes that were told while ``key`` (the load of the driver, the number of functions) was the same."""
        known = self._known.get(address)
        return known[1] if known is not None and known[0] == key else None

    def put(self, address: str, key: object, modes: CardModes) -> None:
        """Remember them."""
        self._known[address] = (key, modes)

    def forget(self, address: str) -> None:
        """They may have changed."""
        self._known.pop(address, None)


@dataclass(frozen=True, slots=True)
class Ports:
    """What cards are changed through."""

    host: HostWithTools
    observer: Observer
    calls: BoundedCalls
    writer: BoundedWriter
    tools: BoundedTools
    paths: ToolPaths
    looking: Looking
    record: Record
    tokens: BinderHalf
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    stopping: Callable[[], bool] = lambda: False
    modes: KnownModes = field(default_factory=KnownModes)


class CardAtWork:
    """One card in one pass. ``failed`` are changes that are not tried again yet; ``intent`` is the order's, or to give
    back a card that is ordered to become something else.
    """

    def __init__(
        self,
        ports: Ports,
        entry: DesiredDevice,
        *,
        rearranged: Rearranged,
        failed: Mapping[str, Obstacle],
        intent: Intent | None = None,
    ) -> None:
        self._ports = ports
        self._entry = entry
        self._intent = intent or entry.intent
        self._rearranged = rearranged
        self._failed = dict(failed)
        self._steps: list[Step] = []
        self._asked = False
        self._lock_tries = 0

    async def run(self, names: tuple[str, ...]) -> CardOutcome:
        """Work until nothing is left to do; ``names`` are the card's locks."""
        with ExitStack() as stack:
            try:
                locks = stack.enter_context(Locks(self._ports.host, names, owner=COMPONENT))
            except (LockedError, OSError) as error:
                text = str(error) if isinstance(error, LockedError) else f"its lock cannot be taken: {error}"
                verdict = Verdict(DeviceState.BLOCKED, Reason.GROUP_LOCKED, text)
                return self._outcome(verdict, CardSeen(self._entry.address, None))
            return await self._run(locks)

    async def glance(self, view: HostView, recorded: CardEntry | None) -> CardOutcome | None:
        """What becomes of the card when there is nothing to do, as a view shows it; None when there may be something.

        No lock is taken, and nothing is changed.
        """
        with Locks(self._ports.host, (), owner=COMPONENT) as none:
            modes = await self._known_modes(self._steps_under(none))
        seen, follows = await self.look(view, recorded, modes)
        return self._outcome(follows, seen) if isinstance(follows, Verdict) else None

    async def look(
        self, view: HostView, recorded: CardEntry | None, modes: CardModes
    ) -> tuple[CardSeen, Step | Verdict]:
        """The card as it is in a view, and what follows; nothing is changed."""
        ports, entry = self._ports, self._entry
        seen = await ports.looking.card(
            entry,
            view,
            recorded,
            modes,
            has_tool=ports.host.exists(ports.paths.sriov_manage),
            has_smi=ports.host.exists(ports.paths.nvidia_smi),
        )
        seen = replace(seen, rearranged=self._rearranged, failed=dict(self._failed))
        order = entry.vgpu or VGPUOrder.model_validate({"profileMapRef": {"name": "none"}})
        return seen, next_step(order, self._intent, seen, restore=entry.on_release is OnRelease.RESTORE)

    async def _run(self, locks: Locks) -> CardOutcome:
        ports, address = self._ports, self._entry.address
        steps = self._steps_under(locks)
        for _ in range(_MOST_STEPS):
            # Before the look: a vendor's program takes its time, and users come and go meanwhile.
            modes = await self._known_modes(steps)
            view = await self._view()
            state = await ports.calls.run("record", ports.record.load)
            recorded = state.entries.get(address)
            seen, follows = await self.look(view, recorded, modes)
            if isinstance(follows, Verdict):
                return self._outcome(follows, seen)
            if ports.stopping():
                return self._unfinished(seen, "the writer is being stopped")
            if not self._asked:
                self._asked = True
                ports.modes.forget(address)
                continue  # what is remembered of the modes is good enough to do nothing by it
            refused = await self._cleared(follows, view) or await self._remember(follows, view, seen, recorded)
            if refused is not None:
                self._failed[_failing(follows, address)] = refused
                continue
            failure = await self._make(steps, follows, seen)
            if failure is None:
                await self._forget(follows)
            elif failure.reason is Reason.WRITE_STUCK:
                return self._outcome(Verdict(DeviceState.FAILED, Reason.WRITE_STUCK, failure.message), seen)
        return self._unfinished(seen, f"{_MOST_STEPS} steps have not been enough")

    async def _make(self, steps: CardSteps, step: Step, seen: CardSeen) -> Obstacle | None:
        """Make a step; a failure is kept, so that what it was about is left alone in this pass."""
        address = self._entry.address
        _log.info("%s", describe(step, address))
        self._steps.append(step)
        failure = await steps.make(step, seen)
        if isinstance(step, EnableFunctions | DisableFunctions | FindDriver | MixSizes):
            self._ports.modes.forget(address)
        if failure is None:
            self._rearranged = self._rearranged.after(step)
            return None
        if isinstance(step, EnableFunctions | DisableFunctions) and failure.reason is not Reason.WRITE_STUCK:
            if UNBIND_LOCK in failure.message and self._lock_tries < LOCK_TRIES - 1:
                self._lock_tries += 1
                await self._ports.sleep(LOCK_PAUSE_SECONDS)
                return None  # nothing was done; whether it still may be is looked at again
            failure = await self._with_driver(steps, failure, seen)
        _log.warning("%s: failed: %s", describe(step, address), failure.message)
        self._failed[_failing(step, address)] = failure
        return failure

    async def _with_driver(self, steps: CardSteps, failure: Obstacle, seen: CardSeen) -> Obstacle:
        """A failure to make virtual functions, with the card on its driver again if that can be done."""
        device = await self._device()
        if device is None or device.driver is not None or seen.driver is None:
            return failure
        self._steps.append(FindDriver())
        again = await steps.make(FindDriver(), seen)
        became = "the kernel has found it again" if again is None else f"which is not found again: {again.message}"
        return Obstacle(failure.reason, f"{failure.message}; the card was left without its driver, {became}")

    def _steps_under(self, locks: Locks) -> CardSteps:
        ports = self._ports
        return CardSteps(ports.host, ports.calls, ports.writer, ports.tools, ports.paths, locks, self._entry.address)

    async def _device(self) -> PCIDevice | None:
        """The card itself, None when it cannot be read."""
        address = self._entry.address
        try:
            return await self._ports.calls.run(address, partial(read_device, self._ports.host, address))
        except (DeviceGoneError, DeviceUnreadableError, HungError):
            return None

    async def _view(self) -> HostView:
        device = await self._device()
        own = {self._entry.address, *(device.virtual_functions if device is not None else ())}
        view = await self._ports.observer.again(own)
        others = {mate for one in own for mate in view.members(one)} - own
        return await self._ports.observer.again(own | others) if others else view

    async def _known_modes(self, steps: CardSteps) -> CardModes:
        """The modes of the card, asked again after each step, and each change of the host, that may change one."""
        ports, address = self._ports, self._entry.address
        device = await self._device()
        if device is None or device.driver is None or not ports.host.exists(ports.paths.nvidia_smi):
            return CardModes()
        key = (device.driver, device.num_vfs, await ports.looking.loaded(device.driver))
        known = ports.modes.get(address, key)
        if known is None:
            self._asked = True
            known = await steps.modes()
            ports.modes.put(address, key, known)
        return known

    async def _cleared(self, step: Step, view: HostView) -> Obstacle | None:
        """Take the tokens of what pods may have; why that is not possible, or None."""
        address = self._entry.address
        device = view.devices.get(address)
        orders = orders_of(self._entry, device)
        if isinstance(step, SetType | ClearType):
            orders = orders.making([step.profile] if isinstance(step, SetType) else [])
        subject = _subject(step, address)
        listed = [one for one in view.going_along(subject) if view.needs_token(one, orders.shapes_of(one))]
        for one in sorted(listed):
            take = partial(self._ports.tokens.take, one, view.boot_id, orders.entries_of(one))
            why = await self._ports.calls.run("tokens", take)
            if why is not None:
                return Obstacle(Reason.PUBLISHED, why if one == subject else f"{one}, which goes along: {why}")
        if not listed:
            return None
        # A token was written before it was taken: somebody may have come since.
        now = await self._view()
        used = now.card_in_use(subject) if subject == address else now.in_use(subject)
        return None if used is None else Obstacle(Reason.IN_USE, used)

    async def _remember(
        self, step: Step, view: HostView, seen: CardSeen, recorded: CardEntry | None
    ) -> Obstacle | None:
        """Put into the record what the step is about to change; why that is not possible, or None."""
        entry = _entry_for(step, view, seen, recorded)
        if entry == recorded:
            return None
        try:
            await self._ports.calls.run("record", partial(self._ports.record.put, seen.address, entry))
        except (RecordsError, HungError) as error:
            return Obstacle(Reason.JOURNAL_UNREADABLE, f"not changed: {error}")
        return None

    async def _forget(self, step: Step) -> None:
        """Drop from the record what the step has taken away, so that after the next boot it is not given again."""
        address, gone = self._entry.address, _taken_away(step)
        if gone is None:
            return
        try:
            state = await self._ports.calls.run("record", self._ports.record.load)
            recorded = state.entries.get(address)
            if recorded is not None and gone in recorded.given:
                entry = replace(recorded, given={one: p for one, p in recorded.given.items() if one != gone})
                await self._ports.calls.run("record", partial(self._ports.record.put, address, entry))
        except (RecordsError, HungError) as error:
            _log.info("The record still names %s: %s", gone, error)

    def _outcome(self, verdict: Verdict, seen: CardSeen) -> CardOutcome:
        return CardOutcome(
            self._entry,
            verdict,
            seen,
            tuple(self._steps),
            rearranged=self._rearranged,
            failed=dict(self._failed),
            intent=self._intent,
        )

    def _unfinished(self, seen: CardSeen, why: str) -> CardOutcome:
        outcome = self._outcome(Verdict(DeviceState.PENDING, Reason.TYPING, why), seen)
        return replace(outcome, unfinished=True)


def _subject(step: Step, card: str) -> str:
    """The function that the step changes, or the card."""
    if isinstance(step, CreateMdev | RemoveMdev):
        return step.parent
    return step.function if isinstance(step, ClearType | SetType) else card


def _failing(step: Step, card: str) -> str:
    """What a failure of the step is a failure of."""
    return step.uuid if isinstance(step, CreateMdev | RemoveMdev) else _subject(step, card)


def _taken_away(step: Step) -> str | None:
    """The function, or the mediated device, that is not to have again what it had."""
    if isinstance(step, ClearType) and step.rearranges is None:
        return step.function
    return step.uuid if isinstance(step, RemoveMdev) else None


def _entry_for(step: Step, view: HostView, seen: CardSeen, recorded: CardEntry | None) -> CardEntry:
    """The record of the card before the step: what it had is what it has now, unless that is known from before."""
    if recorded is None or recorded.boot_id != view.boot_id:
        profiles = {one.address: one.profile for one in seen.functions if one.profile is not None}
        given = dict(recorded.given) if recorded is not None else {}
        # What others have changed since is theirs.
        given = {one: profile for one, profile in given.items() if one not in profiles}
        recorded = CardEntry(view.boot_id, view.devices[seen.address].identity, seen.number, profiles, given)
    if isinstance(step, SetType):
        return replace(recorded, given=_with_given(recorded.given, step, seen))
    if isinstance(step, CreateMdev):
        return replace(recorded, given={**recorded.given, step.uuid: step.profile})
    # What is taken away stays in it: who dies before the kernel has taken it knows it as npufleet's.
    return recorded


def _with_given(given: Mapping[str, str], step: SetType, seen: CardSeen) -> dict[str, str]:
    """What functions were given, this one now too; it takes the place of one that has lost the same profile since, one
    that cannot have it again first: after the next boot it is this one that gets it."""
    found = dict(given)
    if found.get(step.function) != step.profile:
        lost = [one for one in seen.functions if found.get(one.address) == step.profile != one.profile]
        if lost:
            del found[min(lost, key=lambda one: (one.is_free, one.address)).address]
    return {**found, step.function: step.profile}


def is_released(outcome: CardOutcome) -> bool:
    """Whether nothing of npufleet is left on the card, so that it is forgotten."""
    return outcome.intent is Intent.RELEASE and outcome.verdict.state is DeviceState.RELEASED
