"""What a map's status says of its vGPUs, from orders and reports."""

import random
from collections import Counter
from typing import Any

import pytest

from controllers.profile_map.plan import WRITER, status_of
from controllers.profile_map.view import read_cards, read_map
from crds.models.conditions import find_condition
from crds.models.profile_map import ProfileMapStatus
from tests.builders.objects import NOW, profile_map
from tests.builders.vgpu_fleet import BOOT, card_order, card_report, node_with, vgpu

Object = dict[str, Any]
A, B = "0000:21:00.0", "0000:22:00.0"
V4, V5, V6 = "0000:21:00.4", "0000:21:00.5", "0000:21:00.6"
HALVES = {"L40S-24Q": 2}


def told(
    *states: Object, boots: dict[str, str] | None = None, silent: dict[str, frozenset[str]] | None = None, **given: Any
) -> ProfileMapStatus:
    record = read_map(profile_map("halves", **given))
    nodes = [read_cards(state) for state in states]
    known = {state["metadata"]["name"]: BOOT for state in states} if boots is None else boots
    return status_of(record, nodes, known, silent or {}, NOW)


def ready(status: ProfileMapStatus) -> tuple[str, str]:
    found = find_condition(status.conditions, "Ready")
    assert found is not None
    return str(found.status), found.reason


def totals(status: ProfileMapStatus) -> tuple[int, int, int, int]:
    assert status.totals is not None
    return status.totals.desired, status.totals.ready, status.totals.failed, status.totals.in_use


def test_vgpus_that_are_there_are_counted_and_those_that_a_vm_holds() -> None:
    cards = [card_report(A, [vgpu(V4, "L40S-24Q", "Ready", "Typed", "qemu-kvm"), vgpu(V5, "L40S-24Q")])]
    status = told(node_with("n", [card_order(A, HALVES)], cards))
    assert totals(status) == (2, 2, 0, 1)
    assert ready(status) == ("True", "AllTyped")
    assert status.problems == ()


def test_map_that_no_card_carries_is_ready_and_says_so() -> None:
    assert ready(told()) == ("True", "NotUsed")
    other = node_with("n", [card_order(A, HALVES, mapped="other")], [card_report(A, [])])
    assert totals(told(other)) == (0, 0, 0, 0)


def test_card_that_is_given_back_is_nobodys() -> None:
    state = node_with("n", [card_order(A, HALVES, intent="Release")], [])
    assert ready(told(state)) == ("True", "NotUsed")


def test_failed_vgpu_is_told_with_its_node_and_the_others_still_count() -> None:
    bad = vgpu(V5, "L40S-24Q", "Failed", "TypeFailed", message="EIO (Input/output error)")
    cards = [card_report(A, [vgpu(V4, "L40S-24Q"), bad], "Failed", "TypeFailed")]
    status = told(node_with("n", [card_order(A, HALVES)], cards))
    assert totals(status) == (2, 1, 1, 0)
    assert ready(status) == ("False", "CardsFailed")
    [problem] = status.problems
    assert (problem.node, problem.device, problem.profile, problem.reason) == ("n", V5, "L40S-24Q", "TypeFailed")
    assert "EIO" in problem.message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"boots": {"n": "boot-2"}}, ("Unknown", "Rebooted")),
        ({"boots": {}}, ("Unknown", "Rebooted")),
        ({"silent": {"n": frozenset({WRITER})}}, ("Unknown", "DaemonSilent")),
    ],
)
def test_report_of_another_boot_or_of_a_silent_writer_says_nothing(
    change: dict[str, Any], expected: tuple[str, str]
) -> None:
    cards = [card_report(A, [vgpu(V4, "L40S-24Q"), vgpu(V5, "L40S-24Q")])]
    status = told(node_with("n", [card_order(A, HALVES)], cards), **change)
    assert totals(status) == (2, 0, 0, 0)
    assert ready(status) == expected


def test_node_without_a_writer_is_named() -> None:
    status = told(node_with("n", [card_order(A, HALVES)], None))
    assert ready(status) == ("False", "DaemonMissing")
    assert status.problems[0].node == "n"


def test_answer_to_older_orders_counts_for_nothing() -> None:
    cards = [card_report(A, [vgpu(V4, "L40S-24Q"), vgpu(V5, "L40S-24Q")])]
    status = told(node_with("n", [card_order(A, HALVES)], cards, generation=3, answered=2))
    assert totals(status) == (2, 0, 0, 0)
    assert ready(status) == ("False", "CardsPending")


def test_card_whose_orders_are_of_the_map_as_it_was_is_on_its_way() -> None:
    cards = [card_report(A, [vgpu(V4, "L40S-24Q"), vgpu(V5, "L40S-24Q")])]
    status = told(node_with("n", [card_order(A, HALVES)], cards), layout={"L40S-12Q": 4})
    assert ready(status) == ("False", "CardsPending")
    assert totals(status) == (2, 0, 0, 0)


def test_map_that_cannot_be_understood_says_which_field() -> None:
    status = told(gpus=[])
    assert ready(status) == ("False", "Invalid")
    accepted = find_condition(status.conditions, "Accepted")
    assert accepted is not None and "gpus" in accepted.message


