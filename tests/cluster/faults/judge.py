"""The oracles: what must hold of a run under faults, beside a run of the same scenario without any."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.faults.availability import Availability, in_order

Object = dict[str, Any]
CONTROLLER = "system:serviceaccount:npufleet-system:npufleet-node-policy"
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
WRITES_PER_FAULT = 2
STATUS_SHARE = 0.35
STATUSES_PER_NODE = 2
REFUSALS_PER_FAULT = 10
REFUSALS_AT_REST = 30
SETTLE_SECONDS = 60.0
SETTLE_SECONDS_AFTER_STALL = 120.0
NOTICE_SECONDS = 90.0


@dataclass(slots=True)
class Record:
    """What was seen of a run."""

    ending: Object = field(default_factory=dict)
    moved: set[tuple[str, str]] = field(default_factory=set)
    """Cards that were bound or given back, as (node, address)."""
    moves: int = 0
    audit: list[Object] = field(default_factory=list)
    watched_from: int = 0
    """resourceVersion at which the scenario proper began."""
    hits: int = 0
    """Faults that struck, each time counted."""
    settled_after: float = 0.0
    """Seconds from the last fault, or the last step of the scenario if that came later."""
    stalled: bool = False
    differs: list[str] = field(default_factory=list)
    """How the ending differed from the one that was waited for when time was up; empty when it was reached."""
    unnoticed: list[str] = field(default_factory=list)
    """Feeds that were dead for longer than allowed while the process said that it was ready."""
    broken: list[str] = field(default_factory=list)
    """What the scenario itself saw that must not be."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a scenario allows beyond the run without faults."""

    limit: int = 3
    touched: frozenset[tuple[str, str]] = frozenset()
    """Cards that may be moved though the run without faults did not, for it depends on timing who is moved."""
    writes: int = 0
    """Writes more or less that come of timing alone."""


def writes_of(audit: Iterable[Object], *, since: int = 0) -> Counter[str]:
    """Writes of the controller that took effect, by "verb resource/subresource"; Leases and Events apart."""
    found: Counter[str] = Counter()
    for entry in _of_controller(audit):
        if entry["responseStatus"]["code"] < 300 and _version(entry) > since:
            about = entry["objectRef"]
            found["/".join(filter(None, (f"{entry['verb']} {about['resource']}", about.get("subresource"))))] += 1
    return found


def repeats_of(audit: Iterable[Object], *, since: int = 0) -> Counter[str]:
    """How often a status told what had been told of the same object before, but for the time; by "resource name"."""
    told: set[tuple[str, str, str]] = set()
    found: Counter[str] = Counter()
    for entry in _of_controller(audit):
        about = entry["objectRef"]
        if entry["responseStatus"]["code"] >= 300 or _version(entry) <= since or about.get("subresource") != "status":
            continue
        name = f"{about['resource']} {about.get('name')}"
        uid = ((entry.get("responseObject") or {}).get("metadata") or {}).get("uid", "")
        words = (name, uid, json.dumps(_timeless((entry.get("requestObject") or {}).get("status")), sort_keys=True))
        found[name] += words in told
        told.add(words)
    return +found


def _timeless(told: Any) -> Any:
    if isinstance(told, dict):
        return {key: _timeless(value) for key, value in told.items() if key != "lastTransitionTime"}
    return [_timeless(each) for each in told] if isinstance(told, list) else told


def refusals_of(audit: Iterable[Object]) -> int:
    """Writes of the controller that the server itself did not take."""
    return sum(entry["responseStatus"]["code"] >= 300 for entry in _of_controller(audit))


def _of_controller(audit: Iterable[Object]) -> Iterable[Object]:
    for entry in audit:
        about = entry.get("objectRef") or {}
        if (
            entry["user"]["username"] == CONTROLLER
            and entry["verb"] in WRITES
            and about.get("resource") not in {"leases", "events"}
            and entry.get("responseStatus")
        ):
            yield entry


