"""Which policy decides which device: precedence, first match, limits, conflicts on both sides, devices left alone."""

from itertools import permutations
from typing import Any

import pytest

from tests.builders.objects import device_rule, node_policy
from tests.builders.paper_binder import Card, address
from tests.builders.paper_fleet import PaperFleet

A, B, C, D = (address(n) for n in range(4))


def ca22(**given: Any) -> Card:
    return Card(product="RBLN-CA22", device="1220", **given)


def fleet_of(cards: dict[str, Card] | int = 4, **labels: str) -> PaperFleet:
    fleet = PaperFleet()
    fleet.add_node("node", cards, labels=labels)
    return fleet


def modes(fleet: PaperFleet, node: str = "node") -> dict[str, str]:
    return {place: f"{o['mode']}/{o['decidedBy']['policy']}" for place, o in fleet.orders(node).items()}


def test_first_matching_rule_of_a_policy_decides() -> None:
    fleet = fleet_of({A: Card(), B: ca22()})
    rules = [
        device_rule("one", products=["RBLN-CA22"], mode="Container"),
        device_rule("all", match={"vendors": ["1eff"]}),
    ]
    fleet.add_policy(node_policy("p", rules=rules))
    fleet.settle()
    assert modes(fleet) == {A: "Passthrough/p", B: "Container/p"}
    assert fleet.orders("node")[B]["decidedBy"]["rule"] == "one"


def test_higher_priority_wins_device_by_device_and_both_sides_show_it() -> None:
    fleet = fleet_of({A: Card(), B: ca22()})
    fleet.add_policy(
        node_policy("low", match=None, rules=[device_rule("all", match={"vendors": ["1eff"]})], priority=1)
    )
    fleet.add_policy(node_policy("high", products=["RBLN-CA22"], mode="Container", priority=2))
    fleet.settle()
    assert modes(fleet) == {A: "Passthrough/low", B: "Container/high"}
    assert fleet.status("high")["conflicts"] == [{"policy": "low", "rule": "all", "nodes": 1, "outcome": "Won"}]
    assert fleet.status("low")["conflicts"] == [{"policy": "high", "rule": "rule", "nodes": 1, "outcome": "Lost"}]
    assert fleet.conditions("high")["Conflicted"] == ("True", "WonDevices")
    assert fleet.conditions("low")["Conflicted"] == ("True", "LostDevices")
    assert fleet.conditions("high")["Ready"] == ("True", "AllDevicesReady")
    assert fleet.status("low")["devices"] == {"matched": 1, "ready": 1}, "lost devices are not counted"


def test_overlapping_policies_have_the_same_winner_in_every_order_of_creation() -> None:
    outcomes = []
    policies = [
        node_policy("b", mode="Container"),
        node_policy("a", mode="Passthrough"),
        node_policy("c", mode="HardVNPU"),
    ]
    for order in permutations(policies):
        fleet = fleet_of()
        for policy in order:
            fleet.add_policy(policy)
            fleet.settle()
        outcomes.append((fleet.states["node"]["spec"], [fleet.conditions(n)["Conflicted"] for n in "abc"]))
        assert set(modes(fleet).values()) == {"Passthrough/a"}, "equal priorities: the name that sorts first"
        assert fleet.conditions("b")["Conflicted"] == fleet.conditions("c")["Conflicted"] == ("True", "LostDevices")
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_policies_that_want_the_same_are_no_conflict() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("a", priority=700))
    # The effective value spelled out is the same wish.
    rule = device_rule(passthrough={"driver": "Auto", "iommu": "Auto", "companions": "Refuse"})
    fleet.add_policy(node_policy("b", rules=[rule]))
    fleet.settle()
    assert fleet.conditions("a")["Conflicted"] == fleet.conditions("b")["Conflicted"] == ("False", "NoConflict")
    assert fleet.status("b")["devices"]["matched"] == 0


def test_priority_swap_in_one_go_moves_every_device_once() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("a", priority=1))
    fleet.add_policy(node_policy("b", mode="Container", priority=2))
    fleet.settle()
    fleet.add_policy(node_policy("a", priority=2))
    fleet.add_policy(node_policy("b", mode="Container", priority=1))
    generation = fleet.states["node"]["metadata"]["generation"]
    fleet.settle()
    assert set(modes(fleet).values()) == {"Passthrough/a"}
    assert fleet.states["node"]["metadata"]["generation"] == generation + 1


@pytest.mark.parametrize("match", [{}, {"vendors": []}, None])
def test_empty_device_match_selects_nothing_and_is_said(match: object) -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p", rules=[{"name": "r", "match": match, "mode": "Passthrough"}]))
    fleet.settle()
    assert fleet.orders("node") == {}
    assert fleet.conditions("p")["Accepted"] == ("False", "Invalid")
    assert fleet.conditions("p")["Ready"] == ("False", "Invalid")
    [accepted] = [c for c in fleet.status("p")["conditions"] if c["type"] == "Accepted"]
    assert "spec.devices[0].match" in accepted["message"]


