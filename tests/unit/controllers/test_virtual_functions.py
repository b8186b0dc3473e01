"""Cards whose virtual functions go to VMs, as the controller sees them: whose functions are, what counts and waits."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from tests.builders.objects import device_report, device_rule, node_policy, report
from tests.builders.paper_binder import Card, address
from tests.builders.paper_fleet import PaperFleet, fleet_of

A, B = address(0), address(1)
PART, OTHER_PART = A.replace(".0", ".1"), A.replace(".0", ".2")
POOL = {"pool": "x"}


def of_functions(number: int, name: str = "functions", **given: Any) -> dict[str, Any]:
    return device_rule(name, passthrough={"virtualFunctions": number}, **given)


def the_functions(name: str = "mine", **given: Any) -> dict[str, Any]:
    """A rule that means virtual functions."""
    return device_rule(name, match={"vendors": ["1eff"], "function": "Virtual"}, **given)


def with_functions() -> PaperFleet:
    """A node with a card, two virtual functions of it, and a second card."""
    fleet = PaperFleet()
    parts = {part: Card(device="1251", parent=A) for part in (PART, OTHER_PART)}
    fleet.add_node("node-0", {A: Card(functions=2), B: Card(), **parts}, labels=POOL)
    return fleet


def deciders(fleet: PaperFleet) -> dict[str, str]:
    return {
        place: f"{o['decidedBy']['policy']}/{o['decidedBy']['rule']}"
        for place, o in fleet.orders("node-0").items()
        if o["intent"] != "Release"
    }


@pytest.mark.parametrize("order", list(permutations(("cards", "functions"))))
def test_functions_belong_to_the_policy_that_decides_their_card_for_them(order: tuple[str, str]) -> None:
    fleet = with_functions()
    policies = {
        "cards": node_policy("cards", rules=[of_functions(2)], priority=2),
        "functions": node_policy("functions", rules=[the_functions(mode="Container")], priority=1),
    }
    for name in order:
        fleet.add_policy(policies[name])
        fleet.settle()
    assert deciders(fleet) == {A: "cards/functions", B: "cards/functions"}
    assert fleet.status("functions")["conflicts"] == [
        {"policy": "cards", "rule": "functions", "nodes": 1, "outcome": "Lost"}
    ]
    assert fleet.conditions("cards")["Conflicted"] == ("True", "WonDevices")
    assert fleet.status("cards")["devices"] == {"matched": 2, "ready": 2}, "cards count, their functions do not"


@pytest.mark.parametrize("order", list(permutations(("cards", "functions"))))
def test_a_policy_of_higher_precedence_keeps_the_functions_that_it_means(order: tuple[str, str]) -> None:
    fleet = with_functions()
    policies = {
        "cards": node_policy("cards", rules=[of_functions(2)], priority=1),
        "functions": node_policy("functions", rules=[the_functions(mode="Container")], priority=2),
    }
    for name in order:
        fleet.add_policy(policies[name])
        fleet.settle()
    ours = {PART: "functions/mine", OTHER_PART: "functions/mine"}
    assert deciders(fleet) == {A: "cards/functions", B: "cards/functions"} | ours


def test_rules_of_one_policy_go_in_their_order_for_functions_too() -> None:
    fleet = with_functions()
    fleet.add_policy(node_policy("p", rules=[of_functions(2, limit=1), the_functions(), device_rule("rest")]))
    fleet.settle()
    assert deciders(fleet) == {A: "p/functions", B: "p/rest"}
    fleet.add_policy(node_policy("p", rules=[the_functions(), of_functions(2)]))
    fleet.settle()
    assert deciders(fleet) == {A: "p/functions", B: "p/functions", PART: "p/mine", OTHER_PART: "p/mine"}


def test_functions_of_a_paused_policy_s_card_go_to_nobody_else() -> None:
    fleet = with_functions()
    fleet.add_policy(node_policy("cards", rules=[of_functions(2)], priority=2))
    fleet.settle()
    fleet.add_policy(node_policy("cards", rules=[of_functions(2)], priority=2, state="Paused"))
    fleet.add_policy(node_policy("functions", rules=[the_functions()], priority=1))
    fleet.settle()
    assert deciders(fleet) == {A: "cards/functions", B: "cards/functions"}


def test_functions_of_a_card_that_goes_whole_are_free_to_other_rules() -> None:
    fleet = with_functions()
    fleet.add_policy(node_policy("p", rules=[the_functions(), device_rule("whole", mode="Container")]))
    fleet.settle()
    assert deciders(fleet) == {A: "p/whole", B: "p/whole", PART: "p/mine", OTHER_PART: "p/mine"}


def test_a_rule_for_virtual_functions_of_cards_means_no_virtual_function() -> None:
    fleet = with_functions()
    match = {"vendors": ["1eff"], "function": "Any"}
    fleet.add_policy(node_policy("p", rules=[of_functions(2, match=match)]))
    fleet.settle()
    assert deciders(fleet) == {A: "p/functions", B: "p/functions"}


def test_its_own_functions_do_not_keep_a_card_from_a_rule_for_functions() -> None:
    """As after the loss of the orders: the card that has functions is taken again, and not another one."""
    fleet = with_functions()
    fleet.add_policy(node_policy("p", rules=[of_functions(2, limit=1)]))
    fleet.settle()
    assert deciders(fleet) == {A: "p/functions"}
    fleet = with_functions()
    fleet.add_policy(node_policy("p", rules=[device_rule("whole", limit=1)]))
    fleet.settle()
    assert deciders(fleet) == {B: "p/whole"}, "whole it cannot be had while it has functions"
    [blocker] = fleet.status("p")["blockers"]
    assert (blocker["device"], blocker["reason"]) == (A, "InUse")
    assert "virtual functions" in blocker["message"]


def test_another_number_disrupts_and_goes_node_by_node() -> None:
    fleet = fleet_of(nodes=3)
    fleet.add_policy(node_policy("p", rules=[of_functions(4)], nodes=POOL))
    fleet.settle()
    fleet.add_policy(node_policy("p", rules=[of_functions(2)], nodes=POOL))
    fleet.write(fleet.plan())
    numbers = {name: fleet.orders(name)[A]["passthrough"]["virtualFunctions"] for name in fleet.nodes}
    assert numbers == {"node-0": 2, "node-1": 4, "node-2": 4}
    assert fleet.conditions("p")["Ready"] == ("False", "RollingOut")
    fleet.settle()
    assert {fleet.orders(name)[A]["passthrough"]["virtualFunctions"] for name in fleet.nodes} == {2}


def test_a_card_whose_function_a_vm_uses_keeps_its_number_and_stops_nobody() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p", rules=[of_functions(4)], nodes=POOL))
    fleet.settle()
    fleet.cards["node-0"][PART] = Card(device="1251", parent=A, users=["qemu-kvm"])
    fleet.settle()
    fleet.add_policy(node_policy("p", rules=[of_functions(2)], nodes=POOL))
    fleet.settle()
    numbers = {name: fleet.orders(name)[A]["passthrough"]["virtualFunctions"] for name in fleet.nodes}
    assert numbers == {"node-0": 4, "node-1": 2}
    [blocker] = fleet.status("p")["blockers"]
    assert (blocker["node"], blocker["device"], blocker["reason"]) == ("node-0", A, "InUse")
    assert f"qemu-kvm on {PART}" in blocker["message"]
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesBlocked")


def test_a_card_whose_functions_were_made_and_are_stuck_stops_the_rollout() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p", rules=[of_functions(4)], nodes=POOL))
    fleet.settle(only=[])
    for name in fleet.nodes:
        fleet.report(name)
    fleet.write(fleet.plan())
    state = fleet.states["node-0"]
    message = f"virtual function {PART}: it is in the way"
    parts = [device_report(PART, "Blocked", "InUse")]
    said = device_report(A, "Blocked", "InUse", message=message, former_driver="xe", virtual_functions=parts)
    generation = state["metadata"]["generation"]
    state["status"]["bindings"] = report([said], generation=generation, boot_id="boot-node-0-1")
    fleet.settle(only=["node-1"])
    blocker, other = fleet.status("p")["blockers"]
    assert (blocker["device"], blocker["message"]) == (A, message)
    assert (other["node"], other["reason"]) == ("node-1", "WaitingForBudget")
    assert not fleet.orders("node-1")
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesBlocked")
