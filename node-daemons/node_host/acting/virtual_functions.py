"""Making and removing the plain virtual functions of a card, so that dying at any point leaves something repairable.

The card stays on its own driver. What it had before is in the journal before the first write. While virtual functions
are made they are not offered to drivers, so that no driver of the host takes one that goes to a VM. The number is read
back, because a driver may make fewer than asked and report success (drivers/pci/iov.c, sriov_numvfs_store); what fails
is rolled back to no virtual functions.
"""

import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from crds.models.bindings import BindingReason as Reason
from node_host.acting.actions import CardAction, MakeFunctions, OfferFunctions, Outcome, Result
from node_host.acting.bounded_write import WriteStuckError
from node_host.acting.driver_writes import DriverWrites
from node_host.acting.journal import FormerFunctions, Journal, JournalEntry, JournalError
from node_host.acting.steps import FAILURES, NotVerifiedError, StepError, gone, settled, step, words
from node_host.bounded_call import BoundedCalls, HungError
from node_host.pci.device import DeviceGoneError, PCIDevice

_NO_ROOM: Final = "the bus has no room for them: switch SR-IOV on in the firmware, or boot with pci=realloc"


class _OthersError(Exception):
    """Somebody else has made virtual functions since the card was looked at; the text says how many."""


class CardChanger:
    """Changes one card whose locks the caller holds; the caller has also checked that it may be changed."""

    def __init__(
        self,
        calls: BoundedCalls,
        journal: Journal,
        writes: DriverWrites,
        users: Callable[[], Awaitable[str | None]],
    ) -> None:
        """``users`` looks who uses the card or a virtual function of it now, in words; None when nobody does."""
        self._calls = calls
        self._journal = journal
        self._writes = writes
        self._users = users

    async def change(self, action: CardAction) -> Outcome:
        """What became of it."""
        match action:
            case MakeFunctions():
                return await self._make(action)
            case OfferFunctions(address, entry=entry):
                return await settled(address, self._offer(address, entry), Reason.FUNCTIONS_BOUND, change="undone")
            case _:
                removal = self._remove(action.address, action.entry, action.functions)
                return await settled(action.address, removal, Reason.RELEASED, change="undone")

    async def _make(self, action: MakeFunctions) -> Outcome:
        address, entry = action.address, _with_made(action.entry, None)
        try:
            await self._put(address, entry)
        except (JournalError, HungError) as error:
            return Outcome(address, Result.BLOCKED, Reason.JOURNAL_UNREADABLE, f"not changed: {error}")
        try:
            await self._make_number(action)
            await self._put(address, _with_made(entry, action.number))
        except WriteStuckError as error:
            return Outcome(address, Result.FAILED, Reason.WRITE_STUCK, str(error))
        except DeviceGoneError:
            return gone(address)
        except _OthersError as error:
            return await self._left_to_others(action, entry, error)
        except (*FAILURES, JournalError) as error:
            return await self._rolled_back(action, entry, error)
        return Outcome(address, Result.DONE, Reason.FUNCTIONS_BOUND)

    async def _make_number(self, action: MakeFunctions) -> None:
        address, number = action.address, action.number
        device = await self._writes.read(address)
        if device.autoprobe:
            device = await self._set_autoprobe(address, value=False)
        if device.num_vfs not in (0, action.seen_number):
            raise _OthersError(f"it has {device.num_vfs} virtual functions now, instead of {action.seen_number}")
        if device.num_vfs:
            await self._set_number(address, 0)
        try:
            device = await self._set_number(address, number)
        except StepError as error:
            now = await self._writes.read(address)
            # The kernel says so where the card has some already.
            if error.number == errno.EBUSY and now.num_vfs:
                raise _OthersError(f"{error}: it has {now.num_vfs} virtual functions now") from error
            raise
        if len(device.virtual_functions) != number:
            raise NotVerifiedError(f"of {number} virtual functions {len(device.virtual_functions)} are there")

    async def _left_to_others(self, action: MakeFunctions, entry: JournalEntry, error: Exception) -> Outcome:
        """Nothing of ours is left on the card: the number goes from one to another through none."""
        address, why = action.address, f"somebody else changed it meanwhile: {error}"
        try:
            await self._offer(address, entry)
            await self._calls.run("journal", partial(self._journal.drop, address, *action.functions))
        except DeviceGoneError:
            return gone(address)
        except (*FAILURES, WriteStuckError, JournalError) as failed:
            return Outcome(address, Result.FAILED, Reason.CHANGED, f"{why}; not undone: {words(failed)}")
        return Outcome(address, Result.BLOCKED, Reason.CHANGED, why)

    async def _rolled_back(self, action: MakeFunctions, entry: JournalEntry, error: Exception) -> Outcome:
        """Back to what it had; but virtual functions that somebody has opened since are left to him, and remembered."""
        address, reason, why = action.address, _reason(error), words(error)
        try:
            users = await self._users()
            if users is not None:
                text = f"{why}; not undone, because it is {users}"
                return Outcome(address, Result.FAILED, reason, text)
            device = await self._writes.read(address)
            await self._remove(address, entry, (*action.functions, *device.virtual_functions))
        except DeviceGoneError:
            return gone(address)
        except (*FAILURES, WriteStuckError, JournalError) as failed:
            return Outcome(address, Result.FAILED, reason, f"{why}; not undone: {words(failed)}")
        return Outcome(address, Result.FAILED, reason, f"{why}; undone: it has {_former(entry).former_number} of them")

    async def _remove(self, address: str, entry: JournalEntry, functions: tuple[str, ...]) -> None:
        """The former number and switch again; the entries of the card and of what it had go together."""
        former = _former(entry)
        device = await self._writes.read(address)
        if device.num_vfs != former.former_number:
            await self._set_number(address, former.former_number)
        await self._offer(address, entry)
        await self._calls.run("journal", partial(self._journal.drop, address, *functions))

    async def _offer(self, address: str, entry: JournalEntry) -> None:
        former = _former(entry).former_autoprobe
        device = await self._writes.read(address)
        if former is not None and device.autoprobe != former:
            await self._set_autoprobe(address, value=former)

    async def _set_number(self, address: str, number: int) -> PCIDevice:
        try:
            await step("sriov_numvfs", self._writes.functions(address, number))
        except StepError as error:
            raise _explained(error) from error
        device = await self._writes.read(address)
        if device.num_vfs != number:
            raise NotVerifiedError(f"asked for {number} virtual functions, the kernel has {device.num_vfs}")
        return device

    async def _set_autoprobe(self, address: str, *, value: bool) -> PCIDevice:
        await step("sriov_drivers_autoprobe", self._writes.autoprobe(address, value))
        device = await self._writes.read(address)
        if device.autoprobe != value:
            raise NotVerifiedError(f"sriov_drivers_autoprobe does not read {value:d} after it was written")
        return device

    async def _put(self, address: str, entry: JournalEntry) -> None:
        await self._calls.run("journal", partial(self._journal.put, address, entry))


def _with_made(entry: JournalEntry, made: int | None) -> JournalEntry:
    return replace(entry, functions=replace(_former(entry), made=made))


def _former(entry: JournalEntry) -> FormerFunctions:
    return entry.functions or FormerFunctions(0, None)


def _explained(error: StepError) -> StepError:
    """The kernel's error with what it means here."""
    if error.number == errno.ENOMEM:
        return StepError(f"{error}: {_NO_ROOM}", error.number)
    if error.number == errno.ENOENT:
        return StepError(f"{error}: its driver makes no virtual functions", error.number)
    return error


def _reason(error: Exception) -> Reason:
    if isinstance(error, NotVerifiedError):
        return Reason.VERIFY_FAILED
    is_unable = isinstance(error, StepError) and error.number == errno.ENOENT
    return Reason.NO_SRIOV if is_unable else Reason.FUNCTIONS_FAILED
