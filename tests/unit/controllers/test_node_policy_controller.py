"""The controller as it runs: on an API server over HTTP that fails, forgets, answers late or not at all."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

from controllers.node_policy.controller import NodePolicyController
from runtime.health import HealthServer
from runtime.resources import (
    CONFIG_MAPS,
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    NAMESPACE,
    NODES,
    NPU_NODE_POLICIES,
    NPU_NODE_STATES,
)
from runtime.settings import Address
from tests.builders.fake_api import FakeApi, Fault
from tests.builders.node_policy_stage import Stage, replica
from tests.builders.objects import node_policy
from tests.builders.paper_binder import Card, address
from tests.builders.waiting import until

A = address(0)


async def test_policy_reaches_its_devices_and_a_restart_writes_nothing() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        for number in range(3):
            stage.add_node(f"n{number}", 2)
        stage.apply(node_policy("p"))
        async with replica(server):
            await stage.ready("p")
        assert all(card.bound for cards in stage.cards.values() for card in cards.values())
        before = len(server.writes())
        async with replica(server, "replica-2") as second:
            await until(lambda: second.value("npufleet_reconcile_total", controller="node-policy", result="success"))
            await until(lambda: second.controller._plans.idle and second.controller._node_writes.idle)
        assert server.writes()[before:] == []


async def test_nothing_is_planned_before_every_kind_is_known() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        stage.apply(node_policy("p"))
        async with replica(server):
            await stage.ready("p")
        for resource in (NPU_NODE_POLICIES, NODES, LEASES, CONFIG_MAPS):
            before = len(server.writes())
            fault = server.fail("LIST", resource, code=403, reason="Forbidden")
            async with replica(server, "replica-2") as found:
                await until(partial(was_hit, fault))
                health = {name: check() for name, check in readiness(found.controller).items()}
                assert any("grant list" in (reason or "") for reason in health.values()), health
                assert not found.controller._election.leading
                assert server.writes()[before:] == []
                server.heal(fault)
                await until(lambda: found.controller._election.leading, seconds=20)
                await until(lambda: not any(check() for check in readiness(found.controller).values()))
            assert server.writes()[before:] == []


async def test_policy_is_ready_as_soon_as_its_device_classes_exist() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        stage.apply(node_policy("p", driver_name="npu.example.com"))
        async with replica(server):
            await until(lambda: stage.condition("p") == ("False", "DeviceClassMissing"))
            stage.install_classes("npu.example.com")
            await stage.ready("p")


async def test_who_may_not_read_device_classes_misses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controllers.node_policy.controller._CLASSES_SECONDS", 0.1)
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        stage.apply(node_policy("p", driver_name="npu.example.com"))
        server.fail("LIST", DEVICE_CLASSES, code=403, reason="Forbidden")
        async with replica(server) as found:
            await stage.ready("p")
            assert not any(check() for check in readiness(found.controller).values())


def was_hit(fault: Fault) -> bool:
    return fault.hits >= 2


def readiness(controller: NodePolicyController) -> dict[str, Callable[[], str | None]]:
    """The checks that the controller's readiness is made of."""
    health = HealthServer(Address("127.0.0.1", 0), CollectorRegistry())
    controller.add_checks(health)
    return health._readiness


async def test_priority_swap_as_two_applies_flips_no_device() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        stage.apply(node_policy("a", priority=2))
        stage.apply(node_policy("b", mode="Container", priority=1))
        async with replica(server, settle_seconds=0.4):
            await stage.ready("a")
            await stage.ready("b", "NoDevicesMatched")
            generation = server.objects.get(NPU_NODE_STATES, "n")["metadata"]["generation"]
            stage.apply(node_policy("b", mode="Container", priority=3))
            await asyncio.sleep(0.1)
            stage.apply(node_policy("a", priority=4))
            await stage.ready("a")
            await stage.ready("b", "NoDevicesMatched")
        state = server.objects.get(NPU_NODE_STATES, "n")
        assert state["metadata"]["generation"] == generation
        assert stage.condition("b", "Conflicted") == ("True", "LostDevices")


