"""How fast orders change and what becomes of them: limits, releases, pauses, held removals, reboots, silence."""

import copy
from typing import Any

import pytest

from controllers.node_policy.plan import Cache
from controllers.node_policy.plan.admission import Budget, Candidate, admit
from controllers.node_policy.plan.removal_hold import removal_hold, removal_id
from tests.builders.objects import device_report, device_rule, node, node_policy, report
from tests.builders.paper_binder import Card, address
from tests.builders.paper_fleet import PaperFleet

A, B = address(0), address(1)
POOL = {"pool": "x"}


def fleet_of(nodes: int = 1, cards: int = 1, **labels: str) -> PaperFleet:
    fleet = PaperFleet()
    for number in range(nodes):
        fleet.add_node(f"node-{number}", cards, labels={"pool": "x", **labels})
    return fleet


def intents(fleet: PaperFleet, name: str = "node-0") -> dict[str, str]:
    return {place: order["intent"] for place, order in fleet.orders(name).items()}


# Nothing before there is an inventory.


def test_policy_before_any_node_state_is_accepted_and_becomes_ready_without_a_new_apply() -> None:
    fleet = PaperFleet()
    fleet.add_policy(node_policy("p", nodes=POOL))
    fleet.settle()
    assert fleet.conditions("p")["Accepted"] == ("True", "Valid")
    assert fleet.conditions("p")["Ready"] == ("True", "NoNodesMatched")
    fleet.add_node("late", 2, labels=POOL)
    fleet.settle(only=[])
    assert fleet.conditions("p")["Ready"] == ("False", "InventoryPending")
    assert fleet.status("p")["blockers"][0]["reason"] == "InventoryPending"
    assert "npufleet-vfio-binder" in fleet.status("p")["blockers"][0]["message"]
    assert "devices" not in fleet.states["late"]["spec"]
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert fleet.policies["p"]["metadata"]["generation"] == 1


def test_node_without_devices_of_the_policy_is_ready_and_said() -> None:
    fleet = fleet_of(cards=0)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "NoDevicesMatched")
    assert fleet.status("p")["nodes"] == {"matched": 1, "updated": 1, "ready": 1, "blocked": 0}


def test_every_node_gets_a_state_and_nothing_more_is_written_to_those_without_policies() -> None:
    fleet = fleet_of(nodes=3)
    fleet.settle()
    assert fleet.writes == 3


# Limits.


def test_one_node_at_a_time_unless_the_policy_says_otherwise() -> None:
    fleet = fleet_of(nodes=4)
    fleet.add_policy(node_policy("p"))
    fleet.settle(only=[])
    seen: list[str] = []
    for name in fleet.nodes:
        fleet.report(name)
    while not (made := fleet.plan()).empty:
        fleet.write(made)
        moving = fleet.moving("p")
        assert len(moving) <= 1
        seen += sorted(moving - set(seen))
        for name in fleet.nodes:
            fleet.report(name)
    assert seen == sorted(fleet.nodes)
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_waiting_nodes_say_for_whom_they_wait() -> None:
    fleet = fleet_of(nodes=3)
    fleet.add_policy(node_policy("p"))
    fleet.settle(only=[])
    for name in fleet.nodes:
        fleet.report(name)
    fleet.write(fleet.plan())
    fleet.write(fleet.plan())
    assert fleet.states["node-1"]["status"]["rollout"]["admitted"] == "Waiting"
    assert fleet.rollout("node-1")["Updated"] == ("False", "WaitingForBudget")
    assert fleet.states["node-0"]["status"]["rollout"]["admitted"] == "Admitted"
    assert fleet.rollout("node-0")["Available"] == ("False", "Changing")
    assert fleet.conditions("p")["Ready"] == ("False", "RollingOut")
    assert fleet.status("p")["nodes"] == {"matched": 3, "updated": 1, "ready": 0, "blocked": 0}


