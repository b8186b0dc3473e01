"""What becomes of a small host when a plan is carried out: the executor and the kernel below it, as a pure function.

It says once more, in few words, what node_host.acting does on a healthy host and when one step fails. A test runs the
real executor on the simulated kernel beside it and compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from crds.models.bindings import BindingReason as Reason
from node_host.acting.actions import Bind, Forget, GroupPlan, Outcome, Remember, Result, Return
from node_host.acting.journal import JournalEntry
from node_host.pci.vfio_drivers import is_vfio_driver
from tests.unit.planner_space.states import GONE, INDEX, OPENED, STUCK, Device, Host
from vfio_binder.attempts import Attempts
from vfio_binder.plan import Plan

# Faults of one action. A step that fails is undone as far as can be; BACK: that fails as well; OPENED: a user came
# before it; STUCK: the unbind does not come back; VANISHES: the device is gone at the unbind; the rest fail in place.
MODULE, JOURNAL, OVERRIDE, UNBIND, PROBE, NODES = "module", "journal", "override", "unbind", "probe", "nodes"
BACK, VANISHES, LOCKED, DROP = "back", "vanishes", "locked", "drop"
BIND_FAULTS: Final = (MODULE, JOURNAL, OVERRIDE, UNBIND, PROBE, NODES, BACK, OPENED, STUCK, VANISHES, LOCKED)
RETURN_FAULTS: Final = (MODULE, OVERRIDE, UNBIND, PROBE, STUCK, VANISHES, DROP, LOCKED)
# The process is killed after the n-th change that an action makes (the journal's entry is the first of a bind).
KILLED: Final = ("killed-1", "killed-2", "killed-3", "killed-4")
# After these the device is where it was, and neither ours nor forgotten if it was not so before.
UNDONE: Final = frozenset({MODULE, JOURNAL, OVERRIDE, UNBIND, PROBE, NODES, LOCKED})


class Fault(NamedTuple):
    """What goes wrong with the action on a device, or with its note."""

    address: str
    kind: str


class _KilledError(Exception):
    pass


class _StuckError(Exception):
    pass


class _GoneError(Exception):
    pass


class _FailedError(Exception):
    pass


class Applied(NamedTuple):
    """The host afterwards and what became of each device. ``killed``: the daemon is not there any more."""

    host: Host
    outcomes: tuple[Outcome, ...]
    killed: bool = False


def faults_of(plan: Plan) -> Iterator[Fault]:
    """Every single fault that the plan can meet."""
    for action in plan.actions:
        for kind in (*(BIND_FAULTS if isinstance(action, Bind) else RETURN_FAULTS), *KILLED):
            yield Fault(action.address, kind)
    for note in plan.notes:
        yield Fault(note.address, LOCKED)


def apply(host: Host, plan: Plan, fault: Fault | None = None) -> Applied:
    """Notes first, then the groups. A fault that the action does not come to changes nothing."""
    devices = list(host.devices)
    outcomes: list[Outcome] = []
    stuck: list[str] = list(host.stuck)
    for note in plan.notes:
        if _is_locked(host, note.address, fault):
            outcomes.append(Outcome(note.address, Result.BLOCKED, Reason.GROUP_LOCKED, "locked"))
            continue
        entry = note.entry if isinstance(note, Remember) else None
        assert isinstance(note, (Remember, Forget))
        devices[INDEX[note.address]] = devices[INDEX[note.address]]._replace(entry=entry)
    killed = False
    for group in plan.groups:
        run = _GroupRun(host, devices, group, fault)
        try:
            run.run()
        except _KilledError:
            killed = True
            outcomes.clear()
            break
        outcomes += run.outcomes.values()
        stuck += run.stuck
    after = Host(host.groups, tuple(devices), stuck=tuple(sorted(set(stuck))))
    if killed:
        return Applied(after._replace(stuck=()), (), killed=True)
    return Applied(_remembering(after, dict(host.attempts), outcomes), tuple(outcomes))


def _is_locked(host: Host, address: str, fault: Fault | None) -> bool:
    """Whether somebody else holds the lock of the device's group, or its own where it has none."""
    if fault is None or fault.kind != LOCKED:
        return False
    return INDEX[fault.address] == INDEX[address] or INDEX[fault.address] in host.members(INDEX[address])


