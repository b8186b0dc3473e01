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
from node_host.records_file import RecordsError
from node_host.view import HostView
from profile_writer.card import CardSeen, ClearType, Obstacle, Rearranged, SetType, Step, Verdict, describe
from profile_writer.changing import CardSteps
from profile_writer.looking import CardOrders, Looking
from profile_writer.plan import next_step
from profile_writer.record import CardEntry, Record
from profile_writer.tools import CardModes, ToolPaths

_log = logging.getLogger(__name__)

COMPONENT: Final = "npufleet-profile-writer"
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


class CardAtWork:
    """One card in one pass. ``failed`` are changes that are not tried again yet."""

    def __init__(
        self, ports: Ports, entry: DesiredDevice, *, rearranged: Rearranged, failed: Mapping[str, Obstacle]
    ) -> None:
        self._ports = ports
        self._entry = entry
        self._rearranged = rearranged
        self._failed = dict(failed)
        self._steps: list[Step] = []
        self._modes: CardModes | None = None

    async def run(self, names: tuple[str, ...]) -> CardOutcome:
        """Work until nothing is left to do; ``names`` are the card's locks."""
        with ExitStack() as stack:
            try:
                locks = stack.enter_context(Locks(self._ports.host, names, owner=COMPONENT))
            except (LockedError, OSError) as error:
                text = str(error) if isinstance(error, LockedError) else f"its lock cannot be taken: {error}"
                verdict = Verdict(DeviceState.BLOCKED, Reason.GROUP_LOCKED, text)
                return CardOutcome(
                    self._entry, verdict, CardSeen(self._entry.address, None), rearranged=self._rearranged
                )
            return await self._run(locks)

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
        return seen, next_step(order, entry.intent, seen, restore=entry.on_release is OnRelease.RESTORE)

    async def _run(self, locks: Locks) -> CardOutcome:
        ports, address = self._ports, self._entry.address
        steps = CardSteps(
            ports.host, ports.calls, ports.writer, ports.tools, ports.paths, locks, address, sleep=ports.sleep
        )
        for _ in range(_MOST_STEPS):
            view = await self._view()
            state = await ports.calls.run("record", ports.record.load)
            recorded = state.entries.get(address)
            seen, follows = await self.look(view, recorded, await self._known_modes(steps, view))
            if isinstance(follows, Verdict):
                return self._outcome(follows, seen)
            if ports.stopping():
                return self._unfinished(seen, "the writer is being stopped")
            refused = await self._cleared(follows, view) or await self._remember(follows, view, seen, recorded)
            if refused is not None:
                self._failed[_subject(follows, address)] = refused
                continue
            _log.info("%s", describe(follows, address))
            self._steps.append(follows)
            if not isinstance(follows, ClearType | SetType):
                self._modes = None
            failure = await steps.make(follows, seen)
            if failure is None:
                self._rearranged = self._rearranged.after(follows)
            else:
                _log.warning("%s: failed: %s", describe(follows, address), failure.message)
                self._failed[_subject(follows, address)] = failure
                if failure.reason is Reason.WRITE_STUCK:
                    verdict = Verdict(DeviceState.FAILED, Reason.WRITE_STUCK, failure.message)
                    return self._outcome(verdict, seen)
        return self._unfinished(seen, f"{_MOST_STEPS} steps have not been enough")

    async def _view(self) -> HostView:
        address = self._entry.address
        view = await self._ports.observer.again([address])
        device = view.devices.get(address)
        if device is None or not device.virtual_functions:
            return view
        return await self._ports.observer.again(view.around(address))

    async def _known_modes(self, steps: CardSteps, view: HostView) -> CardModes:
        """The modes of the card, asked once and after each step that may change one."""
        if self._modes is None:
            device = view.devices.get(self._entry.address)
            there = device is not None and device.driver is not None
            asks = there and self._ports.host.exists(self._ports.paths.nvidia_smi)
            self._modes = await steps.modes() if asks else CardModes()
        return self._modes

    async def _cleared(self, step: Step, view: HostView) -> Obstacle | None:
        """Take the tokens of what pods may have; why that is not possible, or None."""
        address = self._entry.address
        device = view.devices.get(address)
        orders = CardOrders(self._entry, frozenset(device.virtual_functions if device else ()))
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

    def _outcome(self, verdict: Verdict, seen: CardSeen) -> CardOutcome:
        return CardOutcome(
            self._entry, verdict, seen, tuple(self._steps), rearranged=self._rearranged, failed=dict(self._failed)
        )

    def _unfinished(self, seen: CardSeen, why: str) -> CardOutcome:
        outcome = self._outcome(Verdict(DeviceState.PENDING, Reason.TYPING, why), seen)
        return replace(outcome, unfinished=True)


def _subject(step: Step, card: str) -> str:
    """The function that the step changes, or the card."""
    return step.function if isinstance(step, ClearType | SetType) else card


def _entry_for(step: Step, view: HostView, seen: CardSeen, recorded: CardEntry | None) -> CardEntry:
    """The record of the card before the step: what it had is what it has now, unless that is known from before."""
    if recorded is None or recorded.boot_id != view.boot_id:
        profiles = {one.address: one.profile for one in seen.functions if one.profile is not None}
        given = dict(recorded.given) if recorded is not None else {}
        # What others have changed since is theirs.
        given = {one: profile for one, profile in given.items() if one not in profiles}
        recorded = CardEntry(view.boot_id, view.devices[seen.address].identity, seen.number, profiles, given)
    if isinstance(step, SetType):
        return replace(recorded, given={**recorded.given, step.function: step.profile})
    if isinstance(step, ClearType):
        return replace(recorded, given={one: p for one, p in recorded.given.items() if one != step.function})
    return recorded


def is_released(outcome: CardOutcome) -> bool:
    """Whether nothing of npufleet is left on the card, so that it is forgotten."""
    return outcome.entry.intent is Intent.RELEASE and outcome.verdict.state is DeviceState.RELEASED
