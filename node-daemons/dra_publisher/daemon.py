"""The publisher as a daemon: follows its node's orders, the kernel's events, the slices, the tokens and the clock, and
reports through the API.

Every look starts from the live host. What happened in between only decides when the next one is.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from crds.models.conditions import Status, find_condition
from crds.models.node_state import DaemonReport, DeviceReport, DeviceState, NodeStateStatus
from crds.models.publication import PublicationConditionType, PublicationReason
from dra_publisher.look import Done, Look
from dra_publisher.metrics import PublisherMetrics
from dra_publisher.offers.offer import Offer
from dra_publisher.report import publication
from node_host.boot import BootUnknownError
from node_host.bounded_call import HungError
from node_host.node_identity import NodeIdentity
from node_host.orders import Orders, StandingOrders
from node_host.rounds import Wake, run_rounds
from node_host.state_record import StateRecord
from runtime.errors import ApiError, Conflict, NotFound
from runtime.status_writer import StatusWriter
from runtime.store import Store

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 5.0
_WAITING_SECONDS: Final = 5.0  # nobody tells when a claim is deallocated
_UNFINISHED_SECONDS: Final = 1.0
_WATCHED_SECONDS: Final = 10.0  # nobody tells when a user outside Kubernetes lets a device go
_REGISTERING_SECONDS: Final = 10.0  # the kubelet finds the sockets of a process that was started


class Daemon:
    """One node's publisher. `run` works until ``stop``.

    ``extended`` gives the Node's extended resources as they are now, None while only those of long ago are known.
    ``serve`` is called with the driver names in use, ``kubelet`` says why the kubelet cannot use them, ``doubt`` why
    prepared claims may be unknown, ``tell`` takes (is a warning, reason, message, UID of the Node) for an Event.
    ``fail`` ends the process, with the reason.
    """

    def __init__(
        self,
        node: str,
        store: Store[StateRecord],
        look: Look,
        identity: NodeIdentity,
        statuses: StatusWriter,
        metrics: PublisherMetrics,
        wake: Wake,
        *,
        active: Callable[[], bool],
        extended: Callable[[], Mapping[str, str] | None] = lambda: None,
        ready: Callable[[], str | None],
        serve: Callable[[frozenset[str]], Awaitable[None]],
        kubelet: Callable[[], str | None],
        doubt: Callable[[], str | None],
        show: Callable[[Mapping[str, Offer]], None] = lambda _: None,
        tell: Callable[[bool, str, str, str], None] = lambda *_: None,
        fail: Callable[[str], None],
        now: Callable[[], str],
        resync_seconds: float = 60.0,
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._store = store
        self._look = look
        self._statuses = statuses
        self._metrics = metrics
        self._wake = wake
        self._active = active
        self._extended = extended
        self._ready = ready
        self._serve = serve
        self._kubelet = kubelet
        self._doubt = doubt
        self._show = show
        self._tell = tell
        self._fail = fail
        self._now = now
        self._resync = resync_seconds
        self._clock = clock
        self._began = clock()
        self._boot_id: str | None = None
        self._orders = StandingOrders(identity, clock=clock)
        self._standing: tuple[str, DaemonReport] | None = None
        self._served: frozenset[str] | None = None
        self._held: str | None = None
        self.problem: str | None = "no look has been made yet"
        """Why the last look was not one, for readiness; None when all is well."""

    async def run(self, stop: asyncio.Event) -> None:
        """Look after look until ``stop``; the one at hand is finished if that does not take long."""
        await run_rounds(
            self.once,
            stop,
            self._wake,
            settle_at_most=self._resync,
            given_up="A look under way is given up",
            clock=self._clock,
        )

    async def once(self) -> float:
        """One look; how many seconds to wait for the next at the most."""
        not_ready = self._ready()
        if not_ready is not None or not self._store.synced:
            self.problem = not_ready or "the orders of this node have not been read yet"
            await self._serve_prepared()
            return _UNFINISHED_SECONDS
        record = self._store.get(self._node)
        try:
            orders = await self._read_orders(record)
            active = self._active()
            # The kubelet is to know a driver before anybody can get a device of it.
            await self._serve_drivers(self._look.in_use(orders))
            done = await self._look.run(orders, active=active)
            await self._serve_drivers(done.drivers)
            if done.boot_id != (self._boot_id or done.boot_id):
                self._fail("the host was booted under this process: what it knows is of another boot")
            self._boot_id = done.boot_id
        except (BootUnknownError, HungError) as error:
            _log.error("The host cannot be read: %s", error)
            self.problem = f"the host cannot be read: {error}"
            return _RETRY_SECONDS
        except Exception as error:
            # A fault of this program: said aloud and by readiness. A restart would only run into it again.
            _log.exception("The look failed")
            self.problem = f"the look failed: {type(error).__name__}: {error}"
            return _RETRY_SECONDS
        self._show(self._look.hand_over.offers)
        published = Counter(offer.driver for offer in self._look.hand_over.offers.values())
        self._metrics.show(done.devices, dict.fromkeys(done.drivers, 0) | published, active=active)
        self.problem = done.problem
        if active and record is not None:
            self.problem = await self._report(record, orders, done) or done.problem
        self._say(done)
        return self._next(done)

    def _next(self, done: Done) -> float:
        waits = [self._resync]
        if self.problem is not None:
            waits.append(_RETRY_SECONDS)
        if done.waits:
            waits.append(_WAITING_SECONDS)
        if done.watched:
            waits.append(_WATCHED_SECONDS)
        if done.unfinished or (self._kubelet() is not None and self._is_young()):
            waits.append(_UNFINISHED_SECONDS)
        return min(waits)

    def _is_young(self) -> bool:
        return self._clock() - self._began < _REGISTERING_SECONDS

    def _kubelet_problem(self, former: DaemonReport | None) -> str | None:
        """What is told of the kubelet: that this process was started is no news."""
        known = find_condition(former.conditions, PublicationConditionType.REGISTERED) if former is not None else None
        if known is not None and known.status is Status.TRUE and self._is_young():
            return None
        return self._kubelet()

    async def _read_orders(self, record: StateRecord | None) -> Orders:
        status = self._status(record) if record is not None else NodeStateStatus()
        orders, extended = await self._orders.read(record, status), self._extended()
        return orders if extended is None else replace(orders, advertised=extended)

    def _status(self, record: StateRecord) -> NodeStateStatus:
        """The status as it stands: with what this process wrote last, or, after a start, what is there."""
        if self._standing is not None and self._standing[0] == record.uid:
            return record.status.model_copy(update={"publication": self._standing[1]})
        return record.status

    async def _serve_drivers(self, drivers: frozenset[str]) -> None:
        if drivers != self._served:
            await self._serve(drivers)
            self._served = drivers

    async def _serve_prepared(self) -> None:
        """What was prepared is taken back without the API server, and the kubelet is to be able to ask for that."""
        try:
            prepared = self._look.in_use(self._orders.last)
            if prepared:
                await self._serve_drivers(prepared)
        except Exception:
            _log.exception("The kubelet cannot be served yet")

    async def _report(self, record: StateRecord, orders: Orders, done: Done) -> str | None:
        """Write the publication report; why it could not be written, or None."""
        former = orders.status.publication
        # What is told while orders are held is no answer to them.
        answered = former.observed_generation if done.held is not None and former is not None else None
        report = publication(
            done.devices,
            generation=answered or record.generation,
            boot_id=done.boot_id,
            held=done.held,
            problem=done.problem,
            kubelet=self._kubelet_problem(former),
            doubt=self._doubt(),
            now=self._now(),
            former=former,
        )
        try:
            await self._statuses.write(record.observed, {"publication": report.to_object()})
        except (NotFound, Conflict) as error:
            _log.info("The status was not written, the object has changed: %s", error)
            return None
        except ApiError as error:
            _log.warning("The status was not written: %s", error)
            return f"the status was not written: {error}"
        self._standing = (record.uid, report)
        self._announce(former.devices if former is not None else (), report.devices)
        return None

    def _announce(self, former: tuple[DeviceReport, ...], devices: tuple[DeviceReport, ...]) -> None:
        """An Event for each device that has come to another stand."""
        before = {report.address: (report.state, report.reason) for report in former}
        for report in devices:
            if before.get(report.address) != (report.state, report.reason):
                quiet = report.address not in before and report.state is DeviceState.PENDING
                if not quiet:
                    text = f"{report.address}{f': {report.message}' if report.message else ''}"
                    self._tell(report.state is DeviceState.BLOCKED, _event(report), text, self._orders.node_uid)

    def _say(self, done: Done) -> None:
        if done.problem is not None:
            _log.warning("The look did not come to its end: %s", done.problem)
        if done.held is not None and self._held != done.held:
            _log.warning("Orders are held: %s", done.held)
        self._held = done.held


def _event(report: DeviceReport) -> str:
    return {PublicationReason.PUBLISHED: "DevicePublished"}.get(PublicationReason(report.reason), str(report.reason))
