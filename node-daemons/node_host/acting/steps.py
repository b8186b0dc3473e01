"""The steps of a change: each names itself and the kernel's error when it fails."""

import errno
from collections.abc import Awaitable
from typing import Final

from crds.models.bindings import BindingReason as Reason
from node_host.acting.actions import Outcome, Result
from node_host.acting.bounded_write import WriteStuckError
from node_host.acting.journal import JournalError
from node_host.bounded_call import HungError
from node_host.pci.device import DeviceGoneError, DeviceUnreadableError


class StepError(Exception):
    """A step failed; the text names it and the kernel's error, ``number`` is that error's, None without one."""

    def __init__(self, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.number = number


class NotVerifiedError(StepError):
    """Every write succeeded and the device is still not as it should be."""


FAILURES: Final = (StepError, OSError, DeviceUnreadableError, HungError)


async def step(name: str, write: Awaitable[None]) -> None:
    """Do it. Raises StepError for the kernel's OSError; everything else comes through."""
    try:
        await write
    except OSError as error:
        raise StepError(f"{name}: {words(error)}", error.errno) from error


def words(error: BaseException) -> str:
    """An error for a message."""
    if isinstance(error, OSError):
        return f"{errno.errorcode.get(error.errno or 0, 'error')} ({error.strerror or error})"
    return str(error)


def gone(address: str) -> Outcome:
    """Nothing is left to give back. The entry stays until a look at the whole host shows that the device is gone."""
    return Outcome(address, Result.FAILED, Reason.DEVICE_MISSING, "the device vanished while it was changed")


async def settled(address: str, work: Awaitable[None], done: Reason, *, change: str) -> Outcome:
    """What became of a return to what was before, which ends with the journal's entry; ``change``: in one word."""
    try:
        await work
    except WriteStuckError as error:
        return Outcome(address, Result.FAILED, Reason.WRITE_STUCK, str(error))
    except DeviceGoneError:
        return gone(address)
    except JournalError as error:
        text = f"{change}, but the journal still names it: {error}"
        return Outcome(address, Result.FAILED, Reason.RESTORE_FAILED, text)
    except FAILURES as error:
        return Outcome(address, Result.FAILED, Reason.RESTORE_FAILED, words(error))
    return Outcome(address, Result.DONE, done)