@pytest.mark.parametrize(("given", "expected"), [(2, 2), ("50%", 3), ("1%", 1), ("100%", 5)])
def test_limit_may_be_a_share_of_the_nodes(given: int | str, expected: int) -> None:
    fleet = fleet_of(nodes=5)
    fleet.add_policy(node_policy("p", rollout={"maxUnavailable": given}))
    fleet.settle(only=[])
    for name in fleet.nodes:
        fleet.report(name)
    assert sum(change is not None for change in fleet.plan().specs.values()) == expected


def test_failed_node_stops_the_rollout_and_its_own_repair_needs_no_leave() -> None:
    fleet = fleet_of(nodes=3)
    fleet.cards["node-0"][A].fails = True
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    assert [bool(fleet.orders(name)) for name in sorted(fleet.nodes)] == [True, False, False]
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesFailed")
    assert fleet.conditions("p")["Degraded"] == ("True", "DevicesFailed")
    assert fleet.status("p")["nodes"]["blocked"] == 1
    fleet.add_policy(node_policy("p", mode="Container"))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert fleet.conditions("p")["Degraded"] == ("False", "AsExpected")


def test_blocked_devices_do_not_stop_the_rollout() -> None:
    fleet = fleet_of(nodes=3)
    fleet.cards["node-0"][A].users = ["training"]
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    assert fleet.status("p")["devices"] == {"matched": 3, "ready": 2}
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesBlocked")
    [blocker] = fleet.status("p")["blockers"]
    assert (blocker["node"], blocker["device"], blocker["reason"]) == ("node-0", A, "InUse")
    assert "training" in blocker["message"]


def test_device_that_was_moved_and_is_stuck_does_stop_it() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle(only=[])
    for name in fleet.nodes:
        fleet.report(name)
    fleet.write(fleet.plan())
    generation = fleet.states["node-0"]["metadata"]["generation"]
    stuck = device_report(A, "Failed", "WriteStuck")
    fleet.states["node-0"]["status"]["bindings"] = report([stuck], generation=generation, boot_id="boot-node-0-1")
    fleet.write(fleet.plan())
    assert fleet.plan().waiting == {"node-1": ("p",)}


def test_changes_that_disrupt_nothing_wait_for_nobody() -> None:
    fleet = fleet_of(nodes=3)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.add_policy(node_policy("p", on_release="Leave", rollout={"maxUnavailable": 2}))
    fleet.write(fleet.plan())
    assert [fleet.orders(name)[A]["onRelease"] for name in fleet.nodes] == ["Leave"] * 3
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_policy_renamed_with_the_same_content_moves_nothing() -> None:
    fleet = fleet_of(nodes=3)
    fleet.add_policy(node_policy("old"))
    fleet.settle()
    del fleet.policies["old"]
    fleet.add_policy(node_policy("new"))
    made = fleet.plan()
    assert made.waiting == {}
    fleet.write(made)
    assert all(fleet.orders(name)[A]["intent"] == "Apply" for name in fleet.nodes)
    assert all(fleet.orders(name)[A]["decidedBy"]["policy"] == "new" for name in fleet.nodes)


def test_node_needs_room_in_every_policy_whose_devices_change_there() -> None:
    candidates = [
        Candidate("n1", "z", frozenset({"p", "q"})),
        Candidate("n2", "z", frozenset({"p"})),
        Candidate("n3", "z", frozenset({"q"})),
    ]
    full = {"p": Budget(1, frozenset()), "q": Budget(1, frozenset({"elsewhere"}))}
    admissions = admit(candidates, full)
    assert admissions.admitted == {"n2"}, "n1 holds nothing of p while it waits for q"
    assert admissions.waiting == {"n1": ("q",), "n3": ("q",)}


def test_disrupted_nodes_go_first_then_zone_by_zone_then_by_name() -> None:
    candidates = [Candidate(n, z, frozenset({"p"})) for n, z in [("a", "z2"), ("b", "z1"), ("c", "z1"), ("d", "z2")]]
    assert admit(candidates, {"p": Budget(2, frozenset({"d"}))}).admitted == {"d", "b"}
    assert admit(candidates, {"p": Budget(1, frozenset({"d"}))}).admitted == {"d"}
    assert admit(candidates, {"p": Budget(2, frozenset())}).admitted == {"b", "c"}