def waited(host: Host) -> Host:
    """Back-off is over, and a write that was stuck has ended: the device that it was about has left its driver."""
    devices = tuple(
        device._replace(flag=None, driver=None if device.flag == STUCK else device.driver)
        if device.flag in (STUCK, OPENED)
        else device
        for device in host.devices
    )
    return Host(host.groups, devices)


def _remembering(host: Host, before: Mapping[str, Outcome], outcomes: list[Outcome]) -> Host:
    """What the binder keeps in mind until the back-off is over, by its own rule."""
    attempts = Attempts(lambda: 1.0)
    attempts.record((*before.values(), *outcomes), 0.0)
    return host._replace(attempts=tuple(sorted(attempts.in_force(0.0).items())))


@dataclass
class _Mover:
    """One device on its way. Each change is counted, so that the process can be killed after it."""

    devices: list[Device]
    index: int
    fault: str | None = None
    changes: int = 0

    @property
    def device(self) -> Device:
        return self.devices[self.index]

    def become(self, **fields: Any) -> None:
        self.devices[self.index] = self.device._replace(**fields)

    def change(self, **fields: Any) -> None:
        self.become(**fields)
        self.changes += 1
        if self.fault == f"killed-{self.changes}":
            raise _KilledError

    def step(self, kind: str, **fields: Any) -> None:
        """A write that may fail with nothing changed."""
        if kind == UNBIND and self.fault == STUCK:
            raise _StuckError
        if kind == UNBIND and self.fault == VANISHES:
            raise _GoneError
        if self.fault == kind:
            self.fault = None
            raise _FailedError
        self.change(**fields)

    def to_vfio(self, entry: JournalEntry) -> None:
        self.change(entry=entry)
        if self.device.override != entry.bound_driver:
            self.step(OVERRIDE, override=entry.bound_driver)
        if self.device.driver is not None:
            self.step(UNBIND, driver=None)
        if self.fault == BACK:
            raise _FailedError
        self.step(PROBE, driver=entry.bound_driver)
        if self.fault in (NODES, OPENED):
            raise _FailedError

    def to_former(self, entry: JournalEntry) -> None:
        former = entry.former_driver or None
        during = entry.former_override if entry.former_override == former else None
        if (self.device.driver is None or is_vfio_driver(self.device.driver)) and self.device.driver != former:
            if self.device.override != during:
                self.step(OVERRIDE, override=during)
            if self.device.driver is not None:
                self.step(UNBIND, driver=None)
            if former is not None:
                if self.fault == BACK:
                    raise _FailedError
                self.step(PROBE, driver=former)
        if self.device.override != entry.former_override:
            self.step(OVERRIDE, override=entry.former_override)


