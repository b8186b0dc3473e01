"""A label of a Node counts once it has stood still: what flaps must not give devices back and take them again."""

import pytest

from controllers.node_policy.plan import NodeView, read_node, read_policy
from controllers.node_policy.settle import SettledNodes, selector_keys
from runtime.store import Change, Key
from tests.builders.objects import node, node_policy

KEYS = frozenset({"pool"})


class Scene:
    """One Node, `n`, whose changes are told as a store tells them."""

    def __init__(self, **labels: str) -> None:
        self.now = 100.0
        self.settled = SettledNodes(lambda: self.now, seconds=1.0)
        self.live: dict[str, NodeView] = {}
        self.label("uid", **labels)

    def label(self, uid: str = "uid", **labels: str) -> None:
        old, new = self.live.get("n"), read_node(node("n", uid=uid, labels=labels))
        self.live["n"] = new
        self.settled.changed([Change(Key("", "n"), old, new)])

    def take(self, after: float = 0.0, keys: frozenset[str] = KEYS) -> dict[str, str] | None:
        """The labels that count, None while nothing is known of them."""
        self.now += after
        nodes, unsettled = self.settled.take(self.live, keys)
        return None if unsettled else dict(nodes["n"].labels)


def test_labels_of_a_new_node_count_after_the_settle_time() -> None:
    scene = Scene(pool="x")
    assert scene.take() is None
    assert scene.settled.wait() == pytest.approx(1.0)
    assert scene.take(0.9) is None
    assert scene.take(0.1) == {"pool": "x"}
    assert scene.settled.wait() is None


def test_label_counts_once_it_has_stood_still() -> None:
    scene = Scene(pool="x")
    scene.take(1)
    scene.label(pool="y")
    assert scene.take(0.9) == {"pool": "x"}
    assert scene.settled.wait() == pytest.approx(0.1)
    assert scene.take(0.1) == {"pool": "y"}
    scene.label()
    assert scene.take(0.5) == {"pool": "y"}
    assert scene.take(0.5) == {}


def test_label_that_flaps_for_ever_keeps_the_value_from_before() -> None:
    scene = Scene(pool="x")
    scene.take(1)
    for turn in range(100):
        scene.label(**({} if turn % 2 == 0 else {"pool": "x"}))
        assert scene.take(0.7) == {"pool": "x"}
    scene.label()
    assert scene.take(1.0) == {}, "at last it stands still"


def test_label_that_flaps_is_unknown_to_a_new_process() -> None:
    scene = Scene(pool="x")
    for turn in range(20):
        scene.label(**({} if turn % 2 == 0 else {"pool": "x"}))
        assert scene.take(0.7) is None
    assert scene.take(1.0) == {"pool": "x"}


def test_label_that_nobody_asks_for_keeps_nobody_waiting() -> None:
    scene = Scene(pool="x")
    scene.take(1)
    for turn in range(10):
        scene.label(pool="x", load=str(turn))
        assert scene.take(0.5) == {"pool": "x", "load": str(turn)}
        assert scene.settled.wait() is None


def test_another_label_that_flaps_holds_up_none_that_stands_still() -> None:
    scene = Scene(pool="x", flag="a")
    scene.take(1)
    scene.label(pool="y", flag="a")
    for turn in range(4):
        scene.label(pool="y", flag="b" if turn % 2 == 0 else "a")
        found = scene.take(0.4, frozenset({"pool", "flag"}))
    assert found == {"pool": "y", "flag": "a"}


def test_labels_that_changed_together_count_together() -> None:
    scene = Scene(pool="x", flag="a")
    scene.take(1)
    scene.label(pool="y", flag="b")
    keys = frozenset({"pool", "flag"})
    assert scene.take(0.9, keys) == {"pool": "x", "flag": "a"}
    assert scene.take(0.1, keys) == {"pool": "y", "flag": "b"}


def test_node_created_anew_has_no_labels_of_before() -> None:
    scene = Scene(pool="x")
    scene.take(1)
    scene.label("another", pool="y")
    assert scene.take() is None
    assert scene.take(1) == {"pool": "y"}


def test_policies_without_labels_wait_for_none() -> None:
    scene = Scene(pool="x")
    assert scene.take(keys=frozenset()) == {"pool": "x"}
    expressions = {"matchExpressions": [{"key": "arch", "operator": "Exists"}], "matchLabels": {"pool": "x"}}
    policies = [read_policy(node_policy("p", node_selector=expressions)), read_policy(node_policy("q"))]
    assert selector_keys(policies) == {"pool", "arch"}
