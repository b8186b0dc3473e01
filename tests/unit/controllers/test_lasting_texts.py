"""What goes into a status names who uses a device, and moves only when that does."""

from __future__ import annotations

import pytest

from controllers.node_policy.plan import Cache
from controllers.node_policy.plan.events import PlanEvent
from controllers.node_policy.plan.texts import distinct, lasting
from tests.builders.objects import node_policy
from tests.builders.paper_binder import address
from tests.builders.paper_drains import DrainedFleet

A = address(0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("train (pid 17 has /dev/rbln0 open)", "train (has /dev/rbln0 open)"),
        ("train (pid 17)", "train"),
        ("train (pid 17 and 3 more have /dev/rbln0 open)", "train (has /dev/rbln0 open)"),
        ("more users (12 more are not listed)", "more users (more are not listed)"),
        (
            "vllm (pid 4) holds a VFIO device; the kernel does not say which",
            "vllm holds a VFIO device; the kernel does not say which",
        ),
        (
            "in use by a (pid 10 has /dev/b open); a (pid 9 has /dev/a open)",
            "in use by a (has /dev/a open); a (has /dev/b open)",
        ),
        ("in use by a (pid 1 has /dev/a open); a (pid 2 has /dev/a open)", "in use by a (has /dev/a open)"),
        ("in use by a (pid 1 has /dev/a open); tried again later", "in use by a (has /dev/a open); tried again later"),
        ("stopped by pids 3, 4 of the host", "stopped by of the host"),
        ("a rapid change", "a rapid change"),
        ("virtual functions (4 are enabled)", "virtual functions (4 are enabled)"),
    ],
)
def test_numbers_of_processes_are_left_out(text: str, told: str) -> None:
    assert lasting(text) == told


def test_texts_are_told_once_in_one_order() -> None:
    assert distinct(["b", "a", "b"]) == ("a", "b")


@pytest.mark.parametrize("drain", ["Never", "IfInUse"])
def test_processes_that_come_and_go_under_one_name_cost_no_write(drain: str) -> None:
    fleet = DrainedFleet()
    fleet.add_node("node-0", 1)
    fleet.settle()
    cache, writes = Cache(), []
    events: list[PlanEvent] = []
    for number in range(60):
        fleet.pass_time(60)
        users = [
            {"kind": "Process", "name": "train", "detail": f"pid {1000 + 7 * number + worker} has /dev/rbln0 open"}
            for worker in range(1 + number % 3)
        ]
        for device in fleet.states["node-0"]["status"]["inventory"]["devices"]:
            device["usedBy"] = users
        for device in fleet.states["node-0"]["status"]["bindings"]["devices"]:
            device["message"] = "in use by " + "; ".join(f"{user['name']} ({user['detail']})" for user in users)
        fleet.forget("node-0")
        if number == 1:
            fleet.add_policy(node_policy("p", rollout={"drain": drain, "drainTimeoutSeconds": 86400}))
        made = fleet.plan(cache)
        fleet.write(made)
        writes.append(not made.empty)
        events += made.events
        if number == 1:
            fleet.report("node-0")
    assert sum(writes[6:]) <= 1, "that nothing moves any more is told once"
    assert "train (has /dev/rbln0 open)" in fleet.status("p")["blockers"][0]["message"]
    assert not any("pid" in event.message for event in events)
