"""Slices on a real API server, and claims allocated from them by the real scheduler."""

import asyncio
import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.access.kubeconfig import read_kubeconfig
from cli.cluster.errors import ApiCallError
from cli.cluster.kubectl import find_kubectl
from cli.cluster.programs.binaries import ensure_binaries
from cli.cluster.run.control_plane import ControlPlane
from crds.device_classes import class_name, extended_resource_name
from crds.device_names import NamedKind, device_name
from dra_publisher.offers.offer import Attribute, Offer, Taint, TaintKey
from dra_publisher.slices.device import device_of
from dra_publisher.slices.pool import DROPS_TAINTS
from dra_publisher.slices.resource_slice import slice_prefix
from runtime.api import Api
from simulated_node.description_files import load_description
from tests.builders.binder import host, npu
from tests.builders.device_limits import LIMITS, Judged, limited
from tests.builders.live_slices import PUBLISHER, SLICES, SliceStage, publishing
from tests.builders.offers import NPUFLEET, REBELLIONS, bound_offers
from tests.builders.waiting import eventually, until

REBEL100, ATOM, LAB = "node-rebel100", "node-atom", "node-slices"
VMS = class_name(REBELLIONS, NamedKind.VFIO)
QUERY = (
    "kubectl get resourceslices -o json | "
    """jq -r '.items[] | select(.spec.driver == "npu.rebellions.ai") | """
    "[.spec.pool.name, (.spec.devices | length), .spec.devices[0].name] | @tsv'"
)
Object = dict[str, Any]
Kubectl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def stage(
    installed: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SliceStage]:
    made = SliceStage(control_plane, tmp_path_factory.mktemp("publishers"))
    try:
        for name in (REBEL100, ATOM, LAB):
            made.add_node(name)
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def offers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Offer]]:
    """What binders have made of the documented nodes."""
    products = {REBEL100: "1eff:2130", ATOM: "1eff:1250"}
    return {
        node: asyncio.run(bound_offers(tmp_path_factory.mktemp(node), load_description(node), product))
        for node, product in products.items()
    }


@pytest.fixture(scope="module")
def published(stage: SliceStage, offers: dict[str, list[Offer]]) -> SliceStage:
    """Both nodes as the documentation shows them."""

    async def publish() -> None:
        for node, devices in offers.items():
            async with stage.publishing(node) as it:
                assert (await it.publish({REBELLIONS: devices})).complete

    asyncio.run(publish())
    return stage


def shell(command: str, kubeconfig: Path) -> str:
    assert shutil.which("jq"), "the documented query needs jq: install it"
    path = f"{Path(find_kubectl()).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path}
    return subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_the_documented_queries_print_the_documented_lines(published: SliceStage, control_plane: ControlPlane) -> None:
    classes = shell("kubectl get deviceclasses", control_plane.admin_kubeconfig)
    assert {"npu.rebellions.ai", "vfio-npu.rebellions.ai"} <= {line.split()[0] for line in classes.splitlines()}
    lines = shell(QUERY, control_plane.admin_kubeconfig).splitlines()
    assert [line for line in lines if line.startswith(f"{REBEL100}\t")] == ["node-rebel100\t1\tvfio-0000-27-00-0"]
    assert [line for line in lines if line.startswith(f"{ATOM}\t")] == ["node-atom\t16\tvfio-0000-23-00-0"]


def test_the_attributes_are_the_documented_ones_type_by_type(published: SliceStage) -> None:
    attributes = published.devices(REBEL100)["vfio-0000-27-00-0"]["attributes"]
    assert {name: attributes.get(name) for name in _DOCUMENTED} == _DOCUMENTED


_DOCUMENTED = {
    "type": {"string": "vfio"},
    "iommuGroup": {"int": 42},
    "pciDeviceID": {"string": "2130"},
    "productName": {"string": "RBLN-CR13"},
    "vf": {"bool": False},
    "resource.kubernetes.io/pciBusID": {"string": "0000:27:00.0"},
    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:20"},
    "resource.kubernetes.io/numaNode": {"int": 0},
    "dra.net/numaNode": {"int": 0},
}


