"""A look as text for people: what it would find, or what it has done; where each device stands."""

from collections.abc import Iterator

from crds.models.node_state import DeviceState
from dra_publisher.handover.hand_over import Looked
from dra_publisher.handover.situation import Situation
from dra_publisher.handover.stages import Stage, Verdict
from dra_publisher.look import Done
from dra_publisher.report import Seen

_WORDS = {
    Stage.KEPT: "stays published",
    Stage.PUBLISHING: "is to be published",
    Stage.RENAMING: "is to be published under another name, once nobody has it",
    Stage.WITHHELD: "stays withheld from new users",
    Stage.HANDING_OVER: "is to be withheld, and handed over for a change once nobody has it",
    Stage.LEAVING: "is to be taken out of the slices, and forgotten once nobody has it",
}


def show_plan(situation: Situation, looked: Looked, seen: Seen, *, held: str | None) -> tuple[str, bool]:
    """Lines, and whether orders are held."""
    lines = [f"Held: {held}"] if held is not None else []
    acts = [
        line
        for address, verdict in looked.verdicts.items()
        if held is None and verdict.stage is not Stage.ABSENT
        for line in _lines(address, verdict, seen)
    ]
    lines += ["Plan (nothing is written):", *acts] if acts else ["Plan: nothing to do"]
    waiting = [
        address
        for address, verdict in looked.verdicts.items()
        if verdict.stage is Stage.ABSENT and address in situation.entries
    ]
    if waiting:
        lines.append("Not published:")
        lines += [f"  {address}: {_said(situation, address)}" for address in waiting]
    return "\n".join(lines) + "\n", held is not None


def show_done(done: Done) -> tuple[str, bool]:
    """Lines, and whether a device is, and will not by itself be, otherwise than ordered."""
    stuck = any(report.state in (DeviceState.BLOCKED, DeviceState.FAILED) for report in done.devices)
    return "\n".join(_done(done)) + "\n", stuck or done.held is not None or done.problem is not None


def _done(done: Done) -> Iterator[str]:
    if done.held is not None:
        yield f"Held: {done.held}"
    if done.problem is not None:
        yield f"Problem: {done.problem}"
    if not done.devices:
        yield "Devices: none are ordered"
        return
    yield "Devices:"
    for report in done.devices:
        yield f"  {report.address}  {report.state}  {report.reason}{f': {report.message}' if report.message else ''}"


def _lines(address: str, verdict: Verdict, seen: Seen) -> Iterator[str]:
    """What becomes of a device, and below it why nobody new will get it besides."""
    if verdict.stage is not Stage.LEAVING and address in seen.barred:
        yield f"  {address}: is left to another plugin: {seen.barred[address]}"
        return
    yield f"  {address}: {_act(verdict)}"
    if verdict.kind is not None:
        for taint, why in sorted(seen.taints.get(address, {}).items()):
            if taint.key != verdict.taint:
                yield f"    with taint {taint.key}={taint.value}: {why}"


def _act(verdict: Verdict) -> str:
    name = f", as {verdict.kind} of {verdict.driver}" if verdict.kind is not None else ""
    taint = f" ({verdict.taint})" if verdict.taint is not None else ""
    return f"{_WORDS[verdict.stage]}{name}{taint}"


def _said(situation: Situation, address: str) -> str:
    said = situation.said.get(address)
    if said is None:
        return "the daemons that prepare it have not answered the present orders"
    return f"{said.state}, {said.reason}{f': {said.message}' if said.message else ''}"
