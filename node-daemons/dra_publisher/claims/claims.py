"""Claims of this node: prepared and taken back for the kubelet, safe at every step against the death of the process.

The order of a Prepare: the claims are read from the API server, at once and without a lock; then, one call at a time or
those that wait for one another together, what is offered, the record and the live devices are looked at; the claims are
recorded as `Started`, on disk, their files are written, and the kubelet is answered. That they are `Completed` is
recorded soon after, for several at once: it only saves a look. What is found after a death is either a claim that the
kubelet was told of, which gives the same answer again, or one that it may have been told of, which is looked at anew
and gives the same.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

from dra_publisher.checkpoint.store import BusyError, CheckpointError, CheckpointStore
from dra_publisher.claims.allocation import Allocation, AllocationError, is_uid, read_allocation
from dra_publisher.claims.api import ClaimsApi
from dra_publisher.claims.collecting import Collector
from dra_publisher.claims.config import ConfigError
from dra_publisher.claims.lock import ClaimLock, to_its_end
from dra_publisher.claims.looking import LOOK_SECONDS, DeviceLooks
from dra_publisher.claims.preparing import (
    Candidate,
    Offered,
    UnknownDeviceError,
    answer,
    candidate,
    has_files,
    held_by,
    is_same,
)
from dra_publisher.claims.recording import Recording
from dra_publisher.claims.status import ClaimStatuses, is_told
from dra_publisher.claims.together import Call, Together
from dra_publisher.kubelet.service import AnsweredDevice, ClaimRef
from node_host.bounded_call import BoundedCalls
from node_host.evidence.checkpoint import Checkpoint, CheckpointUnreadableError, ClaimState, PreparedClaim
from node_host.handover.publisher_half import PublisherHalf
from node_host.host import Host
from runtime.errors import ApiError, NotFound
from runtime.resources import RESOURCE_CLAIMS

T = TypeVar("T")
Answer = tuple[AnsweredDevice, ...] | str

_COMPLETE_SECONDS: Final = 1.0
FIELD_MANAGER: Final = "npufleet-dra-publisher"
CHECKPOINT_LOST: Final = "CheckpointLost"
_log = logging.getLogger(__name__)


class Claims:
    """The `ClaimService` of one node; ``pool`` is the Node's name."""

    def __init__(
        self,
        api: ClaimsApi,
        host: Host,
        store: CheckpointStore,
        offered: Callable[[str, str], Offered | None],
        *,
        pool: str,
        boot_id: str,
        users: Callable[[Collection[str]], Awaitable[Mapping[str, str]]],
        tell: Callable[[str, str], None] = lambda reason, message: None,
        on_change: Callable[[], None] = lambda: None,
        half: PublisherHalf | None = None,
        calls: BoundedCalls | None = None,
        lock: ClaimLock | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``offered`` gives what pods may have under a driver and a name now; ``users`` who has devices (by address)
        open or was given them by the kubelet, and raises when that cannot be told; ``tell`` takes reason and message of
        an Event; ``on_change`` is called when claims were taken back, collected or recovered.
        """
        self._api = api
        self._store = store
        self._offered = offered
        self._pool = pool
        self._boot_id = boot_id
        self._tell = tell
        self._on_change = on_change
        self._looks = DeviceLooks(host, calls or BoundedCalls(deadline_seconds=LOOK_SECONDS))
        self._lock = lock or ClaimLock(store)
        self._together = Together(self.serialized, self._do)
        self._recording = Recording(host, store, half or PublisherHalf(host), boot_id)
        self.statuses = ClaimStatuses(api, FIELD_MANAGER)
        self.collector = Collector(self, api, host, pool=pool, boot_id=boot_id, users=users, clock=clock)
        # What was taken back while a Prepare was on its way, which must not bring it back: the number of the call that
        # took it, by driver and UID.
        self._taken_back: dict[tuple[str, str], int] = {}
        self._calls_of_end = 0
        self._under_way = 0
        # Claims by driver and UID that were answered in this boot, by this process or as recorded by another.
        self._answered: set[tuple[str, str]] = set()
        self._completing = asyncio.Event()

    async def start(self) -> None:
        """Before the kubelet is served: make lost files again, and set aside a record that cannot be read.

        Never raises for what is wrong with the record or the files: the plugin serves, and says what it cannot do.
        """
        try:
            await self.mend()
        except (CheckpointError, BusyError) as error:
            self._tell(CHECKPOINT_LOST, str(error))

    async def mend(self) -> None:
        """Make lost files of claims again: a container that starts anew needs them, and the kubelet does not ask for
        them again. Raises BusyError, CheckpointError.
        """
        async with self.serialized():
            faults = await self.in_thread(partial(self._recording.rebuild_files, self.current()))
        for fault in faults:
            _log.warning("%s", fault)

    async def rebooted(self, boot_id: str) -> None:
        """The host runs in another boot now, while this process lives on (a simulated one does that): nothing that was
        answered before stands any more. Raises BusyError, CheckpointError.
        """
        async with self.serialized():
            self._boot_id = self._recording.boot_id = self.collector.boot_id = boot_id
            self._answered.clear()
        self.collector.hurry()

    async def run(self) -> None:
        """Collect what is left behind, recover a lost record, and write statuses; until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.statuses.run())
            tasks.create_task(self.collector.run())
            tasks.create_task(self._complete_all())

    async def _complete_all(self) -> None:
        while True:
            await self._completing.wait()
            await asyncio.sleep(_COMPLETE_SECONDS)
            try:
                await self.complete()
            except (CheckpointError, BusyError) as error:
                _log.warning("That claims are prepared cannot be recorded: %s", error)

    async def complete(self) -> None:
        """Record what was answered. Raises CheckpointError, BusyError."""
        async with self.serialized():
            self._completing.clear()
            checkpoint = self.current()
            uids = [uid for uid, entry in checkpoint.claims.items() if self._is_answered(entry)]
            await self.in_thread(partial(self._recording.complete, uids, checkpoint))

    def _is_answered(self, entry: PreparedClaim) -> bool:
        drivers = {device.driver for device in entry.devices}
        return entry.boot_id == self._boot_id and all((driver, entry.uid) in self._answered for driver in drivers)

    @asynccontextmanager
    async def serialized(self) -> AsyncIterator[None]:
        """No claim is prepared or taken back meanwhile, in any process. Whoever hands a device over looks for its
        claims and writes the token under this. Raises BusyError, CheckpointError.
        """
        async with self._lock.held():
            yield

    async def prepare(self, driver: str, claims: Sequence[ClaimRef]) -> Mapping[str, Answer]:
        """By UID: the devices, or why the claim was not prepared."""
        refs = {ref.uid: ref for ref in claims}
        began = self._calls_of_end
        self._under_way += 1
        try:
            read = await asyncio.gather(*(self._read(driver, ref) for ref in refs.values()))
            return await self._together.do(Call("prepare", driver, refs, dict(zip(refs, read, strict=True)), began))
        except (CheckpointError, BusyError) as error:
            return dict.fromkeys(refs, str(error))
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._taken_back.clear()

    async def unprepare(self, driver: str, claims: Sequence[ClaimRef]) -> Mapping[str, str | None]:
        """By UID: None, or why the claim was not taken back. From the record alone; one that is not in it is none."""
        refs = {ref.uid: ref for ref in claims}
        try:
            answers = await self._together.do(Call("unprepare", driver, refs))
        except (CheckpointError, BusyError) as error:
            return dict.fromkeys(refs, str(error))
        self._on_change()
        return answers

    async def _do(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """The answers to calls of one method and driver, under the lock. Raises CheckpointError."""
        driver, refs = calls[0].driver, {uid: ref for call in calls for uid, ref in call.refs.items()}
        if calls[0].method == "unprepare":
            answers: Mapping[str, Any] = await self._take_back(driver, refs)
        else:
            found = {uid: read for call in calls for uid, read in call.read.items()}
            for call in calls:
                late = (uid for uid in call.refs if self._taken_back.get((driver, uid), 0) > call.began)
                found |= {uid: _taken_back_text(refs[uid]) for uid in late}
            answers = await self._prepare(driver, found)
        return [{uid: answers[uid] for uid in call.refs} for call in calls]

    async def _take_back(self, driver: str, refs: Mapping[str, ClaimRef]) -> Mapping[str, str | None]:
        self._calls_of_end += 1
        self._answered -= {(driver, uid) for uid in refs}
        if self._under_way:
            self._taken_back |= dict.fromkeys(((driver, uid) for uid in refs), self._calls_of_end)
        answers = await self.in_thread(partial(self._recording.take_back, driver, list(refs.values()), self.current()))
        left = self.current().claims
        for uid in answers:
            self.statuses.correct(uid, left.get(uid))
        return answers

    # What the collector shares; the caller holds the lock.

    def current(self) -> Checkpoint:
        """The record as it is now; one that cannot be read is set aside. Raises CheckpointError."""
        try:
            return self._store.checkpoint()
        except CheckpointUnreadableError as error:
            name = self._store.set_aside(str(error))
            _log.error("The checkpoint cannot be read (%s) and is kept as %s", error, name)
            self._tell(
                CHECKPOINT_LOST,
                f"the checkpoint cannot be read ({error}); it is kept as {name}. No device is prepared or handed over "
                "until the claims of this node were read from the API server",
            )
            self.collector.hurry()
            return self._store.checkpoint()

    def replace(self, checkpoint: Checkpoint) -> None:
        """Put another record in its place, on disk. Raises CheckpointError."""
        self._store.write(checkpoint)

    def drop(self, entries: Sequence[PreparedClaim], checkpoint: Checkpoint) -> tuple[PreparedClaim, ...]:
        """Take back what nobody asks for, as far as it is still recorded so; what was. Raises CheckpointError."""
        return self._recording.drop(entries, checkpoint)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Work on files, for whoever holds the lock."""
        return await to_its_end(work)

    def changed(self) -> None:
        """Tell whoever waits for claims to go."""
        self._on_change()

    # Prepare

    async def _read(self, driver: str, ref: ClaimRef) -> tuple[Allocation, Mapping[str, Any]] | str:
        if not is_uid(ref.uid):
            return f"{ref.uid[:64]!r} is no UID"
        try:
            claim = await self._api.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
            allocation = read_allocation(
                claim, uid=ref.uid, namespace=ref.namespace, name=ref.name, driver=driver, pool=self._pool
            )
        except NotFound:
            return f"claim {ref.namespace}/{ref.name} does not exist (any more)"
        except ApiError as error:
            return f"claim {ref.namespace}/{ref.name} cannot be read: {error}"
        except AllocationError as error:
            return f"claim {ref.namespace}/{ref.name}: {error}"
        except ValueError as error:  # a name that no object can have
            return f"claim {ref.namespace!r}/{ref.name!r}: {error}"
        return allocation, claim

    async def _prepare(
        self, driver: str, read: Mapping[str, tuple[Allocation, Mapping[str, Any]] | str]
    ) -> dict[str, Answer]:
        checkpoint = self.current()
        answers: dict[str, Answer] = {}
        again: list[PreparedClaim] = []
        anew: list[tuple[Allocation, list[Candidate]]] = []
        for uid, found in read.items():
            if isinstance(found, str):
                answers[uid] = found
                continue
            entry = checkpoint.claims.get(uid)
            verdict = self._judge(driver, found[0], entry, checkpoint)
            if isinstance(verdict, str):
                answers[uid] = verdict
            elif verdict is None and entry is not None:
                again.append(entry)
            elif verdict is not None:
                anew.append((found[0], verdict))
        write = partial(self._recording.commit, driver, checkpoint, again, anew)
        done, faults = await self._looks.then_write([one.wanted for _, found in anew for one in found], write)
        answers |= faults
        answers |= {claim.uid: answer(claim, driver) for claim in done}
        self._answered |= {(driver, claim.uid) for claim in done}
        if any(claim.state is ClaimState.STARTED for claim in done):
            self._completing.set()
        for claim in done:
            observed = read[claim.uid]
            if not isinstance(observed, str) and not is_told(claim, observed[1]):
                self.statuses.tell(claim)
        if faults:
            self.collector.hurry()  # it may be for a claim that is gone
        return answers

    def _judge(
        self, driver: str, allocation: Allocation, entry: PreparedClaim | None, checkpoint: Checkpoint
    ) -> list[Candidate] | str | None:
        """What the claim is to get; None when it has it; or why it gets nothing."""
        title = f"claim {allocation.namespace}/{allocation.name}"
        if entry is not None and entry.state is ClaimState.COMPLETED and entry.boot_id == self._boot_id:
            self._answered |= {(device.driver, entry.uid) for device in entry.devices}
        held = held_by(entry, driver)
        if held and entry is not None and entry.boot_id == self._boot_id:
            if not is_same(held, allocation):  # and its pod may have them
                self.collector.hurry()
                names = ", ".join(device.device for device in held)
                return f"{title} was prepared with {names} before, and waits for that to be taken back"
            if (driver, allocation.uid) in self._answered and has_files(entry, driver, self._boot_id):
                return None
        if checkpoint.doubt is not None:
            self.collector.hurry()
            return f"{title} waits until the claims of this node were read from the API server: {checkpoint.doubt}"
        try:
            return [
                candidate(allocation, device, self._offered(driver, device.device), entry)
                for device in allocation.devices
            ]
        except (UnknownDeviceError, ConfigError) as error:
            return f"{title}: {error}"


def _taken_back_text(ref: ClaimRef) -> str:
    return (
        f"claim {ref.namespace}/{ref.name} was taken back while this call was waiting; it is prepared when it is asked "
        "for again"
    )
