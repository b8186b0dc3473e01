"""The oracle of unavailability on audit logs made by hand: it must refuse what is too much, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.builders import objects
from tests.cluster.faults.availability import Availability, in_order, read

Object = dict[str, Any]
PLACE, OTHER = "0000:20:00.0", "0000:21:00.0"


class Log:
    """Audit entries of one fleet, one write after the other."""

    def __init__(self, nodes: int = 5) -> None:
        self.entries: list[Object] = []
        self.version = 100
        self.generations = {f"node-{number}": 0 for number in range(nodes)}
        self.orders: dict[str, list[Object]] = {}
        self.reports: dict[str, Object] = {}

    def order(self, *names: str, **order: Any) -> None:
        """New orders for the card of each node."""
        for name in names:
            self.generations[name] += 1
            self.orders[name] = [objects.desired_device(PLACE, **order)]
            self._write("npunodestates", name, self._state(name))

    def answer(self, *names: str, state: str = "Ready", reason: str = "Bound", generation: int = 0) -> None:
        """The binder reports on the present orders, or on those of a generation."""
        for name in names:
            reports = [objects.device_report(PLACE, state, reason)]
            self.reports[name] = objects.report(reports, generation=generation or self.generations[name])
            self._write("npunodestates", name, self._state(name), subresource="status")

    def node(self, name: str, verb: str = "patch", **annotations: str) -> None:
        node = {"metadata": {"name": name, "annotations": {f"npufleet.io/{k}": v for k, v in annotations.items()}}}
        self._write("nodes", name, node if verb != "delete" else {"kind": "Status"}, verb=verb)

    def _state(self, name: str) -> Object:
        meta = {"generation": self.generations[name]}
        bindings: dict[str, Any] = {"bindings": self.reports[name]} if name in self.reports else {}
        return objects.node_state(name, devices=self.orders.get(name, []), meta=meta, **bindings)

    def _write(self, resource: str, name: str, body: Object, *, verb: str = "patch", subresource: str = "") -> None:
        self.version += 1
        answer = json.loads(json.dumps(body))
        if "metadata" in answer:
            answer["metadata"]["resourceVersion"] = str(self.version)
        about = {"resource": resource, "name": name, **({"subresource": subresource} if subresource else {})}
        self.entries.append(
            {
                "verb": verb,
                "user": {"username": "somebody"},
                "requestURI": f"/{resource}/{name}",
                "objectRef": about,
                "responseStatus": {"code": 200},
                "responseObject": answer,
            }
        )


def excesses(log: Log, limit: int = 3, **more: Any) -> list[tuple[str, ...]]:
    found = Availability(limit, **more)
    for entry in in_order(log.entries):
        found.take(entry)
    return [excess.nodes for excess in found.excesses]


ALL = tuple(f"node-{number}" for number in range(4))


def test_as_many_as_allowed_are_fine_and_one_more_is_told_with_its_nodes() -> None:
    log = Log()
    log.order(*ALL[:3])
    assert excesses(log) == []
    log.order(ALL[3])
    assert excesses(log) == [ALL]
    assert excesses(log, limit=4) == []
    assert excesses(log, limits={"policy": 4}) == []


def test_a_node_counts_until_its_report_is_of_the_order_that_moved_it() -> None:
    log = Log()
    log.order(*ALL[:3])
    log.answer(ALL[0])
    log.order(ALL[3])
    assert excesses(log) == []
    log.order(ALL[0], mode="Container")
    assert excesses(log) == [ALL], "the old report does not speak of the new orders"
    log.answer(ALL[0], generation=1)
    assert len(excesses(log)) == 2, "a late report of former orders neither"


def test_failed_and_pending_count_and_blocked_counts_only_where_users_are_waited_for() -> None:
    for state, reason, expected in (
        ("Failed", "BindFailed", True),
        ("Pending", "Binding", True),
        ("Blocked", "Vetoed", False),
        ("Blocked", "InUse", True),
        ("Released", "Restored", False),
    ):
        log = Log()
        log.order(*ALL[:3])
        log.answer(ALL[0], state=state, reason=reason)
        log.order(ALL[3])
        assert bool(excesses(log)) == expected, (state, reason)


def test_holding_and_changes_of_limits_or_deciders_move_nothing() -> None:
    log = Log()
    log.order(*ALL)
    log.answer(*ALL)
    first = len(excesses(log))
    log.order(*ALL, policy="another")
    log.order(*ALL, intent="Hold", policy="another")
    assert len(excesses(log)) == first
    log.order(*ALL, mode="Container", intent="Hold", policy="another")
    assert len(excesses(log)) == first
    log.order(*ALL, mode="Container", policy="another")
    assert len(excesses(log)) == first + 1, "what was held moves once it is applied"


def test_a_release_counts_like_any_move() -> None:
    log = Log()
    log.order(*ALL)
    log.answer(*ALL)
    first = len(excesses(log))
    log.order(*ALL, intent="Release")
    assert len(excesses(log)) == first + 1


def test_nodes_cordoned_for_a_policy_count_for_it() -> None:
    log = Log()
    for name in ALL[:3]:
        log.node(name, **{"cordoned-by": "policy"})
    assert excesses(log) == []
    log.node(ALL[3], **{"cordoned-by": "other"})
    assert excesses(log) == []
    log.node("node-4", **{"cordoned-by": "policy"})
    assert excesses(log) == [(*ALL[:3], "node-4")]
    log.node(ALL[0])
    assert len(excesses(log)) == 1


def test_a_node_that_is_gone_does_not_count_and_its_return_in_mid_move_is_not_held_against_the_limit() -> None:
    log = Log()
    log.order(*ALL[:3])
    log.node(ALL[0], verb="delete")
    log.order(ALL[3])
    log.node(ALL[0], verb="create")
    assert excesses(log) == []
    log.order("node-4")
    assert excesses(log) == [(*ALL[1:], "node-4")]
    log.answer(*ALL[1:], "node-4")
    log.answer(ALL[0])
    log.order(*ALL, mode="Container")
    assert excesses(log)[-1] == ALL, "once it has come to rest it counts like the others"


def test_policies_are_counted_apart_and_only_from_where_they_are_watched() -> None:
    log = Log()
    log.order(*ALL[:2], policy="one")
    log.order(*ALL[2:], policy="two")
    assert excesses(log) == []
    assert excesses(log, limit=1) == [ALL[:2], ALL[:2], ALL[:2], ALL[2:]]
    assert excesses(log, limit=1, watched_from=log.version + 1) == []


def test_entries_are_taken_in_the_order_of_their_versions_and_refused_writes_not_at_all() -> None:
    log = Log()
    log.order(*ALL[:3])
    log.answer(ALL[0])
    log.order(ALL[3])
    log.entries[-2:] = reversed(log.entries[-2:])
    assert excesses(log) == []
    log.order("node-4")
    log.entries[-1]["responseStatus"]["code"] = 409
    assert excesses(log) == []


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text('{"a": 1}\n{"b": 2}\n{"c"')
    assert list(read(path, 0)) == [{"a": 1}, {"b": 2}]
    assert list(read(path, 9)) == [{"b": 2}]
