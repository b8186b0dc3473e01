"""Drains on a real API server: the controller as a process of its own rights, real evictions, budgets and webhooks."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.run.control_plane import ControlPlane
from tests.builders.live_drains import AuditedWrite, DrainFleet, EvictionWebhook, audited_writes
from tests.builders.node_policy_cluster import LEASE, ControllerProcess
from tests.builders.objects import node_policy
from tests.builders.paper_binder import address
from tests.builders.waiting import eventually
from tests.builders.workloads import VM_LABELS

A, B = address(0), address(1)
NPU_A, NPU_B = "npu-0000-20-00-0", "npu-0000-21-00-0"
POOL = {"test-pool": "drain"}
Object = dict[str, Any]
Start = Callable[..., ControllerProcess]


@pytest.fixture(scope="module")
def identity(
    installed: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Path]:
    """Makes credentials of the controller's ServiceAccount, each with a token of its own."""

    def make() -> Path:
        out = tmp_path_factory.mktemp("drain") / "kubeconfig"
        return service_account_kubeconfig(control_plane, "npufleet-system", "npufleet-node-policy", out)

    return make


@pytest.fixture
def fleet(installed: None, control_plane: ControlPlane) -> Iterator[DrainFleet]:
    found = DrainFleet(control_plane.api())
    yield found
    found.clear()


@pytest.fixture
def start(identity: Callable[[], Path], fleet: DrainFleet, tmp_path: Path) -> Iterator[Start]:
    """Starts controllers; those that still run at the end are stopped, before the fleet is cleared."""
    started: list[ControllerProcess] = []

    def run(*options: str) -> ControllerProcess:
        log = tmp_path / f"controller-{len(started)}.log"
        started.append(ControllerProcess(identity(), log, "--settle-seconds", "0.1", *options))
        return started[-1]

    yield run
    for process in started:
        process.kill()


@pytest.fixture
def written(control_plane: ControlPlane) -> Callable[[], list[AuditedWrite] | None]:
    """What npufleet has written since the test began; None on a cluster without audit log."""
    log = control_plane.audit_log
    since = log.stat().st_size if log is not None else 0
    return lambda: audited_writes(log, since=since) if log is not None else None


def policy(name: str, *, timeout: int = 60, **more: Any) -> Object:
    rollout = {"drain": "IfInUse", "drainTimeoutSeconds": timeout, "maxUnavailable": 1}
    return node_policy(name, nodes=POOL, rollout=rollout, **more)


def prepared(fleet: DrainFleet, *nodes: str, cards: int = 1) -> None:
    """Nodes whose devices pods may have: in mode Container, and published."""
    for name in nodes:
        fleet.add_node(name, cards, labels=POOL)
        fleet.publishing.add(name)


def evictions(writes: list[AuditedWrite]) -> list[str]:
    """Pods whose eviction was accepted, in order."""
    return [write.name for write in writes if write.resource == "pods/eviction" and write.code < 300]


def drained(fleet: DrainFleet, node: str) -> bool:
    return fleet.draining(node)[:2] == ("False", "Drained") and not fleet.marks(node)


def test_device_is_emptied_and_handed_over_without_a_cordon(
    fleet: DrainFleet, start: Start, written: Callable[[], list[AuditedWrite] | None], kubectl: Any
) -> None:
    prepared(fleet, "dr-a", cards=2)
    fleet.apply(policy("dr-one", mode="Container"))
    process = start()
    fleet.ready("dr-one")
    fleet.use("dr-a", A, fleet.add_pod("opened", "dr-a", claims=[NPU_A]))
    fleet.add_pod("agent", "dr-a", claims=[NPU_B], owner="DaemonSet/agent")
    fleet.add_pod("bystander", "dr-a")
    fleet.apply(policy("dr-one"))
    fleet.until(lambda: fleet.cards["dr-a"][A].bound and fleet.cards["dr-a"][B].bound)
    fleet.ready("dr-one")
    fleet.until(lambda: drained(fleet, "dr-a"))
    assert set(fleet.pods()) == {"bystander"}
    assert fleet.cordons == set()
    assert fleet.rollout("dr-a").get("cordonedBy", "") == ""
    writes = written()
    if writes is not None:
        assert sorted(evictions(writes)) == ["agent", "opened"]
        assert not any("spec" in write.body for write in writes if write.resource == "nodes")
    outcome = 'npufleet_drain_seconds_count{outcome="Drained"}'
    eventually(lambda: process.value(outcome) == 1)
    assert process.value('npufleet_policy_nodes{policy="dr-one",state="ready"}') == 1
    events = json.loads(kubectl("get", "events", "-o", "json").stdout)["items"]
    told = {event["reason"] for event in events if event["involvedObject"].get("name") == "dr-a"}
    assert {"DrainStarted", "Drained"} <= told
    assert process.stop() == 0