def test_a_claim_by_product_or_by_topology_gets_the_right_device(published: SliceStage) -> None:
    by_product = f'device.attributes["{REBELLIONS}"].productName == "RBLN-CR13"'
    by_place = 'device.attributes["resource.kubernetes.io"].numaNode == 1'
    published.ask("by-product", REBEL100, VMS, by_product)
    published.ask("by-topology", ATOM, VMS, by_place)
    assert published.allocated("by-product") == ["vfio-0000-27-00-0"]
    assert published.allocated("by-topology") == ["vfio-0000-a3-00-0"]


def test_an_extended_resource_is_served_from_the_slices(published: SliceStage) -> None:
    resource = extended_resource_name(REBELLIONS, NamedKind.VFIO)
    assert resource is not None
    published.ask_by_resource("by-resource", ATOM, resource)
    eventually(lambda: published.results_of_pod("by-resource"), what="the pod has a device")
    assert [pool for pool, _ in published.results_of_pod("by-resource")] == [ATOM]


SPECIAL: dict[str, Attribute] = {
    "type": "npu",
    "iommuGroup": 4242,
    "pciDeviceID": "fade",
    "productName": "RBLN-CA22",
    "vf": True,
    "groupViability": "NotViable",
    "numaNode": 3,
    "resource.kubernetes.io/pciBusID": "0000:99:1f.7",
    "resource.kubernetes.io/pcieRoot": "pci0000:99",
    "resource.kubernetes.io/numaNode": 5,
    "dra.net/numaNode": 7,
}


async def test_a_selector_on_each_attribute_gets_the_device_that_differs_in_it(
    stage: SliceStage, offers: dict[str, list[Offer]]
) -> None:
    (usual,) = offers[REBEL100]
    assert set(SPECIAL) == set(usual.attributes)
    made: dict[str, Offer] = {}
    for number, (name, value) in enumerate(SPECIAL.items()):
        address = f"0000:9{number // 8}:00.{number % 8}"
        kind = NamedKind.NPU if name == "type" else NamedKind.VFIO
        own = {**usual.attributes, "resource.kubernetes.io/pciBusID": address, name: value}
        made[name] = dataclasses.replace(
            usual, address=address, kind=kind, name=device_name(kind, address), attributes=own
        )
    async with stage.publishing(LAB) as it:
        assert (await it.publish({REBELLIONS: [usual, *made.values()]})).left_out == {}
    claims = {}
    for number, (name, value) in enumerate(SPECIAL.items()):
        domain, _, identifier = name.rpartition("/")
        text = json.dumps(value)  # as CEL writes it
        kind = NamedKind.NPU if name == "type" else NamedKind.VFIO
        claims[name] = f"attribute-{number}"
        expression = f'device.attributes["{domain or REBELLIONS}"].{identifier} == {text}'
        stage.ask(claims[name], LAB, class_name(REBELLIONS, kind), expression)
    assert {name: stage.allocated(claim) for name, claim in claims.items()} == {
        name: [offer.name] for name, offer in made.items()
    }
    for claim in claims.values():
        stage.let_go(claim)


async def test_an_attribute_that_a_device_lacks_can_be_asked_for_with_care(
    stage: SliceStage, offers: dict[str, list[Offer]]
) -> None:
    known, unknown = offers[ATOM][:2]
    names = [name for name in unknown.attributes if name.endswith("numaNode")]
    placeless = {name: value for name, value in unknown.attributes.items() if name not in names}
    async with stage.publishing(LAB) as it:
        await it.publish({REBELLIONS: [known, dataclasses.replace(unknown, attributes=placeless)]})
    domain = 'device.attributes["dra.net"]'
    stage.ask("with-care", LAB, VMS, f'"numaNode" in {domain} && {domain}.numaNode == 0')
    assert stage.allocated("with-care") == [known.name]
    stage.let_go("with-care")


