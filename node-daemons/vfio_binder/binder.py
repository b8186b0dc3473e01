"""One pass of the VFIO binder: look, plan, act, look again, report. The host alone is asked, never an old status."""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import random
from typing import Final, TypeVar

from crds.catalogue import Catalogue
from crds.models.bindings import BindingReason as Reason
from crds.models.node_state import (
    Bindings,
    BoundDevice,
    DesiredDevice,
    DeviceReport,
    DeviceState,
    Inventory,
    NodeStateSpec,
    NodeStateStatus,
)
from node_host.acting.actions import Action, Bind, JournalAction, MakeFunctions, Outcome, Result
from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.executor import Executor
from node_host.acting.journal import Journal, JournalState
from node_host.bounded_call import BoundedCalls, HungError
from node_host.handover.binder_half import BinderHalf
from node_host.host import Host
from node_host.observer import Observer
from node_host.orders import Orders
from node_host.selection import is_accelerator, node_patterns, vendors_of
from node_host.view import HostView
from vfio_binder.attempts import Attempts
from vfio_binder.cards import with_parts
from vfio_binder.drift import DriftGuard
from vfio_binder.plan import Plan, plan
from vfio_binder.report import bindings, inventory
from vfio_binder.under_way import as_begun

R = TypeVar("R", bound=DeviceReport)

