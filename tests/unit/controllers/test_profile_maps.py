"""Rules of mode VGPU: their maps are resolved into the orders of each card, and rolled out like policies."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from controllers.node_policy.plan import Cache
from controllers.node_policy.plan.read import read_map, read_state
from controllers.node_policy.plan.users import Usage
from controllers.node_policy.plan.view import Subtree
from tests.builders.objects import device_report, device_rule, node_policy, profile_map, report
from tests.builders.paper_binder import Card, address
from tests.builders.paper_fleet import PaperFleet

A, B = address(0), address(1)
VFS = ("0000:20:00.4", "0000:20:00.5")
HALVES = {"L40S-24Q": 2}
QUARTERS = {"L40S-12Q": 4}
MIXED = {"L40S-24Q": 1, "L40S-12Q": 2}
MIXED_CARRIED = {VFS[0]: "L40S-24Q", VFS[1]: "L40S-12Q"}
HALVES_CARRIED = dict.fromkeys(VFS, "L40S-24Q")
PODS = ("3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10", "7d1f0f7e-8a43-4b0b-8a35-0e7a7d3c2b11")


def l40s(**given: Any) -> Card:
    return Card(product="L40S", vendor="10de", device="26b9", **given)


def rule(name: str = "vgpu", product: str = "L40S", mapped: str = "halves", **given: Any) -> dict[str, Any]:
    match = {"products": [product]}
    return device_rule(name, mode="VGPU", match=match, vgpu={"profileMapRef": {"name": mapped}}, **given)


def fleet(cards: dict[str, Card] | None = None, **maps: dict[str, int]) -> PaperFleet:
    """One node of L40S under a policy that refers to the map `halves`; maps by name with their layouts."""
    found = PaperFleet()
    found.add_node("node-0", {A: l40s()} if cards is None else cards, labels={"pool": "x"})
    found.maps = {name: profile_map(name, layout=layout) for name, layout in maps.items()}
    found.add_policy(node_policy("p", rules=[rule()]))
    return found


def typed(
    given: PaperFleet,
    *addresses: str,
    state: str = "Ready",
    reason: str = "Typed",
    vgpus: Mapping[str, str] | None = None,
) -> None:
    """The profile writer answers the present orders; `vgpus` are profiles by virtual function, all as ordered."""
    obj = given.states["node-0"]
    ready = {"state": "Ready", "reason": "Typed"}
    functions = [{"address": one, "profile": profile} | ready for one, profile in (vgpus or {}).items()]
    cards = [device_report(one, state, reason, vgpus=functions) for one in addresses or (A,)]
    boot = given.nodes["node-0"]["status"]["nodeInfo"]["bootID"]
    obj["status"]["profiles"] = report(cards, generation=obj["metadata"]["generation"], boot_id=boot)


def vgpu(given: PaperFleet, place: str = A) -> Any:
    return given.orders("node-0")[place]["vgpu"]


def blockers(given: PaperFleet) -> list[tuple[str, str]]:
    return [(one["device"], one["reason"]) for one in given.status("p")["blockers"]]


def test_order_of_a_card_carries_the_layout_of_its_map_with_every_effective_value() -> None:
    given = fleet(halves=HALVES)
    given.settle()
    assert vgpu(given) == {
        "profileMapRef": {"name": "halves"},
        "framework": "Auto",
        "mixedSizes": "Forbid",
        "unassigned": "Leave",
        "layout": [{"profile": "L40S-24Q", "count": 2}],
    }
    typed(given)
    given.settle()
    assert given.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_first_entry_that_matches_the_card_decides_and_equal_profiles_are_summed_up() -> None:
    given = fleet({A: l40s(), B: l40s(serial="0010de26b9000001")})
    twice = [{"profile": "L40S-12Q", "count": 1}, {"profile": "L40S-12Q", "count": 2}]
    gpus = [
        {"match": {"products": ["L40S"], "serials": ["0010de26b9000001"]}, "layout": twice},
        {"match": {"vendors": ["10de"]}, "layout": [{"profile": "L40S-24Q", "count": 2}]},
    ]
    given.maps = {"halves": profile_map("halves", gpus=gpus)}
    given.settle()
    assert vgpu(given, B)["layout"] == [{"profile": "L40S-12Q", "count": 3}]
    assert vgpu(given, A)["layout"] == [{"profile": "L40S-24Q", "count": 2}]


def test_resource_name_of_a_map_changes_no_order() -> None:
    given = fleet(halves=HALVES)
    given.settle()
    revision = given.states["node-0"]["spec"]["revision"]
    entry = {"profile": "L40S-24Q", "count": 2, "resourceName": "nvidia.com/L40S-24Q"}
    given.maps = {"halves": profile_map("halves", gpus=[{"match": {"products": ["L40S"]}, "layout": [entry]}])}
    assert given.plan().empty
    assert given.states["node-0"]["spec"]["revision"] == revision


def test_edited_map_is_rolled_out_within_the_limits_of_the_policy() -> None:
    given = PaperFleet()
    for number in range(3):
        given.add_node(f"node-{number}", {A: l40s()}, labels={"pool": "x"})
    given.maps = {"halves": profile_map("halves", layout=HALVES)}
    given.add_policy(node_policy("p", rules=[rule()], rollout={"maxUnavailable": 1}))
    made = given.plan()
    given.write(made)
    for name in given.nodes:
        given.report(name)
    changed = sum(change is not None for change in given.plan().specs.values())
    assert changed == 1, "a map's layout is given to one node after the other"


@pytest.mark.parametrize("gone", ["deleted", "unreadable"])
def test_card_keeps_its_layout_while_its_map_is_missing(gone: str) -> None:
    given = fleet(halves=HALVES)
    given.settle()
    typed(given)
    given.settle()
    before = vgpu(given)
    broken = profile_map("halves")
    broken["spec"] = {"gpus": "none"}
    given.maps = {} if gone == "deleted" else {"halves": broken}
    given.settle()
    assert given.intents() == {A: "Hold"}
    assert vgpu(given) == before
    assert given.conditions("p")["Ready"] == ("False", "ProfileMapMissing")
    assert blockers(given)[0] == (A, "ProfileMapMissing")
    assert "halves" in given.status("p")["blockers"][0]["message"]
    given.maps = {"halves": profile_map("halves", layout=HALVES)}
    given.settle()
    typed(given)
    given.settle()
    assert given.intents() == {A: "Apply"}
    assert given.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_card_that_never_had_a_layout_gets_no_order_while_its_map_is_missing() -> None:
    given = fleet()
    given.settle()
    assert given.orders("node-0") == {}
    assert given.conditions("p")["Ready"] == ("False", "ProfileMapMissing")
    assert blockers(given) == [(A, "ProfileMapMissing")]
    assert given.status("p")["nodes"]["blocked"] == 1


def test_one_missing_map_shows_although_other_devices_are_ready() -> None:
    given = fleet({A: l40s(), B: l40s(serial="0010de26b9000001")}, halves=HALVES)
    special = rule("special", mapped="nowhere")
    special["match"]["serials"] = ["0010de26b9000001"]
    given.add_policy(node_policy("p", rules=[special, rule()]))
    given.settle()
    typed(given)
    given.settle()
    assert list(given.orders("node-0")) == [A]
    assert given.conditions("p")["Ready"] == ("False", "ProfileMapMissing")
    assert blockers(given) == [(B, "ProfileMapMissing")]


def test_map_without_an_entry_for_the_card_says_so() -> None:
    given = fleet()
    given.maps = {"halves": profile_map("halves", products=["L40"])}
    given.settle()
    assert given.conditions("p")["Ready"] == ("False", "NoLayoutForCard")
    assert blockers(given) == [(A, "NoLayoutForCard")]
    assert "L40S" in given.status("p")["blockers"][0]["message"]


def test_maps_that_are_not_known_change_nothing() -> None:
    given = fleet(halves=HALVES)
    given.settle()
    typed(given)
    given.settle()
    given.maps = None
    made = given.plan(Cache())
    assert not any(made.specs.values()), "absence is not an order"
    given.add_node("node-1", {A: l40s()}, labels={"pool": "x"})
    given.settle()
    assert given.orders("node-1") == {}
    assert given.intents() == {A: "Apply"}


def test_virtual_functions_of_a_card_go_with_it_and_their_users_keep_its_layout() -> None:
    cards = {A: l40s(functions=2), **{one: l40s(parent=A) for one in VFS}}
    given = fleet(cards, halves=HALVES, quarters=QUARTERS)
    given.settle()
    assert list(given.orders("node-0")) == [A], "a virtual function is no card"
    typed(given)
    given.settle()
    cards[VFS[0]].users.append("qemu-kvm")
    given.settle()
    typed(given)
    given.add_policy(node_policy("p", rules=[rule(mapped="quarters")]))
    given.settle()
    assert vgpu(given)["layout"] == [{"profile": "L40S-24Q", "count": 2}]
    assert blockers(given) == [(A, "InUse")]
    cards[VFS[0]].users.clear()
    given.settle()
    assert vgpu(given)["layout"] == [{"profile": "L40S-12Q", "count": 4}]


@pytest.mark.parametrize(
    ("before", "carried", "used", "after", "given_at_once"),
    [
        pytest.param(MIXED, MIXED_CARRIED, VFS[:1], {"L40S-24Q": 2}, True, id="the used one stays"),
        pytest.param(MIXED, MIXED_CARRIED, VFS[1:], {"L40S-24Q": 2}, False, id="the used one is not asked for"),
        pytest.param(HALVES, HALVES_CARRIED, VFS[:1], {"L40S-24Q": 1}, True, id="the other of two goes"),
        pytest.param(HALVES, HALVES_CARRIED, VFS, {"L40S-24Q": 1}, False, id="both of two are used"),
        pytest.param(HALVES, HALVES_CARRIED, VFS[:1], MIXED, False, id="sizes are mixed from now on"),
        pytest.param(HALVES, {}, VFS[:1], {"L40S-24Q": 1}, False, id="the writer has said nothing"),
    ],
)
def test_users_of_vgpus_that_stay_are_in_nobodys_way(
    before: dict[str, int], carried: dict[str, str], used: Sequence[str], after: dict[str, int], given_at_once: bool
) -> None:
    cards = {A: l40s(functions=2), **{one: l40s(parent=A) for one in VFS}}
    given = fleet(cards, halves=before, other=after)
    given.settle()
    typed(given, vgpus=carried)
    given.settle()
    for one in used:
        cards[one].users.append("qemu-kvm")
    given.settle()
    typed(given, vgpus=carried)
    given.add_policy(node_policy("p", rules=[rule(mapped="other")]))
    given.settle()
    layout = {one["profile"]: one["count"] for one in vgpu(given)["layout"]}
    assert layout == (after if given_at_once else before)
    assert blockers(given) == ([] if given_at_once else [(A, "InUse")])


def test_eviction_for_a_layout_leaves_pods_alone_whose_vgpus_stay() -> None:
    functions = {one: l40s(parent=A, pods=[pod]) for one, pod in zip(VFS, PODS, strict=True)}
    given = fleet({A: l40s(functions=2), **functions}, halves=MIXED)
    given.settle()
    typed(given, state="Blocked", reason="InUse", vgpus={VFS[0]: "L40S-24Q"})
    state = read_state(given.states["node-0"])
    assert state.inventory is not None
    (order,) = state.orders.devices
    said = state.reports[Subtree.PROFILES].devices
    usage = Usage(state.inventory.devices, {}, {A: order.shape}, said)
    assert usage.of(A, order.shape).pods == {PODS[1]}
    assert usage.addresses(A, order.shape) == {A, VFS[1]}
    assert usage.of(A, None).pods == set(PODS), "all are in the way of giving it back"
    assert usage.addresses(A, None) == {A, *VFS}


def test_card_is_given_back_although_its_functions_are_still_there() -> None:
    cards = {A: l40s(functions=2), **{one: l40s(parent=A) for one in VFS}}
    given = fleet(cards, halves=HALVES)
    given.settle()
    typed(given)
    given.settle()
    given.add_policy(node_policy("p", rules=[rule(product="L40")]))
    given.plan()
    given.write(given.plan())
    assert given.intents() == {A: "Release"}


def test_two_policies_with_the_same_map_are_in_no_conflict() -> None:
    given = fleet(halves=HALVES)
    given.add_policy(node_policy("q", rules=[rule()]))
    given.settle()
    typed(given)
    given.settle()
    assert given.conditions("q")["Conflicted"][0] == "False"
    given.add_policy(node_policy("q", rules=[rule(mapped="quarters")]))
    given.settle()
    assert given.conditions("q")["Conflicted"] == ("True", "LostDevices")


def test_map_that_cannot_be_understood_is_there_with_its_fault() -> None:
    broken = profile_map("halves")
    broken["spec"] = {"gpus": [{"match": {}, "layout": []}]}
    view = read_map(broken)
    assert view.spec is None
    assert "gpus" in view.error