def test_empty_node_selector_is_every_node() -> None:
    fleet = fleet_of(1, pool="a")
    fleet.add_node("other", 1)
    fleet.add_policy(node_policy("p", node_selector={}))
    fleet.settle()
    assert fleet.status("p")["nodes"]["matched"] == 2


def test_limit_takes_the_lowest_addresses_and_leaves_the_rest_to_the_next_rule() -> None:
    fleet = fleet_of()
    rules = [device_rule("vms", limit=2), device_rule("rest", mode="Container")]
    fleet.add_policy(node_policy("p", rules=rules))
    fleet.settle()
    assert [o["decidedBy"]["rule"] for o in fleet.orders("node").values()] == ["vms", "vms", "rest", "rest"]


def test_limit_keeps_what_the_rule_has_when_a_lower_address_comes() -> None:
    fleet = fleet_of({C: Card(), D: Card()})
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=2)]))
    fleet.settle()
    fleet.cards["node"] |= {A: Card(), B: Card()}
    fleet.report("node")
    fleet.settle()
    assert set(modes(fleet)) == {C, D}


def test_lowered_limit_keeps_the_lowest_addresses_and_gives_the_rest_back() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=2)]))
    made = fleet.plan()
    change = made.specs["node"]
    assert change is not None
    assert [d["intent"] for d in change.spec()["devices"]] == ["Apply", "Apply", "Release", "Release"]
    fleet.settle()
    assert set(modes(fleet)) == {A, B}
    assert [card.bound for card in fleet.cards["node"].values()] == [True, True, False, False]


@pytest.mark.parametrize(
    ("card", "reason"), [(Card(users=["qemu-kvm"]), "InUse"), (Card(vetoes=["root disk"]), "Vetoed")]
)
def test_device_that_cannot_be_had_uses_up_no_limit_and_is_reported(card: Card, reason: str) -> None:
    fleet = fleet_of({A: card, B: Card(), C: Card(), D: Card()})
    rules = [device_rule("vms", limit=2), device_rule("rest", mode="Container")]
    fleet.add_policy(node_policy("p", rules=rules))
    fleet.settle()
    assert {p: o["decidedBy"]["rule"] for p, o in fleet.orders("node").items()} == {
        A: "rest",
        B: "vms",
        C: "vms",
        D: "rest",
    }
    [blocker] = [b for b in fleet.status("p")["blockers"] if b["device"] == A]
    assert blocker["reason"] == reason
    assert "not counted in limit 2 of rule vms" in blocker["message"]
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert fleet.status("p")["nodes"]["blocked"] == 0


def test_device_of_the_rule_that_a_vm_uses_still_counts() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=2)]))
    fleet.settle()
    fleet.cards["node"][A].users = ["qemu-kvm"]
    fleet.report("node")
    fleet.settle()
    assert set(modes(fleet)) == {A, B}
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_device_that_others_took_before_it_could_be_moved_makes_room() -> None:
    fleet = fleet_of({A: Card(users=["training"]), B: Card(), C: Card()})
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesBlocked")
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=2)]))
    fleet.settle()
    assert set(modes(fleet)) == {B, C}, "A was never moved: it uses up no limit"
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_device_without_limit_stays_decided_while_it_is_blocked() -> None:
    fleet = fleet_of({A: Card(vetoes=["default route"]), B: Card()})
    fleet.add_policy(node_policy("p"))
    fleet.add_policy(node_policy("q", mode="Container", priority=1))
    fleet.settle()
    assert modes(fleet) == {A: "Passthrough/p", B: "Passthrough/p"}
    assert fleet.status("p")["devices"] == {"matched": 2, "ready": 1}
    [blocker] = fleet.status("p")["blockers"]
    assert (blocker["device"], blocker["reason"], blocker["message"]) == (A, "Vetoed", "default route")
    assert fleet.status("p")["nodes"] == {"matched": 1, "updated": 1, "ready": 0, "blocked": 1}


def test_unmanaged_device_gets_no_order_whatever_lower_priorities_say() -> None:
    fleet = fleet_of(2)
    fleet.add_policy(node_policy("hands-off", mode="Unmanaged", priority=1000))
    fleet.add_policy(node_policy("all"))
    fleet.settle()
    assert modes(fleet) == {}
    assert fleet.conditions("hands-off")["Ready"] == ("True", "AllDevicesReady")
    assert fleet.status("hands-off")["devices"] == {"matched": 2, "ready": 2}
    assert fleet.conditions("all")["Ready"] == ("True", "NoDevicesMatched")
    assert fleet.conditions("all")["Conflicted"] == ("True", "LostDevices")


def test_device_that_becomes_unmanaged_is_given_back_first() -> None:
    fleet = fleet_of(1)
    fleet.add_policy(node_policy("all"))
    fleet.settle()
    fleet.add_policy(node_policy("hands-off", mode="Unmanaged", priority=1000))
    made = fleet.plan()
    fleet.write(made)
    assert fleet.orders("node")[A]["intent"] == "Release"
    assert not fleet.cards["node"][A].bound or fleet.conditions("all")
    fleet.settle()
    assert modes(fleet) == {}
    assert not fleet.cards["node"][A].bound


