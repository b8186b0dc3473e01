"""The node-policy controller as a process with its own rights, on a real API server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.run.control_plane import ControlPlane
from tests.builders.audit import writes_of_npufleet
from tests.builders.fault_proxy import FaultProxy
from tests.builders.node_policy_cluster import LEASE, STATES, ControllerProcess, LiveFleet, condition
from tests.builders.objects import device_rule, node_policy
from tests.builders.paper_binder import Card, address
from tests.builders.waiting import eventually

A, B = address(0), address(1)
POOL = {"test-pool": "node-policy"}
Start = Callable[..., ControllerProcess]


@pytest.fixture(scope="module")
def controller_kubeconfig(
    installed: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The identity under which the controller runs in these tests: its ServiceAccount, never an administrator."""
    out = tmp_path_factory.mktemp("node-policy") / "kubeconfig"
    return service_account_kubeconfig(control_plane, "npufleet-system", "npufleet-node-policy", out)


@pytest.fixture
def fleet(installed: None, control_plane: ControlPlane) -> Iterator[LiveFleet]:
    found = LiveFleet(control_plane.api())
    yield found
    found.clear()


@pytest.fixture
def start(controller_kubeconfig: Path, fleet: LiveFleet, tmp_path: Path) -> Iterator[Start]:
    """Starts controllers; those that still run at the end are stopped, before the fleet is cleared."""
    started: list[ControllerProcess] = []

    def run(*options: str, kubeconfig: Path = controller_kubeconfig) -> ControllerProcess:
        started.append(ControllerProcess(kubeconfig, tmp_path / f"controller-{len(started)}.log", *options))
        return started[-1]

    yield run
    for process in started:
        process.kill()


def policy(name: str, **more: Any) -> dict[str, Any]:
    return node_policy(name, nodes=POOL, **more)


def test_policy_is_compiled_once_the_inventory_is_there(fleet: LiveFleet, start: Start, kubectl: Any) -> None:
    fleet.add_node("np-a", {A: Card(), B: Card(users=["qemu-kvm"])}, labels=POOL)
    fleet.silent = {"np-a"}
    fleet.apply(policy("np-first"))
    process = start()
    fleet.until(lambda: condition(fleet.policy("np-first"), "Ready") == ("False", "InventoryPending"))
    assert condition(fleet.policy("np-first"), "Accepted") == ("True", "Valid")
    state = fleet.state("np-a")
    assert state["spec"]["nodeUID"] == fleet.api.call("GET", "/api/v1/nodes/np-a")["metadata"]["uid"]
    assert not state["spec"].get("devices")
    assert "ownerReferences" not in state["metadata"]
    fleet.silent = set()
    fleet.until(lambda: fleet.policy("np-first")["status"]["devices"] == {"matched": 2, "ready": 1})
    assert condition(fleet.policy("np-first"), "Ready") == ("False", "DevicesBlocked")
    order = fleet.orders("np-a")[A]
    assert order["passthrough"] == {"driver": "Auto", "companions": "Refuse", "iommu": "Auto"}
    assert order["decidedBy"] == {"policy": "np-first", "rule": "rule"}
    status = fleet.policy("np-first")["status"]
    assert status["nodes"] == {"matched": 1, "updated": 0, "ready": 0, "blocked": 1}
    assert fleet.orders("np-a")[B]["intent"] == "Hold"
    assert "qemu-kvm" in status["blockers"][0]["message"]
    header, row = kubectl("get", "npunodepolicies", "np-first").stdout.splitlines()
    assert header.split() == ["NAME", "MATCHED", "READY", "UPDATED", "REASON", "AGE"]
    assert row.split()[:5] == ["np-first", "1", "0", "0", "DevicesBlocked"]
    rollout = fleet.state("np-a")["status"]["rollout"]
    assert rollout["admitted"] == "Admitted"
    fleet.cards["np-a"][B].users = []
    fleet.ready("np-first")
    events = json.loads(kubectl("get", "events", "-o", "json").stdout)["items"]
    told = {e["reason"] for e in events if e["involvedObject"].get("name") == "np-first"}
    assert {"DevicesBlocked", "AllDevicesReady"} <= told
    assert process.stop() == 0


