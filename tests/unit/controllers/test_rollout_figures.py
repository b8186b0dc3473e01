"""The metrics of rollouts and drains: what is shown is what is, and nothing of what was."""

from collections import Counter

from controllers.node_policy.metrics import Figures
from runtime.metrics import Metrics


def test_nodes_of_a_policy_are_shown_by_state_and_go_with_it() -> None:
    metrics = Metrics("test")
    figures = Figures(metrics, lambda: 0.0)

    def shown(policy: str, state: str) -> float | None:
        return metrics.registry.get_sample_value("npufleet_policy_nodes", {"policy": policy, "state": state})

    figures.show_nodes({"p": {"matched": 20, "draining": 3}, "q": {"matched": 1, "draining": 0}})
    assert (shown("p", "matched"), shown("p", "draining"), shown("q", "draining")) == (20, 3, 0)
    figures.show_nodes({"p": {"matched": 19, "draining": 0}})
    assert (shown("p", "matched"), shown("p", "draining"), shown("q", "matched")) == (19, 0, None)


def test_blocked_nodes_and_held_removals_go_when_they_are_over() -> None:
    metrics = Metrics("test")
    figures = Figures(metrics, lambda: 0.0)
    figures.show_blocked({"p": Counter(InUse=2)})
    figures.show_held({"abc": 4})
    blocked = {"policy": "p", "reason": "InUse"}
    assert metrics.registry.get_sample_value("npufleet_blocked_nodes", blocked) == 2
    assert metrics.registry.get_sample_value("npufleet_removal_held", {"id": "abc"}) == 4
    figures.show_blocked({})
    figures.show_held({})
    assert metrics.registry.get_sample_value("npufleet_blocked_nodes", blocked) is None
    assert metrics.registry.get_sample_value("npufleet_removal_held", {"id": "abc"}) is None


def test_every_outcome_of_a_drain_is_there_before_the_first_one() -> None:
    """A counter that appears with its first value shows no increase."""
    metrics = Metrics("test")
    figures = Figures(metrics, lambda: 0.0)
    for outcome in ("Drained", "DrainTimedOut", "Uncordoned", "Withdrawn"):
        assert metrics.registry.get_sample_value("npufleet_drain_seconds_count", {"outcome": outcome}) == 0
    figures.drain_ended("Drained", 12.0)
    assert metrics.registry.get_sample_value("npufleet_drain_seconds_sum", {"outcome": "Drained"}) == 12.0
