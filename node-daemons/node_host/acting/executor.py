"""Carrying out plans: groups side by side, each under its locks, each device checked again before its first write.

A plan is made from a look at the host that is already past. So under the locks the group is read anew, and a device
that is now used, needed by the host, another one, or elsewhere is not touched. Whatever goes wrong with a device is its
own outcome; the others go on.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Final

from crds.models.bindings import BindingReason as Reason
from node_host.acting.actions import (
    Action,
    Bind,
    CardAction,
    Forget,
    GroupPlan,
    JournalAction,
    MakeFunctions,
    OfferFunctions,
    Outcome,
    RemoveFunctions,
    Result,
    Return,
)
from node_host.acting.binding import DeviceMover
from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.driver_writes import DriverWrites
from node_host.acting.journal import Journal, JournalChangedError, JournalError, JournalView
from node_host.acting.locks import LockedError, Locks
from node_host.acting.virtual_functions import CardChanger
from node_host.boot import BootUnknownError
from node_host.bounded_call import BoundedCalls, HungError
from node_host.handover.binder_half import BinderHalf
from node_host.handover.token_files import TokenFiles
from node_host.host import Host
from node_host.observer import Observer
from node_host.pci.device import same_identity
from node_host.view import HostView, Obstacle

_log = logging.getLogger(__name__)

GROUPS_AT_ONCE: Final = 4


class Executor:
    """Acts on one host for one daemon; ``owner`` is the name that its locks show.

    ``stopping`` is asked before each device: a daemon that ends finishes the device at hand and begins no other.
    """

    def __init__(
        self,
        host: Host,
        observer: Observer,
        calls: BoundedCalls,
        writer: BoundedWriter,
        journal: Journal,
        *,
        owner: str,
        tokens: BinderHalf | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host = host
        self._tokens = tokens or BinderHalf(TokenFiles(host))
        self._observer = observer
        self._calls = calls
        self._writer = writer
        self._journal = journal
        self._owner = owner
        self._stopping = stopping
        self._loading = asyncio.Lock()

    async def run(self, plans: Sequence[GroupPlan]) -> list[Outcome]:
        """Outcomes of all groups, in the order of the plans. A device that was not begun has none."""
        gate = asyncio.Semaphore(GROUPS_AT_ONCE)
        # Groups that share a card's lock take turns here, instead of finding each other's flock.
        turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

        async def one(plan: GroupPlan) -> list[Outcome]:
            async with AsyncExitStack() as stack:
                for name in plan.locks:
                    await stack.enter_async_context(turns[name])
                # Only now, or those that wait for one card would keep all others out.
                await stack.enter_async_context(gate)
                return await self._run_group(plan)

        results = await asyncio.gather(*(one(plan) for plan in plans))
        return [outcome for outcomes in results for outcome in outcomes]

    async def note(self, actions: Sequence[JournalAction], view: HostView, seen: JournalView) -> list[Outcome]:
        """Changes of the journal alone, planned for ``view`` and the entries ``seen``; only failures have an outcome.

        They are made under the locks of the device: a process that moves it writes the same entry.
        """
        outcomes = [await self._note(action, view.locks(action.address), seen) for action in actions]
        return [outcome for outcome in outcomes if outcome is not None]

    async def _note(self, action: JournalAction, names: Sequence[str], seen: JournalView) -> Outcome | None:
        address = action.address
        entry = None if isinstance(action, Forget) else action.entry
        with ExitStack() as stack:
            try:
                stack.enter_context(Locks(self._host, names, owner=self._owner))
            except (LockedError, OSError) as error:
                return Outcome(address, Result.BLOCKED, Reason.GROUP_LOCKED, _not_locked(error))
            try:
                await self._calls.run("journal", partial(self._journal.exchange, address, seen.get(address), entry))
            except JournalChangedError as error:
                return Outcome(address, Result.BLOCKED, Reason.CHANGED, str(error))
            except (JournalError, HungError) as error:
                return Outcome(address, Result.BLOCKED, Reason.JOURNAL_UNREADABLE, str(error))
        return None

    async def clean_tokens(self, view: HostView) -> None:
        """Remove tokens of another boot; one that cannot be removed now is as good as gone, for nobody heeds it."""
        for address in view.tokens.stale(view.boot_id):
            try:
                with Locks(self._host, view.locks(address), owner=self._owner):
                    await self._calls.run("tokens", partial(self._tokens.clean, address, view.boot_id))
            except (LockedError, OSError, HungError) as error:
                _log.info("Tokens of another boot for %s stay: %s", address, error)

    async def _run_group(self, plan: GroupPlan) -> list[Outcome]:
        outcomes: dict[str, Outcome] = {}
        with ExitStack() as stack:
            try:
                locks = stack.enter_context(Locks(self._host, plan.locks, owner=self._owner))
            except (LockedError, OSError) as error:
                text = _not_locked(error)
                return [Outcome(act.address, Result.BLOCKED, Reason.GROUP_LOCKED, text) for act in plan.actions]
            try:
                await self._run_locked(plan, locks, outcomes)
            except Exception as error:
                for action in plan.actions:
                    if action.address not in outcomes:
                        outcomes[action.address] = _of_error(action.address, error)
        return list(outcomes.values())

    async def _run_locked(self, plan: GroupPlan, locks: Locks, outcomes: dict[str, Outcome]) -> None:
        """Outcomes are told as they come, so that a fault later on does not take them away."""
        writes = DriverWrites(self._host, self._calls, self._writer, locks)
        users = partial(self._users, plan)
        mover = DeviceMover(self._host, self._calls, self._journal, writes, self._loading, users)
        for action in plan.actions:
            if isinstance(action, Return) and not self._stopping():
                outcomes[action.address] = await _guarded(action.address, self._give_back(mover, plan, action))
            elif isinstance(action, MakeFunctions | RemoveFunctions | OfferFunctions) and not self._stopping():
                outcomes[action.address] = await _guarded(action.address, self._change_card(writes, plan, action))
        binds = [action for action in plan.actions if isinstance(action, Bind)]
        if binds and not self._stopping():
            await self._bind_all(mover, plan, binds, outcomes)

    async def _users(self, plan: GroupPlan, address: str) -> str | None:
        """Who uses a device of the group now. Raises HungError when not even the boot can be read."""
        try:
            view = await self._observer.again(plan.members)
        except BootUnknownError as error:
            return f"not known whether it is in use: {error}"
        return view.in_use(address)

    async def _change_card(self, writes: DriverWrites, plan: GroupPlan, action: CardAction) -> Outcome:
        async def users() -> str | None:
            card = await self._observer.again(plan.members)
            made = card.devices[action.address].virtual_functions if action.address in card.devices else ()
            view = await self._observer.again({*plan.members, *made})
            return view.card_in_use(action.address)

        changer = CardChanger(self._calls, self._journal, writes, users)
        _, refusals = await self._cleared(plan, [action])
        return refusals.get(action.address) or await changer.change(action)

    async def _give_back(self, mover: DeviceMover, plan: GroupPlan, action: Return) -> Outcome:
        _, refusals = await self._cleared(plan, [action])
        return refusals.get(action.address) or await mover.give_back(action)

    async def _cleared(self, plan: GroupPlan, actions: Sequence[Action]) -> tuple[HostView, dict[str, Outcome]]:
        """A fresh look, and the actions that are not to be done after all.

        When all may be, the tokens of devices that pods may have are taken, and then everything is looked at again: a
        token was written before it was taken.
        """
        view = await self._observer.again(plan.members)
        refusals = _refusals(view, plan, actions)
        if refusals:
            return view, refusals
        listed = {
            one: action.address
            for action in actions
            if not isinstance(action, OfferFunctions)
            for one in view.going_along(action.address)
            if view.needs_token(one, plan.shapes_of(one))
        }
        if not listed:
            return view, {}
        for one, address in sorted(listed.items()):
            take = partial(self._tokens.take, one, view.boot_id, plan.entries_of(one))
            why = await self._calls.run("tokens", take)
            if why is not None:
                text = why if one == address else f"{one}, which goes along: {why}"
                return view, {address: Outcome(address, Result.BLOCKED, Reason.PUBLISHED, text)}
        view = await self._observer.again(plan.members)
        return view, _refusals(view, plan, actions)

    async def _bind_all(
        self, mover: DeviceMover, plan: GroupPlan, binds: list[Bind], outcomes: dict[str, Outcome]
    ) -> None:
        """All or none: nothing is written while one may not be moved; what was bound is taken back when one fails."""
        view, refusals = await self._cleared(plan, binds)
        if refusals:
            outcomes |= _withheld(binds, refusals)
            return
        for number, action in enumerate(binds):
            outcome = await _guarded(action.address, self._bind(mover, plan, action, None if number else view))
            outcomes[action.address] = outcome
            if outcome.result is not Result.DONE:
                if outcome.reason is not Reason.WRITE_STUCK:
                    await self._undo(mover, binds[:number], outcome, outcomes)
                    outcomes |= _withheld(binds[number + 1 :], {outcome.address: outcome})
                break

    async def _bind(self, mover: DeviceMover, plan: GroupPlan, action: Bind, view: HostView | None) -> Outcome:
        view = view or await self._observer.again(plan.members)
        return refusal(view, plan, action) or await mover.bind(action, view.devices[action.address])

    async def _undo(self, mover: DeviceMover, done: list[Bind], cause: Outcome, outcomes: dict[str, Outcome]) -> None:
        why = f"{cause.address} of the same IOMMU group: {cause.message}"
        for action in reversed(done):
            outcomes[action.address] = await _guarded(action.address, mover.undo(action, why))


async def _guarded(address: str, work: Awaitable[Outcome]) -> Outcome:
    """A fault with one device is its own outcome."""
    try:
        return await work
    except Exception as error:
        return _of_error(address, error)


def _of_error(address: str, error: Exception) -> Outcome:
    """What cannot be read keeps a device as it is; anything else is a fault of this program, said aloud."""
    if isinstance(error, (BootUnknownError, HungError)):
        return Outcome(address, Result.BLOCKED, Reason.DEVICE_UNREADABLE, str(error))
    _log.error("Acting on %s failed", address, exc_info=error)
    text = f"a fault of npufleet ({type(error).__name__}: {error}); how far it came is not known, the log says more"
    return Outcome(address, Result.FAILED, Reason.INTERNAL_ERROR, text)


def _not_locked(error: LockedError | OSError) -> str:
    return str(error) if isinstance(error, LockedError) else f"its lock cannot be taken: {error}"


def _refusals(view: HostView, plan: GroupPlan, actions: Sequence[Action]) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for action in actions:
        judge = refusal if isinstance(action, Bind | Return) else card_refusal
        refused = judge(view, plan, action)  # type: ignore[arg-type]
        if refused is not None:
            found[action.address] = refused
    return found


def refusal(view: HostView, plan: GroupPlan, action: Bind | Return) -> Outcome | None:
    """Why the device is not to be touched after all, judged on a fresh look; None when it may be."""
    address = action.address
    refused = _refused(address, view.untouchable(address)) or _another(view, action)
    refused = refused or _refused(address, view.not_handed_over(address, plan))
    if refused is not None:
        return refused
    device = view.devices[address]
    if device.driver != action.seen_driver:
        text = f"it moved from {action.seen_driver or 'no driver'} to {device.driver or 'no driver'} meanwhile"
        return Outcome(address, Result.BLOCKED, Reason.CHANGED, text)
    if view.members(address) != plan.members or view.groups.fault(device.iommu_group) is not None:
        return Outcome(address, Result.BLOCKED, Reason.CHANGED, "the members of its IOMMU group changed meanwhile")
    return None


def card_refusal(view: HostView, plan: GroupPlan, action: CardAction) -> Outcome | None:
    """The same of a card whose virtual functions are to be changed."""
    address = action.address
    is_harmless = isinstance(action, OfferFunctions)
    obstacle = view.absence(address) if is_harmless else view.card_untouchable(address)
    refused = _refused(address, obstacle) or _another(view, action)
    if not is_harmless:
        refused = refused or _refused(address, view.not_handed_over(address, plan))
    if refused is not None:
        return refused
    number = view.devices[address].num_vfs
    if number != action.seen_number:
        text = f"it has {number} virtual functions now, instead of {action.seen_number}"
        return Outcome(address, Result.BLOCKED, Reason.CHANGED, text)
    return None


def _refused(address: str, obstacle: Obstacle | None) -> Outcome | None:
    return None if obstacle is None else Outcome(address, Result.BLOCKED, obstacle.reason, obstacle.message)


def _another(view: HostView, action: Action) -> Outcome | None:
    """Whether it is another device, or another boot, than the one that the action was planned for."""
    address, device = action.address, view.devices[action.address]
    if not same_identity(device.identity, action.entry.identity):
        text = f"another device ({device.identity}) has come to the address of {action.entry.identity}"
        return Outcome(address, Result.BLOCKED, Reason.IDENTITY_MISMATCH, text)
    if view.boot_id != action.entry.boot_id:
        return Outcome(address, Result.BLOCKED, Reason.CHANGED, "the host was booted meanwhile")
    return None


def _withheld(binds: list[Bind], causes: dict[str, Outcome]) -> dict[str, Outcome]:
    """Outcomes of devices that were not begun, because of others of their group."""
    first = next(iter(causes.values()))
    text = f"waits for {first.address} of the same IOMMU group: {first.message}"
    return {
        action.address: causes.get(action.address) or Outcome(action.address, first.result, first.reason, text)
        for action in binds
    }