COMPONENT: Final = "npufleet-vfio-binder"
_ROUNDS: Final = 5
_IN_PLACE: Final = frozenset({Reason.BOUND, Reason.ADOPTED, Reason.COMPANION, Reason.FUNCTIONS_BOUND})
_SETTLED: Final = frozenset({DeviceState.READY, DeviceState.RELEASED})


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass at one moment: the plan that was made first, what came of it, and what is left to do."""

    planned: Plan
    outcomes: tuple[Outcome, ...]
    left: Plan
    inventory: Inventory
    bindings: Bindings


def _wish(entry: DesiredDevice) -> str:
    """What an order wants of its device; who decided it, and how pods find it, change nothing there."""
    return entry.model_dump_json(exclude={"decided_by", "driver_name"})


@dataclass(frozen=True, slots=True)
class _Look:
    view: HostView
    journal: JournalState
    plan: Plan


async def _keep(under_way: Pass) -> NodeStateStatus | None:
    """Nobody is told of a pass under way, so the status stands as it was."""
    return None


def _told(outcomes: Mapping[str, Outcome], view: HostView, journal: JournalState) -> dict[str, Outcome]:
    return {address: as_begun(outcome, view, journal, owner=COMPONENT) for address, outcome in outcomes.items()}


def _goes_on(done: Sequence[Outcome], new: Collection[Action | JournalAction]) -> bool:
    """Whether another round may get further: something was done, or there is something new to do with other devices."""
    failed = {outcome.address for outcome in done if outcome.result is not Result.DONE}
    if any(outcome.result is Result.DONE for outcome in done):
        return True
    return bool(new) and all(step.address not in failed for step in new)


class Binder:
    """The binder of one host. ``clock`` is monotonic seconds, ``now`` the wall clock as RFC 3339 for conditions."""

    def __init__(
        self,
        host: Host,
        catalogue: Catalogue,
        journal: Journal,
        writer: BoundedWriter,
        *,
        now: Callable[[], str],
        calls: BoundedCalls | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random,
        stopping: Callable[[], bool] = lambda: False,
        tokens: BinderHalf | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._journal = journal
        self._writer = writer
        self._calls = calls or BoundedCalls()
        self._now = now
        self._clock = clock
        self._stopping = stopping
        self._attempts = Attempts(jitter)
        self._drift = DriftGuard()
        self._generation: int | None = None
        self._wishes: dict[str, str] = {}
        self._used: frozenset[str] = frozenset()
        self._boot_id: str | None = None
        self._observer = Observer(
            host,
            self._calls,
            of_interest=is_accelerator(catalogue),
            node_patterns=node_patterns(catalogue),
            vendors_of=vendors_of(catalogue),
        )
        self._executor = Executor(
            host, self._observer, self._calls, writer, journal, owner=COMPONENT, tokens=tokens, stopping=stopping
        )

    def next_due(self) -> float | None:
        """Seconds until something that waits may be tried again, None when nothing waits."""
        now = self._clock()
        waits = [wait for wait in (self._attempts.next_due(now), self._drift.next_due(now)) if wait is not None]
        return min(waits, default=None)

    async def run(
        self, orders: Orders, *, progress: Callable[[Pass], Awaitable[NodeStateStatus | None]] = _keep
    ) -> Pass:
        """One pass. ``progress`` is told of the plan before anything is written, and returns the status that stands
        then (None: the one in the orders), so that transition times go on from it.

        Raises BootUnknownError or HungError when not even the boot of the host can be read: then nothing was done.
        """
        if orders.generation != self._generation:
            self._generation = orders.generation
            self._take_up(orders.spec)
        look = await self._look(orders)
        await self._executor.clean_tokens(look.view)
        planned = look.plan
        standing = await progress(self._pass(orders, look, planned, ()))
        if standing is not None:
            orders = replace(orders, status=standing)
        outcomes: list[Outcome] = []
        for _ in range(_ROUNDS):
            if look.plan.is_empty or self._stopping():
                break
            tried = look.plan.steps
            done = await self._act(look)
            outcomes += done
            look = await self._look(orders)
            if not _goes_on(done, look.plan.steps - tried):
                break
        self._remember(orders, look)
        return self._pass(orders, look, planned, tuple(outcomes))

    def _take_up(self, spec: NodeStateSpec | None) -> None:
        """New orders: everything is tried at once. A failure is forgotten where its own device is ordered otherwise;
        one of a device without orders of its own, where any device of the node is."""
        before, self._wishes = self._wishes, {entry.address: _wish(entry) for entry in spec.devices} if spec else {}
        ordered = before.keys() | self._wishes.keys()
        changed = {address for address in ordered if before.get(address) != self._wishes.get(address)}
        if changed:
            failed = self._attempts.last().keys()
            self._attempts.keep(failed & (ordered - changed))
        self._attempts.try_again()
        self._drift.new_orders()

    async def dry_run(self, orders: Orders) -> Pass:
        """The plan and the reports as they are now; nothing is written anywhere."""
        look = await self._look(orders, set_aside=False)
        return self._pass(orders, look, look.plan, ())

    async def _look(self, orders: Orders, *, set_aside: bool = True) -> _Look:
        try:
            journal = await self._calls.run("journal", partial(self._journal.load, set_aside=set_aside))
        except HungError as error:
            journal = JournalState(problem=str(error), writable=False)
        view = await self._observer.view(self._named(orders, journal))
        if view.boot_id != self._boot_id:
            # What was tried and seen in another boot says nothing about this one.
            self._boot_id = view.boot_id
            self._attempts.clear()
            self._drift.new_boot()
        now = self._clock()
        made = plan(
            orders.spec,
            view,
            journal,
            held=orders.held,
            attempts=_told(self._attempts.in_force(now), view, journal),
            failures=_told(self._attempts.told_while_used(now), view, journal),
            drifting=self._drift.drifting(view, now),
            stuck=self._writer.stuck,
        )
        return _Look(view, journal, made)

    async def _act(self, look: _Look) -> list[Outcome]:
        made = look.plan
        outcomes = await self._executor.note(made.notes, look.view, look.journal.entries)
        outcomes += await self._executor.run(made.groups)
        now = self._clock()
        self._attempts.record(outcomes, now)
        done = {outcome.address for outcome in outcomes if outcome.result is Result.DONE}
        acts = [act for act in made.actions if isinstance(act, Bind | MakeFunctions) and act.address in done]
        self._drift.bound((act.address for act in acts), now)
        return outcomes

    def watches_users(self) -> bool:
        """Whether somebody had a device that orders speak of, or one that goes along, when the last pass ended."""
        return bool(self._used)

    async def is_let_go(self) -> bool:
        """Whether such a device has been let go since: then a pass has something to tell, and maybe to do."""
        return await self._observer.is_let_go(self._used)

    def _remember(self, orders: Orders, look: _Look) -> None:
        named = self._named(orders, look.journal)
        along = {one for address in named & look.view.devices.keys() for one in look.view.around(address)}
        self._used = frozenset(one for one in named | along if look.view.users.get(one))
        reports = tuple(look.plan.every_report)
        unsettled = {report.address for report in reports if report.state not in _SETTLED}
        self._attempts.keep(unsettled | {note.address for note in look.plan.notes})
        self._drift.no_longer_wanted(self._named(orders, look.journal))
        self._drift.seen_in_place(report.address for report in reports if report.reason in _IN_PLACE)

    def _pass(self, orders: Orders, look: _Look, planned: Plan, outcomes: tuple[Outcome, ...]) -> Pass:
        now = self._now()
        return Pass(
            planned=planned,
            outcomes=outcomes,
            left=look.plan,
            inventory=inventory(
                look.view,
                self._catalogue,
                named=self._listed(orders, look),
                generation=orders.generation,
                now=now,
                former=orders.status.inventory,
            ),
            bindings=bindings(
                self._showing_failures(look),
                look.view,
                look.journal,
                generation=orders.generation,
                now=now,
                former=orders.status.bindings,
            ),
        )

    def _showing_failures(self, look: _Look) -> Plan:
        """A device that is tried again shows why it failed, until it does not: its report must not flicker.

        So does one whose journal entry could not be changed: it is not released while it is still remembered.
        """
        made = look.plan
        last = _told(self._attempts.last(), look.view, look.journal)
        noted = {note.address for note in made.notes}

        def shown(report: R) -> R:
            failed = last.get(report.address)
            if failed is None or not (report.state is DeviceState.PENDING or report.address in noted):
                return report
            update = {"state": failed.state, "reason": failed.reason, "message": failed.message[:1024]}
            return report.model_copy(update=update)

        def with_functions(report: BoundDevice) -> BoundDevice:
            parts = [shown(part) for part in report.virtual_functions]
            return with_parts(report, parts) if parts else report

        return replace(made, reports=tuple(with_functions(shown(report)) for report in made.reports))

    @staticmethod
    def _listed(orders: Orders, look: _Look) -> set[str]:
        """Devices that the inventory lists whatever they are: ordered ones, and orphans, which are to be ordered."""
        ordered = {entry.address for entry in orders.spec.devices} if orders.spec else set()
        orphans = {report.address for report in look.plan.reports if report.reason == Reason.ORPHANED}
        parts = {part.address for report in look.plan.reports for part in report.virtual_functions}
        return ordered | orphans | parts

    @staticmethod
    def _named(orders: Orders, journal: JournalState) -> set[str]:
        ordered = {entry.address for entry in orders.spec.devices} if orders.spec else set()
        return ordered | set(journal.entries)
