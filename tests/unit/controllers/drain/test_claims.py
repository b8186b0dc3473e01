"""Which claims hold devices that have to become free."""

from typing import Any

import pytest

from controllers.node_policy.drain.claims import AllocatedClaim, claims_on, uses_of
from controllers.node_policy.plan.drains import DrainedDevice, DrainOrder
from tests.builders.workloads import allocation, claim

A, B, FUNCTION = "0000:23:00.0", "0000:24:00.0", "0000:23:00.4"


def device(address: str = A, *more: str, withheld: bool = True) -> DrainedDevice:
    return DrainedDevice(address, frozenset({address, *more}), frozenset(), withheld)


def order(*devices: DrainedDevice) -> DrainOrder:
    return DrainOrder("node-0", "policy", "rev", devices, cordoned=False)


def held(*names: str, **more: Any) -> AllocatedClaim:
    pods = [{"metadata": {"name": "p", "uid": "uid-p"}}]
    found = claims_on(frozenset({"node-0"}))({**claim("c"), "status": allocation(names, pods, **more)})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        ("vfio-0000-23-00-0", "npufleet.io"),
        ("npu-0000-23-00-0", "npu.example.io"),
        ("soft-0000-23-00-0", "npu.example.io"),
        ("hard-0000-23-00-0-vir02-1", "npufleet.io"),
        ("vgpu-0000-23-00-4", "npufleet.io"),
        ("npu-0000-23-00-0", "a-former-name.example.com"),
    ],
)
def test_claim_on_the_device_or_a_function_of_it_is_a_user(name: str, driver: str) -> None:
    [use] = uses_of(order(device(A, FUNCTION)), [held(name, driver=driver)])
    assert use.claim.full_name == "team/c"
    assert [pod.uid for pod in use.claim.pods] == ["uid-p"]
    assert use.addresses == A


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("vfio-0000-24-00-0", {}),
        ("vfio-0000-23-00-0", {"pool": "node-1"}),
        ("gpu-0", {}),
    ],
)
def test_claim_on_anything_else_is_none(name: str, more: dict[str, Any]) -> None:
    claims = claims_on(frozenset({"node-0", "node-1"}))({**claim("c"), "status": allocation([name], **more)})
    assert uses_of(order(device()), [claims] if claims else []) == []


def test_claim_on_two_devices_waits_until_both_are_withheld() -> None:
    both = held("vfio-0000-23-00-0", "vfio-0000-24-00-0")
    assert not uses_of(order(device(A), device(B, withheld=False)), [both])[0].withheld
    assert uses_of(order(device(A), device(B)), [both])[0].withheld
    assert uses_of(order(device(A)), [both])[0].withheld


def test_consumer_that_is_no_pod_is_told_apart() -> None:
    group = {"apiGroup": "scheduling.example.io", "resource": "podgroups", "name": "train", "uid": "u"}
    assert held("vfio-0000-23-00-0", others=[group]).others == ("podgroups team/train",)


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"allocation": None},
        {"allocation": {"devices": {"results": "x"}}},
        {"allocation": {"devices": {"results": [None, {"pool": 3}, {"pool": "node-0"}]}}},
        allocation(["vfio-0000-23-00-0"], pool="another-node"),
    ],
)
def test_claim_that_holds_nothing_here_is_not_kept(status: Any) -> None:
    assert claims_on(frozenset({"node-0"}))({**claim("c"), "status": status}) is None
