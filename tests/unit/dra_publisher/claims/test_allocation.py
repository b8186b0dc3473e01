"""Reading a ResourceClaim: what of it counts, and one sentence for everything that is wrong with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_publisher.claims.allocation import (
    AllocatedDevice,
    Allocation,
    AllocationError,
    OpaqueConfig,
    Source,
    devices_in_pool,
    read_allocation,
)

_EXAMPLES = 2000
UID = "6f0f7d1e-0000-4000-8000-000000000001"
SHARE = "6f0f7d1e-0000-4000-8000-0000000000aa"
CLAIM: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {
        "name": "vm",
        "namespace": "team-a",
        "uid": UID,
        "annotations": {"resource.kubernetes.io/pod-claim-name": "npu", "other": "x"},
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": "npu/large",
                        "driver": "npufleet.io",
                        "pool": "node-atom",
                        "device": "vfio-0000-27-00-0",
                        "shareID": SHARE,
                        "adminAccess": None,
                        "consumedCapacity": {"memory": "8Gi"},
                        "tolerations": [],
                    },
                    {"request": "gpu", "driver": "gpu.example.com", "pool": "other", "device": "gpu-0"},
                ],
                "config": [
                    {
                        "source": "FromClass",
                        "requests": ["npu"],
                        "opaque": {"driver": "npufleet.io", "parameters": {"kind": "x"}},
                    },
                    {"source": "FromClaim", "opaque": {"driver": "gpu.example.com", "parameters": 1}},
                    {"source": "FromClaim"},
                ],
            }
        },
        "reservedFor": [{"resource": "pods", "name": "vm", "uid": "u"}],
    },
}


def read(claim: object) -> Allocation:
    return read_allocation(claim, uid=UID, namespace="team-a", name="vm", driver="npufleet.io", pool="node-atom")


def test_what_is_allocated_of_the_driver_in_the_pool_is_read() -> None:
    device = AllocatedDevice(
        "npu/large", "npufleet.io", "node-atom", "vfio-0000-27-00-0", SHARE, False, {"memory": "8Gi"}
    )
    config = OpaqueConfig(Source.CLASS, ("npu",), {"kind": "x"})
    assert read(CLAIM) == Allocation(UID, "team-a", "vm", "npu", (device,), (config,))
    assert devices_in_pool(CLAIM, drivers={"npufleet.io"}, pool="node-atom") == (device,)
    assert devices_in_pool(CLAIM, drivers={"npufleet.io"}, pool="node-b") == ()
    assert [one.driver for one in devices_in_pool(CLAIM, pool="other")] == ["gpu.example.com"]
    assert devices_in_pool({"metadata": {}}, drivers={"npufleet.io"}, pool="node-b") == ()


def _set(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(claim: dict[str, Any]) -> None:
        place: Any = claim
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = to

    return change


_WORDS = (
    *("metadata", "status", "allocation", "devices", "results", "config", "driver", "pool", "device", "request"),
    *("name", "uid", "namespace", "opaque", "parameters", "source", "requests", "shareID"),
)
RESULT = ("status", "allocation", "devices", "results", 0)
CONFIG = ("status", "allocation", "devices", "config", 0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_set("metadata", to=None), "metadata: nothing is no object"),
        (_set("metadata", "uid", to="other"), "its UID is 'other' now: it was deleted and made anew"),
        (_set("metadata", "name", to="x"), "the API server answered with claim"),
        (_set("metadata", "annotations", to=[]), None),
        (_set("metadata", "annotations", "resource.kubernetes.io/pod-claim-name", to="../x"), "'../x' is no name"),
        (_set("status", to=None), "nothing is allocated to it"),
        (_set("status", to=[1]), "status: [1] is no object"),
        (_set("status", "allocation", to=None), "nothing is allocated to it"),
        (_set("status", "allocation", to="x"), "status.allocation: 'x' is no object"),
        (_set("status", "allocation", "devices", to=3), "status.allocation.devices: 3 is no object"),
        (_set("status", "allocation", "devices", "results", to={}), "results: {} is no list"),
        (_set("status", "allocation", "devices", "results", to=[]), "no device of npufleet.io is allocated to it"),
        (_set("status", "allocation", "devices", "results", to=[{}] * 33), "33 items, more than the 32"),
        (_set(*RESULT, to=None), "results[0]: nothing is no object"),
        (_set(*RESULT, "driver", to=7), "results[0].driver: 7 is no text"),
        (_set(*RESULT, "driver", to="x"), "no device of npufleet.io is allocated to it"),
        (_set(*RESULT, "pool", to="node-b"), "is allocated from pool node-b; this node has pool node-atom only"),
        (_set(*RESULT, "pool", to=""), "results[0].pool: '' is no name of a pool"),
        (_set(*RESULT, "device", to="Vfio/../x"), "results[0].device: 'Vfio/../x' is no name of a device"),
        (_set(*RESULT, "request", to="a/b/c"), "results[0].request: 'a/b/c' is no name of a request"),
        (_set(*RESULT, "request", to=".."), "results[0].request: '..' is no name of a request"),
        (_set(*RESULT, "shareID", to="x/y"), "results[0].shareID: 'x/y' is no UUID"),
        (_set(*RESULT, "adminAccess", to="yes"), "results[0].adminAccess: 'yes' is neither true nor false"),
        (_set(*RESULT, "consumedCapacity", to=[1]), "consumedCapacity: [1] is no object"),
        (_set(*RESULT, "consumedCapacity", to={"memory": 8}), "consumedCapacity[memory]: 8 is no quantity"),
        (_set(*CONFIG, to=1), "config[0]: 1 is no object"),
        (_set(*CONFIG, "source", to="FromPod"), "config[0].source: 'FromPod' is not FromClass or FromClaim"),
        (_set(*CONFIG, "requests", to="npu"), "config[0].requests: 'npu' is no list"),
        (_set(*CONFIG, "requests", to=[None]), "config[0].requests: nothing is no name of a request"),
        (_set(*CONFIG, "opaque", to="x"), "config[0].opaque: 'x' is no object"),
    ],
)
def test_every_malformed_shape_is_one_sentence(change: Callable[[dict[str, Any]], None], text: str | None) -> None:
    claim = copy.deepcopy(CLAIM)
    change(claim)
    if text is None:
        assert read(claim).pod_claim_name == ""
        return
    with pytest.raises(AllocationError) as caught:
        read(claim)
    assert text in str(caught.value)


def test_one_device_twice_is_refused_and_shares_of_one_are_not() -> None:
    claim = copy.deepcopy(CLAIM)
    results = claim["status"]["allocation"]["devices"]["results"]
    results.append(dict(results[0]))
    with pytest.raises(AllocationError, match="is allocated to it twice"):
        read(claim)
    results[-1]["shareID"] = UID
    assert len(read(claim).devices) == 2
    results[-1] |= {"shareID": SHARE, "adminAccess": True}
    assert len(read(claim).devices) == 2


def test_no_object_whatever_it_is_raises_anything_else() -> None:
    scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["npufleet.io", UID])
    anything = st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(_WORDS),
                inner,
                max_size=5,
            )
        ),
        max_leaves=6,
    )
    paths: list[tuple[str | int, ...]] = []

    def walk(value: Any, path: tuple[str | int, ...]) -> None:
        if path:
            paths.append(path)
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, (*path, key))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                walk(item, (*path, index))

    walk(CLAIM, ())
    ran = refused = 0

    @settings(max_examples=_EXAMPLES, deadline=None, database=None)
    @given(st.sampled_from(paths), anything, st.booleans())
    def check(path: tuple[str | int, ...], value: Any, whole: bool) -> None:
        nonlocal ran, refused
        ran += 1
        claim: Any = value
        if not whole:
            claim = copy.deepcopy(CLAIM)
            _set(*path, to=value)(claim)
        try:
            assert read(claim).devices
        except AllocationError as error:
            refused += 1
            assert str(error) and len(str(error)) < 400
        try:
            devices_in_pool(claim, drivers={"npufleet.io"}, pool="node-atom")
        except AllocationError as error:
            assert str(error)

    check()
    print(f"{ran} examples, {refused} refused")
    assert ran >= _EXAMPLES and refused > 100