async def test_policy_deleted_in_a_gap_of_the_watch_is_no_ghost() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        stage.apply(node_policy("ghost", priority=500))
        stage.apply(node_policy("p", mode="Container"))
        async with replica(server):
            await stage.ready("ghost")
            server.silence_watches()
            server.objects.delete(NPU_NODE_POLICIES, "ghost")
            server.expire_watches()
            await stage.ready("p")
        assert stage.orders("n")[A]["decidedBy"]["policy"] == "p"
        assert not stage.cards["n"][A].bound
        assert stage.status("p")["conflicts"] == []


async def test_edit_between_two_of_our_own_writes_is_not_lost() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        stage.apply(node_policy("p"))
        async with replica(server):
            for priority in range(1, 30):
                stage.apply(node_policy("p", mode="Container" if priority % 2 else "Passthrough", priority=priority))
                await asyncio.sleep(0.01 * (priority % 5))
            await stage.ready("p")
        status = stage.status("p")
        assert status["observedGeneration"] == server.objects.get(NPU_NODE_POLICIES, "p")["metadata"]["generation"]
        assert stage.orders("n")[A]["mode"] == "Container"
        assert {c["observedGeneration"] for c in status["conditions"]} == {status["observedGeneration"]}


async def test_lost_answer_to_new_orders_costs_no_second_node() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        for number in range(3):
            stage.add_node(f"n{number}", 1)
        async with replica(server):
            await until(lambda: all(server.objects.find(NPU_NODE_STATES, name) for name in stage.cards))
            fault = server.fail("PATCH", NPU_NODE_STATES, drop=True, after=True, times=1)
            stage.silent = set(stage.cards)
            stage.apply(node_policy("p"))
            await until(lambda: fault.hits == 1)
            await until(lambda: stage.condition("p")[1] == "RollingOut")
            await until(lambda: stage.status("p")["nodes"]["updated"] == 1)
            assert sum(bool(stage.orders(name)) for name in stage.cards) == 1
            stage.silent = set()
            for name in stage.cards:
                stage.answer(name)
            await stage.ready("p")


@pytest.mark.parametrize("lost", range(1, 14))
async def test_death_after_any_write_is_made_good(lost: int) -> None:
    """Kill the controller right after its `lost`th write took effect, answer unheard; the next one ends the same."""
    async with FakeApi() as server:
        stage = Stage(server)
        for number in range(2):
            stage.add_node(f"n{number}", 2)
        stage.apply(node_policy("p", rules=None))
        stage.apply(node_policy("q", mode="Container", priority=1))
        fault = server.fail("*", hang=True, after=True, times=0)
        count = 0

        def die() -> bool:
            nonlocal count
            count = len(server.writes())
            fault.times = 10**6 if count >= lost else 0
            return count >= lost

        async with replica(server) as first:
            try:
                await until(die, seconds=4)
            except AssertionError:
                assert stage.condition("p")[0] == "True", "it was done with fewer writes"
            await first.kill()
        server.heal()
        server.objects.delete(LEASES, "npufleet-node-policy", NAMESPACE)
        deletions = len(server.calls("DELETE", NPU_NODE_STATES))
        async with replica(server, "replica-2"):
            await stage.ready("p")
            await stage.ready("q", "NoDevicesMatched")
        assert all(card.bound for cards in stage.cards.values() for card in cards.values())
        creations = server.calls("POST", NPU_NODE_STATES)
        assert len(creations) <= 4 and deletions == 0
        for name in stage.cards:
            assert server.objects.get(NPU_NODE_STATES, name)["metadata"]["generation"] == 2, "ordered once"


async def test_write_that_keeps_failing_holds_up_no_other() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        for number in range(4):
            stage.add_node(f"n{number}", 1)
        server.fail("PATCH", NPU_NODE_STATES, name="n0", code=422, reason="Invalid")
        server.fail("PATCH", NPU_NODE_POLICIES, name="broken", code=500)
        stage.apply(node_policy("broken", mode="Unmanaged", products=["RBLN-CA22"]))
        stage.apply(node_policy("p", rollout={"maxUnavailable": 4}))
        async with replica(server):
            await until(lambda: sum(bool(stage.orders(name)) for name in stage.cards) == 3)
            await until(lambda: stage.status("p").get("devices") == {"matched": 4, "ready": 3})
            server.heal()
            await stage.ready("p")


