"""What a bench prints and counts, apart from what it measures."""

import json
import os
import time

import pytest

from crds.models.node_policy import NPUNodePolicy
from tests.bench.fleet.cases import count_writes
from tests.bench.fleet.daemons import moves
from tests.bench.fleet.machines import cards, fleet_policy, node
from tests.bench.process_figures import figures_of
from tests.bench.result import Result
from tests.builders.objects import desired_device, node_state


def test_every_line_has_every_field() -> None:
    alone = json.loads(Result("fleet", "restart", 0, "writes").line())
    assert alone == {
        "bench": "fleet",
        "case": "restart",
        "value": 0,
        "unit": "writes",
        "peer": "",
        "peer_value": None,
        "ratio": None,
    }
    beside = json.loads(Result("fleet", "time", 12.34567, "s", "bare loop", 4.0).line())
    assert (beside["value"], beside["peer_value"], beside["ratio"]) == (12.35, 4, 3.086)


def test_processor_time_and_memory_of_a_process_are_read() -> None:
    before = figures_of(os.getpid())
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = figures_of(os.getpid())
    assert after.cpu_seconds - before.cpu_seconds >= 0.03
    assert 5 < after.rss_mb <= after.peak_mb
    with pytest.raises(OSError):
        figures_of(2**22 + 1)


def test_writes_are_counted_by_kind_and_result_without_renewals_of_the_lease() -> None:
    labels = 'component="npufleet-node-policy",kind="{}",result="{}"'
    numbers = {
        "npufleet_api_writes_total{" + labels.format(kind, result) + "}": value
        for kind, result, value in [
            ("NPUNodeState", "ok", 7.0),
            ("NPUNodeState", "Conflict", 1.0),
            ("Lease", "ok", 90.0),
        ]
    }
    numbers["npufleet_queue_depth{}"] = 3.0
    assert count_writes(numbers) == {("NPUNodeState", "ok"): 7, ("NPUNodeState", "Conflict"): 1}


def test_played_daemon_takes_its_time_for_orders_that_move_devices_only() -> None:
    found = cards(2)
    place = min(found)
    assert moves(node_state(devices=[desired_device(place)]), found)
    found[place].bound = True
    assert not moves(node_state(devices=[desired_device(place)]), found)
    assert moves(node_state(devices=[desired_device(place, intent="Release")]), found)
    assert moves(node_state(devices=[desired_device(place, mode="Container")]), found)
    assert not moves(node_state(), found)


def test_fleet_is_what_the_api_takes() -> None:
    policy = fleet_policy("Passthrough", "10%") | {"apiVersion": "npufleet.io/v1alpha1", "kind": "NPUNodePolicy"}
    assert NPUNodePolicy.strict(policy).spec.rollout.max_unavailable == "10%"
    assert node("node-00001", 1)["status"]["nodeInfo"]["bootID"] == "boot-of-node-00001"
