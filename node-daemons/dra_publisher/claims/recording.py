"""What is written for claims, in its order: the half of `Claims` that touches files, and nothing else.

Each method is one thread's work under the lock. A death between any two writes leaves what the next process goes on
from: a record without files, or with some, never files without a record.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from dra_publisher.checkpoint.store import CheckpointError, CheckpointStore
from dra_publisher.claims.allocation import Allocation, is_uid
from dra_publisher.claims.files import FilesOfClaims
from dra_publisher.claims.overlap import conflict
from dra_publisher.claims.preparing import Candidate, has_files, held_by, started, without
from dra_publisher.claims.shape import Wanted
from dra_publisher.kubelet.service import ClaimRef
from node_host.evidence.checkpoint import Checkpoint, ClaimState, PreparedClaim
from node_host.handover.publisher_half import PublisherHalf
from node_host.host import Host

Looks = Mapping[Wanted, tuple[str, ...] | str]
"""The nodes of each device, or why it cannot be given."""

_log = logging.getLogger(__name__)


class Recording:
    """Of one host, in one boot."""

    def __init__(self, host: Host, store: CheckpointStore, half: PublisherHalf, boot_id: str) -> None:
        self._store = store
        self._half = half
        self.boot_id = boot_id
        self._files = FilesOfClaims(host)

    def drop(self, entries: Sequence[PreparedClaim], checkpoint: Checkpoint) -> tuple[PreparedClaim, ...]:
        """Take back what nobody asks for, as far as it is still recorded so; what was. Raises CheckpointError."""
        dropped = []
        for entry in entries:
            if checkpoint.claims.get(entry.uid) != entry:
                continue
            try:
                for driver in sorted({device.driver for device in entry.devices}):
                    self._files.remove(driver, entry.namespace, entry.name, entry.uid)
            except OSError as error:
                _log.warning("The files of %s, which is gone, cannot be removed: %s", entry.title, error)
                continue
            dropped.append(entry)
        if dropped:
            gone = {entry.uid for entry in dropped}
            self._store.write(
                _with(checkpoint, {uid: one for uid, one in checkpoint.claims.items() if uid not in gone})
            )
        return tuple(dropped)

    def commit(
        self,
        driver: str,
        checkpoint: Checkpoint,
        again: Sequence[PreparedClaim],
        anew: Sequence[tuple[Allocation, list[Candidate]]],
        looks: Looks,
    ) -> tuple[list[PreparedClaim], dict[str, str]]:
        """All that is written for one call: what was prepared, and why what was not."""
        faults: dict[str, str] = {}
        begun: list[PreparedClaim] = []
        before = checkpoint
        for allocation, candidates in anew:
            entry = self._begin(driver, checkpoint, allocation, candidates, looks)
            if isinstance(entry, str):
                faults[allocation.uid] = f"claim {allocation.namespace}/{allocation.name}: {entry}"
                continue
            begun.append(entry)
            checkpoint = _with(checkpoint, {**checkpoint.claims, entry.uid: entry})
        done: list[PreparedClaim] = []
        try:
            if checkpoint != before:
                self._store.write(checkpoint)
        except CheckpointError as error:
            faults |= {entry.uid: f"{entry.title}: {error}" for entry in begun}
            begun = []
        for entry in (*again, *begun):
            try:
                self._files.write(entry, driver, is_new=entry in begun)
            except OSError as error:
                faults[entry.uid] = f"{entry.title}: its files cannot be written: {error}"
            else:
                done.append(entry)
        return done, faults

    def complete(self, uids: Collection[str], checkpoint: Checkpoint) -> None:
        """Record that the kubelet was answered for these claims. Raises CheckpointError."""
        claims = {
            uid: replace(claim, state=ClaimState.COMPLETED) if uid in uids else claim
            for uid, claim in checkpoint.claims.items()
        }
        if claims != dict(checkpoint.claims):
            self._store.write(_with(checkpoint, claims))

    def _begin(
        self,
        driver: str,
        checkpoint: Checkpoint,
        allocation: Allocation,
        candidates: Sequence[Candidate],
        looks: Looks,
    ) -> PreparedClaim | str:
        found: list[tuple[Candidate, tuple[str, ...]]] = []
        for one in candidates:
            refused = self._half.prepare_refused(one.wanted.address)
            nodes = looks[one.wanted]
            if refused is not None or isinstance(nodes, str):
                return refused or str(nodes)
            found.append((one, nodes))
        before = checkpoint.claims.get(allocation.uid)
        entry = started(allocation, found, driver=driver, boot_id=self.boot_id, before=before)
        for one, device in zip(candidates, held_by(entry, driver), strict=True):
            taken = conflict(checkpoint, allocation.uid, device, one.capacity)
            if taken is not None:
                return taken
        return entry

    def take_back(self, driver: str, refs: Sequence[ClaimRef], checkpoint: Checkpoint) -> dict[str, str | None]:
        answers: dict[str, str | None] = {}
        claims = dict(checkpoint.claims)
        for ref in refs:
            entry = claims.get(ref.uid)
            namespace, name = (entry.namespace, entry.name) if entry is not None else (ref.namespace, ref.name)
            answers[ref.uid] = None
            if entry is None and not (is_uid(ref.uid) and _is_plain(namespace) and _is_plain(name)):
                continue  # nothing was ever prepared under such a name
            try:
                self._files.remove(driver, namespace, name, ref.uid)
            except OSError as error:
                answers[ref.uid] = f"claim {namespace}/{name}: its files cannot be removed: {error}"
                continue
            if entry is not None:
                left = without(entry, driver)
                claims.pop(ref.uid)
                if left is not None:
                    claims[ref.uid] = left
        if claims != dict(checkpoint.claims):
            self._store.write(_with(checkpoint, claims))
        return answers

    def rebuild_files(self, checkpoint: Checkpoint) -> list[str]:
        faults = []
        for entry in checkpoint.claims.values():
            for driver in sorted({device.driver for device in entry.devices}):
                if not has_files(entry, driver, self.boot_id):
                    continue
                try:
                    self._files.write(entry, driver)
                except OSError as error:
                    faults.append(f"The files of {entry.title} cannot be made again: {error}")
        return faults


def _with(checkpoint: Checkpoint, claims: Mapping[str, PreparedClaim]) -> Checkpoint:
    return replace(checkpoint, claims=MappingProxyType(dict(claims)))


def _is_plain(name: str) -> bool:
    return bool(name) and len(name) <= 253 and "/" not in name and "\0" not in name and not name.startswith(".")