class _GroupRun:
    """The actions of one group: each return for itself, the binds together or not at all."""

    def __init__(self, host: Host, devices: list[Device], plan: GroupPlan, fault: Fault | None) -> None:
        self._host = host
        self._devices = devices
        self._plan = plan
        self._fault = fault
        self.outcomes: dict[str, Outcome] = {}
        self.stuck: tuple[str, ...] = ()

    def run(self) -> None:
        if _is_locked(self._host, self._plan.actions[0].address, self._fault):
            self.outcomes = {
                action.address: Outcome(action.address, Result.BLOCKED, Reason.GROUP_LOCKED, "locked")
                for action in self._plan.actions
            }
            return
        for action in self._plan.actions:
            if isinstance(action, Return):
                self.outcomes[action.address] = self._refusal(action) or self._give_back(action)
        binds = [action for action in self._plan.actions if isinstance(action, Bind)]
        refusals = {action.address: refused for action in binds if (refused := self._refusal(action))}
        if refusals:
            self._withhold(binds, next(iter(refusals.values())), refusals)
            return
        for number, action in enumerate(binds):
            outcome = self.outcomes[action.address] = self._bind(action)
            if outcome.result is Result.DONE:
                continue
            if outcome.reason is not Reason.WRITE_STUCK:
                for other in reversed(binds[:number]):
                    self.outcomes[other.address] = self._rolled_back(other, None, Reason.BIND_FAILED)
                self._withhold(binds[number + 1 :], outcome, {})
            break

    def _withhold(self, binds: list[Bind], cause: Outcome, own: Mapping[str, Outcome]) -> None:
        for action in binds:
            other = Outcome(action.address, cause.result, cause.reason, f"waits for {cause.address}")
            self.outcomes[action.address] = own.get(action.address, other)

    def _refusal(self, action: Bind | Return) -> Outcome | None:
        """The executor looks again right before it writes."""
        index = INDEX[action.address]
        if not self._host.is_free(index):
            return Outcome(action.address, Result.BLOCKED, Reason.IN_USE, "not to be touched")
        now = self._host._replace(devices=tuple(self._devices))
        if action.seen_driver != self._devices[index].driver or now.members(index) != self._host.members(index):
            return Outcome(action.address, Result.BLOCKED, Reason.CHANGED, "it moved, or its group changed")
        return None

    def _mover(self, address: str) -> _Mover:
        fault = self._fault
        kind = fault.kind if fault is not None and fault.address == address else None
        return _Mover(self._devices, INDEX[address], kind)

    def _bind(self, action: Bind) -> Outcome:
        address, mover = action.address, self._mover(action.address)
        if mover.fault == MODULE:
            return Outcome(address, Result.BLOCKED, Reason.MODULE_MISSING, "no module")
        if mover.fault == JOURNAL:
            return Outcome(address, Result.BLOCKED, Reason.JOURNAL_UNREADABLE, "not changed")
        entry = replace(action.entry, bound_driver=action.module.replace("_", "-"))
        try:
            mover.to_vfio(entry)
        except _StuckError:
            return self._left_stuck(mover, address)
        except _GoneError:
            return self._vanished(mover, address)
        except _FailedError:
            reason = Reason.VERIFY_FAILED if mover.fault in (NODES, OPENED) else Reason.BIND_FAILED
            return self._rolled_back(action, mover.fault, reason)
        return Outcome(address, Result.DONE, Reason.BOUND)

    def _rolled_back(self, action: Bind, fault: str | None, reason: Reason) -> Outcome:
        address = action.address
        mover = _Mover(self._devices, INDEX[address], BACK if fault == BACK else None)
        entry = mover.device.entry
        assert entry is not None
        if fault == OPENED:
            mover.become(flag=OPENED)
        else:
            with suppress(_FailedError):
                mover.to_former(entry)
                mover.become(entry=None)
        return Outcome(address, Result.FAILED, reason, "rolled back, or not")

    def _give_back(self, action: Return) -> Outcome:
        address, mover = action.address, self._mover(action.address)
        if mover.fault == MODULE and action.entry.former_driver:
            return Outcome(address, Result.BLOCKED, Reason.DRIVER_MISSING, "no driver")
        try:
            mover.to_former(action.entry)
            if mover.fault == DROP:
                raise _FailedError
            mover.change(entry=None)
        except _StuckError:
            return self._left_stuck(mover, address)
        except _GoneError:
            self._vanished(mover, address)
            return Outcome(address, Result.FAILED, Reason.RESTORE_FAILED, "gone")
        except _FailedError:
            return Outcome(address, Result.FAILED, Reason.RESTORE_FAILED, "not given back")
        return Outcome(address, Result.DONE, Reason.RELEASED)

    def _left_stuck(self, mover: _Mover, address: str) -> Outcome:
        """The write goes on in the kernel, and holds the locks of its group."""
        mover.become(flag=STUCK)
        self.stuck = self._plan.locks
        return Outcome(address, Result.FAILED, Reason.WRITE_STUCK, "has not come back")

    def _vanished(self, mover: _Mover, address: str) -> Outcome:
        mover.become(flag=GONE, driver=None, override=None)
        return Outcome(address, Result.FAILED, Reason.DEVICE_MISSING, "gone")
