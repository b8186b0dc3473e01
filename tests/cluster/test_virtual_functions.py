"""From a policy with `passthrough.virtualFunctions` to functions on vfio-pci: real API server, controller, binder."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.run.control_plane import ControlPlane
from cli.demo.cluster_view import ClusterView
from cli.demo.fleet import BINDER, Fleet
from node_host.host import open_host
from simulated_node.control import Control
from tests.builders.api_calls import delete, find
from tests.builders.audit import writes_of_npufleet
from tests.builders.node_policy_cluster import LEASE, NODES, POLICIES, STATES
from tests.builders.waiting import eventually

Object = dict[str, Any]
NODE, POLICY = "node-sriov", "sriov-functions"
CARDS = ("0000:21:00.0", "0000:22:00.0")
FIRST = CARDS[0]
DEVICES = "/sys/bus/pci/devices"


def functions(card: str, number: int) -> list[str]:
    """The addresses of the first functions of a card of this node: they lie right behind it."""
    return [f"{card[:-1]}{function}" for function in range(1, number + 1)]


class Stage:
    """A node with two SR-IOV cards, its binder and the controller; and the policy that gives functions to VMs."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.plane = plane
        self.fleet = Fleet(plane, directory)
        self.view = ClusterView(plane.admin_kubeconfig)

    def start(self) -> None:
        self.fleet.start_node(NODE, NODE, {"npufleet.io/pool": "sriov"})
        self.fleet.start_controllers()
        eventually(lambda: self.view.run("get", "node", NODE), what="the node is registered")
        self.fleet.start_daemon(NODE, BINDER)
        eventually(lambda: not self.fleet.not_ready(), what="controller and binder are ready")

    def end(self) -> None:
        """Nothing of it stays in the control plane that other tests use too."""
        self.fleet.stop()
        for path in (f"{POLICIES}/{POLICY}", f"{NODES}/{NODE}", f"{STATES}/{NODE}", LEASE):
            delete(self.plane.api(), path)

    @property
    def machine(self) -> Control:
        return Control(self.fleet.nodes[NODE].root)

    def order(self, number: int, **rule: Any) -> None:
        """Commit the policy, with that many functions of each card."""
        block = {"passthrough": {"virtualFunctions": number}}
        rules = [{"name": "functions", "match": {"products": ["FLEX_170"]}, "mode": "Passthrough"} | block | rule]
        spec = {"priority": 200, "nodeSelector": {"matchLabels": {"npufleet.io/pool": "sriov"}}, "devices": rules}
        api, path = self.plane.api(), f"{POLICIES}/{POLICY}"
        body: Object = {"apiVersion": "npufleet.io/v1alpha1", "kind": "NPUNodePolicy"}
        body |= {"metadata": {"name": POLICY}, "spec": spec}
        known = find(api, path)
        if known is None:
            api.call("POST", POLICIES, body)
        else:
            body["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]
            api.call("PUT", path, body)

    def ordered(self, number: int, **rule: Any) -> None:
        """Commit, and wait until it is so."""
        self.order(number, **rule)
        eventually(lambda: self.ready() == ("True", "AllDevicesReady"), what=f"{number} functions of each card")

    def withdraw(self) -> None:
        """Delete the policy, and wait until the node has no orders."""
        delete(self.plane.api(), f"{POLICIES}/{POLICY}")
        eventually(self.is_empty, seconds=60, what="the release is confirmed, its orders gone")

    def is_empty(self) -> bool:
        """Whether the node has no orders; what it has is shown when that takes too long."""
        orders = self.state()["spec"].get("devices")
        assert not orders, (orders, self.state()["status"]["bindings"])
        return True

    def policy(self) -> Object:
        found: Object = self.plane.api().call("GET", f"{POLICIES}/{POLICY}")
        return found

    def state(self) -> Object:
        found: Object = self.plane.api().call("GET", f"{STATES}/{NODE}")
        return found

    def ready(self) -> tuple[str, str]:
        """Condition Ready of the present policy; empty texts while it speaks of an earlier one."""
        policy = self.policy()
        for condition in policy.get("status", {}).get("conditions", []):
            if condition["type"] == "Ready" and condition["observedGeneration"] == policy["metadata"]["generation"]:
                return condition["status"], condition["reason"]
        return "", ""

    def report(self, card: str) -> Object:
        devices = self.state()["status"]["bindings"]["devices"]
        return next((device for device in devices if device["address"] == card), {})

    def parts(self, card: str) -> dict[str, str]:
        """What the binder says of each function of a card."""
        return {part["address"]: part["state"] for part in self.report(card).get("virtualFunctions", [])}

    def blocker(self, card: str) -> Object:
        blockers = self.policy().get("status", {}).get("blockers", [])
        return next((blocker for blocker in blockers if blocker["device"] == card), {})

    def sysfs(self, card: str, attribute: str) -> str:
        return (self.fleet.nodes[NODE].root / DEVICES.lstrip("/") / card / attribute).read_text().strip()

    def drivers(self) -> dict[str, str]:
        """The driver of each card and of each of its functions, as sysfs tells."""
        devices = self.fleet.nodes[NODE].root / DEVICES.lstrip("/")
        found = {}
        for card in CARDS:
            for device in sorted(path.name for path in devices.iterdir() if path.name.startswith(card[:-1])):
                driver = devices / device / "driver"
                found[device] = driver.readlink().name if driver.is_symlink() else "(none)"
        return found

    def node_of_vfio(self, function: str) -> str:
        link = self.fleet.nodes[NODE].root / DEVICES.lstrip("/") / function / "iommu_group"
        return f"/dev/vfio/{link.readlink().name}"

    def writes(self) -> int:
        return len(self.fleet.write_log(NODE))


def drivers_with(number: int, of_second: int | None = None) -> dict[str, str]:
    """Each card on its own driver, and that many functions of it with VMs."""
    found: dict[str, str] = {}
    for card, count in zip(CARDS, (number, number if of_second is None else of_second), strict=True):
        found |= {card: "xe"} | dict.fromkeys(functions(card, count), "vfio-pci")
    return found


@pytest.fixture(scope="module")
def stage(installed: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    found = Stage(control_plane, tmp_path_factory.mktemp("sriov"))
    try:
        found.start()
        yield found
    finally:
        found.end()


def test_functions_of_each_card_go_to_vms_and_the_card_stays_with_the_host(stage: Stage) -> None:
    stage.ordered(4)
    assert stage.drivers() == drivers_with(4)
    assert {stage.sysfs(card, "sriov_drivers_autoprobe") for card in CARDS} == {"1"}
    status = stage.policy()["status"]
    assert status["devices"] == {"matched": 2, "ready": 2}, "cards are counted, not their functions"
    assert status["nodes"] == {"matched": 1, "updated": 1, "ready": 1, "blocked": 0}
    assert status["conflicts"] == status["blockers"] == []
    for card in CARDS:
        report = stage.report(card)
        assert (report["state"], report["reason"]) == ("Ready", "FunctionsBound")
        told = {part["address"]: (part["state"], part["reason"]) for part in report["virtualFunctions"]}
        assert told == dict.fromkeys(functions(card, 4), ("Ready", "Bound"))
    orders = {entry["address"]: entry["passthrough"]["virtualFunctions"] for entry in stage.state()["spec"]["devices"]}
    assert orders == dict.fromkeys(CARDS, 4)
    listed = {device["address"]: device for device in stage.state()["status"]["inventory"]["devices"]}
    for card in CARDS:
        assert listed[card]["function"] == "Physical"
        assert [listed[function]["function"] for function in functions(card, 4)] == ["Virtual"] * 4
        assert {listed[function]["physicalFunction"] for function in functions(card, 4)} == {card}


def test_kubectl_shows_what_became_of_the_policy(stage: Stage) -> None:
    stage.ordered(4)
    header, row = stage.view.run("get", "npunodepolicies", POLICY, "-o", "wide").splitlines()
    shown = dict(zip(header.split(), row.split(), strict=True))
    del shown["AGE"]
    assert shown == {
        "NAME": POLICY,
        "MATCHED": "1",
        "READY": "1",
        "UPDATED": "1",
        "REASON": "AllDevicesReady",
        "PROGRESSING": "Complete",
        "DEGRADED": "False",
        "BLOCKED": "0",
        "DEVICES": "2",
        "DEVICES-READY": "2",
        "PRIORITY": "200",
    }
    row = stage.view.run("get", "npunodestates", NODE).splitlines()[1]
    assert row.split()[:3] == [NODE, "True", "AllDevicesBound"]


def test_restart_of_controller_and_binder_writes_nothing(stage: Stage) -> None:
    stage.ordered(4)
    log = stage.plane.audit_log
    mark, writes = log.stat().st_size if log else 0, stage.writes()
    stage.fleet.restart_controllers()
    stage.fleet.restart_daemon(NODE, BINDER)
    eventually(lambda: not stage.fleet.not_ready(), what="controller and binder are ready again")
    assert stage.ready() == ("True", "AllDevicesReady")
    assert stage.writes() == writes
    if log is not None:
        assert writes_of_npufleet(log, since=mark) == []


def test_another_number_is_made_while_nobody_uses_one(stage: Stage) -> None:
    stage.ordered(4)
    stage.ordered(2)
    assert stage.drivers() == drivers_with(2)
    assert [part["address"] for part in stage.report(FIRST)["virtualFunctions"]] == functions(FIRST, 2)


def test_a_function_that_a_vm_has_open_keeps_its_card_as_it_is_and_the_user_is_named(stage: Stage) -> None:
    stage.ordered(4)
    used = functions(FIRST, 4)[2]
    node, before = stage.node_of_vfio(used), stage.writes()
    stage.machine.open_device(node, pid=7331, comm="qemu-kvm")
    try:
        stage.order(2)
        eventually(lambda: stage.ready() == ("False", "DevicesBlocked"), what="the policy is blocked")
        eventually(lambda: stage.policy()["status"]["devices"] == {"matched": 2, "ready": 1}, what="one card is ready")
        # The change is put off: the order is held, and nobody is asked to go.
        eventually(lambda: stage.report(FIRST)["reason"] == "Held", what="the order is held")
        blocker = stage.blocker(FIRST)
        assert blocker["reason"] == "InUse"
        assert "qemu-kvm" in blocker["message"]
        assert used in blocker["message"]
        touched = [write for write in stage.fleet.write_log(NODE)[before:] if FIRST[:-1] in write.path + write.data]
        assert touched == []
        assert stage.drivers() == drivers_with(4, 2)
        assert stage.machine.requests(node) == 0, "nobody has asked the VM to let it go"
    finally:
        stage.machine.close_device(node)
    eventually(lambda: stage.ready() == ("True", "AllDevicesReady"), seconds=90, what="it goes on after the VM")
    assert stage.drivers() == drivers_with(2)


def test_a_card_is_not_ready_while_one_of_its_functions_is_not(stage: Stage) -> None:
    stage.withdraw()
    bad = functions(FIRST, 4)[1]
    stage.machine.fail_next(f"probe:vfio-pci:{bad}", "EIO", times=None)
    try:
        stage.order(4)
        eventually(lambda: stage.ready() == ("False", "DevicesFailed"), what="the policy is not ready")
        eventually(lambda: stage.policy()["status"]["devices"] == {"matched": 2, "ready": 1}, what="one card is ready")
        assert bad in stage.blocker(FIRST)["message"]
        as_it_is = dict.fromkeys(functions(FIRST, 4), "Ready") | {bad: "Failed"}
        eventually(lambda: stage.parts(FIRST) == as_it_is, what="the others go on, and the bad one is told")
    finally:
        stage.machine.clear_faults()
    eventually(lambda: stage.ready() == ("True", "AllDevicesReady"), seconds=90, what="it is tried again")
    assert stage.drivers() == drivers_with(4)


def test_functions_are_made_again_after_a_reboot(stage: Stage) -> None:
    stage.ordered(4)
    boot = stage.fleet.reboot(NODE)
    assert stage.drivers() == drivers_with(0)
    eventually(lambda: stage.ready() == ("Unknown", "Rebooted"), what="the policy says that nothing is known")
    stage.fleet.start_daemon(NODE, BINDER)
    eventually(lambda: stage.state()["status"]["bindings"].get("bootID") == boot, what="a report of this boot")
    eventually(lambda: stage.ready() == ("True", "AllDevicesReady"), what="they are made again")
    assert stage.drivers() == drivers_with(4)


def test_a_deleted_policy_leaves_no_functions_and_the_switches_as_they_were(stage: Stage) -> None:
    stage.withdraw()
    switches = {FIRST: "1", CARDS[1]: "0"}
    host = open_host(stage.fleet.nodes[NODE].root)
    for card, switch in switches.items():
        host.write(f"{DEVICES}/{card}/sriov_drivers_autoprobe", switch.encode())
    stage.ordered(4)
    assert stage.drivers() == drivers_with(4)
    stage.withdraw()
    assert stage.drivers() == drivers_with(0)
    assert {card: stage.sysfs(card, "sriov_drivers_autoprobe") for card in CARDS} == switches
    assert {stage.sysfs(card, "sriov_numvfs") for card in CARDS} == {"0"}
    journal = stage.fleet.nodes[NODE].root / "var/lib/npufleet/binder/journal.json"
    assert not set(CARDS) & set(json.dumps(json.loads(journal.read_text())).split('"'))


def test_another_policy_does_not_get_the_functions_of_a_card_that_is_decided_for_them(stage: Stage) -> None:
    stage.ordered(4)
    other = "sriov-takes-functions"
    rule = {"name": "functions", "match": {"products": ["FLEX_170"], "function": "Virtual"}, "mode": "Container"}
    spec = {"priority": 50, "nodeSelector": {"matchLabels": {"npufleet.io/pool": "sriov"}}, "devices": [rule]}
    body = {"apiVersion": "npufleet.io/v1alpha1", "kind": "NPUNodePolicy", "metadata": {"name": other}, "spec": spec}
    api, writes = stage.plane.api(), stage.writes()
    api.call("POST", POLICIES, body)
    try:

        def conflicts(name: str) -> list[Object]:
            found: list[Object] = api.call("GET", f"{POLICIES}/{name}").get("status", {}).get("conflicts", [])
            return found

        eventually(partial(conflicts, other), what="the other policy is told who has them")
        assert conflicts(other) == [{"policy": POLICY, "rule": "functions", "nodes": 1, "outcome": "Lost"}]
        eventually(partial(conflicts, POLICY), what="and this one who wants them")
        assert stage.ready() == ("True", "AllDevicesReady")
        assert {entry["address"] for entry in stage.state()["spec"]["devices"]} == set(CARDS)
        assert stage.writes() == writes
    finally:
        api.call("DELETE", f"{POLICIES}/{other}")
