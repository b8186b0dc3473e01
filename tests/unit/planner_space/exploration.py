"""Walking through all hosts of a space: plan, apply, plan again, until nothing is planned; then with each failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from crds.models.node_state import DeviceState
from node_host.acting.actions import Bind, Result
from tests.unit.planner_space.model import (
    UNDONE,
    Applied,
    Fault,
    apply,
    faults_of,
    waited,
)
from tests.unit.planner_space.properties import ViolationError, check_plan, check_quiescent
from tests.unit.planner_space.states import (
    ADDRESSES,
    GONE,
    INDEX,
    OPENED,
    PASSTHROUGH,
    STAYS_NATIVE,
    Device,
    Host,
    plan_of,
)
from vfio_binder.plan import Plan

# As many rounds as the binder makes in one pass.
ROUNDS: Final = 4


@dataclass
class Exploration:
    """``states`` are hosts whose plan was made and checked, ``transitions`` plans that were carried out.

    ``stop`` ends it at the first violation; else all are kept in ``violations``, by what is violated. Without
    ``each_plan`` only where it ends is judged, not the plans on the way. Every second plan is made twice, the second
    time with everything handed over in the opposite order.
    """

    stop: bool = True
    each_plan: bool = True
    states: int = 0
    transitions: int = 0
    violations: dict[str, list[str]] = field(default_factory=dict)
    _settled: dict[Host, Host] = field(default_factory=dict)

    def explore(self, hosts: Iterable[Host], *, failures: bool) -> None:
        """Every host by itself, and with ``failures`` every single failure of every action of its plan."""
        for host in hosts:
            self._guarded(host, None, lambda host=host: self._one(host, failures=failures))  # type: ignore[misc]

    def _one(self, host: Host, *, failures: bool) -> None:
        known = self._settled.get(host)
        if known is not None and not failures:
            return
        plan = self._checked(host)
        final = self._settled[host] = self._from(host, plan)
        if failures and not plan.is_empty:
            succeeded = apply(host, plan)
            for fault in faults_of(plan):
                applied = apply(host, plan, fault)
                if applied != succeeded:
                    self._guarded(host, fault, lambda a=applied, f=fault: self._failed(host, plan, f, a, final))  # type: ignore[misc]

    def _checked(self, host: Host) -> Plan:
        self.states += 1
        plan = plan_of(host)
        if self.each_plan:
            check_plan(host, plan)
        if self.states % 2 and plan_of(host, backwards=True) != plan:
            raise ViolationError("the plan depends on the order in which things come")
        return plan

    def settle(self, host: Host) -> Host:
        """Where it ends when everything succeeds."""
        known = self._settled.get(host)
        if known is None:
            known = self._settled[host] = self._from(host, self._checked(host))
        return known

    def _from(self, host: Host, plan: Plan) -> Host:
        passed, bound = [host], set()
        while not plan.is_empty:
            if len(passed) > ROUNDS:
                raise ViolationError("it does not come to rest")
            self.transitions += 1
            bound |= {action.address for action in plan.actions if isinstance(action, Bind)}
            applied = apply(passed[-1], plan)
            wrong = [outcome for outcome in applied.outcomes if outcome.result is not Result.DONE]
            if wrong:
                raise ViolationError(f"the executor refuses what is planned: {wrong[0]}")
            if applied.host == passed[-1]:
                raise ViolationError("a plan that changes nothing")
            known = self._settled.get(applied.host)
            if known is not None:
                _is_not_in_vain(bound, known)
                return known
            passed.append(applied.host)
            plan = self._checked(applied.host)
        final = passed[-1]
        check_quiescent(final, plan)
        _is_not_in_vain(bound, final)
        for host in passed:
            self._settled[host] = final
        return final

    def _failed(self, host: Host, plan: Plan, fault: Fault, applied: Applied, final: Host) -> None:
        """The others get where they would have got; what failed is told; once it is over, all is as if it had not."""
        self.transitions += 1
        after = applied.host
        rested = self.settle(after)
        if not applied.killed:
            self._others_go_on(host, fault, rested, final)
            _nothing_is_half_bound(host, plan, fault, after)
            _is_told(host, fault, rested, final)
        later = self.settle(waited(rested))
        if any(device.flag == GONE for device in later.devices) or fault.kind == OPENED:
            return
        if [_seen(device) for device in later.devices] != [_seen(device) for device in final.devices]:
            raise ViolationError("after a failure that is over it ends elsewhere than without one")

    def _others_go_on(self, host: Host, fault: Fault, rested: Host, final: Host) -> None:
        group = host.members(INDEX[fault.address])
        for index in range(len(host.devices)):
            if index not in group and rested.devices[index] != final.devices[index]:
                raise ViolationError(f"{ADDRESSES[index]} of another group does not get where it should")

    def _guarded(self, host: Host, fault: Fault | None, check: Callable[[], None]) -> None:
        try:
            check()
        except ViolationError as error:
            text = f"{error}\n  host: {show(host)}\n  fault: {fault}"
            if self.stop:
                raise ViolationError(text) from error
            self.violations.setdefault(str(error), []).append(text)


def _is_not_in_vain(bound: set[str], final: Host) -> None:
    """A device goes to VFIO only together with all that has to follow."""
    for address in bound:
        index = INDEX[address]
        members = final.members(index)
        if not all(final.devices[i].leaves_group_to_user for i in members):
            raise ViolationError("a device is bound in a group that no VM can get in the end")


def _nothing_is_half_bound(host: Host, plan: Plan, fault: Fault, after: Host) -> None:
    if fault.kind not in UNDONE:
        return
    for group in plan.groups:
        binds = [action for action in group.actions if isinstance(action, Bind)]
        if fault.address not in {action.address for action in binds}:
            continue
        for action in binds:
            before, now = host.devices[INDEX[action.address]], after.devices[INDEX[action.address]]
            if before.entry is None and now._replace(flag=before.flag) != before:
                raise ViolationError(f"{action.address} is not as it was before its group failed")


def _is_told(host: Host, fault: Fault, rested: Host, final: Host) -> None:
    index = INDEX[fault.address]
    if host.devices[index].order not in PASSTHROUGH | STAYS_NATIVE or fault.kind == OPENED:
        return
    if _seen(rested.devices[index]) == _seen(final.devices[index]):
        return
    report = next(report for report in plan_of(rested).reports if report.address == fault.address)
    if report.state in (DeviceState.READY, DeviceState.RELEASED):
        raise ViolationError("what failed is reported as if it had not")


def _seen(device: Device) -> tuple[str | None, str | None, bool]:
    """What is seen of a device from outside, and whether it is ours."""
    return (device.driver, device.override, device.is_ours)


def show(host: Host) -> str:
    """One line for each device, for people."""
    lines = []
    for index, device in enumerate(host.devices):
        entry = device.entry
        journal = "" if entry is None else f", entry of {entry.former_driver or 'none'} ({entry.boot_id})"
        companion = "" if entry is None or not entry.companion_of else f" for {', '.join(entry.companion_of)}"
        lines.append(
            f"{ADDRESSES[index]} group {host.groups[index]}: on {device.driver}, override {device.override}{journal}"
            f"{companion}, ordered {device.order}{'' if device.flag is None else f', {device.flag}'}"
        )
    more = [f"waits: {', '.join(address for address, _ in host.attempts)}"] if host.attempts else []
    return "\n    ".join([*lines, *more])
