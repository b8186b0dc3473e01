"""Objects of one commit arrive one after the other and act as one."""

from controllers.node_policy.plan import PolicyView, read_policy
from controllers.node_policy.settle import SettledPolicies, changes_orders
from tests.builders.objects import condition, node_policy


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def view(name: str, generation: int = 1, priority: int = 1, reason: str = "") -> PolicyView:
    status = {"conditions": [condition("Ready", "True", reason)]} if reason else None
    return read_policy(node_policy(name, priority=priority, meta={"generation": generation}, status=status))


def priorities(found: object) -> dict[str, int]:
    assert isinstance(found, dict)
    return {name: policy.spec.priority for name, policy in found.items()}


def test_two_applies_within_the_settle_time_act_together() -> None:
    clock = Clock()
    settled = SettledPolicies(clock, seconds=1.0)
    live = {"a": view("a", 1, 2), "b": view("b", 1, 1)}
    settled.changed()
    assert settled.take(live) is None, "nothing has ever stood still"
    clock.now += 1
    assert priorities(settled.take(live)) == {"a": 2, "b": 1}
    live["b"] = view("b", 2, 3)
    settled.changed()
    clock.now += 0.9
    assert priorities(settled.take(live)) == {"a": 2, "b": 1}
    live["a"] = view("a", 2, 4)
    settled.changed()
    clock.now += 0.9
    assert settled.wait() is not None
    assert priorities(settled.take(live)) == {"a": 2, "b": 1}, "each change starts the time anew"
    clock.now += 0.2
    assert priorities(settled.take(live)) == {"a": 4, "b": 3}
    assert settled.wait() is None


def test_commits_without_end_are_taken_after_the_longest_time() -> None:
    clock = Clock()
    settled = SettledPolicies(clock, seconds=1.0, longest=10.0)
    for number in range(12):
        settled.changed()
        clock.now += 0.9
        found = settled.take({"a": view("a", number, number)})
        if found is not None:
            break
    assert number == 11
    assert priorities(found) == {"a": 11}


def test_status_is_always_the_newest() -> None:
    clock = Clock()
    settled = SettledPolicies(clock, seconds=1.0)
    settled.changed()
    clock.now += 1
    settled.take({"a": view("a")})
    found = settled.take({"a": view("a", reason="AllDevicesReady")})
    assert found is not None
    status = found["a"].status
    assert status is not None
    assert status.conditions[0].reason == "AllDevicesReady"


def test_policy_deleted_a_moment_ago_still_counts_until_the_time_is_over() -> None:
    clock = Clock()
    settled = SettledPolicies(clock, seconds=1.0)
    settled.changed()
    clock.now += 1
    settled.take({"a": view("a")})
    settled.changed()
    assert set(settled.take({}) or {}) == {"a"}
    clock.now += 1
    assert settled.take({}) == {}


def test_only_what_changes_orders_starts_the_time() -> None:
    assert changes_orders(None, view("a"))
    assert changes_orders(view("a"), None)
    assert changes_orders(view("a", 1), view("a", 2))
    assert not changes_orders(view("a"), view("a", reason="AllDevicesReady"))