def test_node_whose_orders_were_refused_comes_last() -> None:
    candidates = [Candidate("a", "z", frozenset({"p"}), refused=True), Candidate("b", "z", frozenset({"p"}))]
    assert admit(candidates, {"p": Budget(1, frozenset())}).admitted == {"b"}
    assert admit(candidates, {"p": Budget(2, frozenset())}).admitted == {"a", "b"}


def test_change_whose_outcome_is_unknown_counts_and_is_not_sent_again() -> None:
    fleet = fleet_of(nodes=3)
    fleet.add_policy(node_policy("p"))
    fleet.settle(only=[])
    for name in fleet.nodes:
        fleet.report(name)
    first = fleet.plan()
    [sent] = [name for name, change in first.specs.items() if change is not None]
    change = first.specs[sent]
    assert change is not None
    again = fleet.plan(in_flight={sent: change.charged})
    assert not any(again.specs.values())
    assert sent not in again.rollouts


# Release.


def test_deleted_policy_gives_back_within_its_limits_and_the_order_stays_until_the_host_confirms() -> None:
    fleet = fleet_of(nodes=3)
    fleet.add_policy(node_policy("p", rollout={"maxUnavailable": 2}))
    fleet.settle()
    del fleet.policies["p"]
    made = fleet.plan()
    assert sum(change is not None for change in made.specs.values()) == 2, "its limits outlive it"
    fleet.write(made)
    assert intents(fleet) == {A: "Release"}
    assert fleet.orders("node-0")[A]["decidedBy"]["policy"] == "p"
    assert fleet.orders("node-0")[A]["passthrough"]["driver"] == "Auto"
    fleet.write(fleet.plan())
    assert intents(fleet) == {A: "Release"}, "nothing was confirmed yet"
    fleet.settle()
    assert all(not fleet.orders(name) for name in fleet.nodes)
    assert not any(card.bound for cards in fleet.cards.values() for card in cards.values())


def test_policy_deleted_while_the_node_is_down_is_undone_when_it_is_back() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.add_policy(node_policy("other", nodes={"pool": "y"}))
    fleet.settle()
    fleet.reboot("node-0")
    del fleet.policies["p"]
    fleet.settle(only=[])
    assert intents(fleet) == {A: "Apply"}, "no inventory of this boot: the orders stay as they are"
    fleet.report("node-0")
    fleet.write(fleet.plan())
    assert intents(fleet) == {A: "Release"}
    fleet.settle()
    assert fleet.orders("node-0") == {}
    assert not fleet.cards["node-0"][A].bound


def test_policy_is_not_ready_until_what_it_lost_is_given_back() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.cards["node-0"][A].users = ["qemu-kvm"]
    fleet.add_policy(node_policy("p", nodes={"pool": "y"}))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesBlocked")
    assert intents(fleet) == {A: "Release"}
    fleet.cards["node-0"][A].users = []
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "NoNodesMatched")


def test_release_is_confirmed_by_an_answer_to_these_orders_and_this_boot_only() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    del fleet.policies["p"]
    fleet.write(fleet.plan())
    generation = fleet.states["node-0"]["metadata"]["generation"]
    released = [device_report(A, "Released", "Restored")]
    status = fleet.states["node-0"]["status"]
    status["bindings"] = report(released, generation=generation - 1, boot_id="boot-node-0-1")
    fleet.write(fleet.plan())
    assert intents(fleet) == {A: "Release"}
    status["bindings"] = report(released, generation=generation, boot_id="boot-node-0-0")
    fleet.write(fleet.plan())
    assert intents(fleet) == {A: "Release"}
    status["bindings"] = report(released, generation=generation, boot_id="boot-node-0-1")
    fleet.write(fleet.plan())
    assert intents(fleet) == {}