def test_restart_with_everything_in_place_writes_nothing(
    fleet: LiveFleet, start: Start, control_plane: ControlPlane
) -> None:
    for number in range(3):
        fleet.add_node(f"np-{number}", 2, labels=POOL)
    fleet.apply(policy("np-rest", rules=[device_rule(limit=1), device_rule("rest", mode="Container")]))
    process = start()
    fleet.ready("np-rest")
    fleet.until(lambda: steady(fleet))
    assert process.stop() == 0
    before = fleet.versions()
    mark = control_plane.audit_log.stat().st_size if control_plane.audit_log else 0
    again = start()
    eventually(again.is_ready)
    eventually(lambda: again.plans() >= 1)
    assert again.stop() == 0
    assert fleet.versions() == before
    if control_plane.audit_log is not None:
        assert writes_of_npufleet(control_plane.audit_log, since=mark) == []


def steady(fleet: LiveFleet) -> bool:
    """No node has anything in flight: each `rollout` speaks of the present orders."""
    states = [fleet.state(name) for name in fleet.cards]
    return all(
        state["status"].get("rollout", {}).get("observedGeneration") == state["metadata"]["generation"]
        and all(c["status"] == "True" for c in state["status"]["rollout"]["conditions"])
        for state in states
    )


@pytest.mark.parametrize("order", [("np-x", "np-y"), ("np-y", "np-x")])
def test_overlapping_policies_have_one_winner_in_both_orders_of_creation(
    fleet: LiveFleet, start: Start, order: tuple[str, str]
) -> None:
    modes = {"np-x": "Passthrough", "np-y": "Container"}
    fleet.add_node("np-a", 1, labels=POOL)
    start()
    fleet.apply(policy(order[0], mode=modes[order[0]]))
    fleet.ready(order[0])
    fleet.apply(policy(order[1], mode=modes[order[1]]))
    fleet.ready("np-x")
    fleet.ready("np-y", "NoDevicesMatched")
    assert fleet.orders("np-a")[A]["decidedBy"]["policy"] == "np-x"
    fleet.until(lambda: condition(fleet.policy("np-y"), "Conflicted") == ("True", "LostDevices"))
    fleet.until(lambda: condition(fleet.policy("np-x"), "Conflicted") == ("True", "WonDevices"))
    assert fleet.policy("np-y")["status"]["conflicts"] == [
        {"policy": "np-x", "rule": "rule", "nodes": 1, "outcome": "Lost"}
    ]


def test_edits_faster_than_the_controller_end_at_the_last_one(fleet: LiveFleet, start: Start) -> None:
    fleet.add_node("np-a", 1, labels=POOL)
    fleet.apply(policy("np-edit"))
    start()
    fleet.ready("np-edit")
    for number in range(12):
        fleet.apply(policy("np-edit", mode="Container" if number % 2 else "Passthrough", priority=number))
        fleet.answer("np-a")
    last = fleet.apply(policy("np-edit", mode="Container", driver_name="npu.rebellions.ai"))
    fleet.ready("np-edit")
    found = fleet.policy("np-edit")
    assert found["status"]["observedGeneration"] == last["metadata"]["generation"]
    assert {c["observedGeneration"] for c in found["status"]["conditions"]} == {last["metadata"]["generation"]}
    assert fleet.orders("np-a")[A]["driverName"] == "npu.rebellions.ai"
    assert "passthrough" not in fleet.orders("np-a")[A]


def test_deleted_policy_gives_its_devices_back(fleet: LiveFleet, start: Start) -> None:
    fleet.add_node("np-a", 1, labels=POOL)
    fleet.apply(policy("np-gone"))
    start()
    fleet.ready("np-gone")
    fleet.silent = {"np-a"}
    fleet.delete_policy("np-gone")
    fleet.until(lambda: fleet.orders("np-a")[A]["intent"] == "Release")
    assert fleet.cards["np-a"][A].bound
    fleet.silent = set()
    fleet.until(lambda: not fleet.orders("np-a"))
    assert not fleet.cards["np-a"][A].bound


def test_orders_of_a_state_that_was_restored_from_a_backup_can_be_emptied(fleet: LiveFleet, start: Start) -> None:
    """Whoever wrote the lists first owns them too; an apply alone would turn them into null, which is refused."""
    fleet.add_node("np-a", 1, labels=POOL)
    fleet.apply(policy("np-restored"))
    process = start()
    fleet.ready("np-restored")
    process.stop()
    saved = fleet.state("np-a")
    fleet.api.call("DELETE", f"{STATES}/np-a")
    saved["metadata"] = {"name": "np-a"}
    fleet.api.call("POST", STATES, saved)
    fleet.delete_policy("np-restored")
    start()
    fleet.until(lambda: not fleet.orders("np-a"))
    assert not fleet.cards["np-a"][A].bound


