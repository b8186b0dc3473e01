"""Whoever was held is held until it is back: in whatever order they return, however often the controller dies."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.node_policy.plan import Cache
from tests.builders.examples import Digits, at_least
from tests.builders.objects import device_rule, node_policy
from tests.builders.paper_binder import address
from tests.builders.paper_fleet import PaperFleet

FLOOR = 2000
TRIES = settings(max_examples=FLOOR, deadline=None, derandomize=True, database=None)


@cache
def settled(nodes: int, count: int, paused: int) -> bytes:
    """A fleet, pickled: every policy decides one card on each node; all settled, and then some of them paused."""
    fleet = PaperFleet()
    for number in range(nodes):
        fleet.add_node(f"n{number}", count)
    for number in range(count):
        add(fleet, number)
    fleet.settle()
    for number in range(count):
        if paused >> number & 1:
            add(fleet, number, state="Paused")
    fleet.settle()
    return pickle.dumps(fleet)


def add(fleet: PaperFleet, number: int, **spec: Any) -> None:
    match = {"vendors": ["1eff"], "devices": ["1250"], "addresses": [address(number)]}
    fleet.add_policy(node_policy(f"p{number}", rules=[device_rule("r", match=match)], **spec))


def carry_out(fleet: PaperFleet, known: Cache, digits: Digits) -> int:
    """One plan, of which the controller may write but a part of the orders before it dies; returns how many."""
    made = fleet.plan(known)
    changed = [name for name, change in made.specs.items() if change is not None]
    most = digits.pick((len(changed),) * 3 + (0, 1, 2))
    kept = changed[:most]
    fleet.write(replace(made, specs={name: change if name in kept else None for name, change in made.specs.items()}))
    if most < len(changed) or digits.pick((False, False, True)):
        fleet.restart()
    for name in fleet.nodes:
        if digits.pick((True, True, False)):
            fleet.report(name)
    return len(kept)


def let_go(fleet: PaperFleet, policies: set[str]) -> list[tuple[str, str]]:
    """Devices of these policies that are given back, or in no order any more."""
    found = []
    for name in fleet.nodes:
        orders = fleet.orders(name)
        for policy in policies:
            order = orders.get(address(int(policy[1:])))
            if order is None or order["intent"] == "Release" or order["decidedBy"]["policy"] != policy:
                found.append((name, policy))
    return found


def test_whoever_was_held_is_held_until_it_is_back() -> None:
    alone = 0
    with at_least(FLOOR, "held until they are back") as examples:

        @TRIES
        @given(st.integers(1, 2), st.integers(3, 5), st.integers(0, 31), st.integers(0, 10**24))
        def check(nodes: int, count: int, paused: int, number: int) -> None:
            nonlocal alone
            examples.one()
            digits, known = Digits(number), Cache()
            fleet: PaperFleet = pickle.loads(settled(nodes, count, paused if paused < 8 else 0))
            before = fleet.bound()
            names = sorted(fleet.policies)
            gone = {name: fleet.policies.pop(name) for name in names[: digits.pick((count, max(3, count - 1)))]}
            while not carry_out(fleet, known, digits):  # before a first write nobody can know of the hold
                assert not let_go(fleet, set(gone))
            while gone:
                back = digits.pick(sorted(gone))
                fleet.policies[back] = gone.pop(back)
                for _ in range(digits.pick((1, 1, 2, 3))):
                    carry_out(fleet, known, digits)
                    alone += 0 < len(gone) < 3
                    assert not let_go(fleet, set(gone))
            fleet.settle()
            assert fleet.bound() == before
            assert not any("removal" in entry for s in fleet.states.values() for entry in s["spec"]["rollouts"])
            fleet.restart()
            assert fleet.plan().empty

        check()
    assert alone >= FLOOR, "few were ever held alone"