def test_device_that_npufleet_changed_and_nobody_orders_is_given_back() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p", nodes={"pool": "y"}))
    fleet.settle()
    for name in fleet.nodes:
        fleet.cards[name][A].bound = True
        fleet.report(name)
    made = fleet.plan()
    changes = [change for change in made.specs.values() if change is not None]
    assert len(changes) == 1, "orphans have a limit too"
    [order] = changes[0].spec()["devices"]
    assert (order["intent"], order["mode"], order["onRelease"]) == ("Release", "Passthrough", "Restore")
    assert order["decidedBy"] == {"policy": "orphaned.npufleet.io", "rule": "orphaned"}
    fleet.settle()
    assert not any(card.bound for cards in fleet.cards.values() for card in cards.values())
    assert all(not fleet.orders(name) for name in fleet.nodes)


def test_orphan_that_a_policy_wants_is_taken_over_and_not_given_back() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.cards["node-0"][A].bound = True
    fleet.settle(only=[])
    fleet.report("node-0")
    fleet.write(fleet.plan())
    assert intents(fleet) == {A: "Apply"}


def test_orphans_stay_while_there_is_no_policy_at_all() -> None:
    fleet = fleet_of()
    fleet.cards["node-0"][A].bound = True
    fleet.settle()
    assert intents(fleet) == {}
    assert fleet.cards["node-0"][A].bound
    fleet.world_extra = {"confirmation": "all"}
    fleet.settle()
    assert not fleet.cards["node-0"][A].bound


def test_flip_to_containers_and_back_changes_the_driver_and_ends() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.add_policy(node_policy("p", mode="Container"))
    assert fleet.settle() <= 4
    assert not fleet.cards["node-0"][A].bound
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert fleet.plan().empty
    fleet.add_policy(node_policy("p"))
    assert fleet.settle() <= 4
    assert fleet.cards["node-0"][A].bound


# Pause.


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
    assert intents(fleet) == {A: "Apply"}
    assert fleet.orders("node-0")[A]["decidedBy"]["policy"] == "low"
    assert fleet.writes == writes + 1, "the status of the new policy"


def test_paused_policy_is_held_where_its_selector_no_longer_reaches() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p", nodes=POOL))
    fleet.settle()
    fleet.add_policy(node_policy("p", nodes={"pool": "y"}, state="Paused"))
    fleet.settle()
    assert intents(fleet) == {A: "Hold"}
    fleet.add_policy(node_policy("p", nodes=POOL))
    made = fleet.plan()
    assert made.waiting == {}
    fleet.settle()
    assert intents(fleet) == {A: "Apply"}


# Unreadable policies and mass removals.


