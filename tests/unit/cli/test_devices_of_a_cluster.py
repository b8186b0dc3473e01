"""`npufleet devices` on an API server: one row per device, with who has it, or why nobody gets it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import pytest

from cli.devices.assemble import assemble
from cli.devices.cluster import read_cluster
from cli.devices.command import show
from cli.devices.rows import Listing, Row
from cli.errors import CommandError, ExitCode
from crds.device_names import NamedKind, device_name
from runtime.resources import NPU_NODE_POLICIES, NPU_NODE_STATES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.builders.fake_api import FakeApi
from tests.builders.objects import (
    condition,
    desired_device,
    device_report,
    inventory_device,
    node_policy,
    node_state,
    report,
)
from tests.builders.workloads import VM_LABELS, allocation, claim, pod

Object = dict[str, Any]
A, B, C = "0000:21:00.0", "0000:22:00.0", "0000:23:00.0"


@pytest.fixture
async def server() -> AsyncIterator[FakeApi]:
    async with FakeApi() as found:
        yield found


async def listing(server: FakeApi, *nodes: str) -> Listing:
    return assemble(await read_cluster(server.kubeconfig(), nodes))


async def rows(server: FakeApi, *nodes: str) -> dict[str, Row]:
    """By address."""
    return {row.address: row for row in (await listing(server, *nodes)).rows}


def add_node(
    server: FakeApi, name: str, orders: Iterable[Object] = (), *, said: Mapping[str, str] | None = None, **given: Any
) -> None:
    """A node with devices A and B, all orders done and published; `said`: state and reason by address, of the
    publisher (`{A: "Pending HandOver"}`); further keywords are subtrees of the status that replace those."""
    ordered = list(orders)
    words = {order["address"]: "Ready Published" for order in ordered} | dict(said or {})
    told = [device_report(at, *word.split(), message=f"message of {at}") for at, word in words.items()]
    status = {
        "inventory": report([inventory_device(A, iommu_group=20, product="RBLN-CA25"), inventory_device(B)]),
        "bindings": report([device_report(order["address"], "Ready", "Bound") for order in ordered]),
        "publication": report(told),
        **given,
    }
    kept = {key: part for key, part in status.items() if part is not None}
    server.objects.create(NPU_NODE_STATES, node_state(name, devices=ordered, **kept))


def add_slice(
    server: FakeApi, node: str, devices: Iterable[Object], *, driver: str = "npufleet.io", generation: int = 1
) -> None:
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)}
    server.objects.create(RESOURCE_SLICES, {"metadata": {"name": f"{node}-{driver}-{generation}"}, "spec": spec})


def published(address: str, *, taints: Iterable[Object] = ()) -> Object:
    found: Object = {"name": device_name(NamedKind.VFIO, address), "attributes": {"type": {"string": "vfio"}}}
    return found | ({"taints": list(taints)} if taints else {})


def add_claim(server: FakeApi, name: str, device: str, pods: Iterable[Object] = (), **given: Any) -> None:
    server.objects.create(RESOURCE_CLAIMS, {**claim(name), "status": allocation([device], pods, **given)})


async def test_device_that_anybody_can_have_has_no_reason(server: FakeApi) -> None:
    add_node(server, "node-0", [desired_device(A, driver_name="npufleet.io")])
    add_slice(server, "node-0", [published(A)])
    row = (await rows(server))[A]
    assert row.why is None
    assert (row.product, row.driver, row.iommu_group) == ("RBLN-CA25", "rebellions", 20)
    assert (row.mode, row.intent, row.policy, row.rule) == ("Passthrough", "Apply", "policy", "rule")
    assert [(offer.driver, offer.name) for offer in row.offers or ()] == [("npufleet.io", "vfio-0000-21-00-0")]


async def test_claim_and_pod_are_named(server: FakeApi) -> None:
    add_node(server, "node-0", [desired_device(A)])
    add_slice(server, "node-0", [published(A)])
    user = server.objects.create(PODS, pod("train-0"))
    add_claim(server, "gpu", "vfio-0000-21-00-0", [user])
    row = (await rows(server))[A]
    assert [str(found) for found in row.allocations or ()] == ["team/train-0 (claim team/gpu)"]
    assert row.why is None


async def test_vm_is_named_by_its_own_name(server: FakeApi) -> None:
    add_node(server, "node-0", [desired_device(A)])
    add_slice(server, "node-0", [published(A)])
    user = server.objects.create(PODS, pod("virt-launcher-db-x7", labels=VM_LABELS))
    add_claim(server, "gpu", "vfio-0000-21-00-0", [user])
    row = (await rows(server))[A]
    assert [str(found) for found in row.allocations or ()] == ["VM team/db (pod virt-launcher-db-x7) (claim team/gpu)"]


async def test_claim_on_a_device_that_no_slice_has_any_more_is_still_told(server: FakeApi) -> None:
    add_node(server, "node-0", [desired_device(A)], said={A: "Pending HandOver"})
    add_claim(server, "gpu", "vfio-0000-21-00-0", others=[{"resource": "jobs", "apiGroup": "x.io", "name": "j"}])
    add_claim(server, "lost", "vfio-0000-99-00-0")
    add_claim(server, "elsewhere", "vfio-0000-21-00-0", pool="node-7")
    add_claim(server, "of-others", "gpu-0", driver="gpu.example.com")
    found = await rows(server)
    assert [str(one) for one in found[A].allocations or ()] == ["jobs team/j (claim team/gpu)"]
    assert str(found[A].why) == f"HandOver: message of {A}"
    assert [str(one) for one in found["0000:99:00.0"].allocations or ()] == ["claim team/lost"]
    assert str(found["0000:99:00.0"].why).startswith("DeviceMissing")
    assert set(found) == {A, B, "0000:99:00.0"}


def held(server: FakeApi, name: str) -> None:
    """Two devices that are left as they are, on a node whose daemon knows no more than that."""
    reports = [device_report(at, "Pending", "Held", message="it is held") for at in (A, B)]
    add_node(server, name, [desired_device(at, intent="Hold") for at in (A, B)], bindings=report(reports))


def blocked(server: FakeApi, policy: str, *blockers: tuple[str, str, str, str]) -> None:
    keys = ("node", "device", "reason", "message")
    status = {"blockers": [dict(zip(keys, one, strict=True)) for one in blockers]}
    server.objects.create(NPU_NODE_POLICIES, node_policy(policy, status=status))


async def test_why_a_device_is_held_is_told_in_the_words_of_its_policy(server: FakeApi) -> None:
    for name in ("node-0", "node-1", "node-2"):
        held(server, name)
    blocked(
        server,
        "policy",
        ("node-0", A, "InUse", "in use by qemu (pid 77 has /dev/vfio/20 open)"),
        ("node-1", "", "WaitingForBudget", "waits for room in maxUnavailable of policy"),
    )
    blocked(server, "another", ("node-0", B, "Vetoed", "of the rule of another"))
    found = {(row.node, row.address): str(row.why) for row in (await listing(server)).rows}
    assert found["node-0", A] == "InUse: in use by qemu (pid 77 has /dev/vfio/20 open)"
    assert found["node-0", B] == "Held: it is held", "the policy tells the first few only"
    assert {found["node-1", at] for at in (A, B)} == {"WaitingForBudget: waits for room in maxUnavailable of policy"}
    assert found["node-2", A] == "Held: it is held"


async def test_policies_are_read_only_for_what_is_held_and_told_of_where_they_may_not_be(server: FakeApi) -> None:
    add_node(server, "node-0", [desired_device(A)])
    server.fail("LIST", NPU_NODE_POLICIES, code=403, reason="Forbidden")
    assert (await listing(server)).notes == ()
    held(server, "node-1")
    found = await listing(server)
    assert "npunodepolicies.npufleet.io cannot be listed" in str(found.notes[0])
    assert {str(row.why) for row in found.rows if row.node == "node-1"} == {"Held: it is held"}


async def test_taint_is_told_with_the_words_of_the_publisher(server: FakeApi) -> None:
    add_node(server, "node-0", [desired_device(A)], said={A: "Blocked UsedOutside"})
    taint = {"key": "npufleet.io/in-use", "value": "UsedOutside", "effect": "NoSchedule"}
    add_slice(server, "node-0", [published(A, taints=[taint, {"key": "told", "effect": "None"}])])
    assert str((await rows(server))[A].why) == f"Tainted: npufleet.io/in-use=UsedOutside: message of {A}"


@pytest.mark.parametrize(
    ("orders", "status", "reason"),
    [
        ([], {}, "NoPolicy: no policy decides it"),
        (
            [],
            {"inventory": report([inventory_device(A, vetoes=[{"reason": "BootDisplay", "message": "boot display"}])])},
            "Vetoed: no policy decides it, and the host needs it: boot display",
        ),
        ([], {"bindings": report([device_report(A, "Pending", "Orphaned", message="waits")])}, "Orphaned: waits"),
        (
            [desired_device(A)],
            {"bindings": report([device_report(A, "Blocked", "InUse", message="in use by vllm")])},
            "InUse: in use by vllm",
        ),
        (
            [desired_device(A)],
            {"bindings": report([device_report(A)], generation=7)},
            "OrdersNew: npufleet-vfio-binder has not answered",
        ),
        ([desired_device(A)], {"publication": None}, "DaemonMissing: no npufleet-dra-publisher reports on this node"),
        ([desired_device(A)], {"publication": report([])}, "NotReported: npufleet-dra-publisher"),
        ([desired_device(A)], {}, "SliceMissing: npufleet-dra-publisher says that it is published"),
        ([desired_device(A, intent="Release")], {}, "Releasing"),
        (
            [desired_device(A, intent="Release")],
            {"bindings": report([device_report(A, "Blocked", "InUse", message="in use by vllm")])},
            "InUse: in use by vllm",
        ),
        ([desired_device(A, mode="VGPU")], {}, "DaemonMissing: no npufleet-profile-writer"),
        ([desired_device(A, mode="Teleport")], {}, "StateUnreadable: the orders of the node"),
    ],
)
async def test_device_that_no_slice_has_says_why(
    server: FakeApi, orders: list[Object], status: Mapping[str, Any], reason: str
) -> None:
    add_node(server, "node-0", orders, **status)
    assert str((await rows(server))[A].why).startswith(reason)


async def test_orders_that_cannot_be_understood_and_nodes_that_are_silent_are_noted(server: FakeApi) -> None:
    silent = {"admitted": "Admitted", "conditions": [condition("Available", "Unknown", "Rebooted", "it was rebooted")]}
    add_node(server, "node-0", [desired_device(A, mode="Teleport")])
    add_node(server, "node-1", rollout=silent)
    add_node(server, "node-2", inventory=None)
    notes = [str(note) for note in (await listing(server)).notes]
    assert [re.sub(":.*", "", note) for note in notes] == ["node-0", "node-1", "node-2"]
    assert "spec.devices[0].mode" in notes[0]
    assert notes[1] == "node-1: what is shown of it may be past (Rebooted): it was rebooted"
    assert "has reported its devices yet" in notes[2]


async def test_virtual_functions_stand_for_their_card(server: FakeApi) -> None:
    card = desired_device(A, passthrough={"virtualFunctions": 2})
    parts = [device_report(B), device_report(C, "Pending", "Binding", message="is being bound")]
    functions = [inventory_device(at, function="Virtual", physical_function=A) for at in (B, C)]
    add_node(
        server,
        "node-0",
        [card],
        inventory=report([inventory_device(A), *functions]),
        bindings=report([device_report(A, "Ready", "FunctionsBound", virtual_functions=parts)]),
    )
    add_slice(server, "node-0", [published(B)])
    found = await rows(server)
    assert {row.mode for row in found.values()} == {"Passthrough"}
    assert str(found[A].why).startswith("VirtualFunctions: ")
    assert found[B].why is None
    assert str(found[C].why) == "Binding: is being bound"


async def test_who_uses_a_device_is_told_with_the_pod(server: FakeApi) -> None:
    user = server.objects.create(PODS, pod("train-0"))
    used = [
        {"kind": "Process", "name": "vllm", "detail": "pid 7 has /dev/rbln0 open", "podUID": user["metadata"]["uid"]},
        {"kind": "Process", "name": "smi", "podUID": "of-nobody"},
        {"kind": "VirtualFunctions", "name": "virtual functions", "detail": "2 are enabled"},
    ]
    add_node(server, "node-0", inventory=report([inventory_device(A, used_by=used)]))
    assert (await rows(server))[A].used_by == (
        "vllm (pid 7 has /dev/rbln0 open) of pod team/train-0",
        "smi of a pod with UID of-nobody",
    )


async def test_slices_of_others_and_old_generations_do_not_count_as_ours(server: FakeApi) -> None:
    add_node(server, "node-0", [desired_device(A), desired_device(B)])
    add_slice(server, "node-0", [published(A)], generation=1)
    add_slice(server, "node-0", [published(B)], generation=2)
    card = {"name": "gpu-0", "attributes": {"resource.kubernetes.io/pciBusID": {"string": A}}}
    nic = {"name": "eth0", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:01:00.0"}}}
    add_slice(server, "node-0", [card, {"name": "somewhere"}], driver="gpu.example.com")
    found = await rows(server)
    assert [(offer.driver, offer.name) for offer in found[A].offers or ()] == [("gpu.example.com", "gpu-0")]
    assert [offer.driver for offer in found[B].offers or ()] == ["npufleet.io"]
    add_slice(server, "node-0", [nic], driver="nic.example.com")
    assert set(await rows(server)) == {A, B}, "a network card is no accelerator"


async def test_nodes_can_be_picked_and_others_are_not_asked_for(server: FakeApi) -> None:
    for name in ("node-0", "node-1"):
        add_node(server, name, [desired_device(A)])
        add_slice(server, name, [published(A)])
    found = await listing(server, "node-1", "node-1")
    assert [(row.node, row.address) for row in found.rows] == [("node-1", A), ("node-1", B)]
    assert found.rows[0].why is None
    assert not server.calls("LIST", NPU_NODE_STATES)
    assert [call.query["fieldSelector"] for call in server.calls("LIST", RESOURCE_SLICES)] == ["spec.nodeName=node-1"]
    with pytest.raises(CommandError, match=r"node nod-1 has no NPUNodeState; did you mean node-1 or node-0\?") as fault:
        await listing(server, "nod-1")
    assert fault.value.exit_code is ExitCode.USAGE


async def test_lists_are_paged(server: FakeApi) -> None:
    for number in range(501):
        add_node(server, f"node-{number:03}")
    assert len((await listing(server)).rows) == 1002
    assert [call.query["limit"] for call in server.calls("LIST", NPU_NODE_STATES)] == ["500", "500"]


async def test_what_may_not_be_listed_is_unknown_and_not_absent(
    server: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    add_node(server, "node-0", [desired_device(A)])
    for resource in (RESOURCE_SLICES, RESOURCE_CLAIMS):
        server.fail("LIST", resource, code=403, reason="Forbidden")
    found = await listing(server)
    assert (found.rows[0].offers, found.rows[0].allocations) == (None, None)
    show(found, "table")
    told = capsys.readouterr()
    assert told.out.splitlines()[1].split()[6:8] == ["?", "?"]
    assert "note: resourceslices.resource.k8s.io cannot be listed" in told.err
    assert "note: resourceclaims.resource.k8s.io cannot be listed" in told.err


async def test_cluster_without_npufleet_is_told_what_it_lacks(server: FakeApi) -> None:
    server.served.discard(NPU_NODE_STATES)
    with pytest.raises(CommandError, match="is not served: is its CRD installed"):
        await listing(server)


async def test_table_and_json_say_the_same(server: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    add_node(server, "node-0", [desired_device(A), desired_device(B, intent="Hold")], said={B: "Blocked OtherPlugin"})
    add_slice(server, "node-0", [published(A)])
    add_claim(server, "gpu", "vfio-0000-21-00-0", [server.objects.create(PODS, pod("train-0"))])
    found = await listing(server)
    show(found, "table")
    lines = [re.split(" {3,}", line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["NODE", "ADDRESS", "PRODUCT", "DRIVER", "GROUP", "MODE", "OFFERED", "ALLOCATED-TO", "REASON"],
        [
            "node-0",
            A,
            "RBLN-CA25",
            "rebellions",
            "20",
            "Passthrough",
            "npufleet.io",
            "team/train-0 (claim team/gpu)",
            "-",
        ],
        ["node-0", B, "1eff:1250", "rebellions", "-", "Passthrough (Hold)", "-", "-", f"OtherPlugin: message of {B}"],
    ]
    show(found, "wide")
    assert "npufleet.io/vfio-0000-21-00-0" in capsys.readouterr().out
    show(found, "json")
    first, second = json.loads(capsys.readouterr().out)["devices"]
    assert first["allocated"] == [
        {
            "driver": "npufleet.io",
            "device": "vfio-0000-21-00-0",
            "claim": {"namespace": "team", "name": "gpu"},
            "pods": [{"namespace": "team", "name": "train-0"}],
        }
    ]
    assert first["offered"] == [{"driver": "npufleet.io", "device": "vfio-0000-21-00-0", "taints": []}]
    assert (first["reason"], second["reason"], second["intent"]) == ("", "OtherPlugin", "Hold")


async def test_empty_cluster_is_no_error(server: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    show(await listing(server), "table")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "no accelerators found\n")
