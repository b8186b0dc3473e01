"""The checkpoint as the steps of a hand-over need it: who was prepared, and what pods could have."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial

from dra_publisher.checkpoint.store import BusyError, CheckpointError, CheckpointStore
from dra_publisher.claims.lock import ClaimLock, to_its_end
from dra_publisher.handover.ports import Allocation, PublishError
from node_host.evidence.checkpoint import Checkpoint, CheckpointUnreadableError

_FAULTS = (CheckpointError, CheckpointUnreadableError, BusyError)


class CheckpointLedger:
    """Over the store that `Claims` writes, and under its lock."""

    def __init__(self, store: CheckpointStore, lock: ClaimLock) -> None:
        self._store = store
        self._lock = lock

    def doubt(self) -> str | None:
        """Why prepared claims may be missing in it, or None."""
        try:
            return self._store.checkpoint().doubt
        except _FAULTS as error:
            return str(error)

    def published(self) -> Mapping[str, str]:
        """Devices that pods could have, with the digest of their shape; none where it cannot be read (see `doubt`)."""
        return self._checkpoint().published

    def holders(self, address: str) -> tuple[Allocation, ...]:
        """The claims that were prepared with the device, in whatever boot."""
        return tuple(
            Allocation(device.driver, device.device, claim.title)
            for claim in self._checkpoint().claims_of(address)
            for device in claim.devices
            if device.address == address
        )

    def drivers(self) -> frozenset[str] | None:
        """Driver names that claims were prepared for; None: not known."""
        if self.doubt() is not None:
            return None
        return frozenset(one.driver for claim in self._checkpoint().claims.values() for one in claim.devices)

    async def note(self, shapes: Mapping[str, str]) -> None:
        """Add devices to those that pods could have; on disk when it returns. Raises PublishError."""
        async with self.exclusive():
            await self._write(partial(self._store.note_published, shapes))

    async def forget(self, addresses: Collection[str]) -> None:
        """Take devices away from them; the caller holds `exclusive`. Raises PublishError."""
        await self._write(partial(self._store.forget_published, addresses))

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """No claim is prepared or taken back meanwhile, in any process. Raises PublishError."""
        held = self._lock.held()
        try:
            await held.__aenter__()
        except _FAULTS as error:
            raise PublishError(str(error)) from error
        try:
            yield
        finally:
            await held.__aexit__(None, None, None)

    def _checkpoint(self) -> Checkpoint:
        try:
            return self._store.checkpoint()
        except _FAULTS:
            return Checkpoint()

    async def _write(self, write: Callable[[], None]) -> None:
        try:
            await to_its_end(write)
        except _FAULTS as error:
            raise PublishError(str(error)) from error
