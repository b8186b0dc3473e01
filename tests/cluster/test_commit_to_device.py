"""From a commit to the device and back: real API server, controller and binders under their own identities."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.run.control_plane import ControlPlane
from cli.demo import published, vgpus
from cli.demo.fleet import Fleet
from cli.demo.story import ATOM, POOLS, Story
from cli.main import main
from cli.progress import Progress
from tests.builders.audit import writes_of_npufleet
from tests.builders.waiting import eventually

HOSTILE = "node-hostile"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The demo's stage, with policies committed, applied and rolled out."""
    directory = tmp_path_factory.mktemp("fleet")
    with ControlPlane.start(directory / "control-plane", audit=True) as plane:
        fleet = Fleet(plane, directory)
        try:
            story = Story(plane, fleet, directory, Progress())
            story.install()
            story.first_commit()
            yield story
        finally:
            fleet.stop()


def policies(story: Story) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in story.view.items("npunodepolicies")}


def node_state(story: Story, name: str) -> dict[str, Any]:
    return next(item for item in story.view.items("npunodestates") if item["metadata"]["name"] == name)


def uses(story: Story, name: str) -> set[str]:
    """Kinds of users of the node's devices, as its inventory tells."""
    devices = node_state(story, name)["status"]["inventory"]["devices"]
    return {user["kind"] for device in devices for user in device.get("usedBy", [])}


def written_addresses(story: Story, name: str) -> set[str]:
    """Each PCI address that a write to the node named, in its path or in what was written."""
    found = set()
    for write in story.fleet.write_log(name):
        parts = [*write.path.split("/"), write.data.strip()]
        found |= {part for part in parts if part.count(":") == 2}
    return found


def test_every_column_of_the_policies_is_filled(story: Story) -> None:
    header, *rows = story.view.run("get", "npunodepolicies").splitlines()
    assert header.split() == ["NAME", "MATCHED", "READY", "UPDATED", "REASON", "AGE"]
    assert len(rows) == len(POOLS)
    for row in rows:
        assert len(row.split()) == 6, row


def test_all_sixteen_devices_of_the_atom_node_are_on_vfio(story: Story) -> None:
    drivers = story.fleet.drivers(ATOM)
    assert len(drivers) == 16
    assert set(drivers.values()) == {"vfio-pci"}
    status = policies(story)["atom-passthrough"]["status"]
    assert status["devices"] == {"matched": 16, "ready": 16}
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"


def test_documented_queries_print_the_documented_lines(story: Story) -> None:
    classes = [line.split()[0] for line in story.view.run("get", "deviceclasses", "--no-headers").splitlines()]
    assert {"npu.rebellions.ai", "vfio-npu.rebellions.ai"} <= set(classes)
    slices = story.view.run("get", "resourceslices", "-o", "json")
    documented = "node-atom\t16\tvfio-0000-23-00-0\nnode-rebel100\t1\tvfio-0000-27-00-0\n"
    assert published.pools(slices) == documented
    assert published.pools_without_jq(slices) == documented