async def test_a_tainted_device_is_given_to_nobody_until_its_taint_goes(
    stage: SliceStage, offers: dict[str, list[Offer]]
) -> None:
    device = offers[REBEL100][0]
    withheld = dataclasses.replace(device, taints=(Taint(TaintKey.HANDOVER, "HandOver"),))
    async with stage.publishing(LAB) as it:
        done = await it.publish({REBELLIONS: [withheld]})
        assert (done.left_out, done.dropped, it.writer.keeps_taints) == ({}, frozenset(), True)
        stage.ask("patient", LAB, VMS)
        await until(lambda: stage.unschedulable("patient"), seconds=30, what="the scheduler has looked")
        assert stage.results("patient") == []
        await it.publish({REBELLIONS: [device]})
        await until(lambda: stage.results("patient"), seconds=30, what="the claim is allocated")
    stage.let_go("patient")


async def test_t20_a_device_that_others_rebind_is_withheld_and_comes_back(
    stage: SliceStage, offers: dict[str, list[Offer]]
) -> None:
    device, mate = offers[ATOM][:2]
    moved = dataclasses.replace(device, taints=(Taint(TaintKey.DRIVER_CHANGED, "DriverChanged"),))
    async with stage.publishing(LAB) as it:
        await it.publish({REBELLIONS: [device, mate]})
        await it.publish({REBELLIONS: [moved, mate]})
        assert [taint["key"] for taint in stage.devices(LAB)[device.name]["taints"]] == [TaintKey.DRIVER_CHANGED]
        stage.ask("other", LAB, VMS)
        await until(lambda: stage.results("other"), seconds=30, what="the other device is allocated")
        assert stage.results("other") == [(LAB, mate.name)]
        await it.publish({REBELLIONS: [device, mate]})
        assert "taints" not in stage.devices(LAB)[device.name]
    stage.let_go("other")


async def test_t21_devices_of_one_group_are_all_published_and_can_be_claimed_together(
    stage: SliceStage, tmp_path: Path
) -> None:
    description = host(
        *(npu(f"0000:2{n}:00.0", group) for n, group in ((1, 20), (2, 21), (3, 21), (4, 22))), modules=[]
    )
    devices = await bound_offers(tmp_path / "host", description, "1eff:1250", companions="Bind")
    assert len(devices) == 4
    async with stage.publishing(LAB) as it:
        await it.publish({REBELLIONS: devices})
    assert len(stage.devices(LAB)) == 4
    stage.ask("pair", LAB, VMS, count=2, same=f"{REBELLIONS}/iommuGroup")
    assert sorted(stage.allocated("pair")) == ["vfio-0000-22-00-0", "vfio-0000-23-00-0"]
    stage.let_go("pair")


async def test_t19_wiped_slices_are_back_within_seconds_and_are_allocated_from(
    stage: SliceStage, offers: dict[str, list[Offer]]
) -> None:
    many = [dataclasses.replace(one, driver=NPUFLEET) for one in offers[ATOM]]
    async with stage.publishing(LAB) as it:
        await it.publish({REBELLIONS: offers[REBEL100], NPUFLEET: many})
        before = {one["metadata"]["name"]: one for one in stage.slices(LAB)}
        # As the kubelet does when it starts, and once more half a minute later.
        for wipe in (1, 2):
            for name in before:
                stage.api.call("DELETE", f"{SLICES}/{name}")
            await until(
                lambda: {one["metadata"]["name"] for one in stage.slices(LAB)} == set(before),
                seconds=5,
                what=f"the slices are back after wipe {wipe}",
            )
        after = {one["metadata"]["name"]: one for one in stage.slices(LAB)}
        for name, one in after.items():
            pool, was = one["spec"]["pool"], before[name]["spec"]["pool"]
            assert pool["generation"] > was["generation"]
            assert one["spec"]["devices"] == before[name]["spec"]["devices"]
    stage.ask("after", LAB, VMS)
    assert stage.allocated("after") == ["vfio-0000-27-00-0"]
    stage.let_go("after")