def test_policy_that_cannot_be_understood_keeps_its_devices() -> None:
    fleet = fleet_of(cards=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    broken = node_policy("p")
    broken["spec"]["devices"][0]["mode"] = "Teleport"
    fleet.add_policy(broken)
    fleet.add_policy(node_policy("high", mode="Container", priority=999))
    fleet.settle()
    assert intents(fleet) == {A: "Hold", B: "Hold"}
    assert fleet.conditions("p")["Accepted"] == ("False", "Invalid")
    assert fleet.conditions("p")["Degraded"] == ("True", "Invalid")
    assert fleet.conditions("high")["Conflicted"] == ("True", "LostDevices")
    fleet.add_policy(node_policy("p", priority=1))
    fleet.settle()
    assert {o["decidedBy"]["policy"] for o in fleet.orders("node-0").values()} == {"high"}


def fleet_with_policies(count: int) -> PaperFleet:
    fleet = PaperFleet()
    for number in range(count):
        fleet.add_node(f"node-{number}", 1, labels={"pool": str(number)})
        fleet.add_policy(node_policy(f"p{number}", nodes={"pool": str(number)}))
    fleet.settle()
    return fleet


def test_all_policies_gone_at_once_are_held() -> None:
    fleet = fleet_with_policies(4)
    gone = dict(fleet.policies)
    fleet.policies.clear()
    made = fleet.plan()
    identity = removal_id(gone)
    assert made.holds.policies.id == identity
    assert [event.reason for event in made.events] == ["RemovalHeld"]
    assert identity in made.events[0].message
    fleet.settle()
    for name in fleet.nodes:
        assert intents(fleet, name) == {A: "Hold"}
        assert fleet.rollout(name)["RemovalHeld"] == ("True", "RemovalHeld")
    assert not fleet.plan().events, "told once"
    assert all(card.bound for cards in fleet.cards.values() for card in cards.values())
    fleet.policies = gone
    fleet.settle()
    for name in fleet.nodes:
        assert intents(fleet, name) == {A: "Apply"}
        assert "RemovalHeld" not in fleet.rollout(name)


@pytest.mark.parametrize("answer", ["all", "ID", "000000000000, ID"])
def test_confirmed_removal_gives_everything_back(answer: str) -> None:
    fleet = fleet_with_policies(4)
    identity = removal_id(fleet.policies)
    fleet.policies.clear()
    fleet.settle()
    confirmed: frozenset[str] = frozenset()
    for _ in range(20):
        fleet.world_extra = {"confirmation": answer.replace("ID", identity), "confirmed": confirmed}
        made = fleet.plan()
        confirmed = made.holds.policies.confirmed
        fleet.write(made)
        # One node after the other answers, so the set of missing policies shrinks on the way.
        for name in sorted(fleet.nodes):
            before = copy.deepcopy(fleet.states[name])
            fleet.report(name)
            if before != fleet.states[name]:
                break
    assert all(not fleet.orders(name) for name in fleet.nodes)
    assert not any(card.bound for cards in fleet.cards.values() for card in cards.values())


def test_confirmation_holds_while_the_set_that_it_names_shrinks() -> None:
    fleet = PaperFleet()
    for number in range(4):
        for twin in range(1 if number == 0 else 2):
            fleet.add_node(f"node-{number}-{twin}", 1, labels={"pool": str(number)})
        fleet.add_policy(node_policy(f"p{number}", nodes={"pool": str(number)}))
    fleet.settle()
    identity = removal_id(fleet.policies)
    fleet.policies.clear()
    fleet.world_extra = {"confirmation": identity}
    made = fleet.plan()
    fleet.write(made)
    # p0 names no order that is not a release any more, so the other three alone would be held under another id.
    assert fleet.plan().holds.policies.id
    again = fleet.plan(confirmed=made.holds.policies.confirmed)
    assert not again.holds.policies.id
    assert not again.holds.policies.held


def test_wrong_id_confirms_nothing() -> None:
    fleet = fleet_with_policies(3)
    fleet.policies.clear()
    fleet.world_extra = {"confirmation": "0123456789ab"}
    fleet.settle()
    assert intents(fleet) == {A: "Hold"}


@pytest.mark.parametrize(
    ("reference", "gone", "held"),
    [
        (2, 2, False),
        (3, 2, False),
        (3, 3, True),
        (5, 3, True),
        (6, 3, False),
        (6, 4, True),
        (7, 4, True),
        (100, 50, False),
    ],
)
def test_at_least_three_and_more_than_half_are_held(reference: int, gone: int, held: bool) -> None:
    names = {f"p{n:03}" for n in range(reference)}
    existing = set(sorted(names)[gone:])
    hold = removal_hold(names, existing, "")
    assert bool(hold.id) is held
    assert hold.held == (names - existing if held else set())


def test_policy_that_wants_a_held_device_says_so() -> None:
    fleet = fleet_with_policies(3)
    fleet.policies.clear()
    fleet.add_policy(node_policy("renamed", mode="Container"))
    fleet.settle()
    assert intents(fleet) == {A: "Hold"}
    assert fleet.conditions("renamed")["Ready"] == ("Unknown", "RemovalHeld")
    assert {b["reason"] for b in fleet.status("renamed")["blockers"]} == {"RemovalHeld"}


def test_few_policies_are_removed_without_asking() -> None:
    fleet = fleet_with_policies(4)
    del fleet.policies["p0"], fleet.policies["p1"]
    fleet.settle()
    assert not fleet.orders("node-0")
    assert not fleet.orders("node-1")
    assert intents(fleet, "node-2") == {A: "Apply"}


# Daemons and boots.


@pytest.mark.parametrize(
    ("mode", "block", "daemon", "subtree"),
    [
        ("VGPU", {"vgpu": {"profileMapRef": {"name": "m"}}}, "npufleet-profile-writer", "profiles"),
        (
            "SoftVNPU",
            {"soft_vnpu": {"library": {"name": "vcann-rt", "version": "1.2.0"}}},
            "npufleet-vnpu-installer",
            "libraries",
        ),
        ("HardVNPU", {}, "npufleet-dra-publisher", "publication"),
    ],
)
def test_mode_whose_daemon_does_not_report_is_not_ready(
    mode: str, block: dict[str, Any], daemon: str, subtree: str
) -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p", rules=[device_rule(mode=mode, **block)]))
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("False", "DaemonMissing")
    [blocker] = fleet.status("p")["blockers"]
    assert (blocker["device"], blocker["reason"]) == ("", "DaemonMissing")
    assert daemon in blocker["message"]
    state = fleet.states["node-0"]
    generation = state["metadata"]["generation"]
    state["status"][subtree] = report([device_report(A)], generation=generation, boot_id="boot-node-0-1")
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_reboot_makes_what_was_reported_unknown_until_it_is_reported_again() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.reboot("node-0")
    fleet.settle(only=["node-1"])
    assert fleet.conditions("p")["Ready"] == ("Unknown", "Rebooted")
    assert fleet.status("p")["devices"] == {"matched": 2, "ready": 1}
    assert fleet.rollout("node-0")["Available"] == ("Unknown", "Rebooted")
    assert intents(fleet) == {A: "Apply"}
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_silent_daemon_makes_what_it_reported_unknown() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.world_extra = {"silent": {"node-0": frozenset({"npufleet-vfio-binder"})}}
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("Unknown", "DaemonSilent")
    assert fleet.status("p")["devices"]["ready"] == 0
    fleet.world_extra = {}
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_silence_is_seen_though_no_object_changes() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    cache = Cache()
    assert fleet.plan(cache).empty
    silent = {"node-0": frozenset({"npufleet-vfio-binder"})}
    assert set(fleet.plan(cache, silent=silent).policy_statuses) == {"p"}
    assert fleet.plan(cache).empty


def test_report_of_older_orders_is_not_ready() -> None:
    fleet = fleet_of(cards=2)
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=1)]))
    fleet.settle()
    fleet.add_policy(node_policy("p"))
    fleet.settle(only=[])
    assert fleet.conditions("p")["Ready"] == ("False", "RollingOut")
    assert fleet.status("p")["devices"] == {"matched": 2, "ready": 0}