def test_drain_that_a_budget_refuses_is_given_up_at_its_deadline(fleet: DrainFleet, start: Start, kubectl: Any) -> None:
    fleet.add_node("dr-a", 1, labels=POOL)
    start()
    fleet.use("dr-a", A, fleet.add_pod("web-0", "dr-a", labels={"app": "web"}))
    fleet.add_budget("keep-web", {"app": "web"})
    fleet.apply(policy("dr-budget", timeout=10))
    fleet.until(lambda: fleet.node("dr-a")["spec"].get("unschedulable"))
    fleet.until(lambda: "keep-web" in fleet.draining("dr-a")[2])
    status, reason, message = fleet.draining("dr-a")
    assert (status, reason) == ("True", "Evicting")
    assert f"pod {fleet.namespace}/web-0" in message
    assert fleet.rollout("dr-a")["admitted"] == "Draining"
    assert fleet.marks("dr-a")["cordoned-by"] == "dr-budget"
    fleet.until(lambda: fleet.rollout("dr-a").get("cordonedBy") == "dr-budget")
    fleet.until(lambda: fleet.draining("dr-a")[:2] == ("False", "DrainTimedOut"))
    fleet.until(lambda: not fleet.node("dr-a")["spec"].get("unschedulable") and not fleet.marks("dr-a"))
    fleet.until(lambda: {order["intent"] for order in fleet.orders("dr-a").values()} <= {"Hold"})
    message = fleet.draining("dr-a")[2]
    assert "keep-web" in message and f"pod {fleet.namespace}/web-0" in message
    assert fleet.rollout("dr-a")["admitted"] == "Aborted"
    fleet.until(lambda: fleet.rollout("dr-a").get("cordonedBy", "") == "")
    assert not fleet.cards["dr-a"][A].bound
    assert "web-0" in fleet.pods()

    def told() -> set[str]:
        events = json.loads(kubectl("get", "events", "-o", "json").stdout)["items"]
        found = [event for event in events if event["reason"] == "DrainAborted" and event["type"] == "Warning"]
        return {event["involvedObject"]["name"] for event in found if "keep-web" in event["message"]}

    eventually(lambda: {"dr-a", "dr-budget"} <= told())


def test_virtual_machine_whose_eviction_a_webhook_refuses_is_named(
    fleet: DrainFleet, start: Start, control_plane: ControlPlane, tmp_path: Path
) -> None:
    prepared(fleet, "dr-a")
    fleet.apply(policy("dr-vm", mode="Container"))
    start()
    fleet.ready("dr-vm")
    owner = "VirtualMachineInstance/db"
    fleet.add_pod("virt-launcher-db-x", "dr-a", claims=[NPU_A], labels=VM_LABELS, owner=owner)
    words = "Eviction triggered evacuation of the VM"
    with EvictionWebhook(control_plane.api(), fleet.namespace, tmp_path, words):
        fleet.apply(policy("dr-vm"))
        name = f"VM {fleet.namespace}/db (pod {fleet.namespace}/virt-launcher-db-x): "
        fleet.until(lambda: name in fleet.draining("dr-a")[2] and words in fleet.draining("dr-a")[2])
        assert "virt-launcher-db-x" in fleet.pods()
    fleet.until(lambda: drained(fleet, "dr-a"))
    assert fleet.cordons == set()
    assert fleet.cards["dr-a"][A].bound


def test_user_without_a_claim_is_evicted_under_a_cordon_that_ends_with_the_drain(
    fleet: DrainFleet, start: Start, written: Callable[[], list[AuditedWrite] | None]
) -> None:
    fleet.add_node("dr-a", 1, labels=POOL)
    start()
    fleet.use("dr-a", A, fleet.add_pod("privileged", "dr-a"))
    fleet.lingering.add("privileged")
    fleet.apply(policy("dr-cordon"))
    fleet.until(lambda: fleet.pods()["privileged"]["metadata"].get("deletionTimestamp"))
    assert fleet.node("dr-a")["spec"]["unschedulable"] is True
    marks = fleet.marks("dr-a")
    assert marks["cordoned-by"] == "dr-cordon"
    assert marks["drain-request"] == fleet.state("dr-a")["spec"]["revision"]
    fleet.until(lambda: fleet.rollout("dr-a").get("cordonedBy") == "dr-cordon")
    fleet.until(lambda: f"pod {fleet.namespace}/privileged is terminating" in fleet.draining("dr-a")[2])
    fleet.lingering.clear()
    fleet.until(lambda: drained(fleet, "dr-a"))
    assert fleet.cards["dr-a"][A].bound
    assert not fleet.node("dr-a")["spec"].get("unschedulable")
    fleet.until(lambda: fleet.rollout("dr-a").get("cordonedBy", "") == "")
    writes = written()
    if writes is not None:
        assert evictions(writes) == ["privileged"]


