"""One pass of the profile writer over the cards of a host, side by side. The host alone is asked."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from random import random
from typing import Final

from crds.catalogue import Catalogue
from crds.models.modes import Mode
from crds.models.node_state import DesiredDevice, DeviceState, Intent, Profiles
from crds.models.profiling import ProfileReason as Reason
from crds.models.vgpu_state import ProfiledCard
from node_host.acting.bounded_tool import BoundedTools
from node_host.acting.bounded_write import BoundedWriter
from node_host.bounded_call import BoundedCalls, HungError
from node_host.handover.binder_half import BinderHalf
from node_host.handover.token_files import TokenFiles
from node_host.host import HostWithTools
from node_host.observer import Observer
from node_host.orders import Orders
from node_host.records_file import RecordsError, RecordsState
from node_host.selection import is_accelerator, node_patterns, vendors_of
from node_host.vgpu.driver import read_driver_load
from node_host.view import HostView
from profile_writer.card import CardSeen, Obstacle, Rearranged, Verdict
from profile_writer.executing import COMPONENT, CardAtWork, CardOutcome, Ports, is_released
from profile_writer.looking import Looking
from profile_writer.record import CardEntry, Record
from profile_writer.report import card_report, profiles
from profile_writer.retries import Retries
from profile_writer.tools import CardModes, ToolPaths

_CARDS_AT_ONCE: Final = 4
_SETTLED: Final = frozenset({DeviceState.READY, DeviceState.RELEASED})


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass: what became of each card, and the report of it. ``held``: why orders were not followed."""

    cards: tuple[CardOutcome, ...]
    profiles: Profiles
    held: str | None = None


