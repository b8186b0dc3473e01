"""A policy that was changed past Git says so in its status while the change stands, and is otherwise judged as ever."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from controllers.node_policy.plan import read_policy
from controllers.node_policy.settle import SettledPolicies, changes_orders
from crds.break_glass import REASON_ANNOTATION, UNTIL_ANNOTATION
from tests.builders.objects import node_policy
from tests.builders.paper_fleet import PaperFleet, fleet_of

Object = dict[str, Any]


def by_hand(policy: Object, *, reason: str = "node 7 burns") -> Object:
    said = {REASON_ANNOTATION: reason, UNTIL_ANNOTATION: "2026-12-01T10:00:00Z"}
    owned = {"f:metadata": {"f:annotations": {f"f:{key}": {} for key in said}}, "f:spec": {"f:priority": {}}}
    entry = {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": owned}
    return {**policy, "metadata": {**policy["metadata"], "annotations": said, "managedFields": [entry]}}


def conditions(fleet: PaperFleet, name: str = "p") -> dict[str, Object]:
    return {condition["type"]: condition for condition in fleet.status(name)["conditions"]}


def test_it_is_stated_while_it_stands_and_not_written_twice() -> None:
    fleet = fleet_of(nodes=1)
    policy = node_policy("p", priority=7)
    fleet.add_policy(policy)
    fleet.settle()
    assert "BreakGlass" not in conditions(fleet)
    fleet.add_policy(by_hand(policy))
    fleet.settle()
    told = conditions(fleet)
    assert (told["BreakGlass"]["status"], told["BreakGlass"]["reason"]) == ("True", "EditedByHand")
    assert "spec.priority; because: node 7 burns" in told["BreakGlass"]["message"]
    assert (told["Ready"]["status"], told["Ready"]["reason"]) == ("True", "AllDevicesReady")
    fleet.now += timedelta(days=30)
    assert fleet.plan().empty
    fleet.add_policy(policy)
    fleet.settle()
    assert "BreakGlass" not in conditions(fleet)


def test_a_policy_that_cannot_be_understood_says_so_and_who_changed_it() -> None:
    fleet = fleet_of(nodes=1)
    policy = by_hand(node_policy("p"))
    policy["spec"]["devices"] = []
    fleet.add_policy(policy)
    fleet.settle()
    told = conditions(fleet)
    assert told["Accepted"]["reason"] == "Invalid"
    assert told["BreakGlass"]["reason"] == "EditedByHand"


def test_a_long_reason_fits_into_the_condition() -> None:
    fleet = fleet_of(nodes=1)
    fleet.add_policy(by_hand(node_policy("p"), reason="x" * 250_000))
    fleet.settle()
    assert len(conditions(fleet)["BreakGlass"]["message"]) <= 1024


def test_what_was_said_of_a_change_counts_at_once_while_orders_stand_still() -> None:
    settled = SettledPolicies(lambda: 100.0, seconds=0.0)
    policy = node_policy("p", priority=7)
    before, after = read_policy(policy), read_policy(by_hand(policy))
    settled.changed()
    assert settled.take({"p": before}) == {"p": before}
    assert not changes_orders(before, after), "an annotation gives no orders"
    assert settled.take({"p": after}) == {"p": after}
    assert settled.take({"p": before}) == {"p": before}