def test_unreadable_report_costs_its_node_only() -> None:
    good = node_with("n", [card_order(A, HALVES)], [card_report(A, [vgpu(V4, "L40S-24Q"), vgpu(V5, "L40S-24Q")])])
    bad = node_with("m", [card_order(A, HALVES)], [{"address": "nonsense"}])
    status = told(good, bad)
    assert totals(status) == (4, 2, 0, 0)
    assert status.problems[0].node == "m"


def test_node_state_that_cannot_be_understood_leaves_every_map_in_doubt() -> None:
    broken = node_with("m", [], None)
    broken["spec"]["devices"] = "none"
    status = told(broken)
    assert ready(status) == ("Unknown", "NodesUnreadable")
    assert (status.problems[0].node, status.problems[0].device) == ("m", None)
    good = node_with("n", [card_order(A, HALVES)], [card_report(A, [vgpu(V4, "L40S-24Q"), vgpu(V5, "L40S-24Q")])])
    assert totals(told(good, broken)) == (2, 2, 0, 0)


def test_card_that_is_called_ready_without_all_its_vgpus_is_not_believed() -> None:
    status = told(node_with("n", [card_order(A, HALVES)], [card_report(A, [vgpu(V4, "L40S-24Q")])]))
    assert totals(status) == (2, 1, 0, 0)
    assert ready(status) == ("False", "CardsPending")


def test_reason_of_the_card_is_told_beside_those_of_its_vgpus() -> None:
    waiting = [vgpu(V4, "L40S-24Q", "Pending", "Typing"), vgpu(V5, "L40S-24Q", "Pending", "Typing")]
    status = told(node_with("n", [card_order(A, HALVES)], [card_report(A, waiting, "Blocked", "ProfileUnknown")]))
    assert ready(status) == ("False", "CardsBlocked")
    assert (status.problems[0].device, status.problems[0].reason) == (A, "ProfileUnknown")


def test_more_of_a_profile_than_the_layout_asks_for_does_not_count_twice() -> None:
    cards = [card_report(A, [vgpu(one, "L40S-24Q") for one in (V4, V5, V6)])]
    assert totals(told(node_with("n", [card_order(A, HALVES)], cards))) == (2, 2, 0, 0)


def test_problems_are_at_most_sixteen_and_the_worst_come_first() -> None:
    states = [node_with(f"n{number:02}", [card_order(A, HALVES)], None) for number in range(20)]
    bad = [card_report(A, [], "Failed", "FunctionsFailed")]
    status = told(*states, node_with("z", [card_order(A, HALVES)], bad))
    assert len(status.problems) == 16
    assert (status.problems[0].node, status.problems[0].reason) == ("z", "FunctionsFailed")


def random_card(chance: random.Random, address: str) -> tuple[Object, Object, Counter[str], Counter[str]]:
    """An order, a report, and what of it a map `halves` asks for, and has."""
    names = ["24Q", "12Q", "6Q"]
    layout = {profile: chance.randrange(1, 4) for profile in chance.sample(names, chance.randrange(1, 3))}
    mapped = chance.choice(["halves", "halves", "other"])
    intent = chance.choice(["Apply", "Hold", "Release"])
    has = [(chance.choice(names), chance.choice(["Ready", "Failed", "Blocked"])) for _ in range(chance.randrange(5))]
    vgpus = [vgpu(f"{address[:-1]}{4 + n}", profile, state, "Any") for n, (profile, state) in enumerate(has)]
    worst = "Ready" if all(state == "Ready" for _, state in has) else "Failed"
    counts = mapped == "halves" and intent != "Release"
    good = Counter(profile for profile, state in has if state == "Ready")
    there = Counter({profile: min(good[profile], count) for profile, count in layout.items()})
    order = card_order(address, layout, mapped=mapped, intent=intent)
    report = card_report(address, vgpus, worst)
    return order, report, Counter(layout) if counts else Counter(), there if counts else Counter()


def test_counts_are_those_of_a_naive_recount_whatever_the_order_of_arrival() -> None:
    ran = 0
    for seed in range(2500):
        chance = random.Random(seed)
        states, desired, there = [], Counter[str](), Counter[str]()
        for number in range(chance.randrange(4)):
            current = chance.random() < 0.7
            cards = [random_card(chance, address) for address in (A, B)[: chance.randrange(1, 3)]]
            for _, _, wanted, has in cards:
                desired += wanted
                there += has if current else Counter()
            orders, reports = [card[0] for card in cards], [card[1] for card in cards]
            states.append(node_with(f"n{number}", orders, reports, boot_id=BOOT if current else "boot-0"))
        gpus = [
            {"match": {"products": ["L40S"]}, "layout": entry["vgpu"]["layout"]}
            for state in states
            for entry in state["spec"]["devices"]
        ]
        given: dict[str, Any] = {"gpus": gpus} if gpus else {}
        first = told(*states, **given)
        chance.shuffle(states)
        assert told(*states, **given) == first
        assert {p.profile: p.desired for p in first.profiles} == dict(desired)
        assert totals(first)[:2] == (desired.total(), there.total())
        ran += 1
    print(f"{ran} fleets")
    assert ran >= 2000