@pytest.mark.parametrize("fault", ["unready", "unreadable", "old-boot", "no-boot-id"])
def test_inventory_that_says_nothing_now_leaves_the_orders_alone(fault: str) -> None:
    fleet = fleet_of(cards=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    inventory = fleet.states["node-0"]["status"]["inventory"]
    if fault == "unready":
        inventory["conditions"][0] |= {"status": "False", "reason": "SysfsUnreadable", "message": "EIO"}
    elif fault == "unreadable":
        inventory["devices"] = [{"address": 7}]
    elif fault == "old-boot":
        inventory["bootID"] = "boot-node-0-0"
    else:
        fleet.nodes["node-0"]["status"]["nodeInfo"]["bootID"] = ""
    inventory["devices"] = inventory["devices"][:1]
    fleet.add_policy(node_policy("p", mode="Container"))
    fleet.settle(only=[])
    assert intents(fleet) == {A: "Apply", B: "Apply"}
    assert {o["mode"] for o in fleet.orders("node-0").values()} == {"Passthrough"}
    assert fleet.conditions("p")["Ready"][1] in {"InventoryPending", "Rebooted"}


def test_unreadable_report_is_one_condition() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.states["node-0"]["status"]["bindings"]["devices"] = [{"state": "Fine"}]
    fleet.settle(only=[])
    assert fleet.conditions("p")["Ready"] == ("False", "DevicesFailed")
    [blocker] = fleet.status("p")["blockers"]
    assert blocker["reason"] == "ReportUnreadable"
    assert "status.bindings.devices[0]" in blocker["message"]


def test_orders_that_cannot_be_read_are_never_rewritten() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.states["node-0"]["spec"]["devices"][0]["mode"] = "Teleport"
    fleet.policies.clear()
    fleet.add_policy(node_policy("q"))
    fleet.settle(only=[])
    assert fleet.states["node-0"]["spec"]["devices"][0]["mode"] == "Teleport"
    assert fleet.conditions("q")["Ready"] == ("False", "InventoryPending")
    assert fleet.status("q")["blockers"][0]["reason"] == "StateUnreadable"


# Nodes that come and go.


def test_node_that_flaps_its_label_comes_back_to_the_same_orders() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p", nodes=POOL))
    fleet.settle()
    before = fleet.states["node-0"]["spec"]
    fleet.nodes["node-0"]["metadata"]["labels"] = {}
    fleet.write(fleet.plan())
    assert intents(fleet) == {A: "Release"}
    fleet.nodes["node-0"]["metadata"]["labels"] = POOL
    fleet.settle()
    assert fleet.states["node-0"]["spec"] == before
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_state_of_a_gone_node_is_deleted_after_the_grace_and_not_before() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    del fleet.nodes["node-0"]
    fleet.settle()
    assert fleet.rollout("node-0")["NodePresent"] == ("False", "NodeGone")
    assert fleet.conditions("p")["Ready"] == ("True", "NoNodesMatched")
    check = fleet.plan().next_check
    assert check is not None
    assert (check - fleet.now).total_seconds() == 1800
    fleet.pass_time(1799)
    assert fleet.plan().empty
    fleet.pass_time(1)
    assert set(fleet.plan().deletions) == {"node-0"}
    fleet.settle()
    assert not fleet.states


def test_node_that_returns_within_the_grace_loses_nothing() -> None:
    fleet = fleet_of()
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    gone = fleet.nodes.pop("node-0")
    fleet.settle()
    fleet.pass_time(1000)
    fleet.nodes["node-0"] = gone
    fleet.settle()
    assert "NodePresent" not in fleet.rollout("node-0")
    fleet.nodes.clear()
    fleet.settle()
    fleet.pass_time(1000)
    assert not fleet.plan().deletions, "the grace starts anew"


def test_node_created_anew_keeps_its_orders_under_its_new_uid() -> None:
    fleet = fleet_of(cards=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.nodes["node-0"] = node("node-0", uid="another", boot_id="boot-node-0-1", labels=POOL)
    fleet.write(fleet.plan())
    assert fleet.rollout("node-0")["NodeRenewed"] == ("True", "NodeCreatedAnew"), "noted before the orders follow"
    change = fleet.plan().specs["node-0"]
    assert change is not None
    assert change.spec()["nodeUID"] == "another"
    assert change.spec()["devices"] == fleet.states["node-0"]["spec"]["devices"]
    fleet.settle()
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")
    assert intents(fleet) == {A: "Apply", B: "Apply"}


def test_state_that_was_deleted_by_hand_is_made_again_and_filled() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    del fleet.states["node-0"]
    fleet.settle()
    assert intents(fleet) == {A: "Apply"}
    assert fleet.cards["node-0"][A].bound


# Deadlines.


def test_rollout_without_progress_is_degraded_after_its_deadline() -> None:
    fleet = fleet_of(nodes=2)
    fleet.cards["node-0"][A].users = ["training"]
    fleet.add_policy(node_policy("p", rollout={"progressDeadlineSeconds": 60}))
    fleet.settle()
    assert fleet.conditions("p")["Progressing"] == ("True", "RollingOut")
    check = fleet.plan().next_check
    assert check is not None
    assert 0 < (check - fleet.now).total_seconds() <= 60
    fleet.pass_time(59)
    assert fleet.plan().empty
    fleet.pass_time(1)
    fleet.settle()
    assert fleet.conditions("p")["Progressing"] == ("False", "ProgressStalled")
    assert fleet.conditions("p")["Degraded"] == ("True", "ProgressStalled")
    assert fleet.plan().next_check is None
    fleet.pass_time(1000)
    assert fleet.plan().empty
    fleet.cards["node-0"][A].users = []
    fleet.settle()
    assert fleet.conditions("p")["Degraded"] == ("False", "AsExpected")
    assert fleet.conditions("p")["Progressing"] == ("False", "Complete")


def test_rollout_that_goes_on_node_by_node_is_not_stalled_however_long_it_takes() -> None:
    fleet = fleet_of(nodes=5)
    fleet.add_policy(node_policy("p", rollout={"progressDeadlineSeconds": 60}))
    fleet.settle(only=[])
    for name in fleet.nodes:
        fleet.report(name)
    for _ in range(20):
        fleet.write(fleet.plan())
        assert fleet.conditions("p")["Progressing"] != ("False", "ProgressStalled")
        fleet.pass_time(40)
        fleet.write(fleet.plan())
        for name in fleet.nodes:
            fleet.report(name)
    assert fleet.conditions("p")["Ready"] == ("True", "AllDevicesReady")


def test_new_commit_ends_a_stall() -> None:
    fleet = fleet_of()
    fleet.cards["node-0"][A].users = ["training"]
    fleet.add_policy(node_policy("p", rollout={"progressDeadlineSeconds": 60}))
    fleet.settle()
    fleet.pass_time(60)
    fleet.settle()
    assert fleet.conditions("p")["Degraded"] == ("True", "ProgressStalled")
    fleet.add_policy(node_policy("p", driver_name="npu.example.io", rollout={"progressDeadlineSeconds": 60}))
    fleet.settle()
    assert fleet.conditions("p")["Progressing"] == ("True", "RollingOut")
    assert fleet.conditions("p")["Degraded"] == ("False", "AsExpected")


# What is said.


def test_status_of_a_settled_fleet_is_not_written_again() -> None:
    fleet = fleet_of(nodes=3, cards=3)
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=2), device_rule("rest", mode="Container")]))
    fleet.add_policy(node_policy("q", mode="HardVNPU", priority=1))
    fleet.settle()
    fleet.pass_time(100000)
    made = fleet.plan()
    assert made.empty
    assert not made.events


