"""A device that somebody takes each time it is ordered to change: the order is not given and taken back without end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controllers.node_policy.plan import Cache
from controllers.node_policy.retreats import Retreats
from tests.builders.objects import node_policy
from tests.builders.paper_binder import address
from tests.builders.paper_drains import DrainedFleet
from tests.builders.paper_fleet import START

A = address(0)


class Watched(DrainedFleet):
    """A node with a device that a process of the host (or a pod) opens whenever it is ordered to change."""

    def __init__(self, drain: str, *, pod: bool = False) -> None:
        super().__init__()
        self.retreats, self.cache, self.specs = Retreats(), Cache(), 0
        self.pod, self.takes = pod, True
        self.add_node("node-0", 1)
        self.settle()
        self.add_policy(node_policy("p", rollout={"drain": drain, "drainTimeoutSeconds": 120}))

    def second(self) -> None:
        self.pass_time(1)
        made = self.plan(self.cache, resting=self.retreats.resting(self.now))
        self.retreats.note(made.retreats, self.now)
        self.specs += sum(change is not None for change in made.specs.values())
        self.write(made)
        ordered = self.takes and self.intents().get(A) == "Apply"
        if self.pod:
            self.cards["node-0"][A].pods = ["pod-0"] if ordered else []
        else:
            self.cards["node-0"][A].users = ["smi"] if ordered else []
        self.report("node-0")


@pytest.mark.parametrize(("drain", "pod"), [("Never", False), ("Never", True), ("IfInUse", False)])
def test_orders_that_are_always_too_late_are_given_ever_more_rarely(drain: str, pod: bool) -> None:
    fleet = Watched(drain, pod=pod)
    for _ in range(1800):
        fleet.second()
    assert 6 <= fleet.specs <= 18
    for second in range(60):
        if fleet.intents() == {A: "Hold"}:
            break
        fleet.second()
        assert second < 59
    [blocker] = fleet.status("p")["blockers"]
    assert blocker["reason"] == "InUse"
    assert "ordered again later" in blocker["message"]
    fleet.takes = False
    for _ in range(3601):
        fleet.second()
    assert fleet.bound() == [f"node-0/{A}"]


def test_pauses_double_up_to_an_hour_and_end_with_two_calm_ones() -> None:
    retreats, now, pauses = Retreats(), START, []
    for _ in range(9):
        retreats.note({"node-0": [A]}, now)
        retreats.note({"node-0": [A]}, now + timedelta(seconds=1))
        assert retreats.resting(now) == {"node-0": {A}}
        wait = retreats.wait(now)
        assert wait is not None
        pauses.append(wait)
        now += timedelta(seconds=wait)
        assert retreats.resting(now) == {}
        assert retreats.wait(now) is None
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    now += timedelta(hours=2)
    retreats.note({"node-0": [A]}, now)
    assert retreats.wait(now) == 30
