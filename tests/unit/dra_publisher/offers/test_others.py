"""Whoever else gives a device to pods is found, and named; whoever does not is not blamed."""

import pytest

from crds.device_names import NamedKind
from dra_publisher.offers.others import (
    Candidate,
    Others,
    merged,
    others_by_node,
    others_by_plugins,
)
from dra_publisher.slices.foreign import others_by_slices
from dra_publisher.slices.resource_slice import COMPONENT, COMPONENT_LABEL, Slice, read_slice

NODE = "node-atom"
NPU, TWIN = "0000:23:00.0", "0000:24:00.0"
REBELLIONS, NVIDIA = "1eff", "10de"
VENDORS = {"rebellions.ai": frozenset({REBELLIONS}), "nvidia.com": frozenset({NVIDIA})}


def listing(name: str, driver: str, *addresses: str, pool: str = NODE, label: str = "") -> Slice:
    devices = [
        {"name": f"gpu-{n}", "attributes": {"resource.kubernetes.io/pciBusID": {"string": address}}}
        for n, address in enumerate(addresses)
    ]
    labels = {COMPONENT_LABEL: label} if label else {}
    return read_slice(
        {
            "metadata": {"name": name, "labels": labels, "uid": name, "resourceVersion": "1"},
            "spec": {"driver": driver, "nodeName": NODE, "pool": {"name": pool}, "devices": devices},
        }
    )


def test_another_driver_that_lists_the_address_is_named() -> None:
    slices = [
        listing("b-x1y2z", "gpu.example.com", NPU.upper()),
        listing("a-x1y2z", "nic.example.com", TWIN, "0000:99:00.0"),
        listing(f"{NODE}-npufleet.io-000", "npufleet.io", NPU, TWIN, label=COMPONENT),
    ]
    found = others_by_slices(slices, NODE, ["npufleet.io"])
    assert found.of("npufleet.io", NPU) == "DRA driver gpu.example.com publishes it too: ResourceSlice b-x1y2z"
    assert found.of("npufleet.io", TWIN) == "DRA driver nic.example.com publishes it too: ResourceSlice a-x1y2z"
    assert found.of("npufleet.io", "0000:25:00.0") is None
    assert found.drivers == {}


def test_somebody_else_under_our_driver_and_pool_takes_the_driver() -> None:
    foreign = listing("node-atom-npufleet.io-x1y2z", "npufleet.io")
    found = others_by_slices([foreign], NODE, ["npufleet.io", "npu.rebellions.ai"])
    assert foreign.name in (found.of("npufleet.io", NPU) or "")
    assert found.of("npu.rebellions.ai", NPU) is None
    assert others_by_slices([foreign], NODE, ["npu.rebellions.ai"]) == Others()
    assert others_by_slices([listing("x", "npufleet.io", pool="other")], NODE, ["npufleet.io"]) == Others()


def test_resources_of_device_plugins_are_named() -> None:
    found = others_by_plugins({NPU: ("rebellions.ai/ATOM",), TWIN: ()})
    assert found.addresses == {NPU: "a device plugin gives it to pods too, as rebellions.ai/ATOM"}


CANDIDATES = [
    Candidate(NPU, NamedKind.NPU, REBELLIONS),
    Candidate(TWIN, NamedKind.VFIO, REBELLIONS),
    Candidate("0000:25:00.0", NamedKind.NPU, NVIDIA),
]


@pytest.mark.parametrize(
    ("resource", "amount", "addresses"),
    [
        ("rebellions.ai/ATOM", "16", {NPU}),
        ("rebellions.ai/ATOM", "0", set()),
        ("rebellions.ai/ATOM_CA22_PT", "1", {TWIN}),
        ("rebellions.ai/npu-vfio", "1", {TWIN}),
        ("nvidia.com/gpu", "4", {"0000:25:00.0"}),
        ("nvidia.com/GH100_H100_PCIE", "4", {"0000:25:00.0"}),
        ("rebellions.ai/CA22_ATOM", "4", {NPU, TWIN}),
        ("rebellions.ai/Ca22_Atom", "4", {NPU}),
        ("cpu", "64", set()),
        ("hugepages-1Gi", "4Gi", set()),
        ("example.com/npu", "4", set()),
        ("rebellions.ai/ATOM", "not a number", {NPU}),
    ],
)
def test_what_a_node_advertises_counts_for_the_vendors_devices(resource: str, amount: str, addresses: set[str]) -> None:
    found = others_by_node({resource: amount}, CANDIDATES, lambda domain: VENDORS.get(domain, frozenset()))
    assert set(found.addresses) == addresses
    assert all(resource in text for text in found.addresses.values())


def test_what_the_kubelet_has_told_is_not_guessed_again() -> None:
    vendors = VENDORS.__getitem__
    assert others_by_node({"rebellions.ai/ATOM": "1"}, CANDIDATES, vendors, told={"rebellions.ai/ATOM"}) == Others()


def test_the_first_evidence_is_told() -> None:
    one, other = Others({"d": "first"}, {NPU: "first"}), Others({"d": "second"}, {NPU: "second", TWIN: "second"})
    assert merged(one, other) == Others({"d": "first"}, {NPU: "first", TWIN: "second"})