async def test_the_second_time_nothing_is_written(stage: SliceStage, offers: dict[str, list[Offer]]) -> None:
    taint = (Taint(TaintKey.IN_USE, "InUse"),)
    tainted = dataclasses.replace(offers[ATOM][0], taints=taint, capacity={"memory": "16384Mi"})
    async with stage.publishing(LAB) as it:
        wanted = {REBELLIONS: [tainted, *offers[ATOM][1:]]}
        await it.publish(wanted)
    versions = [one["metadata"]["resourceVersion"] for one in stage.slices(LAB)]
    async with stage.publishing(LAB) as it:
        assert (await it.publish(wanted)).written == 0
        assert (await it.publish(wanted)).written == 0
    assert [one["metadata"]["resourceVersion"] for one in stage.slices(LAB)] == versions


async def test_the_real_server_takes_what_just_fits(stage: SliceStage, offers: dict[str, list[Offer]]) -> None:
    """The limits are those of the real server: what is at them is taken, in slices that are as full as may be."""
    usual = offers[REBEL100][0]
    full: dict[str, Attribute] = {f"{'a' * 29}{n:03}": "é" * 32 for n in range(30)} | {
        f"{'b' * 59}.com/{'c' * 32}": -(2**63)
    }
    taints = tuple(Taint(f"npufleet.io/{'t' * 61}{n:02}", "V" * 63) for n in range(16))
    many = []
    for number in range(129):
        address = f"0000:{number:02x}:00.0"
        one = dataclasses.replace(usual, address=address, name=device_name(NamedKind.VFIO, address))
        if number in (0, 128):
            one = dataclasses.replace(one, attributes=full, capacity={"memory": "1Gi"})
        many.append(dataclasses.replace(one, taints=taints) if number == 128 else one)
    async with stage.publishing(LAB) as it:
        done = await it.publish({REBELLIONS: many})
        assert (done.left_out, done.complete) == ({}, True)
    assert [len(one["spec"]["devices"]) for one in stage.slices(LAB)] == [128, 1]


def refused(stage: SliceStage, devices: list[Object]) -> str:
    """What the server has against a slice with these devices; nothing is stored."""
    body = slice_of(LAB, "limits")
    body["spec"]["devices"] = devices
    try:
        stage.api.call("POST", f"{SLICES}?dryRun=All", body)
    except ApiCallError as error:
        assert error.status in (400, 422), error
        return str(error)
    return ""


def test_the_limits_are_those_of_the_real_server(stage: SliceStage) -> None:
    """Beyond what the table says the server refuses too, but for what only makes no sense."""
    fitting = {}
    for number, limit in enumerate(LIMITS):
        device = device_of(limited(limit.fits))
        device["name"] = limit.fits.get("name", f"vfio-{number}")
        fitting[device["name"]] = device
    assert refused(stage, list(fitting.values())) == ""
    sent = [limit for limit in LIMITS if limit.judged is not Judged.UNSENT]
    taken = [limit for limit in sent if not refused(stage, [device_of(limited(limit.beyond))])]
    assert taken == [limit for limit in LIMITS if limit.judged is Judged.BY_US]


class Guarded:
    """The identity of the publisher on one node, with kubectl."""

    def __init__(self, kubectl: Kubectl, kubeconfig: Path) -> None:
        self._kubectl = kubectl
        self._kubeconfig = kubeconfig

    def create(self, body: Object) -> str:
        """What the server has against it; empty when it takes it."""
        return self._said("create", "-f", "-", input=json.dumps(body))

    def replace(self, body: Object) -> str:
        return self._said("replace", "-f", "-", input=json.dumps(body))

    def delete(self, name: str) -> str:
        return self._said("delete", "resourceslice", name)

    def _said(self, *arguments: str, **more: Any) -> str:
        done = self._kubectl(*arguments, kubeconfig=self._kubeconfig, check=False, **more)
        return "" if done.returncode == 0 else done.stderr


def slice_of(node: str, name: str, *, driver: str = NPUFLEET, pool: str | None = None, label: bool = True) -> Object:
    labels = {"app.kubernetes.io/component": "npufleet-dra-publisher"} if label else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        },
    }


@pytest.fixture
def guarded(stage: SliceStage, kubectl: Kubectl) -> Guarded:
    found = Guarded(kubectl, stage.kubeconfig(LAB))
    eventually(lambda: "is of node" in found.create(slice_of("elsewhere", "probe")), what="the policy is in force")
    return found