def test_claim_by_product_and_topology_is_allocated_prepared_and_shown(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    story.claim()
    capsys.readouterr()
    access = ["--kubeconfig", str(story.plane.admin_kubeconfig)]
    assert main(["devices", ATOM, "-o", "json", *access]) == 0
    rows = {row["address"]: row for row in json.loads(capsys.readouterr().out)["devices"]}
    assert len(rows) == 16
    (claimed,) = (row for row in rows.values() if row["allocated"])
    assert claimed["numaNode"] == 0
    assert claimed["allocated"] == [
        {
            "driver": "npu.rebellions.ai",
            "device": "vfio-0000-23-00-0",
            "claim": {"namespace": "default", "name": "npu"},
            "pods": [{"namespace": "default", "name": "vm"}],
        }
    ]
    assert {row["reason"] for row in rows.values()} == {""}
    assert main(["devices", "--host-root", str(story.fleet.nodes[ATOM].root), "-o", "json"]) == 0
    on_host = {row["address"]: row for row in json.loads(capsys.readouterr().out)["devices"]}
    assert on_host.keys() == rows.keys()
    assert [at for at, row in on_host.items() if row["allocated"]] == [claimed["address"]]


def test_devices_in_use_or_needed_by_the_host_are_untouched_and_the_user_is_named(story: Story) -> None:
    state = node_state(story, HOSTILE)
    inventory = {device["address"]: device for device in state["status"]["inventory"]["devices"]}
    used = [address for address, device in inventory.items() if device.get("usedBy")]
    orders = {order["address"]: order for order in state["spec"]["devices"]}
    vetoed = [address for address, device in inventory.items() if device.get("vetoes")]
    assert used and len(vetoed) >= 3
    assert not written_addresses(story, HOSTILE) & {*used, *vetoed}
    blockers = {b["device"]: b for b in policies(story)["hostile-everything"]["status"]["blockers"]}
    bindings = {device["address"]: device for device in state["status"]["bindings"]["devices"]}
    for address in used:
        user = inventory[address]["usedBy"][0]["name"]
        assert blockers[address]["reason"] == "InUse"
        assert user in blockers[address]["message"]
        assert orders[address]["intent"] == "Hold", "nothing is ordered that a user stands in the way of"
        assert (bindings[address]["state"], bindings[address]["reason"]) == ("Pending", "Held")
    ordered_and_vetoed = [address for address in vetoed if address in bindings]
    assert ordered_and_vetoed
    for address in ordered_and_vetoed:
        assert blockers[address]["reason"] == bindings[address]["reason"]
        assert blockers[address]["reason"] in {"Vetoed", "CompanionVetoed"}
        why = inventory[address]["vetoes"][0]["message"]
        assert why in blockers[address]["message"] and why in bindings[address]["message"]


def test_no_process_of_ours_asked_for_what_it_may_not_do(story: Story) -> None:
    assert story.view.run("get", "npunodestates")  # the log has at least this call
    refused = [
        (entry["user"]["username"], entry["verb"], entry["requestURI"])
        for entry in audit_entries(story)
        if entry.get("responseStatus", {}).get("code") in (401, 403)
        and entry["user"]["username"].startswith("system:serviceaccount:npufleet-system:")
    ]
    assert not refused


def audit_entries(story: Story) -> list[dict[str, Any]]:
    log = story.plane.audit_log
    assert log is not None
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_second_reconcile_of_everything_writes_nothing(story: Story) -> None:
    log = story.plane.audit_log
    assert log is not None
    # A running binder hears of claims within seconds and looks at everything each minute, whatever wakes it; one that
    # had not told of the pod yet would do so when it is restarted.
    eventually(lambda: {"Claim", "Pod"} <= uses(story, ATOM), seconds=90, what="the binder tells of the pod")
    mark, writes = log.stat().st_size, orders(story)
    story.fleet.restart_controllers()
    for name in POOLS:
        story.fleet.restart_daemons(name)
    eventually(lambda: not story.fleet.not_ready(), what="controllers and daemons are ready again")
    assert writes_of_npufleet(log, since=mark) == []
    assert orders(story) == writes


def orders(story: Story) -> dict[str, int]:
    """How often each host was ordered to change something; a program that only tells is no order."""
    return {name: sum(vgpus.is_order(record) for record in story.fleet.write_log(name)) for name in POOLS}


def test_commit_that_limits_a_rule_gives_the_rest_back_to_its_own_driver(story: Story) -> None:
    story.second_commit()
    drivers = story.fleet.drivers(ATOM)
    assert sorted(drivers.values()) == ["rebellions"] * 8 + ["vfio-pci"] * 8
    kept = {address for address, driver in drivers.items() if driver == "vfio-pci"}
    assert kept == set(sorted(drivers)[:8]), "the lowest addresses are kept"
    assert policies(story)["atom-passthrough"]["status"]["devices"] == {"matched": 8, "ready": 8}


def test_reboot_is_made_good_and_reported_for_the_new_boot(story: Story) -> None:
    before = story.fleet.drivers(ATOM)
    story.reboot()
    assert story.fleet.drivers(ATOM) == before
    boot = (story.fleet.nodes[ATOM].root / "proc/sys/kernel/random/boot_id").read_text().strip()
    assert node_state(story, ATOM)["status"]["bindings"]["bootID"] == boot


def test_policy_deleted_while_the_node_is_down_leaves_nothing_behind(story: Story) -> None:
    boot = story.fleet.reboot("node-rebel100")
    story.view.run("delete", "npunodepolicy", "rebel-passthrough")
    story.fleet.start_daemons("node-rebel100")
    eventually(lambda: intents(story, "node-rebel100") == set(), what="the release is confirmed and its entry gone")
    status = node_state(story, "node-rebel100")["status"]
    assert status["bindings"]["bootID"] == boot
    assert set(story.fleet.drivers("node-rebel100").values()) == {"rebellions"}


def intents(story: Story, name: str) -> set[str]:
    return {device["intent"] for device in node_state(story, name)["spec"].get("devices", [])}


@pytest.mark.parametrize(
    ("sample", "reason"),
    [("vgpu", "ProfileMapMissing"), ("soft-vnpu", "DaemonMissing"), ("hard-vnpu", "DevicesBlocked")],
)
def test_mode_that_nothing_can_make_is_accepted_and_not_ready(story: Story, sample: str, reason: str) -> None:
    """A map that does not exist; no daemon; and a publisher that does not publish the mode that is its own."""
    blocks = {
        "vgpu": {"mode": "VGPU", "vgpu": {"profileMapRef": {"name": "halves"}}},
        "soft-vnpu": {"mode": "SoftVNPU", "softVNPU": {"library": {"name": "vcann-rt", "version": "1.2.0"}}},
        "hard-vnpu": {"mode": "HardVNPU", "hardVNPU": {"templates": ["vir01"]}},
    }
    policy = {
        "apiVersion": "npufleet.io/v1alpha1",
        "kind": "NPUNodePolicy",
        "metadata": {"name": f"later-{sample}"},
        "spec": {
            "priority": 900,
            "nodeSelector": {"matchLabels": {"npufleet.io/pool": POOLS["node-mixed"]}},
            "devices": [{"name": "cards", "match": {"products": ["RBLN-CA22"]}} | blocks[sample]],
        },
    }
    path = story.directory / f"{sample}.json"
    path.write_text(json.dumps(policy))
    story.view.run("apply", "-f", str(path))
    try:
        eventually(lambda: conditions(story, f"later-{sample}")["Ready"][1] == reason, what=reason)
        shown = conditions(story, f"later-{sample}")
        assert shown["Ready"][0] == "False"
        assert shown["Accepted"][0] == "True"
    finally:
        story.view.run("delete", "-f", str(path))


def conditions(story: Story, name: str) -> dict[str, tuple[str, str]]:
    return {
        c["type"]: (c["status"], c["reason"]) for c in policies(story)[name].get("status", {}).get("conditions", [])
    }


def test_policy_under_another_driver_name_waits_for_its_classes_in_git(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the API server takes what the command prints."""
    policy = story.directory / "other-driver.json"
    spec = {
        "priority": 900,
        "driverName": "npu.example.com",
        "nodeSelector": {"matchLabels": {"npufleet.io/pool": POOLS["node-mixed"]}},
        "devices": [{"name": "gpus", "match": {"products": ["FLEX_170"]}, "mode": "Container"}],
    }
    kind = {"apiVersion": "npufleet.io/v1alpha1", "kind": "NPUNodePolicy", "metadata": {"name": "other-driver"}}
    policy.write_text(json.dumps({**kind, "spec": spec}))
    assert main(["deviceclasses", "npu.example.com"]) == 0
    classes = story.directory / "classes.yaml"
    classes.write_text(capsys.readouterr().out)
    story.view.run("apply", "-f", str(policy))
    try:
        eventually(
            lambda: conditions(story, "other-driver").get("Ready") == ("False", "DeviceClassMissing"), what="it waits"
        )
        story.view.run("apply", "--server-side", "-f", str(classes))
        eventually(
            lambda: conditions(story, "other-driver")["Ready"] == ("True", "AllDevicesReady"), what="it is ready"
        )
    finally:
        story.view.run("delete", "-f", str(policy), "-f", str(classes), "--ignore-not-found")


def test_nothing_that_was_started_is_left_running(story: Story, tmp_path: Path) -> None:
    pids = story.fleet.pids()
    assert len(pids) >= 1 + 3 * len(POOLS)
    story.fleet.stop()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
