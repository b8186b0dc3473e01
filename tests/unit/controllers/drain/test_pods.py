"""What a drain does with each pod, and what people are told of it."""

from typing import Any

import pytest

from controllers.node_policy.drain.pods import Action, find_users, judge, read_pod, refused, told, unknown_user
from controllers.node_policy.plan.drains import DrainedDevice
from tests.builders.workloads import VM_LABELS, pod

STATIC = {"kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash"}


@pytest.mark.parametrize(
    ("given", "by_claim", "action", "text"),
    [
        ({}, True, Action.EVICT, ""),
        ({}, False, Action.EVICT, ""),
        ({"phase": "Pending"}, True, Action.EVICT, ""),
        (
            {"owner": ""},
            True,
            Action.LEAVE,
            "pod team/p has no controller that would start it again: delete it yourself",
        ),
        ({"owner": ""}, False, Action.LEAVE, "delete it yourself"),
        ({"owner": "DaemonSet/agent"}, True, Action.EVICT, ""),
        ({"owner": "DaemonSet/agent"}, False, Action.LEAVE, "keep DaemonSet agent off the node"),
        ({"owner": "Node/node-0", "annotations": STATIC}, False, Action.LEAVE, "static pod"),
        ({"terminating": True, "grace": 45}, True, Action.WAIT, "pod team/p is terminating, grace 45 s"),
        ({"terminating": True, "owner": ""}, False, Action.WAIT, "pod team/p is terminating, grace 30 s"),
        ({"phase": "Succeeded"}, True, Action.WAIT, "has ended"),
        ({"phase": "Failed", "owner": ""}, True, Action.WAIT, "has ended"),
    ],
)
def test_pod_is_evicted_only_where_it_does_not_come_back_to_the_device(
    given: dict[str, Any], by_claim: bool, action: Action, text: str
) -> None:
    judgement = judge(read_pod(pod("p", **given)), by_claim=by_claim)
    assert judgement.action is action
    assert text in judgement.text if text else judgement.text == ""


def test_refusal_is_told_in_the_words_of_whoever_refused() -> None:
    words = refused(read_pod(pod("p")), "Cannot evict pod.", ["The budget web needs 2 pods."])
    assert words == "pod team/p: Cannot evict pod. The budget web needs 2 pods."


@pytest.mark.parametrize("annotations", [{}, {"kubevirt.io/domain": "db"}])
def test_virtual_machine_is_told_by_its_own_name(annotations: dict[str, str]) -> None:
    found = read_pod(pod("virt-launcher-db-x", labels=VM_LABELS, annotations=annotations))
    assert refused(found, "it moves") == "VM team/db (pod team/virt-launcher-db-x): it moves"


def test_words_are_one_line_and_bounded() -> None:
    text = refused(read_pod(pod("p")), "a\nb\t c" + "x" * 2000)
    assert "\n" not in text and text.startswith("pod team/p: a b c") and len(text) == 512
    many = told(["b", "a", "b", *(f"c{n:02}" for n in range(40))])
    assert len(many) == 16 and many[:3] == ("a", "b", "c00")


def test_process_is_found_by_the_uid_under_which_the_node_knows_its_pod() -> None:
    plain, mirror, other = (
        read_pod({**found, "metadata": {**found["metadata"], "uid": uid}})
        for found, uid in ((pod("a"), "u-a"), (pod("b", annotations=STATIC), "u-b"), (pod("c"), "u-c"))
    )
    found = find_users(frozenset({"u-a", "hash", "u-gone"}), [plain, mirror, other])
    assert {uid: one.name for uid, one in found.items()} == {"u-a": "a", "hash": "b"}
    devices = [DrainedDevice("0000:23:00.0", frozenset(), frozenset({"u-gone"}), withheld=True)]
    assert "pod u-gone, which the API server does not know, uses 0000:23:00.0" in unknown_user("u-gone", devices)


@pytest.mark.parametrize("odd", [{}, {"metadata": None, "spec": [], "status": "x"}, {"metadata": {"labels": 3}}])
def test_pod_with_fields_of_no_known_shape_is_read_all_the_same(odd: dict[str, Any]) -> None:
    assert read_pod(odd).grace == 30
