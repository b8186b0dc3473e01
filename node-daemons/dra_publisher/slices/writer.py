"""Makes the slices of this node on the API server say what is offered, and notices when somebody changes them.

Follows all slices of the node: its own, to write only what differs and to put right what others do to them, and those
of other plugins. Every write is a compare-and-swap, and its answer is read: fields that an older server drops and
devices that it refuses are left out, never half published.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dra_publisher.offers.offer import Offer, Taint, TaintKey
from dra_publisher.offers.others import Others
from dra_publisher.slices.device import Object, device_of, essence, taints_of, without_times
from dra_publisher.slices.foreign import others_by_slices
from dra_publisher.slices.pace import RepairPace
from dra_publisher.slices.pool import DeviceName, PoolPlan, Verb, Wishes, Write, plan
from dra_publisher.slices.resource_slice import (
    COMPONENT,
    COMPONENT_LABEL,
    Owner,
    Slice,
    is_ours,
    read_slice,
    slice_prefix,
)
from runtime.api import Api
from runtime.errors import Conflict, Invalid, NotFound, Unreachable
from runtime.list_watch import ListWatch
from runtime.resources import RESOURCE_SLICES
from runtime.store import Change, Store

SETTLE_SECONDS: Final = 0.2
"""From the first change by somebody else to `wake`: who wipes a pool deletes its slices one by one."""
PROBE_AGAIN_SECONDS: Final = 3600.0
_ROUNDS: Final = 6
_INDEX: Final = re.compile(r"spec\.devices\[([0-9]+)\]")
_PROBE: Final = Taint(TaintKey.NOT_READY, "Probe")
_PROBE_DRIVER: Final = "probe.npufleet.io"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a round of publishing.

    `left_out` are devices that were offered and are not published, by driver and name, with the reason; `dropped` are
    fields of devices that this server does not keep; `conflicts` are drivers whose pool somebody else writes.
    `waits`: seconds until the slices, which somebody else keeps changing, are put right again (`wake` is called then).
    `problem`: what keeps the slices from saying what is offered although every write was taken.
    """

    written: int = 0
    left_out: Mapping[DeviceName, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    conflicts: Mapping[str, str] = field(default_factory=dict)
    waits: float | None = None
    problem: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the slices say now what is offered, but for what is left out."""
        return self.waits is None and self.problem is None


class SliceWriter:
    """Slices of one node under one identity. `run` has to run beside it; `publish` is called by one caller at a time.

    `wake` is called when somebody else has changed slices of the node, and when `Outcome.waits` is over: publish again.
    """

    def __init__(
        self, api: Api, node: str, *, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._node = node
        self._wake = wake
        self._clock = clock
        self._store: Store[Slice] = Store(read_slice)
        self._store.subscribe(self._changed)
        self._feed = ListWatch(api, RESOURCE_SLICES, self._store, field_selector=f"spec.nodeName={node}")
        self._lock = asyncio.Lock()
        self._pace = RepairPace()
        self._timer: asyncio.TimerHandle | None = None
        self._keeps_taints: bool | None = None
        self._asked_at = 0.0
        self._refused: dict[DeviceName, tuple[Object, str]] = {}
        self._generations: dict[str, int] = {}
        self._hashed: set[str] = set()
        self._dropped: set[str] = set()
        self._said: object = None

    # What is known.

    async def run(self) -> None:
        """Follow the slices of the node until cancelled."""
        try:
            await self._feed.run()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    @property
    def synced(self) -> bool:
        """Whether all slices of the node have been read once: `publish` needs that."""
        return self._feed.synced

    async def wait_synced(self) -> None:
        await self._feed.wait_synced()

    def problem(self) -> str | None:
        """Why the slices cannot be followed, or None."""
        return self._feed.reason()

    @property
    def keeps_taints(self) -> bool | None:
        """Whether this server keeps taints of devices; None while nothing had one."""
        return self._keeps_taints

    def existing(self) -> dict[str, dict[str, frozenset[str]]]:
        """What the server has of ours now: keys of the taints, by driver and name of the device."""
        found: dict[str, dict[str, frozenset[str]]] = {}
        for one in self._ours():
            devices = found.setdefault(one.driver, {})
            for device in one.devices:
                devices[device["name"]] = frozenset(str(taint.get("key")) for taint in taints_of(device))
        return found

    def existing_device(self, driver: str, name: str) -> Object | None:
        """The entry that the server has of ours, as the API has it, or None."""
        for one in self._ours():
            if one.driver == driver:
                for device in one.devices:
                    if device["name"] == name:
                        return device
        return None

    def others(self, drivers: Iterable[str]) -> Others:
        """Who else publishes devices of this node, or under these drivers."""
        return others_by_slices((one for _, one in self._store.items()), self._node, frozenset(drivers))

    # Publishing.

    async def publish(self, offers: Mapping[str, Sequence[Offer]], *, node_uid: str) -> Outcome:
        """Make the slices say exactly this. Returns when every write has been answered, or there was none.

        Keys are the drivers in use: one without devices gets an empty slice, one that is no key loses its slices.
        Raises ApiError: nothing, or a part, was written, and the next call goes on from there.
        """
        async with self._lock:
            if not self.synced:
                raise Unreachable(0, "NotSynced", f"the slices of {self._node} are not known yet: {self._feed.state}")
            if self._keeps_taints is False and self._clock() - self._asked_at >= PROBE_AGAIN_SECONDS:
                self._keeps_taints = None
            asked = {driver: [device_of(one) for one in offers[driver]] for driver in offers}, node_uid
            self._forget_refusals(asked[0])
            return await self._publish(offers, Owner(self._node, node_uid), asked)

    async def _publish(self, offers: Mapping[str, Sequence[Offer]], owner: Owner, asked: object) -> Outcome:
        written = 0
        wrote_all = False
        for _ in range(_ROUNDS):
            planned = self._plan(offers, owner)
            if not planned.writes:
                self._said = asked
                return self._outcome(planned, written)
            if wrote_all:
                # By the server, or by somebody else right after the write, of which nothing more will be told.
                self._wake_after(SETTLE_SECONDS)
                return self._outcome(planned, written, problem=_altered(planned))
            if asked == self._said and not written:
                waits = self._pace.wait(self._clock())
                if waits > 0:
                    self._wake_after(waits)
                    return self._outcome(planned, written, waits=waits)
            if self._keeps_taints is None and any(_has_taints(write) for write in planned.writes):
                await self._ask_about_taints(owner)
                continue
            repairs = asked == self._said and not written
            done, wrote_all = await self._write_all(planned.writes)
            written += done
            if repairs and done:
                self._pace.repaired(self._clock())
            if wrote_all:
                self._said = asked
        planned = self._plan(offers, owner)
        problem = None
        if planned.writes:
            self._wake_after(SETTLE_SECONDS)
            problem = f"somebody else writes ResourceSlice {planned.writes[0].name} as well"
        return self._outcome(planned, written, problem=problem)

    def _plan(self, offers: Mapping[str, Sequence[Offer]], owner: Owner) -> PoolPlan:
        wishes = Wishes(self._keeps_taints is not False, self._refused, self._generations, self._hashed)
        return plan(offers, [one for _, one in self._store.items()], owner, wishes)

    def _outcome(
        self, planned: PoolPlan, written: int, *, waits: float | None = None, problem: str | None = None
    ) -> Outcome:
        return Outcome(written, planned.left_out, frozenset(self._dropped), planned.conflicts, waits, problem)

    async def _write_all(self, writes: Sequence[Write]) -> tuple[int, bool]:
        """How many were taken, and whether all were, and kept as they were sent."""
        done, kept = 0, True
        for write in writes:
            try:
                kept = await self._write(write) and kept
            except (Conflict, NotFound):
                await self._look_again(write)
                return done, False
            except Invalid as error:
                self._blame(write, error)
                return done, False
            done += 1
        return done, kept

    async def _write(self, write: Write) -> bool:
        """False when the server has dropped something that is left out from now on."""
        if write.verb is Verb.DELETE:
            await self._api.delete(RESOURCE_SLICES, write.name, uid=write.uid, resource_version=write.resource_version)
            self._gone(write)
            return True
        act = self._api.create if write.verb is Verb.CREATE else self._api.replace
        answer = await act(RESOURCE_SLICES, write.body)
        self._take("MODIFIED", answer)
        self._generations[write.driver] = write.body["spec"]["pool"]["generation"]
        return self._is_kept(write, answer)

    def _is_kept(self, write: Write, answer: Object) -> bool:
        sent = write.body["spec"]["devices"]
        have = {device.get("name"): device for device in (answer.get("spec") or {}).get("devices") or []}
        missing = {key for device in sent for key in essence(device).keys() - have.get(device["name"], {}).keys()}
        self._dropped |= missing
        if "taints" in missing:
            self._learn_taints(False)
            return False
        if _has_taints(write):
            self._learn_taints(True)
        return True

    async def _look_again(self, write: Write) -> None:
        """Read what is there where a write has met something else than was known."""
        try:
            item = await self._api.get(RESOURCE_SLICES, write.name)
        except NotFound:
            if write.verb is not Verb.CREATE:
                self._gone(write)
            return
        found = read_slice(item)
        if write.verb is Verb.CREATE and not is_ours(found, self._node):
            log.warning("ResourceSlice %s is of node %r: other names are used", found.name, found.node)
            self._hashed.add(write.driver)
        elif found.node == self._node:
            self._take("MODIFIED", item)
        else:
            self._gone(write)  # deleted, and made anew by another node

    def _blame(self, write: Write, error: Invalid) -> None:
        """Leave out the devices that the server has refused. Raises the error when it names none."""
        devices = write.body.get("spec", {}).get("devices", [])
        words: dict[int, list[str]] = {}
        for cause in error.causes:
            found = _INDEX.match(cause.field)
            if found is not None and int(found[1]) < len(devices):
                words.setdefault(int(found[1]), []).append(f"{cause.field}: {cause.message}")
        if not words:
            raise error
        for index, texts in words.items():
            device = devices[index]
            text = f"the API server refuses it: {'; '.join(texts)}"
            log.warning("%s of %s is left out: %s", device["name"], write.driver, text)
            self._refused[write.driver, device["name"]] = without_times(device), text

    def _forget_refusals(self, asked: Mapping[str, Sequence[Object]]) -> None:
        """A device that is offered otherwise, or no longer, is judged anew."""
        offered = {(driver, device["name"]): device for driver, devices in asked.items() for device in devices}
        self._refused = {key: found for key, found in self._refused.items() if offered.get(key) == found[0]}

    async def _ask_about_taints(self, owner: Owner) -> None:
        """Whether the server keeps taints, found out without publishing anything.

        To find it out by publishing a device with a taint would offer it for a moment to everybody.
        """
        device = {"name": "probe", "taints": [{"key": _PROBE.key, "value": _PROBE.value, "effect": "NoSchedule"}]}
        body = {
            "metadata": {
                "name": f"{slice_prefix(self._node, _PROBE_DRIVER)}-000",
                "labels": {COMPONENT_LABEL: COMPONENT},
                "ownerReferences": [owner.reference],
            },
            "spec": {
                "driver": _PROBE_DRIVER,
                "nodeName": self._node,
                "pool": {"name": self._node, "generation": 1, "resourceSliceCount": 1},
                "devices": [device],
            },
        }
        answer = await self._api.create(RESOURCE_SLICES, body, dry_run=True)
        devices = (answer.get("spec") or {}).get("devices") or [{}]
        self._learn_taints(bool(taints_of(devices[0])))

    def _learn_taints(self, keeps: bool) -> None:
        if self._keeps_taints is not keeps:
            log.log(
                logging.INFO if keeps else logging.WARNING,
                "This API server %s taints of devices",
                "keeps" if keeps else "drops",
            )
        self._keeps_taints = keeps
        self._asked_at = self._clock()
        self._dropped.discard("taints")
        if not keeps:
            self._dropped.add("taints")

    # Following.

    def _ours(self) -> Iterable[Slice]:
        return (one for _, one in self._store.items() if is_ours(one, self._node))

    def _take(self, kind: str, item: Mapping[str, Any]) -> None:
        """What an answer tells, before the watch tells it."""
        self._store.apply_event(kind, dict(item))

    def _gone(self, write: Write) -> None:
        known = self._store.entry(write.name)
        if known is not None and known.uid == write.uid:
            version = str(known.resource_version)
            self._take("DELETED", {"metadata": {"name": write.name, "uid": write.uid, "resourceVersion": version}})

    def _changed(self, changes: Sequence[Change[Slice]]) -> None:
        # What happens to our own slices during a round, be it told by an answer or by the watch, is in its last plan.
        if self._lock.locked() and all(self._is_about_ours(change) for change in changes):
            return
        self._wake_after(SETTLE_SECONDS)

    def _is_about_ours(self, change: Change[Slice]) -> bool:
        return all(one is None or is_ours(one, self._node) for one in (change.old, change.new))

    def _wake_after(self, seconds: float) -> None:
        """One timer: the next moment at which there may be something to do."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._wake()


def _has_taints(write: Write) -> bool:
    return any("taints" in device for device in write.body.get("spec", {}).get("devices", ()))


def _altered(planned: PoolPlan) -> str:
    return f"what the API server keeps of ResourceSlice {planned.writes[0].name} is not what was written"