def test_address_of_another_kind_is_reported_and_never_ordered() -> None:
    fleet = fleet_of({A: ca22(), B: Card()})
    rule = device_rule(match={"products": ["RBLN-CA25"], "addresses": [A, B]})
    fleet.add_policy(node_policy("p", rules=[rule]))
    fleet.settle()
    assert set(modes(fleet)) == {B}
    [blocker] = fleet.status("p")["blockers"]
    assert (blocker["device"], blocker["reason"]) == (A, "AddressOfAnotherKind")
    assert "1eff:1220 (RBLN-CA22)" in blocker["message"]
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ({"vendors": ["1eff"]}, {A, B}),
        ({"vendors": ["1eff"], "devices": ["1220"]}, {B}),
        ({"classes": ["1200"]}, {A, B}),
        ({"classes": ["120001"]}, set()),
        ({"products": ["RBLN-CA22"]}, {B}),
        ({"vendors": ["1eff"], "numaNodes": [1]}, {B}),
        ({"vendors": ["1eff"], "serials": ["S-1"]}, {A}),
        ({"vendors": ["1eff"], "function": "Virtual"}, set()),
        ({"vendors": ["1eff"], "function": "Any"}, {A, B}),
        ({"subsystems": ["1eff:0001"]}, set()),
    ],
)
def test_all_criteria_of_a_match_must_hold(match: dict[str, object], expected: set[str]) -> None:
    fleet = fleet_of({A: Card(serial="S-1"), B: ca22(numa_node=1)})
    fleet.add_policy(node_policy("p", rules=[device_rule(match=match)]))
    fleet.settle()
    assert set(modes(fleet)) == expected


def test_device_whose_numa_node_is_unknown_is_not_matched_by_it() -> None:
    fleet = fleet_of({A: Card(numa_node=None)})
    fleet.add_policy(node_policy("p", rules=[device_rule(match={"vendors": ["1eff"], "numaNodes": [0]})]))
    fleet.settle()
    assert modes(fleet) == {}


def test_order_tells_who_the_device_is_and_every_effective_value() -> None:
    fleet = fleet_of({A: Card(serial="S-1")})
    fleet.add_policy(node_policy("p", driver_name="npu.rebellions.ai", on_release="Leave"))
    fleet.settle()
    assert fleet.orders("node")[A] == {
        "address": A,
        "identity": {"vendor": "1eff", "device": "1250", "serial": "S-1"},
        "mode": "Passthrough",
        "intent": "Apply",
        "driverName": "npu.rebellions.ai",
        "passthrough": {"driver": "Auto", "companions": "Refuse", "iommu": "Auto"},
        "onRelease": "Leave",
        "decidedBy": {"policy": "p", "rule": "rule"},
    }
    assert fleet.states["node"]["spec"]["rollouts"] == [
        {
            "policy": "p",
            "maxUnavailable": 1,
            "drain": "Never",
            "drainTimeoutSeconds": 600,
            "progressDeadlineSeconds": 900,
        }
    ]


def test_revision_depends_on_the_orders_and_on_nothing_else() -> None:
    first, second = fleet_of(1), fleet_of(1)
    first.add_policy(node_policy("p"))
    second.add_policy(node_policy("p", meta={"generation": 9, "annotations": {"npufleet.io/revision": "abc"}}))
    first.settle()
    second.settle()
    revision = first.states["node"]["spec"]["revision"]
    assert revision == second.states["node"]["spec"]["revision"]
    assert len(revision) == 12
    second.add_policy(node_policy("p", on_release="Leave"))
    second.settle()
    assert revision != second.states["node"]["spec"]["revision"]


def test_card_that_fell_off_stays_ordered_and_a_spare_takes_its_place() -> None:
    fleet = fleet_of({A: Card(), B: Card()})
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=1)]))
    fleet.settle()
    del fleet.cards["node"][A]
    fleet.report("node")
    fleet.settle()
    assert set(modes(fleet)) == {A, B}
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesBlocked")
    [blocker] = fleet.status("p")["blockers"]
    assert (blocker["device"], blocker["reason"]) == (A, "DeviceMissing")
    fleet.policies.clear()
    fleet.settle()
    assert modes(fleet) == {}, "a device that is not there has nothing to be given back"


def test_another_card_at_the_address_is_a_change_with_an_identity_of_its_own() -> None:
    fleet = fleet_of({A: Card()})
    fleet.add_policy(node_policy("p", rules=[device_rule(match={"vendors": ["1eff"]})]))
    fleet.settle()
    fleet.cards["node"][A] = ca22()
    fleet.report("node")
    fleet.settle()
    assert fleet.orders("node")[A]["identity"]["device"] == "1220"
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