def test_lists_in_a_status_are_cut_and_in_a_fixed_order() -> None:
    fleet = PaperFleet()
    for number in range(10):
        fleet.add_node(f"node-{number}", {address(n): Card(users=["x"]) for n in range(3)})
    for number in range(20):
        fleet.add_policy(node_policy(f"low-{number:02}", mode="Container", priority=1))
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    status = fleet.status("p")
    places = [(b["node"], b["device"]) for b in status["blockers"]]
    assert places == [(f"node-{n}", address(d)) for n in range(10) for d in range(3)][:16]
    assert [c["policy"] for c in status["conflicts"]] == [f"low-{n:02}" for n in range(16)]
    assert status["nodes"]["blocked"] == 10


def test_events_tell_transitions_only() -> None:
    fleet = fleet_of()
    fleet.cards["node-0"][A].users = ["training"]
    fleet.add_policy(node_policy("p"))
    told = []
    for _ in range(10):
        made = fleet.plan()
        told += [(event.warning, event.reason) for event in made.events]
        fleet.write(made)
        fleet.report("node-0")
    fleet.cards["node-0"][A].users = []
    for _ in range(10):
        fleet.report("node-0")
        made = fleet.plan()
        told += [(event.warning, event.reason) for event in made.events]
        fleet.write(made)
    assert told == [(False, "RollingOut"), (True, "DevicesBlocked"), (False, "AllDevicesReady")]