async def test_orders_that_are_refused_are_tried_at_a_growing_distance_and_stop_no_rollout() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        for number in range(3):
            stage.add_node(f"n{number}", 1)
        async with replica(server):
            await until(lambda: all(server.objects.find(NPU_NODE_STATES, name) for name in stage.cards))
            fault = server.fail("PATCH", NPU_NODE_STATES, name="n0", code=422, reason="Invalid")
            stage.apply(node_policy("p"))
            await until(lambda: stage.status("p").get("devices") == {"matched": 3, "ready": 2})
            await asyncio.sleep(1.0)
            attempts = [r for r in server.calls("PATCH", NPU_NODE_STATES) if r.name == "n0" and not r.subresource]
            # Each attempt is an apply, and a replacement when that is refused; none is a loop.
            assert 2 <= len(attempts) <= 24, [f"{r.at:.2f}" for r in attempts]
            server.heal(fault)
            await stage.ready("p")


async def test_spec_that_an_apply_cannot_change_is_replaced() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        async with replica(server):
            await until(lambda: server.objects.find(NPU_NODE_STATES, "n"))
            server.fail("PATCH", NPU_NODE_STATES, code=422, reason="Invalid", message="null in a list", times=1)
            stage.apply(node_policy("p"))
            await stage.ready("p")
        bodies = [r.body for r in server.calls("PATCH", NPU_NODE_STATES) if isinstance(r.body, list)]
        assert [op["op"] for op in bodies[0]] == ["test", "replace"]


async def test_only_one_of_two_replicas_writes_and_the_other_takes_over() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        stage.apply(node_policy("p"))
        async with replica(server, "replica-1") as first:
            await stage.ready("p")
            async with replica(server, "replica-2") as second:
                await until(lambda: second.controller._state_feed.synced and second.controller._leases.problem is None)
                before = len(server.writes())
                stage.apply(node_policy("p", mode="Container"))
                await stage.ready("p")
                assert (
                    second.metrics.registry.get_sample_value(
                        "npufleet_api_writes_total",
                        {"component": "npufleet-node-policy", "kind": "NPUNodeState", "result": "ok"},
                    )
                    is None
                )
                assert len(server.writes()) > before
                await first.stop()
                stage.apply(node_policy("p"))
                await stage.ready("p")
                assert second.controller._election.leading


async def test_lost_leadership_ends_the_process() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        stage.apply(node_policy("p"))
        async with replica(server) as found:
            await stage.ready("p")
            lease = server.objects.get(LEASES, "npufleet-node-policy", NAMESPACE)
            server.objects.edit(
                LEASES, "npufleet-node-policy", NAMESPACE, spec={**lease["spec"], "holderIdentity": "another"}
            )
            await until(found.process.stop.is_set)
            assert found.process.failure is not None and "Lease" in found.process.failure
            async with asyncio.timeout(20):
                await found.task
            before = len(server.writes())
            stage.apply(node_policy("p", mode="Container"))
            await asyncio.sleep(0.3)
            assert len(server.writes()) == before


async def test_start_with_many_nodes_keeps_the_rate_of_writes() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        for number in range(60):
            stage.add_node(f"n{number:02}", 0)
        stage.apply(node_policy("p"))
        async with replica(server, writes_per_second=100, burst=10):
            await until(lambda: sum(1 for _ in server.objects.items(NPU_NODE_STATES)) == 60)
            await until(lambda: stage.condition("p")[1] == "NoDevicesMatched")
        times = sorted(request.at for request in server.writes())
        for start, moment in enumerate(times):
            within = [t for t in times[start:] if t - moment <= 0.2]
            assert len(within) <= 10 + 100 * 0.2 + 5


