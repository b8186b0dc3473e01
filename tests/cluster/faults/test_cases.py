"""Known faults of other operators, each shown not to be ours; real process, real API server, no faults between them.

Those that need a fault in between are runs of the matrix: ghosts after 410 (`delete` with `drop` and `expire`), a
watch that dies (`dead`), one that falls silent (`stall`), overlapping policies in both orders (`two-a-first` and
`two-b-first`, which must end the same). Edits during a reconcile and two replicas that write as one are in
test_node_policy_controller.py, drains that fail in test_drain.py.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.run.control_plane import ControlPlane
from runtime.resources import CONFIG_MAPS, NAMESPACE, NODES, NPU_NODE_POLICIES, NPU_NODE_STATES
from tests.cluster.faults.conftest import Reference
from tests.cluster.faults.definitions import install_crd, uninstall_crd
from tests.cluster.faults.fleet import FOREIGN, OURS, POOL
from tests.cluster.faults.judge import CONTROLLER, Record, judge_availability, writes_of
from tests.cluster.faults.run import perform
from tests.cluster.faults.scenarios import (
    Scenario,
    Stage,
    all_ready,
    policy,
    put_in_place,
)
from tests.cluster.faults.test_matrix import allowed

Object = dict[str, Any]
Play = Callable[[Scenario], Awaitable[Record]]


@pytest.fixture
def play(control_plane: ControlPlane, controller_kubeconfig: Path, tmp_path: Path) -> Play:
    """Carries out a scenario of a test's own, without faults, and sees to it that it came to rest within the limits."""

    async def run(scenario: Scenario) -> Record:
        record = (await perform(control_plane, controller_kubeconfig, tmp_path / scenario.name, scenario)).record
        assert not record.differs and not record.broken
        assert judge_availability(record, allowed(scenario)) == []
        return record

    return run


async def test_policy_deleted_while_a_node_reboots_leaves_nothing_behind(play: Play) -> None:
    """Its report from before the boot is no proof that the device was given back; the one of this boot is."""

    async def act(stage: Stage) -> None:
        fleet = stage.fleet
        rebooting = fleet.pool[2]
        fleet.silent.add(rebooting)
        await fleet.delete("flt")
        await fleet.until(lambda: not any(fleet.order(name) for name in fleet.pool if name != rebooting))
        assert fleet.order(rebooting)["intent"] == "Release"
        await fleet.reboot(rebooting)
        fleet.answer_again()
        await fleet.until(lambda: not fleet.order(rebooting), what="its release is confirmed in this boot")

    record = await play(Scenario("reboot", act, put_in_place))
    assert not any(bound for place, bound in record.ending["cards"].items())


async def test_change_from_vm_to_containers_moves_each_device_once_and_then_nothing(reference: Reference) -> None:
    record = await reference("change")
    assert record.moves == len(record.moved) == 20
    assert writes_of(record.audit, since=record.watched_from)["patch npunodestates"] == 20


async def test_devices_in_no_policy_get_no_order_in_any_scenario(reference: Reference) -> None:
    for name in ("create", "change"):
        record = await reference(name)
        assert {place for _, place in record.moved} == {OURS}
        for state in record.ending["states"].values():
            assert FOREIGN not in {order["address"] for order in state["devices"]}
        for stranger in ("flt-20", "flt-21"):
            assert record.ending["states"][stranger]["devices"] == []
            assert stranger not in {node for node, _ in record.moved}


async def test_what_a_status_says_is_no_evidence(play: Play) -> None:
    """All is said to be done, by statuses of the right generation: the orders are made all the same."""

    async def act(stage: Stage) -> None:
        fleet = stage.fleet
        stage.controller.pause()
        await fleet.apply(policy(mode="Container"))
        found = await stage.api.get(NPU_NODE_POLICIES, "flt")
        done = {**found["status"], "observedGeneration": found["metadata"]["generation"]}
        await stage.api.patch(NPU_NODE_POLICIES, "flt", {"status": done}, subresource="status")
        await stage.controller.resume()
        await fleet.until(lambda: fleet.ordered("Container") == fleet.size)

    record = await play(Scenario("stale-status", act, put_in_place))
    assert record.moves == 20


async def test_policy_before_any_node_is_accepted_and_acts_once_there_are_nodes(play: Play) -> None:
    async def arrange(stage: Stage) -> None:
        labels = {name: dict.fromkeys(POOL) for name in stage.fleet.pool}
        for name, gone in labels.items():
            await stage.fleet.label(name, gone)

    async def act(stage: Stage) -> None:
        fleet = stage.fleet
        await fleet.apply(policy())
        await fleet.until(lambda: condition(fleet.policies["flt"], "Ready") == ("True", "NoNodesMatched"))
        assert condition(fleet.policies["flt"], "Accepted") == ("True", "Valid")
        for name in fleet.pool:
            await fleet.label(name, POOL)
        await fleet.until(lambda: fleet.ordered("Passthrough") == fleet.size and all_ready(fleet))

    record = await play(Scenario("policy-first", act, arrange))
    assert record.ending["policies"]["flt"]["status"]["nodes"]["ready"] == 20


async def test_start_up_with_everything_to_write_keeps_the_rate(play: Play) -> None:
    rate, burst = 15, 10

    async def act(stage: Stage) -> None:
        await stage.fleet.apply(policy(limit=20))
        await stage.fleet.until(lambda: all_ready(stage.fleet))

    slow = ("--writes-per-second", str(rate), "--burst", str(burst))
    record = await play(Scenario("start-up", act, options=slow, limit=20))
    moments = sorted(
        datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
        for entry in record.audit
        if entry["user"]["username"] == CONTROLLER
    )
    assert len(moments) > 60
    for seconds in (1.0, 3.0):
        busiest = max(sum(start <= each < start + seconds for each in moments) for start in moments)
        assert busiest <= burst + math.ceil(rate * seconds) + 2, f"{busiest} writes within {seconds:g} s"


async def test_operator_removed_before_its_objects_leaves_nothing_terminating(play: Play) -> None:
    async def act(stage: Stage) -> None:
        stage.controller.pause()
        await stage.fleet.delete("flt")
        for resource in (NPU_NODE_STATES, NODES):
            for item in (await stage.api.list(resource)).items:
                assert not item["metadata"].get("finalizers")
                await stage.api.delete(resource, item["metadata"]["name"])
        crd = await uninstall_crd(stage.api)
        for resource in (NPU_NODE_STATES, NODES):
            assert (await stage.api.list(resource)).items == []
        await install_crd(stage.api, crd)
        assert not (await stage.api.get(CONFIG_MAPS, "npufleet-settings", NAMESPACE))["metadata"].get("finalizers")
        await stage.controller.resume()
        for name in stage.fleet.pool:
            await stage.fleet.add_node(name, POOL)

    await play(Scenario("operator-first", act, put_in_place))


async def test_commit_of_two_objects_flips_no_device_twice(reference: Reference) -> None:
    """Two policies whose priorities are swapped in two applies: each device moves once."""
    record = await reference("swap-priorities")
    assert record.moves == len(record.moved) == 20


def condition(item: Object, kind: str) -> tuple[str, str]:
    found: Object = next((c for c in (item.get("status") or {}).get("conditions", []) if c["type"] == kind), {})
    return found.get("status", ""), found.get("reason", "")
