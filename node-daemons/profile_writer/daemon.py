"""The writer as a daemon: follows its node's orders, the kernel's events and the clock, and reports through the API.

Every pass starts from the live host. A driver that was loaded anew, or a boot, shows by what the functions carry then.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from crds.models.node_state import DeviceState, NodeStateStatus
from crds.models.profiling import ProfileReason as Reason
from node_host.boot import BootUnknownError
from node_host.bounded_call import HungError
from node_host.device_metrics import DeviceMetrics
from node_host.node_identity import NodeIdentity
from node_host.orders import StandingOrders
from node_host.reported_status import ReportedStatus
from node_host.rounds import Wake, run_rounds
from node_host.state_record import StateRecord
from profile_writer.card import describe
from profile_writer.writer import Pass, ProfileWriter
from runtime.status_writer import StatusWriter
from runtime.store import Store

_log = logging.getLogger(__name__)

DAEMON: Final = "profile-writer"
_RETRY_SECONDS: Final = 5.0
_WAITING_SECONDS: Final = 5.0
# Nobody tells when a user lets a function go, nor when a mode of the card changes.
_WAITS: Final = frozenset(
    {Reason.IN_USE, Reason.PUBLISHED, Reason.MIG_ENABLED, Reason.LIST_EMPTY, Reason.GROUP_LOCKED, Reason.CHANGED}
)


class Daemon:
    """One node's profile writer. `run` works until ``stop``."""

    def __init__(
        self,
        node: str,
        store: Store[StateRecord],
        writer: ProfileWriter,
        identity: NodeIdentity,
        statuses: StatusWriter,
        metrics: DeviceMetrics,
        wake: Wake,
        *,
        resync_seconds: float = 60.0,
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._store = store
        self._writer = writer
        self._reported = ReportedStatus(statuses)
        self._metrics = metrics
        self._wake = wake
        self._resync = resync_seconds
        self._clock = clock
        self._orders = StandingOrders(identity, clock=clock)
        self._held: str | None = None
        self.problem: str | None = "no pass has been made yet"
        """Why the last pass was not one, for readiness; None when all is well."""

    async def run(self, stop: asyncio.Event) -> None:
        """Pass after pass until ``stop``; the one at hand is finished if that does not take long."""
        await run_rounds(
            self._pass,
            stop,
            self._wake,
            settle_at_most=self._resync,
            given_up="A pass under way is given up: a write or a program of the host has not come back",
            clock=self._clock,
        )

    async def _pass(self) -> float:
        """One pass; how many seconds to wait for the next at the most."""
        record = self._store.get(self._node)
        if record is None:
            self.problem = None if self._store.synced else "the orders of this node have not been read yet"
            self._metrics.show(())
            return self._resync
        try:
            orders = await self._orders.read(record, self._reported.of(record))
            done = await self._writer.run(orders)
        except (BootUnknownError, HungError) as error:
            _log.error("The host cannot be read: %s", error)
            self.problem = f"the host cannot be read: {error}"
            return _RETRY_SECONDS
        except Exception as error:
            # A fault of this program: said aloud and by readiness. A restart would only run into it again.
            _log.exception("The pass failed")
            self.problem = f"the pass failed: {type(error).__name__}: {error}"
            return _RETRY_SECONDS
        self._tell(done)
        self._metrics.show(done.profiles.devices)
        self.problem = await self._report(done)
        return self._next(done)

    async def _report(self, done: Pass) -> str | None:
        """Why the status could not be written, or None."""
        record = self._store.get(self._node)
        return None if record is None else await self._reported.write(record, NodeStateStatus(profiles=done.profiles))

    def _next(self, done: Pass) -> float:
        waits = [self._resync]
        due = self._writer.next_due()
        if due is not None:
            waits.append(max(due, 0.1))
        if self.problem is not None or any(card.unfinished for card in done.cards):
            waits.append(_RETRY_SECONDS)
        reasons = {card.reason for card in done.profiles.devices}
        reasons |= {one.reason for card in done.profiles.devices for one in card.vgpus}
        if done.held is None and not _WAITS.isdisjoint(reasons):
            waits.append(_WAITING_SECONDS)
        return min(waits)

    def _tell(self, done: Pass) -> None:
        """What happened, in the log; that orders are held is told once."""
        for card in done.cards:
            if done.held is None and card.steps:
                level = logging.INFO if card.verdict.state is DeviceState.READY else logging.WARNING
                steps = "; ".join(describe(step, card.entry.address) for step in card.steps)
                text = f"{card.verdict.reason} {card.verdict.message}".rstrip()
                _log.log(level, "Card %s: %s: %s", card.entry.address, steps, text)
        if done.held is not None and self._held != done.held:
            _log.warning("Orders are held: %s", done.held)
        self._held = done.held
