"""What nobody asks for any more is found and taken back; what was lost with the record is read from the API server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from dra_publisher.checkpoint.store import BusyError, CheckpointError
from dra_publisher.claims.allocation import POD_CLAIM_NAME, AllocationError, devices_in_pool, is_uid
from dra_publisher.claims.api import ClaimsApi
from dra_publisher.claims.preparing import kind_of, recovered
from dra_publisher.claims.shape import may_be_used
from dra_publisher.claims.stale import Gone, gone
from node_host.evidence.checkpoint import UNKNOWN_SHAPE, Checkpoint, PreparedClaim, PreparedDevice
from node_host.evidence.publication import read_published
from node_host.host import Host
from runtime.errors import ApiError, NotFound
from runtime.resources import RESOURCE_CLAIMS

T = TypeVar("T")

EVERY_SECONDS: Final = 120.0
_LEAST_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 5.0
_AT_ONCE: Final = 8
_log = logging.getLogger(__name__)


class Record(Protocol):
    """What of `Claims` is needed; all but ``serialized``, ``mend`` and ``in_thread`` under ``serialized``."""

    def serialized(self) -> AbstractAsyncContextManager[None]: ...
    def current(self) -> Checkpoint: ...
    def replace(self, checkpoint: Checkpoint) -> None: ...
    def drop(self, entries: Sequence[PreparedClaim], checkpoint: Checkpoint) -> tuple[PreparedClaim, ...]: ...
    async def in_thread(self, work: Callable[[], T]) -> T: ...
    async def mend(self) -> None: ...
    def changed(self) -> None: ...


class Collector:
    """One round after another; each may be asked for at once."""

    def __init__(
        self,
        record: Record,
        api: ClaimsApi,
        host: Host,
        *,
        pool: str,
        boot_id: str,
        users: Callable[[Collection[str]], Awaitable[Mapping[str, str]]],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._record = record
        self._api = api
        self._host = host
        self._pool = pool
        self.boot_id = boot_id
        self._users = users
        self._clock = clock
        self._gone = Gone()
        self._wake = asyncio.Event()
        self._sleep = sleep

    def hurry(self) -> None:
        """Make a round at once: something waits for it."""
        self._wake.set()

    async def run(self) -> None:
        """Round after round until cancelled."""
        while True:
            self._wake.clear()
            try:
                is_whole = await self.round()
            except (ApiError, CheckpointError, BusyError) as error:
                _log.warning("Claims of this node cannot be looked through: %s", error)
                is_whole = False
            await self._pause(EVERY_SECONDS if is_whole else _RETRY_SECONDS)

    async def _pause(self, seconds: float) -> None:
        await self._sleep(_LEAST_SECONDS)  # a kubelet that is refused asks again and again
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def round(self) -> bool:
        """Recover a lost record, make lost files again, then drop what is gone; whether there is nothing left to look
        at soon.

        Raises ApiError, CheckpointError, BusyError.
        """
        async with self._record.serialized():
            checkpoint = self._record.current()
        if checkpoint.doubt is not None:
            await self._recover()
            async with self._record.serialized():
                checkpoint = self._record.current()
        await self._record.mend()
        return await self._collect(checkpoint)

    async def _recover(self) -> None:
        """Every claim that is allocated a device of this node may have been prepared, under whatever driver name, if
        the device is now what it was allocated as: else no container of this boot can have it, and to record it would
        keep whoever makes it so again from doing that.
        """
        read = partial(_held, pool=self._pool, boot_id=self.boot_id)
        listed = [entry for entry in (await self._api.list(RESOURCE_CLAIMS, convert=read)).items if entry is not None]
        async with self._record.serialized():
            checkpoint = self._record.current()
            if checkpoint.doubt is None:
                return
            whole = await self._record.in_thread(partial(self._recovered, checkpoint, listed))
        _log.warning("The record of claims was made again from the API server: %d claims", len(whole.claims))
        self._record.changed()

    def _recovered(self, checkpoint: Checkpoint, listed: Sequence[PreparedClaim]) -> Checkpoint:
        """The record as it is put in the place of the lost one."""
        found = (replace(entry, devices=tuple(filter(self._may_be_used, entry.devices))) for entry in listed)
        claims = {entry.uid: entry for entry in found if entry.devices} | dict(checkpoint.claims)
        offered = read_published(self._host, self.boot_id).addresses
        published = dict.fromkeys(offered, UNKNOWN_SHAPE) | dict(checkpoint.published)
        whole = replace(checkpoint, claims=MappingProxyType(claims), published=MappingProxyType(published), doubt=None)
        self._record.replace(whole)
        return whole

    def _may_be_used(self, device: PreparedDevice) -> bool:
        kind = kind_of(device.device)
        return kind is None or may_be_used(self._host, device.address, kind)

    async def _collect(self, checkpoint: Checkpoint) -> bool:
        self._gone.keep(checkpoint.claims.keys())
        gate = asyncio.Semaphore(_AT_ONCE)
        why = await asyncio.gather(*(self._ask(entry, gate) for entry in checkpoint.claims.values()))
        verdicts = dict(zip(checkpoint.claims, why, strict=True))
        seen = {uid: checkpoint.claims[uid] for uid, text in verdicts.items() if text}
        due = self._gone.due(seen, [uid for uid, text in verdicts.items() if text is None], self._clock(), self.boot_id)
        free = await self._unused(due)
        if free:
            async with self._record.serialized():
                dropped = await self._record.in_thread(partial(self._record.drop, free, self._record.current()))
            for entry in dropped:
                self._gone.forget(entry.uid)
                _log.info("%s (UID %s) was forgotten: %s", entry.title, entry.uid, verdicts[entry.uid])
            if dropped:
                self._record.changed()
            seen = {uid: entry for uid, entry in seen.items() if entry not in dropped}
        return not seen

    async def _ask(self, entry: PreparedClaim, gate: asyncio.Semaphore) -> str | None:
        """Why the claim is gone; None when it is not; "" when the API server does not say."""
        async with gate:
            try:
                return gone(entry, await self._api.get(RESOURCE_CLAIMS, entry.name, entry.namespace))
            except NotFound as error:
                return "" if error.not_served else gone(entry, None)
            except (ApiError, ValueError):
                return ""

    async def _unused(self, due: Sequence[PreparedClaim]) -> list[PreparedClaim]:
        """Without those whose devices somebody has in this boot, or may have."""
        here = [entry for entry in due if entry.boot_id == self.boot_id]
        free = [entry for entry in due if entry.boot_id != self.boot_id]
        if here:
            addresses = {device.address for entry in here for device in entry.devices}
            try:
                users = await self._users(addresses)
            except Exception as error:
                _log.warning("Who uses devices of claims that are gone cannot be told: %s", error)
                return free
            free += [entry for entry in here if not any(device.address in users for device in entry.devices)]
        return free


def _held(claim: Mapping[str, Any], *, pool: str, boot_id: str) -> PreparedClaim | None:
    """The record of a claim as far as it may have been prepared here, None when it was not."""
    metadata = claim.get("metadata")
    if not isinstance(metadata, Mapping):
        return None
    uid, namespace, name = (metadata.get(key) for key in ("uid", "namespace", "name"))
    if not (isinstance(uid, str) and is_uid(uid) and isinstance(namespace, str) and isinstance(name, str)):
        return None
    try:
        devices = devices_in_pool(claim, pool=pool)
    except AllocationError as error:
        _log.error("claim %s/%s cannot be understood: %s", namespace, name, error)
        return None
    annotations = metadata.get("annotations")
    pod_claim_name = annotations.get(POD_CLAIM_NAME) if isinstance(annotations, Mapping) else None
    entry = recovered(uid, namespace, name, pod_claim_name if isinstance(pod_claim_name, str) else "", devices, boot_id)
    return entry if entry.devices else None