def test_node_that_somebody_else_cordoned_stays_cordoned(fleet: DrainFleet, start: Start) -> None:
    fleet.add_node("dr-a", 1, labels=POOL)
    fleet.edit_node("dr-a", lambda node: node["spec"].update(unschedulable=True))
    start()
    fleet.use("dr-a", A, fleet.add_pod("privileged", "dr-a"))
    fleet.lingering.add("privileged")
    fleet.apply(policy("dr-theirs"))
    fleet.until(lambda: fleet.pods()["privileged"]["metadata"].get("deletionTimestamp"))
    assert "cordoned-by" not in fleet.marks("dr-a")
    fleet.lingering.clear()
    fleet.until(lambda: drained(fleet, "dr-a"))
    assert fleet.cards["dr-a"][A].bound
    assert fleet.node("dr-a")["spec"]["unschedulable"] is True


def test_person_who_uncordons_ends_the_drain(fleet: DrainFleet, start: Start) -> None:
    fleet.add_node("dr-a", 1, labels=POOL)
    start()
    fleet.use("dr-a", A, fleet.add_pod("privileged", "dr-a"))
    fleet.lingering.add("privileged")
    fleet.apply(policy("dr-person"))
    fleet.until(lambda: fleet.marks("dr-a").get("cordoned-by") and fleet.rollout("dr-a").get("cordonedBy"))
    fleet.edit_node("dr-a", lambda node: node["spec"].pop("unschedulable"))
    fleet.until(lambda: fleet.draining("dr-a")[:2] == ("False", "Uncordoned") and not fleet.marks("dr-a"))
    fleet.until(lambda: {order["intent"] for order in fleet.orders("dr-a").values()} <= {"Hold"})
    assert fleet.rollout("dr-a")["admitted"] == "Aborted"
    assert not fleet.node("dr-a")["spec"].get("unschedulable")
    assert not fleet.cards["dr-a"][A].bound


def test_pod_that_nothing_would_start_again_is_named_and_left_to_people(
    fleet: DrainFleet, start: Start, written: Callable[[], list[AuditedWrite] | None]
) -> None:
    prepared(fleet, "dr-a")
    fleet.apply(policy("dr-bare", mode="Container"))
    start()
    fleet.ready("dr-bare")
    fleet.add_pod("bare", "dr-a", claims=[NPU_A], owner="")
    fleet.apply(policy("dr-bare"))
    fleet.until(lambda: f"pod {fleet.namespace}/bare has no controller" in fleet.draining("dr-a")[2])
    assert "deletionTimestamp" not in fleet.pods()["bare"]["metadata"]
    fleet.end_pod("bare")
    fleet.until(lambda: drained(fleet, "dr-a"))
    writes = written()
    if writes is not None:
        assert evictions(writes) == []


def test_external_drainer_is_asked_and_its_answer_awaited(
    fleet: DrainFleet, start: Start, written: Callable[[], list[AuditedWrite] | None]
) -> None:
    prepared(fleet, "dr-a")
    fleet.apply(policy("dr-ext", mode="Container"))
    start("--drainer", "External")
    fleet.ready("dr-ext")
    fleet.add_pod("train", "dr-a", claims=[NPU_A])
    fleet.apply(policy("dr-ext"))
    fleet.until(lambda: fleet.marks("dr-a").get("drain-request"))
    asked = fleet.marks("dr-a")["drain-request"]
    assert asked == fleet.state("dr-a")["spec"]["revision"]
    fleet.until(lambda: fleet.draining("dr-a")[:2] == ("True", "WaitingForDrainer"))
    answer = {"npufleet.io/drain-done": "000000000000"}
    fleet.edit_node("dr-a", lambda node: node["metadata"]["annotations"].update(answer))
    fleet.end_pod("train")
    fleet.edit_node("dr-a", lambda node: node["metadata"]["annotations"].update({"npufleet.io/drain-done": asked}))
    fleet.until(lambda: drained(fleet, "dr-a"))
    assert fleet.cards["dr-a"][A].bound
    assert fleet.cordons == set()
    writes = written()
    if writes is not None:
        assert not [write for write in writes if write.resource == "pods/eviction"]


