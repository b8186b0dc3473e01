"""What a policy's status and Events say, and that they do not say it twice."""

from __future__ import annotations

from tests.builders.objects import device_rule, node_policy
from tests.builders.paper_binder import Card, address
from tests.builders.paper_fleet import PaperFleet, fleet_of

A = address(0)


def test_status_of_a_settled_fleet_is_not_written_again() -> None:
    fleet = fleet_of(nodes=3, cards=3)
    fleet.add_policy(node_policy("p", rules=[device_rule(limit=2), device_rule("rest", mode="Container")]))
    fleet.add_policy(node_policy("q", mode="HardVNPU", priority=1))
    fleet.settle()
    fleet.pass_time(100000)
    made = fleet.plan()
    assert made.empty
    assert not made.events


def test_selected_nodes_whose_states_are_gone_are_not_called_unmatched() -> None:
    fleet = fleet_of(nodes=2)
    fleet.add_policy(node_policy("p"))
    fleet.settle()
    fleet.states.clear()
    status = fleet.plan().policy_statuses["p"]
    assert status.nodes is not None
    assert status.nodes.matched == 2
    assert next((c.status, c.reason) for c in status.conditions if c.type == "Ready") == ("False", "InventoryPending")


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


def test_first_blocker_is_what_the_reason_of_ready_speaks_of() -> None:
    fleet = fleet_of(nodes=4)
    fleet.cards["node-0"][A].users = ["x"]
    fleet.cards["node-1"][A].vetoes = ["/dev/sda1 is mounted"]
    fleet.cards["node-2"][A].fails = True
    fleet.add_policy(node_policy("p", rollout={"maxUnavailable": 1}))
    fleet.settle()
    told = [(blocker["node"], blocker["reason"]) for blocker in fleet.status("p")["blockers"]]
    assert told == [
        ("node-2", "BindFailed"),
        ("node-0", "InUse"),
        ("node-1", "Vetoed"),
        ("node-3", "WaitingForBudget"),
    ]
    ready = next(found for found in fleet.status("p")["conditions"] if found["type"] == "Ready")
    assert ready["reason"] == "DevicesFailed"
    assert f"node-2 {A}: BindFailed" in ready["message"]


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
    assert told == [(True, "DevicesBlocked"), (False, "RollingOut"), (False, "AllDevicesReady")]
