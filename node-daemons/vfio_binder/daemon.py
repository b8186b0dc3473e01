"""The binder as a daemon: follows its node's orders, the kernel's events and the clock, and reports through the API.

Every pass starts from the live host. What happened in between only decides when the next one is.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from crds.models.bindings import WAITS_FOR_USERS
from crds.models.node_state import Bindings, Inventory, NodeStateStatus
from node_host.boot import BootUnknownError
from node_host.bounded_call import HungError
from node_host.node_identity import NodeIdentity
from node_host.orders import StandingOrders
from node_host.reported_status import ReportedStatus
from node_host.rounds import Wake, run_rounds
from node_host.state_record import StateRecord
from runtime.status_writer import StatusWriter
from runtime.store import Store
from vfio_binder.binder import Binder, Pass
from vfio_binder.metrics import BinderMetrics

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 5.0
# While somebody has a device that orders speak of it is looked this often whether it has been let go: a change that its
# users keep back goes on by what the inventory says. Only open handles are looked at: 25 ms of processor time with 300
# processes of 4 descriptors each, 120 ms where they have 34, which is 1.2 percent of a core.
USERS_SECONDS: Final = 10.0
_WAITING_SECONDS: Final = 5.0  # nobody tells when a user lets a device go


class Daemon:
    """One node's binder. `run` works until ``stop``."""

    def __init__(
        self,
        node: str,
        store: Store[StateRecord],
        binder: Binder,
        identity: NodeIdentity,
        statuses: StatusWriter,
        metrics: BinderMetrics,
        wake: Wake,
        *,
        resync_seconds: float = 60.0,
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._store = store
        self._binder = binder
        self._reported = ReportedStatus(statuses)
        self._metrics = metrics
        self._resync = resync_seconds
        self._clock = clock
        self._wake = wake
        self._orders = StandingOrders(identity, clock=clock)
        self._held: str | None = None
        self.problem: str | None = "no pass has been made yet"
        """Why the last pass was not one, for readiness; None when all is well."""

    async def run(self, stop: asyncio.Event) -> None:
        """Pass after pass until ``stop``; the one at hand is finished if that does not take long.

        One that is given up leaves what the journal tells the next binder: nothing is undone on the way out.
        """
        await run_rounds(
            self._pass,
            stop,
            self._wake,
            wait=self._wait,
            settle_at_most=self._resync,
            given_up="A pass under way is given up: a write to the kernel has not come back",
            clock=self._clock,
        )

    async def _wait(self, seconds: float, *ends: asyncio.Future[Any]) -> None:
        """Until something may have changed, or the time is up, or one of ``ends`` is done."""
        while seconds > 0:
            pause = min(seconds, USERS_SECONDS) if self._binder.watches_users() else seconds
            ended, _ = await asyncio.wait(ends, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            seconds -= pause
            if ended or seconds <= 0:
                return
            looking = asyncio.ensure_future(self._binder.is_let_go())
            await asyncio.wait({*ends, looking}, return_when=asyncio.FIRST_COMPLETED)
            if not looking.cancel() and (looking.exception() is not None or looking.result()):
                return

    async def _pass(self) -> float:
        """One pass; how many seconds to wait for the next at the most."""
        record = self._store.get(self._node)
        if record is None:
            self.problem = None if self._store.synced else "the orders of this node have not been read yet"
            self._metrics.show(())
            return self._resync
        try:
            orders = await self._orders.read(record, self._reported.of(record))
            done = await self._binder.run(orders, progress=lambda under_way: self._begin(record, under_way))
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
        self._metrics.show(done.bindings.devices)
        self.problem = await self._write(done.inventory, done.bindings)
        if self.problem is not None or not done.left.is_empty:
            return min(_RETRY_SECONDS, self._resync)
        due = self._binder.next_due()
        waits = [self._resync] if due is None else [self._resync, due]
        if any(report.reason in WAITS_FOR_USERS for report in done.left.every_report):
            waits.append(_WAITING_SECONDS)
        return min(waits)

    async def _begin(self, record: StateRecord, under_way: Pass) -> NodeStateStatus:
        """Before anything is written to the host: a first inventory alone, or what is about to be done."""
        known = self._reported.of(record)
        if known.inventory is None or known.inventory.boot_id != under_way.inventory.boot_id:
            # The bindings that stand there stay as they are: this manager would take away what it does not apply.
            await self._write(under_way.inventory, known.bindings)
        elif under_way.planned.groups:
            await self._write(under_way.inventory, under_way.bindings)
        return self._reported.of(record)

    async def _write(self, inventory: Inventory, bindings: Bindings | None) -> str | None:
        """Why the status could not be written, or None."""
        record = self._store.get(self._node)
        if record is None:
            return None
        return await self._reported.write(record, NodeStateStatus(inventory=inventory, bindings=bindings))

    def _tell(self, done: Pass) -> None:
        """What happened, in the log; that orders are held is told once."""
        for outcome in done.outcomes:
            level = logging.INFO if outcome.result == "Done" else logging.WARNING
            _log.log(level, "Device %s: %s", outcome.address, f"{outcome.reason} {outcome.message}".rstrip())
        if done.planned.held is not None and self._held != done.planned.held:
            _log.warning("Orders are held: %s", done.planned.held)
        self._held = done.planned.held