class ProfileWriter:
    """The writer of one host. ``clock`` is monotonic seconds, ``now`` the wall clock as RFC 3339 for conditions."""

    def __init__(
        self,
        host: HostWithTools,
        catalogue: Catalogue,
        record: Record,
        writer: BoundedWriter,
        tools: BoundedTools,
        *,
        now: Callable[[], str],
        paths: ToolPaths | None = None,
        calls: BoundedCalls | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host = host
        self._calls = calls or BoundedCalls()
        self._record = record
        self._now = now
        self._clock = clock
        self._writer = writer
        self._tools = tools
        self._retries = Retries(jitter)
        self._rearranged: dict[str, Rearranged] = {}
        self._wishes: dict[str, str] = {}
        self._boot_id: str | None = None
        self._observer = Observer(
            host,
            self._calls,
            of_interest=is_accelerator(catalogue),
            node_patterns=node_patterns(catalogue),
            vendors_of=vendors_of(catalogue),
        )
        self._ports = Ports(
            host,
            self._observer,
            self._calls,
            writer,
            tools,
            paths or ToolPaths(),
            Looking(host, catalogue, self._calls),
            record,
            BinderHalf(TokenFiles(host)),
            sleep,
            stopping,
        )

    def next_due(self) -> float | None:
        """Seconds until something that failed may be tried again, None when nothing waits."""
        return self._retries.next_due(self._clock())

    async def run(self, orders: Orders) -> Pass:
        """One pass. Raises BootUnknownError or HungError when not even the boot can be read: nothing was done then."""
        view, state = await self._look(orders)
        entries = _cards(orders)
        self._take_up(entries)
        wanted = [(entry, None) for entry in entries] + [
            (entry, Intent.RELEASE) for entry in _former_cards(orders, state.entries)
        ]
        if orders.held is not None:
            return await self._only_looked(orders, entries, view, state)
        gate = asyncio.Semaphore(_CARDS_AT_ONCE)

        async def one(entry: DesiredDevice, intent: Intent | None) -> CardOutcome:
            async with gate:
                return await self._card(entry, view, state, intent)

        outcomes = tuple(await asyncio.gather(*(one(entry, intent) for entry, intent in wanted)))
        await self._forget(outcomes, state)
        return await self._pass(orders, outcomes, state)

    async def dry_run(self, orders: Orders) -> Pass:
        """Where the cards stand and what the first step of each would be; nothing is written anywhere."""
        view, state = await self._look(orders, set_aside=False)
        self._ports.looking.keeps_names = False
        return await self._only_looked(orders, _cards(orders), view, state)

    async def _look(self, orders: Orders, *, set_aside: bool = True) -> tuple[HostView, RecordsState[CardEntry]]:
        try:
            state = await self._calls.run("record", partial(self._record.load, set_aside=set_aside))
        except HungError as error:
            state = RecordsState[CardEntry](problem=str(error), writable=False)
        view = await self._observer.view([entry.address for entry in _cards(orders)])
        if view.boot_id != self._boot_id:
            self._boot_id = view.boot_id
            self._retries.clear()
            self._rearranged.clear()
        return view, state

    def _take_up(self, entries: tuple[DesiredDevice, ...]) -> None:
        before, self._wishes = self._wishes, {entry.address: _wish(entry) for entry in entries}
        for address in before.keys() | self._wishes.keys():
            if before.get(address) != self._wishes.get(address):
                self._retries.forget(address)
                self._rearranged.pop(address, None)

    async def _card(
        self, entry: DesiredDevice, view: HostView, state: RecordsState[CardEntry], intent: Intent | None
    ) -> CardOutcome:
        address = entry.address
        stuck = self._writer.stuck | self._tools.stuck
        held_by = next((stuck[name] for name in view.locks(address) if name in stuck), None)
        if held_by is not None:
            return CardOutcome(entry, Verdict(DeviceState.FAILED, Reason.WRITE_STUCK, held_by), CardSeen(address, None))
        now = self._clock()
        work = CardAtWork(
            self._ports,
            entry,
            rearranged=self._rearranged.get(address, Rearranged()),
            failed=self._retries.in_force(address, now),
            intent=intent,
        )
        try:
            outcome = await work.glance(view, state.entries.get(address)) or await work.run(view.locks(address))
        except HungError as error:
            fault = Obstacle(Reason.DEVICE_UNREADABLE, str(error))
            verdict = Verdict(DeviceState.BLOCKED, fault.reason, fault.message)
            return CardOutcome(entry, verdict, CardSeen(address, None))
        self._retries.record(address, outcome.failed, self._clock())
        if outcome.verdict.state is not DeviceState.READY:
            self._ports.modes.forget(address)
        self._rearranged[address] = outcome.rearranged
        return outcome

    async def _only_looked(
        self, orders: Orders, entries: tuple[DesiredDevice, ...], view: HostView, state: RecordsState[CardEntry]
    ) -> Pass:
        outcomes = []
        for entry in entries:
            work = CardAtWork(
                self._ports, entry, rearranged=self._rearranged.get(entry.address, Rearranged()), failed={}
            )
            seen, follows = await work.look(view, state.entries.get(entry.address), CardModes())
            if isinstance(follows, Verdict):
                outcomes.append(CardOutcome(entry, follows, seen))
            else:
                verdict = Verdict(DeviceState.PENDING, Reason.TYPING, "it is to be changed")
                outcomes.append(CardOutcome(entry, verdict, seen, (follows,)))
        return await self._pass(orders, tuple(outcomes), state)

    async def _forget(self, outcomes: tuple[CardOutcome, ...], state: RecordsState[CardEntry]) -> None:
        done = [one.entry.address for one in outcomes if is_released(one) and one.entry.address in state.entries]
        if done:
            try:
                await self._calls.run("record", partial(self._record.drop, *done))
            except (RecordsError, HungError):
                return  # it is dropped in the next pass

    async def _pass(self, orders: Orders, outcomes: tuple[CardOutcome, ...], state: RecordsState[CardEntry]) -> Pass:
        boot_id = self._boot_id or ""
        former = orders.status.profiles
        reports = [await self._report(outcome, boot_id) for outcome in outcomes]
        if orders.held is not None and former is not None and former.boot_id == boot_id:
            reports = list(former.devices)
        return Pass(
            outcomes,
            profiles(
                reports,
                boot_id=boot_id,
                generation=orders.generation,
                now=self._now(),
                held=orders.held,
                record_problem=state.problem,
                former=former,
            ),
            orders.held,
        )

    async def _report(self, outcome: CardOutcome, boot_id: str) -> ProfiledCard:
        seen, release = outcome.seen, ""
        if seen.driver is not None:
            try:
                load = await self._calls.run("driver", partial(read_driver_load, self._host, seen.driver, boot_id))
                release = load.release if load is not None else ""
            except (OSError, HungError):
                release = ""
        return card_report(outcome.entry, outcome.verdict, offered=seen.names, release=release)


def _cards(orders: Orders) -> tuple[DesiredDevice, ...]:
    """The orders that are this daemon's."""
    return tuple(entry for entry in orders.spec.devices if entry.mode is Mode.VGPU) if orders.spec else ()


def _former_cards(orders: Orders, recorded: Collection[str]) -> tuple[DesiredDevice, ...]:
    """Cards that npufleet made vGPUs on, and that are ordered to become something else: they are given back first."""
    devices = orders.spec.devices if orders.spec else ()
    return tuple(entry for entry in devices if entry.mode is not Mode.VGPU and entry.address in recorded)


def _wish(entry: DesiredDevice) -> str:
    """What an order wants of its card; who decided it, and how pods find it, change nothing there."""
    return entry.model_dump_json(exclude={"decided_by", "driver_name"})


__all__ = ["COMPONENT", "Pass", "ProfileWriter"]
