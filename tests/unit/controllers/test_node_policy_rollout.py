"""How fast orders change: within the limits of every policy, until the deadline."""

from __future__ import annotations

import pytest

from controllers.node_policy.plan.admission import Budget, Candidate, admit
from tests.builders.objects import device_report, node_policy, report
from tests.builders.paper_binder import address
from tests.builders.paper_fleet import PaperFleet, fleet_of

A = address(0)
POOL = {"pool": "x"}


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
    d = frozenset({"d"})
    assert admit(candidates, {"p": Budget(2, d, d)}).admitted == {"d", "b"}
    assert admit(candidates, {"p": Budget(1, d, d)}).admitted == {"d"}
    assert admit(candidates, {"p": Budget(1, d | {"c"}, d)}).admitted == {"d"}
    assert admit(candidates, {"p": Budget(1, d)}).admitted == {"d"}, "nobody knows of it, but nobody else is away"
    assert not admit(candidates, {"p": Budget(1, d | {"elsewhere"})}).admitted
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
