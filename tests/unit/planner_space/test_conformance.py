"""The pure model of the world does what the real executor makes of the simulated kernel."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from node_host.acting.actions import Bind, Outcome, Return
from node_host.acting.bounded_write import BoundedWriter, WriteStuckError
from node_host.acting.journal import JOURNAL, Journal, JournalEntry, JournalError
from node_host.acting.locks import Locks
from node_host.bounded_call import BoundedCalls
from node_host.orders import Orders
from node_host.pci.device import DEVICES, DRIVERS_PROBE
from tests.builders.binder import Bench, host, npu, order, spec
from tests.unit.planner_space import model
from tests.unit.planner_space.exploration import show
from tests.unit.planner_space.model import Fault, apply, faults_of
from tests.unit.planner_space.states import (
    ADDRESSES,
    BOOT,
    INDEX,
    NATIVE,
    OPENED,
    ORDERS,
    OTHER,
    PLACES,
    RARE_PLACES,
    STUB,
    STUCK,
    USED,
    VARIANT,
    VFIO,
    Device,
    Host,
    hosts,
    letters,
    plan_of,
)
from vfio_binder.plan import Plan

SAMPLES: Final = 400
_IDS: Final = [{"vendor": "1eff", "class": "1200"}]
T = TypeVar("T")


class Killed(BaseException):
    """The process ends here."""


class Hand:
    """Makes one fault happen to one device, in the writes and calls of the real executor."""

    def __init__(self, bench: Bench, fault: Fault | None, group: int | None, *, binds: bool) -> None:
        self.bench = bench
        self.address, self.kind = fault or ("", "")
        self.binds = binds
        self.group = group
        self.blind = False
        self.changes = 0
        if self.kind == model.PROBE and binds:
            # drivers_probe, and the bind that asks why it did nothing.
            bench.kernel.fail_next(f"probe:vfio-pci:{self.address}", "EIO", times=2)
            bench.kernel.fail_next(f"probe:{VARIANT}:{self.address}", "EIO", times=2)
        elif self.kind == model.BACK or self.kind == model.PROBE:
            bench.kernel.fail_next(f"probe:*:{self.address}", "EIO", times=99)

    def changed(self, address: str) -> None:
        if address == self.address:
            self.changes += 1
            if self.kind == f"killed-{self.changes}":
                raise Killed

    def before_write(self, address: str, path: str, locks: Locks, stuck: dict[str, str]) -> None:
        if address != self.address:
            return
        if path.endswith("/driver_override") and self.kind == model.OVERRIDE:
            self.kind = ""
            raise OSError(5, "Input/output error", path)
        if path.endswith("/unbind"):
            if self.kind == model.UNBIND:
                self.kind = ""
                raise OSError(5, "Input/output error", path)
            if self.kind == STUCK:
                stuck.update(dict.fromkeys(locks.names, "has not come back"))
                raise WriteStuckError("has not come back")
            if self.kind == model.VANISHES:
                self.bench.kernel.hot_remove(address)

    def after_write(self, address: str, path: str) -> None:
        if address == self.address and path == DRIVERS_PROBE and self.kind in (model.NODES, OPENED):
            if self.kind == OPENED:
                self.bench.kernel.open_device(f"/dev/vfio/{self.group}")
            self.kind, self.blind = "", True
        if path.endswith("/bind") and not self.binds:
            return
        self.changed(address)


class HandledWriter(BoundedWriter):
    """Writes without threads, under the hand."""

    hand: Hand | None = None

    async def write(self, path: str, data: bytes, locks: Locks) -> None:
        address = path.split("/")[-2] if path.endswith("/driver_override") else data.decode()
        if self.hand is not None:
            self.hand.before_write(address, path, locks, self._stuck)
        self._host.write(path, data)
        if self.hand is not None:
            self.hand.after_write(address, path)


class HandledCalls(BoundedCalls):
    """Calls without threads, under the hand."""

    hand: Hand | None = None

    async def run(self, key: str, call: Callable[[], T]) -> T:
        hand = self.hand
        if hand is None:
            return call()
        if key == "vfio nodes" and hand.blind:
            hand.blind = False
            return frozenset()  # type: ignore[return-value]
        if hand.kind == model.MODULE and key == "pci drivers":
            return frozenset()  # type: ignore[return-value]
        if hand.kind == model.MODULE and key.startswith("module "):
            raise FileNotFoundError(key)
        name = getattr(getattr(call, "func", None), "__name__", "")
        if key == "journal" and name in ("put", "drop"):
            address = call.args[0]  # type: ignore[attr-defined]
            if address == hand.address and hand.kind == (model.JOURNAL if name == "put" else model.DROP):
                hand.kind = ""
                raise JournalError("no space left on device")
            result = call()
            hand.changed(address)
            return result
        return call()


class Stage:
    """A host of the space on a simulated kernel, with a binder on it."""

    def __init__(self, root: Path, wanted: Host) -> None:
        self.wanted = wanted
        devices = [npu(ADDRESSES[i], group) for i, group in enumerate(wanted.groups)]
        drivers = [
            {"name": OTHER, "module": "other", "ids": _IDS},
            {"name": VARIANT, "module": "rbln_vfio_pci", "kind": "VFIO", "overrideOnlyIds": [{"vendor": "1234"}]},
        ]
        names = ("rebellions", "other", "rbln_vfio_pci", "vfio_pci", "pci_stub")
        loaded = [{"name": name, "state": "Loaded"} for name in names]
        self.calls = HandledCalls()
        machine = host(*devices, modules=loaded, drivers=drivers)
        self.bench = Bench(root, machine, calls=self.calls, in_memory=True)
        self.writer = HandledWriter(self.bench.host)
        self.bench.restart(writer=self.writer)
        journal = Journal(self.bench.kernel.host().local(JOURNAL))
        journal.load()
        for index, device in enumerate(wanted.devices):
            self._place(ADDRESSES[index], device)
            if device.entry is not None:
                boot = self.bench.kernel.boot_id if device.entry.boot_id == BOOT else "another-boot"
                journal.put(ADDRESSES[index], replace(device.entry, boot_id=boot))
        for index, device in enumerate(wanted.devices):
            if device.flag == USED:
                self._open(ADDRESSES[index])
        entries = [order(ADDRESSES[i], **ORDERS[d.order]) for i, d in enumerate(wanted.devices) if d.order is not None]
        self.orders = Orders(spec(*entries), self.bench.orders.node_uid, 1)

    def _place(self, address: str, device: Device) -> None:
        if device.driver is not None:
            taking = device.driver if device.driver in (VFIO, VARIANT, STUB) else None
            if self.bench.driver(address) != device.driver or taking:
                self.bench.move(address, device.driver, override=taking)
        else:
            self.bench.move(address, None)
        self.bench.kernel.write(f"{DEVICES}/{address}/driver_override", f"{device.override or ''}\n".encode())

    def _open(self, address: str) -> None:
        node = self.bench.kernel._machine.devices[address].nodes[0].name
        self.bench.kernel.open_device(f"/dev/{node}", pid=4000 + INDEX[address], comm="vllm")

    def seen(self) -> list[tuple[str | None, str | None, JournalEntry | None]]:
        """Driver, override and entry of each device."""
        found: list[tuple[str | None, str | None, JournalEntry | None]] = []
        entries = self.bench.journal().entries
        for index in range(len(self.wanted.devices)):
            entry = entries.get(ADDRESSES[index])
            if entry is not None:
                boot = {self.bench.kernel.boot_id: BOOT}.get(entry.boot_id, "boot-1")
                entry = replace(entry, boot_id=boot)
            try:
                override = self.bench.override(ADDRESSES[index])
            except FileNotFoundError:
                found.append((None, None, entry))
                continue
            found.append((self.bench.driver(ADDRESSES[index]), None if override == "(null)" else override, entry))
        return found

    async def act(self, fault: Fault | None, planned: Plan) -> tuple[Plan, list[Outcome], bool]:
        """The real plan, what came of it, and whether the process was killed."""
        look = await self.bench.binder._look(self.orders)
        binds = fault is not None and any(isinstance(a, Bind) and a.address == fault.address for a in planned.actions)
        group = None if fault is None else self.wanted.groups[INDEX[fault.address]]
        hand = Hand(self.bench, fault, group, binds=binds)
        self.calls.hand = self.writer.hand = hand
        with ExitStack() as stack:
            if fault is not None and fault.kind == model.LOCKED:
                stack.enter_context(Locks(self.bench.host, look.view.locks(fault.address), owner="somebody else"))
            try:
                outcomes = await self.bench.binder._act(look)
            except Killed:
                return look.plan, [], True
            finally:
                self.calls.hand = self.writer.hand = None
        return look.plan, outcomes, False

    def close(self) -> None:
        self.bench.close()


def _space() -> Iterator[Host]:
    """Hosts that can be set up on a kernel by hand."""
    orders = [None, "refuse", "bind", "container", "restore", "leave", "hold"]
    journals = ["none", "ours", "ours-driverless", "companion", "other-boot"]
    alphabet = letters(PLACES, journals, orders)
    used = letters(PLACES[1:2], journals, orders, [USED])
    small = letters(PLACES[:2] + PLACES[3:4], ["none", "ours", "companion"], [None, "bind", "container", "restore"])
    alone = letters([*PLACES, *RARE_PLACES], [*journals, "ours-other", "ours-variant"], [*orders, "named", "variant"])
    yield from hosts([20], alone)
    yield from hosts([20, 20], alphabet, alphabet)
    yield from hosts([20, 20], used, small)
    yield from hosts([20, 20, 21], small, small, small)
    yield from hosts([20, 20, 20], small, small, small)


def _is_shown(plan: Plan, fault: Fault | None, host: Host) -> bool:
    """Whether the hand can make the fault happen to this device and to no other."""
    if fault is None:
        return True
    alone = len(plan.actions) == 1
    is_note = fault.address in {note.address for note in plan.notes}
    actions = [action for action in plan.actions if action.address == fault.address]
    if fault.kind == model.LOCKED or is_note:
        return True
    if fault.kind == model.MODULE:
        return alone
    if fault.kind == OPENED:
        members = host.members(INDEX[fault.address])
        others = [host.devices[i] for i in members if ADDRESSES[i] != fault.address]
        return alone and all(other.leaves_group_to_user for other in others)
    # The model counts a return to another native driver as one change, and killed notes not at all.
    former = actions[0].entry.former_driver
    return not (fault.kind.startswith("killed") and (former not in ("", NATIVE) or plan.notes or len(plan.groups) > 1))


def _samples() -> list[tuple[Host, Fault | None]]:
    """A fixed choice: hosts for which something is planned, each with no fault or with one."""
    chance = random.Random(20261130)
    every = chance.sample(list(_space()), 6 * SAMPLES)
    found: list[tuple[Host, Fault | None]] = []
    for one in every:
        plan = plan_of(one)
        if plan.is_empty:
            continue
        faults: list[Fault | None] = [None, *faults_of(plan)]
        fault = chance.choice([fault for fault in faults if _is_shown(plan, fault, one)])
        found.append((one, fault))
    return found[:SAMPLES]


def _said(outcomes: list[Outcome] | tuple[Outcome, ...]) -> dict[str, tuple[str, str]]:
    return {outcome.address: (str(outcome.result), str(outcome.reason)) for outcome in outcomes}


def _words(plan: Plan) -> Any:
    moves = [action for action in plan.actions if isinstance(action, Bind | Return)]
    assert len(moves) == len(plan.actions)
    actions = [(type(action).__name__, action.address, action.seen_driver) for action in moves]
    notes = [(type(note).__name__, note.address) for note in plan.notes]
    reports = [(report.address, str(report.state), report.reason, report.former_driver) for report in plan.reports]
    return actions, notes, reports


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: the journal is synced to disk for every entry."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="planner-", dir=shared) as made:
        yield Path(made)


async def test_the_model_s_world_is_what_the_executor_makes_of_the_simulated_kernel(directory: Path) -> None:
    samples = _samples()
    kinds = {fault.kind if fault else "none" for _, fault in samples}
    for number, (wanted, fault) in enumerate(samples):
        stage = Stage(directory / str(number), wanted)
        try:
            placed = [(device.driver, device.override, device.entry) for device in wanted.devices]
            assert stage.seen() == placed, f"not set up: {show(wanted)}"
            planned = plan_of(wanted)
            applied = apply(wanted, planned, fault)
            really, outcomes, killed = await stage.act(fault, planned)
            why = f"{show(wanted)}\n{fault}\n{outcomes}\n{applied.outcomes}"
            assert _words(really) == _words(planned), why
            assert (_said(outcomes), killed) == (_said(applied.outcomes), applied.killed), why
            expected = [(device.driver, device.override, device.entry) for device in applied.host.devices]
            assert stage.seen() == expected, why
        finally:
            stage.close()
    print(f"conformance: {len(samples)} hosts, faults {', '.join(sorted(kinds))}")
    assert len(samples) == SAMPLES
    assert kinds >= {"none", *model.BIND_FAULTS, *model.RETURN_FAULTS, *model.KILLED[:3]}