def test_orders_that_somebody_else_adds_do_not_stay(fleet: LiveFleet, start: Start, kubectl: Any) -> None:
    fleet.add_node("np-a", 2, labels=POOL)
    fleet.apply(policy("np-own", rules=[device_rule(limit=1)]))
    start()
    fleet.ready("np-own")
    foreign = {**fleet.orders("np-a")[A], "address": B, "decidedBy": {"policy": "somebody", "rule": "else"}}
    patch = [{"op": "add", "path": "/spec/devices/-", "value": foreign}]
    kubectl("patch", "npunodestate", "np-a", "--type=json", "-p", json.dumps(patch))
    fleet.until(lambda: set(fleet.orders("np-a")) == {A})
    fleet.ready("np-own")


def test_policy_deleted_in_a_gap_of_the_watch_is_no_ghost(
    fleet: LiveFleet, start: Start, controller_kubeconfig: Path, tmp_path: Path
) -> None:
    fleet.add_node("np-a", 1, labels=POOL)
    fleet.apply(policy("np-ghost", priority=500))
    fleet.apply(policy("np-stays", mode="Container"))
    with FaultProxy(controller_kubeconfig, tmp_path / "proxied") as proxy:
        start(kubeconfig=proxy.kubeconfig)
        fleet.ready("np-ghost")
        proxy.swallow("npunodepolicies")
        fleet.delete_policy("np-ghost")
        proxy.expire("npunodepolicies")
        fleet.ready("np-stays")
        assert fleet.orders("np-a")[A]["decidedBy"]["policy"] == "np-stays"
        assert not fleet.cards["np-a"][A].bound


@pytest.mark.parametrize("dead_at", [1, 3, 4, 6])
def test_death_right_after_a_write_is_made_good(
    fleet: LiveFleet, start: Start, controller_kubeconfig: Path, tmp_path: Path, dead_at: int
) -> None:
    """The write took effect, its answer never arrived, and the process is gone; the next one ends the same."""
    for name in ("np-a", "np-b"):
        fleet.add_node(name, 1, labels=POOL)
    fleet.apply(policy("np-die"))
    with FaultProxy(controller_kubeconfig, tmp_path / "proxied") as proxy:
        proxy.on_write = lambda count: count < dead_at
        process = start(kubeconfig=proxy.kubeconfig)
        fleet.until(lambda: len(proxy.writes) >= dead_at, what=f"{dead_at} writes")
        process.kill()
    fleet.api.call("DELETE", LEASE)  # else the next one waits until the dead one's time is over
    start()
    fleet.ready("np-die")
    for name in ("np-a", "np-b"):
        assert fleet.state(name)["metadata"]["generation"] == 2, "ordered once"
        assert fleet.cards[name][A].bound


def test_two_replicas_write_as_one_and_the_second_takes_over(
    fleet: LiveFleet, start: Start, controller_kubeconfig: Path, tmp_path: Path
) -> None:
    fleet.add_node("np-a", 1, labels=POOL)
    fleet.apply(policy("np-two"))
    with (
        FaultProxy(controller_kubeconfig, tmp_path / "one") as first_proxy,
        FaultProxy(controller_kubeconfig, tmp_path / "two") as second_proxy,
    ):
        first = start(kubeconfig=first_proxy.kubeconfig)
        fleet.ready("np-two")
        second = start(kubeconfig=second_proxy.kubeconfig)
        eventually(second.is_ready)
        fleet.apply(policy("np-two", mode="Container"))
        fleet.ready("np-two")
        assert second_proxy.writes == []
        assert first.stop() == 0
        count = len(first_proxy.writes)
        fleet.apply(policy("np-two"))
        fleet.ready("np-two")
        assert second_proxy.writes
        assert len(first_proxy.writes) == count


def test_process_without_its_rights_says_what_it_lacks_and_writes_nothing(
    fleet: LiveFleet, start: Start, control_plane: ControlPlane, tmp_path: Path, kubectl: Any
) -> None:
    fleet.add_node("np-a", 1, labels=POOL)
    kubectl("create", "serviceaccount", "powerless", "-n", "npufleet-system")
    try:
        kubeconfig = service_account_kubeconfig(control_plane, "npufleet-system", "powerless", tmp_path / "powerless")
        with FaultProxy(kubeconfig, tmp_path / "proxied") as proxy:
            process = start(kubeconfig=proxy.kubeconfig)
            eventually(lambda: "grant list and watch on npunodepolicies.npufleet.io" in process.get("/readyz")[1])
            assert process.get("/readyz")[0] == 503
            assert proxy.writes == []
            assert process.stop() == 0
    finally:
        kubectl("delete", "serviceaccount", "powerless", "-n", "npufleet-system")
