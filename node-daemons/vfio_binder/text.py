"""A pass as text for people: what is planned, what came of it, where each device stands."""

from collections.abc import Iterator

from crds.models.conditions import Status, find_condition
from crds.models.node_state import DeviceState
from node_host.acting.actions import describe
from vfio_binder.binder import Pass
from vfio_binder.report import ConditionType


def show(done: Pass, *, dry_run: bool) -> str:
    """Lines, the last one ended."""
    return "\n".join(_lines(done, dry_run)) + "\n"


def has_findings(done: Pass) -> bool:
    """Whether a device is not, and will not by itself be, as ordered."""
    if _journal_problem(done) is not None:
        return True
    stuck = {DeviceState.BLOCKED, DeviceState.FAILED}
    return done.left.held is not None or any(report.state in stuck for report in done.bindings.devices)


def _lines(done: Pass, dry_run: bool) -> Iterator[str]:
    if done.planned.held is not None:
        yield f"Held: {done.planned.held}"
    problem = _journal_problem(done)
    if problem is not None:
        yield f"Journal: {problem}"
    if done.planned.is_empty:
        yield "Plan: nothing to do" + ("" if done.bindings.devices else ": there are no orders")
    else:
        yield f"Plan{' (nothing is written)' if dry_run else ''}:"
    for note in done.planned.notes:
        yield f"  journal: {describe(note)}"
    for group in done.planned.groups:
        for action in group.actions:
            yield f"  {group.key}: {describe(action)}"
    if done.outcomes:
        yield "Outcome:"
    for outcome in done.outcomes:
        yield f"  {outcome.address}  {outcome.result}  {outcome.reason}{_tail(outcome.message)}"
    if done.bindings.devices:
        yield "Devices:"
    for report in done.bindings.devices:
        yield f"  {report.address}  {report.state}  {report.reason}{_tail(report.message)}"
        for part in report.virtual_functions:
            yield f"    {part.address}  {part.state}  {part.reason}{_tail(part.message)}"


def _journal_problem(done: Pass) -> str | None:
    """Why the journal may lack devices, or None."""
    intact = find_condition(done.bindings.conditions, ConditionType.JOURNAL_INTACT)
    return None if intact is None or intact.status is Status.TRUE else intact.message


def _tail(message: str) -> str:
    return f": {message}" if message else ""