def test_a_publisher_writes_slices_of_its_own_node_only(stage: SliceStage, guarded: Guarded) -> None:
    others = slice_of(ATOM, "guard-other")
    assert f"bound to node {LAB}, and slice guard-other is of node {ATOM}" in guarded.create(others)
    everywhere = slice_of(LAB, "guard-all")
    del everywhere["spec"]["nodeName"]
    everywhere["spec"]["allNodes"] = True
    assert "is of node (none)" in guarded.create(everywhere)
    assert "the pool of a node has the name of the node" in guarded.create(slice_of(LAB, "guard-pool", pool="other"))
    assert "carry the label" in guarded.create(slice_of(LAB, "guard-label", label=False))
    stage.api.call("POST", SLICES, others)
    try:
        there = stage.api.call("GET", f"{SLICES}/guard-other")
        assert "bound to node" in guarded.delete("guard-other")
        assert "bound to node" in guarded.replace(
            {**others, "metadata": {**there["metadata"], "annotations": {"a": "b"}}}
        )
    finally:
        stage.api.call("DELETE", f"{SLICES}/guard-other")


@pytest.mark.parametrize(
    ("node", "hashed"), [(LAB, False), (LAB, True), (".".join(["n" * 60] * 4), True)], ids=["plain", "hashed", "cut"]
)
def test_a_publisher_takes_no_name_that_another_node_needs(
    stage: SliceStage, kubectl: Kubectl, guarded: Guarded, node: str, hashed: bool
) -> None:
    if node != LAB:
        stage.add_node(node)
        guarded = Guarded(kubectl, stage.kubeconfig(node))
    own = f"{slice_prefix(node, NPUFLEET, hashed=hashed)}-000"
    assert guarded.create(slice_of(node, own)) == ""
    assert guarded.delete(own) == ""
    for taken in (f"{ATOM}-{NPUFLEET}-000", f"x{own[1:]}", f"{LAB}x-{NPUFLEET}-000"):
        told = guarded.create(slice_of(node, taken))
        assert f"slices of node {node} begin with {node[:200]}" in told
        assert f"unlike {taken}" in told


def test_a_publisher_leaves_the_slices_of_other_drivers_on_its_node_alone(stage: SliceStage, guarded: Guarded) -> None:
    name = f"{LAB}-gpu.example.com-x1y2z"
    stage.api.call("POST", SLICES, slice_of(LAB, name, driver="gpu.example.com", label=False))
    try:
        there = stage.api.call("GET", f"{SLICES}/{name}")
        labelled = {**there["metadata"], "labels": {"app.kubernetes.io/component": "npufleet-dra-publisher"}}
        assert "and not made by npufleet-dra-publisher" in guarded.replace({**there, "metadata": labelled})
        assert "and not made by npufleet-dra-publisher" in guarded.delete(name)
    finally:
        stage.api.call("DELETE", f"{SLICES}/{name}")


def test_a_publisher_takes_back_a_slice_of_its_own_that_lost_its_label(stage: SliceStage, guarded: Guarded) -> None:
    name = f"{LAB}-{NPUFLEET}-007"
    stage.api.call("POST", SLICES, slice_of(LAB, name, label=False))
    there = stage.api.call("GET", f"{SLICES}/{name}")
    assert "carry the label" in guarded.replace(there)
    labelled = {**there["metadata"], "labels": {"app.kubernetes.io/component": "npufleet-dra-publisher"}}
    assert guarded.replace({**there, "metadata": labelled}) == ""
    assert guarded.delete(name) == ""


