"""How many nodes of a policy were unavailable at each moment, from nothing but the API server's audit log.

Independent of the controller on purpose: it knows the words of the API and no code of the planner. A device moves from
the write that changed what it is ordered to be until its node's report says Ready or Released for that generation or a
later one. A device that is Blocked was not moved, unless it waits for its users to go. An order to hold moves nothing.
A node is unavailable for a policy when a device that the policy decides moves there, or the node is cordoned for it.
A node whose Node object is gone is no node of the fleet. One that comes back in the middle of a move is nobody's
choice: until it has come to rest it is not held against the limit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Object = dict[str, Any]
WAITS_FOR_USERS = {"InUse", "CompanionInUse", "Published", "HandOver"}
CORDONED_BY = "npufleet.io/cordoned-by"


@dataclass(frozen=True, slots=True)
class Excess:
    """A moment at which a policy had more nodes unavailable than allowed."""

    policy: str
    nodes: tuple[str, ...]
    limit: int
    after: str
    """The write, as "user verb URI" with the resourceVersion that it made."""


@dataclass(slots=True)
class _Node:
    orders: dict[str, Object] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    """By address, the generation at which its present order came to be what it is."""
    reports: dict[str, Object] = field(default_factory=dict)
    reported: int = 0
    cordoned_by: str = ""
    exists: bool = True
    returned: bool = False

    def take_state(self, state: Object) -> None:
        generation = int(state["metadata"]["generation"])
        orders = {entry["address"]: entry for entry in state["spec"].get("devices") or []}
        for place, order in orders.items():
            if place not in self.orders or _aim(self.orders[place]) != _aim(order):
                self.moved[place] = generation
        self.orders = orders
        bindings = (state.get("status") or {}).get("bindings") or {}
        self.reports = {entry["address"]: entry for entry in bindings.get("devices") or []}
        self.reported = int(bindings.get("observedGeneration") or 0)

    def unavailable_for(self) -> set[str]:
        """Policies for which the node is unavailable now."""
        if not self.exists:
            return set()
        found = {self.cordoned_by} if self.cordoned_by else set()
        for place, order in self.orders.items():
            if order["intent"] != "Hold" and not self._at_rest(place, self.moved[place]):
                found.add(order["decidedBy"]["policy"])
        return found

    def _at_rest(self, place: str, since: int) -> bool:
        report = self.reports.get(place)
        if report is None or self.reported < since:
            return False
        if report["state"] == "Blocked":
            return report.get("reason") not in WAITS_FOR_USERS
        return report["state"] in {"Ready", "Released"}


def _aim(order: Object) -> Object:
    """What a device is ordered to be; limits, the policy's name and Hold or Apply of the same are not part of it."""
    aim = {key: value for key, value in order.items() if key not in {"intent", "decidedBy", "onRelease"}}
    return {**aim, "released": order["intent"] == "Release"}


@dataclass(slots=True)
class Availability:
    """Feed it the audit entries in order; `excesses` collects the moments that were too much.

    `limits` by policy; `limit` for those not named.
    """

    limit: int
    limits: Mapping[str, int] = field(default_factory=dict)
    watched_from: int = 0
    """resourceVersion from which on excesses count."""
    excesses: list[Excess] = field(default_factory=list)
    most: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By policy, how many nodes were unavailable at the worst moment that counted."""
    moments: int = 0
    _nodes: dict[str, _Node] = field(default_factory=dict)

    def take(self, entry: Object) -> None:
        if (entry.get("responseStatus") or {}).get("code", 500) >= 300:
            return
        about = entry.get("objectRef") or {}
        name, resource = about.get("name") or "", about.get("resource")
        answer = entry.get("responseObject") or {}
        name = name or (answer.get("metadata") or {}).get("name") or ""
        if resource == "npunodestates":
            if entry["verb"] in {"delete", "deletecollection"}:
                self._nodes.pop(name, None)
            elif "spec" in answer:
                self._nodes.setdefault(name, _Node()).take_state(answer)
        elif resource == "nodes" and about.get("subresource") is None:
            node = self._nodes.setdefault(name, _Node())
            if entry["verb"] == "delete":
                node.exists = False
            elif not node.exists:
                node.exists, node.returned = True, True
            if "metadata" in answer:
                node.cordoned_by = (answer["metadata"].get("annotations") or {}).get(CORDONED_BY, "")
        else:
            return
        self._count(entry)

    def _count(self, entry: Object) -> None:
        version = _version(entry)
        if version < self.watched_from:
            return
        self.moments += 1
        unavailable: dict[str, list[str]] = defaultdict(list)
        for name, node in sorted(self._nodes.items()):
            policies = node.unavailable_for()
            node.returned = node.returned and bool(policies)
            for policy in policies if not node.returned else ():
                unavailable[policy].append(name)
        for policy, nodes in unavailable.items():
            self.most[policy] = max(self.most[policy], len(nodes))
            limit = self.limits.get(policy, self.limit)
            if len(nodes) > limit:
                after = f"{entry['user']['username']} {entry['verb']} {entry['requestURI']} at {version}"
                self.excesses.append(Excess(policy, tuple(nodes), limit, after))


def read(log: Path, since: int) -> Iterator[Object]:
    """Entries of an audit log after a byte offset; a line that is still being written is left out."""
    with log.open("rb") as stream:
        stream.seek(since)
        for line in stream:
            if line.endswith(b"\n"):
                yield json.loads(line)


def in_order(entries: Iterable[Object]) -> list[Object]:
    """As the store took the writes in. The log has them in the order of their answers, which is nearly the same."""
    found: list[tuple[int, Object]] = []
    latest = 0
    for entry in entries:
        latest = max(latest, _version(entry))
        found.append((_version(entry) or latest, entry))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def _version(entry: Object) -> int:
    answer = entry.get("responseObject") or {}
    return int((answer.get("metadata") or {}).get("resourceVersion") or 0)