def test_missing_right_to_evict_is_named_and_the_process_goes_on(fleet: DrainFleet, start: Start, kubectl: Any) -> None:
    prepared(fleet, "dr-a")
    fleet.apply(policy("dr-right", mode="Container"))
    process = start()
    fleet.ready("dr-right")
    fleet.add_pod("train", "dr-a", claims=[NPU_A])
    role = json.loads(kubectl("get", "clusterrole", "npufleet-node-policy", "-o", "json").stdout)
    rules = [rule for rule in role["rules"] if "pods/eviction" not in rule["resources"]]
    replace = ["patch", "clusterrole", "npufleet-node-policy", "--type=json", "-p"]
    kubectl(*replace, json.dumps([{"op": "replace", "path": "/rules", "value": rules}]))
    try:
        fleet.apply(policy("dr-right"))
        fleet.until(lambda: "grant create on pods/eviction to npufleet-node-policy" in fleet.draining("dr-a")[2])
        assert process.is_ready()
    finally:
        kubectl(*replace, json.dumps([{"op": "replace", "path": "/rules", "value": role["rules"]}]))
    fleet.until(lambda: drained(fleet, "dr-a"))


def test_controller_killed_in_each_phase_finishes_the_drain_once(
    fleet: DrainFleet, start: Start, written: Callable[[], list[AuditedWrite] | None]
) -> None:
    fleet.add_node("dr-a", 1, labels=POOL)
    fleet.use("dr-a", A, fleet.add_pod("train", "dr-a"))
    fleet.lingering.add("train")
    fleet.apply(policy("dr-killed"))
    phases: list[tuple[str, Callable[[], object]]] = [
        ("told", lambda: fleet.draining("dr-a")[0] == "True"),
        ("marked", lambda: "drain-request" in fleet.marks("dr-a")),
        ("cordoned", lambda: fleet.node("dr-a")["spec"].get("unschedulable")),
        ("evicted", lambda: fleet.pods()["train"]["metadata"].get("deletionTimestamp")),
    ]

    def until_killed(reached: Callable[[], object], what: str) -> None:
        process = start()
        eventually(lambda: process.plans() >= 1)
        fleet.until(reached, what=what)
        process.kill()
        fleet.api.call("DELETE", LEASE)  # else the next one waits until the dead one's time is over

    for what, reached in phases:
        until_killed(reached, what)
    fleet.lingering.clear()
    until_killed(lambda: fleet.cards["dr-a"][A].bound, "changed")
    start()
    fleet.until(lambda: drained(fleet, "dr-a"))
    fleet.ready("dr-killed")
    assert not fleet.node("dr-a")["spec"].get("unschedulable")
    writes = written()
    if writes is not None:
        assert [write.name for write in writes if write.resource == "pods/eviction"] == ["train"]


def test_second_replica_takes_over_a_drain_and_no_second_node_is_drained_beside_it(
    fleet: DrainFleet, start: Start, written: Callable[[], list[AuditedWrite] | None]
) -> None:
    prepared(fleet, "dr-a", "dr-b")
    fleet.apply(policy("dr-two", mode="Container"))
    first = start()
    fleet.ready("dr-two")
    second = start()
    eventually(second.is_ready)
    for node in ("dr-a", "dr-b"):
        fleet.add_pod(f"on-{node}", node, claims=[NPU_A])
        fleet.lingering.add(f"on-{node}")
    fleet.apply(policy("dr-two"))
    fleet.until(lambda: any(pod["metadata"].get("deletionTimestamp") for pod in fleet.pods().values()))
    leader = fleet.leader()
    killed = time.monotonic()
    first.kill()
    fleet.lingering.clear()
    fleet.until(lambda: fleet.leader() != leader)
    took = time.monotonic() - killed
    print(f"takeover after {took:.1f} s")
    assert took < 20
    fleet.ready("dr-two")
    fleet.until(lambda: not fleet.marks("dr-a") and not fleet.marks("dr-b"))
    writes = written()
    if writes is None:
        return
    assert sorted(evictions(writes)) == ["on-dr-a", "on-dr-b"]
    processes = list(dict.fromkeys(write.process for write in writes))
    assert len(processes) == 2
    assert [write.process for write in writes] == sorted((w.process for w in writes), key=processes.index)
    under_way: set[str] = set()
    for write in writes:
        if write.resource == "npunodestates/status":
            draining = write.body["status"]["rollout"]["admitted"] == "Draining"
            (under_way.add if draining else under_way.discard)(write.name)
            assert len(under_way) <= 1, "one node at a time"