async def test_mass_removal_is_held_until_the_annotation_confirms_it() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        for number in range(3):
            stage.add_node(f"n{number}", 1, labels={"pool": str(number)})
            stage.apply(node_policy(f"p{number}", nodes={"pool": str(number)}))
        async with replica(
            server, settle_seconds=1.0
        ) as found:  # their deletions count as one, however slow the machine is
            for number in range(3):
                await stage.ready(f"p{number}")
            for number in range(3):
                server.objects.delete(NPU_NODE_POLICIES, f"p{number}")
            await until(lambda: all(o["intent"] == "Hold" for n in stage.cards for o in stage.orders(n).values()))
            [held] = [
                sample
                for metric in found.metrics.registry.collect()
                for sample in metric.samples
                if sample.name == "npufleet_removal_held"
            ]
            assert held.value == 3
            await until(lambda: any(e["reason"] == "RemovalHeld" for e in server.objects.items(EVENTS)))
            await until(
                lambda: all(
                    any(c["type"] == "RemovalHeld" for c in state["status"]["rollout"]["conditions"])
                    for state in server.objects.items(NPU_NODE_STATES)
                )
            )
            settings = {"metadata": {"name": "npufleet-settings"}}
            settings["metadata"]["annotations"] = {"npufleet.io/confirm-removal": held.labels["id"]}  # type: ignore[assignment]
            server.objects.create(CONFIG_MAPS, settings, NAMESPACE)
            await until(lambda: not any(stage.orders(name) for name in stage.cards), seconds=15)
            assert not any(card.bound for cards in stage.cards.values() for card in cards.values())


async def test_orders_that_somebody_else_put_there_are_replaced() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        stage.apply(node_policy("p"))
        async with replica(server):
            await stage.ready("p")
            state = server.objects.get(NPU_NODE_STATES, "n")
            foreign = {**state["spec"]["devices"][0], "mode": "Container"}
            foreign.pop("passthrough")
            server.objects.edit(NPU_NODE_STATES, "n", spec={**state["spec"], "devices": [foreign]})
            await until(lambda: stage.orders("n")[A]["mode"] == "Passthrough")
            await stage.ready("p")


async def test_state_is_deleted_with_its_node_after_the_grace() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        stage.apply(node_policy("p"))
        async with replica(server, grace=1):
            await stage.ready("p")
            server.objects.delete(NODES, "n")
            await stage.ready("p", "NoNodesMatched")
            await until(lambda: server.objects.find(NPU_NODE_STATES, "n") is None)
        [call] = server.calls("DELETE", NPU_NODE_STATES)
        assert set(call.body["preconditions"]) == {"uid", "resourceVersion"}


async def test_policy_created_anew_under_its_name_gets_a_status_of_its_own() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", 1)
        stage.apply(node_policy("p"))
        async with replica(server):
            await stage.ready("p")
            server.objects.delete(NPU_NODE_POLICIES, "p")
            stage.apply(node_policy("p", mode="Container"))
            await stage.ready("p")
        assert stage.orders("n")[A]["mode"] == "Container"


async def test_metrics_tell_blocked_nodes_and_how_long_a_generation_took() -> None:
    async with FakeApi() as server:
        stage = Stage(server)
        stage.add_node("n", {A: Card(users=["training"])})
        async with replica(server) as found:
            await until(lambda: found.controller._election.leading)
            stage.apply(node_policy("p"))
            await until(lambda: found.value("npufleet_blocked_nodes", policy="p", reason="InUse") == 1)
            await until(lambda: stage.condition("p") == ("False", "DevicesBlocked"))
            stage.cards["n"][A].users = []
            stage.answer("n")
            await stage.ready("p")
            await until(lambda: found.value("npufleet_generation_ready_seconds_count", kind="NPUNodePolicy") == 1)
            blocked = found.metrics.registry.get_sample_value(
                "npufleet_blocked_nodes", {"policy": "p", "reason": "InUse"}
            )
            assert blocked is None
        told = {(e["type"], e["reason"]) for e in server.objects.items(EVENTS)}
        assert ("Warning", "DevicesBlocked") in told
        assert ("Normal", "AllDevicesReady") in told