def test_a_publisher_has_the_rights_that_its_work_takes_and_no_others(stage: SliceStage) -> None:
    api = ApiAccess(read_kubeconfig(stage.kubeconfig(LAB)))

    def may(verb: str, resource: str, group: str = "", namespace: str = "") -> bool:
        name, _, part = resource.partition("/")
        wanted = {"verb": verb, "resource": name, "subresource": part, "group": group, "namespace": namespace}
        body = {"spec": {"resourceAttributes": wanted}}
        answer = api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool(answer["status"]["allowed"])

    ours, dra, leases = "npufleet.io", "resource.k8s.io", "coordination.k8s.io"
    needed = [
        *((verb, "npunodestates", ours) for verb in ("get", "list", "watch")),
        ("patch", "npunodestates/status", ours),
        *((verb, "nodes") for verb in ("get", "list", "watch")),
        *((verb, "resourceslices", dra) for verb in ("get", "list", "watch", "create", "update", "delete")),
        *((verb, "resourceclaims", dra) for verb in ("get", "list")),
        ("patch", "resourceclaims/status", dra),
        ("associated-node:patch", "resourceclaims/driver", dra),
        ("create", "events", "events.k8s.io"),
        *((verb, "leases", leases, "npufleet-system") for verb in ("get", "create", "update")),
    ]
    refused = [
        *((verb, "npunodestates", ours) for verb in ("create", "patch", "update", "delete")),
        *((verb, "nodes") for verb in ("patch", "update", "delete")),
        *((verb, "resourceslices", dra) for verb in ("patch", "deletecollection")),
        *((verb, "resourceclaims", dra) for verb in ("create", "update", "patch", "delete")),
        ("update", "resourceclaims/status", dra),
        ("arbitrary-node:patch", "resourceclaims/driver", dra),
        ("get", "deviceclasses", dra),
        *((verb, kind) for verb in ("get", "list", "create", "delete") for kind in ("pods", "secrets", "configmaps")),
        ("create", "pods/eviction"),
        ("delete", "leases", leases, "npufleet-system"),
        ("update", "leases", leases, "kube-node-lease"),
        ("get", "npunodepolicies", ours),
    ]
    assert [what for what in needed if not may(*what)] == []
    assert [what for what in refused if may(*what)] == []


def test_other_components_write_no_slices(kubectl: Kubectl, guarded: Guarded) -> None:
    account = "system:serviceaccount:npufleet-system:npufleet-vfio-binder"
    asked = ["create", "--dry-run=server", f"--as={account}", "--as-group=system:masters", "-f", "-"]
    done = kubectl(*asked, input=json.dumps(slice_of(LAB, "guard-binder")), check=False)
    assert "ResourceSlices are not for npufleet-vfio-binder" in done.stderr


async def test_on_a_server_that_drops_taints_a_withheld_device_is_left_out(
    offers: dict[str, list[Offer]], tmp_path: Path
) -> None:
    """A real API server, told to be as those are that do not know taints yet."""
    programs = ensure_binaries(["etcd", "kube-apiserver"])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/etcd").symlink_to(programs["etcd"])
    older = tmp_path / "bin/kube-apiserver"
    gates = "DRADeviceTaints=false,DRADeviceTaintRules=false"
    older.write_text(f'#!/bin/sh\nexec {programs["kube-apiserver"]} --feature-gates={gates} "$@"\n')
    older.chmod(0o755)
    usual, other = offers[ATOM][:2]
    withheld = dataclasses.replace(usual, taints=(Taint(TaintKey.HANDOVER, "HandOver"),))
    with ControlPlane.start(tmp_path / "plane", components=(), bin_dir=tmp_path / "bin") as plane:
        node = plane.api().call("POST", "/api/v1/nodes", {"metadata": {"name": LAB}})
        async with (
            Api.connect(kubeconfig=plane.admin_kubeconfig, component=PUBLISHER) as api,
            publishing(api, LAB, node["metadata"]["uid"]) as it,
        ):
            await it.publish({REBELLIONS: [usual, other]})
            done = await it.publish({REBELLIONS: [withheld, other]})
            assert done.left_out == {(REBELLIONS, usual.name): DROPS_TAINTS}
            assert done.dropped == frozenset({"taints"})
            again = await it.publish({REBELLIONS: [withheld, other]})
            assert (again.written, again.left_out) == (0, done.left_out)
        (found,) = plane.api().call("GET", SLICES)["items"]
    assert [device["name"] for device in found["spec"]["devices"]] == [other.name]