def _version(entry: Object) -> float:
    answer = entry.get("responseObject") or {}
    version = (answer.get("metadata") or {}).get("resourceVersion")
    return int(version) if version else float("inf")  # a deletion says no version: it is counted


def judge(run: Record, reference: Record, allowed: Allowed) -> list[str]:
    """What is wrong with the run; empty when nothing is."""
    wrong = list(run.broken)
    limit = SETTLE_SECONDS_AFTER_STALL if run.stalled else SETTLE_SECONDS
    if run.differs:
        wrong.append(f"the end was not reached {limit:g} s after the last fault: " + "; ".join(run.differs[:6]))
    elif run.settled_after > limit:
        wrong.append(f"settled {run.settled_after:.0f} s after the last fault, {limit:g} allowed")
    wrong += [f"not noticed within {NOTICE_SECONDS:g} s: {feed}" for feed in run.unnoticed]
    strangers = run.moved - reference.moved - allowed.touched
    if strangers:
        wrong.append(f"touched without need: {sorted(strangers)}")
    wrong += judge_writes(run, reference, allowed)
    wrong += judge_availability(run, allowed)
    return wrong


def judge_writes(run: Record, reference: Record, allowed: Allowed) -> list[str]:
    """Orders are counted to the last one. How many reports of nodes one status tells of at once, and whether a change
    that is quickly over is told of while it lasts, is a matter of timing: a share of the statuses comes on top, and two
    for each node, one on the orders before and one while the present ones are carried out. What a status told is not
    told again, but once for each node: of one that waited and was then not needed it says in the end what it said at
    first, which may have been told late enough to count."""
    wrong = []
    mine = writes_of(run.audit, since=run.watched_from)
    theirs = writes_of(reference.audit, since=reference.watched_from)
    nodes = len(reference.ending.get("states", ()))
    share = math.ceil(STATUS_SHARE * sum(count for write, count in theirs.items() if _is_status(write)))
    slack = share + STATUSES_PER_NODE * nodes
    for what, belongs, more_or_less in (("orders", _is_order, 0), ("statuses", _is_status, slack)):
        made = sum(count for write, count in mine.items() if belongs(write))
        normal = sum(count for write, count in theirs.items() if belongs(write))
        most = normal + WRITES_PER_FAULT * run.hits + allowed.writes + more_or_less
        if made > most:
            more = dict(mine - theirs)
            wrong.append(f"{made} writes of {what}, {most} allowed ({normal} without, {run.hits} faults): {more} more")
    again = repeats_of(run.audit, since=run.watched_from)
    normal = repeats_of(reference.audit, since=reference.watched_from).total()
    most = normal + WRITES_PER_FAULT * run.hits + allowed.writes + nodes
    if again.total() > most:
        examples = "; ".join(f"{name} {count} times" for name, count in again.most_common(3))
        wrong.append(f"{again.total()} statuses told again, {most} allowed ({normal} without): {examples}")
    refusals, bearable = refusals_of(run.audit), REFUSALS_AT_REST + REFUSALS_PER_FAULT * run.hits
    if refusals > bearable:
        wrong.append(f"{refusals} writes that the server refused, {bearable} allowed")
    return wrong


def _is_status(write: str) -> bool:
    return write.endswith("/status")


def _is_order(write: str) -> bool:
    return not _is_status(write)


def judge_availability(run: Record, allowed: Allowed) -> list[str]:
    availability = Availability(allowed.limit, watched_from=run.watched_from)
    for entry in in_order(run.audit):
        availability.take(entry)
    if not run.audit:
        return ["the audit log is empty: nothing can be said about who was unavailable"]
    return [
        f"{len(excess.nodes)} nodes of {excess.policy} unavailable, {excess.limit} allowed: "
        f"{', '.join(excess.nodes)} after {excess.after}"
        for excess in availability.excesses[:3]
    ]
