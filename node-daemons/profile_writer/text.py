"""A pass as text for people: what is to be done, what was, where each card and each of its vGPUs stands."""

from collections.abc import Iterator

from crds.models.conditions import Status, find_condition
from crds.models.node_state import DeviceState
from profile_writer.card import describe
from profile_writer.report import ConditionType
from profile_writer.writer import Pass


def show(done: Pass, *, dry_run: bool) -> str:
    """Lines, the last one ended."""
    return "\n".join(_lines(done, dry_run)) + "\n"


def has_findings(done: Pass) -> bool:
    """Whether a card is not, and will not by itself be, as ordered."""
    if done.held is not None or _record_problem(done) is not None:
        return True
    return any(card.state in (DeviceState.BLOCKED, DeviceState.FAILED) for card in done.profiles.devices)


def _lines(done: Pass, dry_run: bool) -> Iterator[str]:
    if done.held is not None:
        yield f"Held: {done.held}"
    problem = _record_problem(done)
    if problem is not None:
        yield f"Record: {problem}"
    steps = [(card.entry.address, step) for card in done.cards for step in card.steps]
    if steps and dry_run:
        yield "Next (nothing is written; what follows depends on what the driver offers then):"
    elif steps:
        yield "Done:"
    else:
        yield "Nothing to do" + ("" if done.cards else ": no card is ordered to carry vGPUs")
    for address, step in steps:
        yield f"  {describe(step, address)}"
    if done.profiles.devices:
        yield "Cards:"
    for report in done.profiles.devices:
        yield f"  {report.address}  {report.state}  {report.reason}{_tail(report.message)}"
        for one in report.vgpus:
            yield f"    {one.address}  {one.profile or '-'}  {one.state}  {one.reason}{_tail(one.message)}"


def _record_problem(done: Pass) -> str | None:
    """Why the record may lack cards, or None."""
    intact = find_condition(done.profiles.conditions, ConditionType.RECORD_INTACT)
    return None if intact is None or intact.status is Status.TRUE else intact.message


def _tail(message: str) -> str:
    return f": {message}" if message else ""
