"""Which of the users that an inventory names an eviction could move."""

from typing import Any

import pytest

from controllers.node_policy.plan.read import read_state
from controllers.node_policy.plan.view import DeviceView

UID = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"


def device(*users: dict[str, Any]) -> DeviceView:
    listed = {
        "address": "0000:23:00.0",
        "vendor": "1eff",
        "device": "1250",
        "class": "120000",
        "groupViability": "Viable",
        "usedBy": list(users),
    }
    status = {"inventory": {"devices": [listed]}}
    state = read_state(
        {"metadata": {"name": "node-0", "uid": "u", "generation": 1}, "spec": {"revision": "", "nodeUID": UID}}
        | {"status": status}
    )
    assert state.inventory is not None
    (found,) = state.inventory.devices
    return found


@pytest.mark.parametrize(
    ("user", "text", "pods", "moves"),
    [
        ({"kind": "Process", "name": "train", "podUID": UID}, "train", {UID}, True),
        ({"kind": "Process", "name": "rbln-smi"}, "rbln-smi", set(), False),
        ({"kind": "Claim", "name": "claim team-a/vm-npu"}, "claim team-a/vm-npu", set(), True),
        ({"kind": "Pod", "name": "pod team-a/train", "podUID": UID}, "pod team-a/train", {UID}, True),
        ({"kind": "Pod", "name": "pod team-a/train"}, "pod team-a/train", set(), False),
        ({"kind": "Unreadable", "name": "unknown"}, "unknown", set(), False),
    ],
)
def test_a_user_keeps_the_device_and_may_be_one_that_an_eviction_moves(
    user: dict[str, Any], text: str, pods: set[str], moves: bool
) -> None:
    """The pods of a claim are found through the API server; a pod of unknown UID cannot be told from its successor."""
    found = device(user)
    assert found.users == (text,)
    assert found.pods == pods
    assert found.others == (() if moves else (text,))


def test_what_is_offered_and_virtual_functions_are_no_users() -> None:
    found = device({"kind": "Published", "name": "x"}, {"kind": "VirtualFunctions", "name": "virtual functions"})
    assert (found.users, found.pods, found.others) == ((), frozenset(), ())
