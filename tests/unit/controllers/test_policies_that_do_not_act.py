"""Policies that are paused or cannot be understood keep what they have."""

from __future__ import annotations

from tests.builders.objects import device_rule, node_policy
from tests.builders.paper_binder import address
from tests.builders.paper_fleet import fleet_of

A, B = address(0), address(1)
POOL = {"pool": "x"}


def test_paused_policy_holds_what_it_has_and_nobody_takes_over() -> None:
    fleet = fleet_of(cards=2)
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=1)], priority=200))
    fleet.settle()
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=2, mode="Container")], priority=200, state="Paused"))
    fleet.add_policy(node_policy("low", mode="HardVNPU"))
    fleet.settle()
    assert fleet.orders("node-0")[A] | {"intent": "Hold"} == fleet.orders("node-0")[A]
    assert fleet.orders("node-0")[A]["mode"] == "Passthrough"
    assert set(fleet.orders("node-0")) == {A}, "B is claimed by the paused policy: nobody gets it"
    assert fleet.conditions("p")["Ready"] == ("Unknown", "Paused")
    assert fleet.conditions("p")["Progressing"] == ("False", "Paused")
    assert fleet.conditions("low")["Conflicted"] == ("True", "LostDevices")
    assert fleet.cards["node-0"][A].bound


def test_device_that_a_paused_policy_claims_and_does_not_have_is_a_conflict_for_those_below() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p", priority=200, state="Paused"))
    fleet.add_policy(node_policy("low", mode="Container"))
    fleet.settle()
    assert fleet.orders("node-0") == {}
    assert fleet.conditions("low")["Conflicted"] == ("True", "LostDevices")
    assert fleet.conditions("p")["Conflicted"] == ("True", "WonDevices")


def test_paused_policy_is_outranked_as_usual() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.add_policy(node_policy("p", state="Paused"))
    fleet.add_policy(node_policy("high", mode="Container", priority=500))
    fleet.settle()
    assert fleet.orders("node-0")[A]["decidedBy"]["policy"] == "high"


def test_paused_policy_that_was_never_in_force_disturbs_nobody_else_devices() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("low"))
    fleet.settle()
    writes = fleet.writes
    fleet.add_policy(node_policy("high", mode="Container", priority=500, state="Paused"))
    fleet.settle()
    assert fleet.intents() == {A: "Apply"}
    assert fleet.orders("node-0")[A]["decidedBy"]["policy"] == "low"
    assert fleet.writes == writes + 1, "the status of the new policy"


def test_paused_policy_is_held_where_its_selector_no_longer_reaches() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p", nodes=POOL))
    fleet.settle()
    fleet.add_policy(node_policy("p", nodes={"pool": "y"}, state="Paused"))
    fleet.settle()
    assert fleet.intents() == {A: "Hold"}
    fleet.add_policy(node_policy("p", nodes=POOL))
    made = fleet.plan()
    assert made.waiting == {}
    fleet.settle()
    assert fleet.intents() == {A: "Apply"}


def test_policy_that_cannot_be_understood_keeps_its_devices() -> None:
    fleet = fleet_of(cards=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    broken = node_policy("p")
    broken["spec"]["devices"][0]["mode"] = "Teleport"
    fleet.add_policy(broken)
    fleet.add_policy(node_policy("high", mode="Container", priority=999))
    fleet.settle()
    assert fleet.intents() == {A: "Hold", B: "Hold"}
    assert fleet.conditions("p")["Accepted"] == ("False", "Invalid")
    assert fleet.conditions("p")["Degraded"] == ("True", "Invalid")
    assert fleet.conditions("high")["Conflicted"] == ("True", "LostDevices")
    fleet.add_policy(node_policy("p", priority=1))
    fleet.settle()
    assert {o["decidedBy"]["policy"] for o in fleet.orders("node-0").values()} == {"high"}
