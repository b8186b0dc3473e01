"""The identity in an order: what the device at an address must be, also while it does not tell all of it."""

import pytest

from tests.builders.objects import device_rule, node_policy
from tests.builders.paper_binder import Card, address
from tests.builders.paper_fleet import PaperFleet

A = address(0)
BY_SERIAL = device_rule(match={"vendors": ["1eff"], "serials": ["SN-1"]})


def fleet_with(card: Card, policy: dict[str, object]) -> PaperFleet:
    fleet = PaperFleet()
    fleet.add_node("node-0", {A: card})
    fleet.add_policy(policy)
    fleet.settle()
    return fleet


@pytest.mark.parametrize("policy", [node_policy("p"), node_policy("p", rules=[BY_SERIAL])], ids=["product", "serial"])
def test_serial_number_that_is_not_told_for_a_moment_changes_no_order(policy: dict[str, object]) -> None:
    fleet = fleet_with(Card(serial="SN-1"), policy)
    assert fleet.orders("node-0")[A]["identity"]["serial"] == "SN-1"
    writes = fleet.writes
    fleet.cards["node-0"][A].serial = ""
    fleet.settle()
    fleet.cards["node-0"][A].serial = "SN-1"
    fleet.settle()
    assert fleet.writes == writes


def test_serial_number_of_another_kind_of_device_is_not_kept() -> None:
    fleet = fleet_with(Card(serial="SN-1"), node_policy("p", rules=[device_rule(match={"vendors": ["1eff"]})]))
    fleet.cards["node-0"][A] = Card(product="RBLN-CA22", device="1220")
    fleet.settle()
    assert fleet.orders("node-0")[A]["identity"] == {"vendor": "1eff", "device": "1220"}


def test_serial_number_that_is_told_replaces_the_ordered_one() -> None:
    fleet = fleet_with(Card(serial="SN-1"), node_policy("p"))
    fleet.cards["node-0"][A] = Card(serial="SN-2")
    fleet.settle()
    assert fleet.orders("node-0")[A]["identity"]["serial"] == "SN-2"
