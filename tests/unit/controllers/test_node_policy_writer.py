"""One write at a time, against an API server whose watch tells nothing: only answers and fresh reads count here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from controllers.node_policy.metrics import Figures
from controllers.node_policy.pace import BEGUN_SECONDS, COUNTS_SECONDS
from controllers.node_policy.pending import Posted
from controllers.node_policy.plan import Plan, PolicyView, StateView, World, plan, read_node, read_policy, read_state
from controllers.node_policy.plan.drains import DrainTime
from controllers.node_policy.plan.events import About, PlanEvent
from controllers.node_policy.plan.view import NodeView
from controllers.node_policy.writer import Writer
from crds.models.conditions import Status, find_condition
from crds.models.node_state import Admission, NodeRollout
from runtime.api import ApiError, Invalid, Unreachable
from runtime.event_recorder import EventRecorder
from runtime.list_watch import list_into
from runtime.metrics import Metrics
from runtime.resources import EVENTS, NODES, NPU_NODE_POLICIES, NPU_NODE_STATES
from runtime.store import Store
from runtime.work_queue import Retry
from tests.builders.fake_api import FakeApi
from tests.builders.node_policy_stage import Stage
from tests.builders.objects import node_policy
from tests.builders.paper_binder import address
from tests.builders.paper_fleet import START

A = address(0)
ABOUT = [(About.NODE, "n0"), (About.POLICY, "p")]


class Desk:
    """A writer with stores that are filled once and then only by what the writer itself learns."""

    def __init__(self, stage: Stage, writer: Writer, states: Store[StateView], policies: Store[PolicyView]) -> None:
        self.stage, self.writer, self.states, self.policies = stage, writer, states, policies
        self.now = 0.0
        self.recorder: EventRecorder
        self.metrics: Metrics
        self.replans = 0
        self.leads = True

    def plan(self) -> Plan:
        policies = {key.name: record for key, record in self.policies.items()}
        states = {key.name: record for key, record in self.states.items()}
        return plan(World(policies, nodes(self), states, in_flight=self.writer.in_flight), START)

    def post(self) -> Posted:
        policies = {key.name: record for key, record in self.policies.items()}
        states = {key.name: record for key, record in self.states.items()}
        return self.writer.post(self.plan(), policies, states)


@asynccontextmanager
async def desk(nodes: int = 2) -> AsyncIterator[Desk]:
    async with FakeApi() as server, server.client("npufleet-node-policy") as api:
        stage = Stage(server)
        for number in range(nodes):
            stage.add_node(f"n{number}", 1)
            name = f"n{number}"
            spec = {"revision": "", "nodeUID": f"uid-{name}"}
            server.objects.create(NPU_NODE_STATES, {"metadata": {"name": name}, "spec": spec})
            stage.answer(name)
        stage.apply(node_policy("p"))
        states, policies = Store(read_state), Store(read_policy)
        await list_into(api, NPU_NODE_STATES, states)
        await list_into(api, NPU_NODE_POLICIES, policies)
        metrics = Metrics("test")
        recorder = EventRecorder(api, component="test", instance="test")

        def replan() -> None:
            found.replans += 1

        writer = Writer(
            api,
            states,
            policies,
            recorder,
            Figures(metrics, lambda: 0.0),
            field_manager="npufleet-node-policy",
            may_write=lambda: found.leads,
            node_exists=lambda name: server.objects.find(NODES, name) is not None,
            replan=replan,
            clock=lambda: found.now,
        )
        found = Desk(stage, writer, states, policies)
        found.recorder, found.metrics = recorder, metrics
        yield found


async def test_answer_that_is_lost_uses_up_the_limit_until_the_object_was_read() -> None:
    async with desk() as found:
        server = found.stage.server
        assert "n0" in found.post().nodes
        server.fail("PATCH", NPU_NODE_STATES, drop=True, after=True, times=1)
        with pytest.raises(Unreachable):
            await found.writer.write_node("n0")
        assert found.writer.in_flight == {"n0": frozenset({"p"})}
        assert found.states.get("n0") is not None
        assert not any(found.plan().specs.values()), "the other node must wait, though nothing is known to have changed"
        fault = server.fail("GET", NPU_NODE_STATES, code=503)
        with pytest.raises(Unreachable):
            await found.writer.write_node("n0")
        assert found.writer.in_flight
        server.heal(fault)
        await found.writer.write_node("n0")
        assert found.writer.in_flight == {}
        state = found.states.get("n0")
        assert state is not None
        assert [order.address for order in state.orders.devices] == [A]
        assert found.replans >= 1
        assert len([r for r in server.calls("PATCH", NPU_NODE_STATES) if not r.subresource]) == 1


async def test_orders_whose_answers_are_lost_again_and_again_are_sent_less_and_less_often() -> None:
    async with desk(1) as found:
        server = found.stage.server
        fault = server.fail("PATCH", NPU_NODE_STATES, code=500)

        def sent() -> int:
            return len([r for r in server.calls("PATCH", NPU_NODE_STATES) if not r.subresource])

        for number, pause in enumerate((0.5, 1.0, 2.0, 4.0), start=1):
            found.post()
            with pytest.raises(ApiError):
                await found.writer.write_node("n0")
            await found.writer.write_node("n0")  # looks whether it happened
            found.post()
            with pytest.raises(Retry) as wish:
                await found.writer.write_node("n0")
            assert sent() == number
            assert wish.value.seconds is not None and pause / 2 <= wish.value.seconds <= pause
            found.now += wish.value.seconds
        server.heal(fault)
        found.post()
        await found.writer.write_node("n0")
        assert set(found.stage.orders("n0")) == {A}


async def test_change_that_was_not_sent_yet_can_be_taken_back() -> None:
    async with desk() as found:
        found.post()
        found.writer.withdraw_changes()
        await found.writer.write_node("n0")
        assert found.stage.server.writes() == []


async def test_one_that_does_not_lead_writes_nothing() -> None:
    async with desk() as found:
        posted = found.post()
        found.leads = False
        for name in posted.nodes:
            with pytest.raises(Retry):
                await found.writer.write_node(name)
        for name in posted.policies:
            with pytest.raises(Retry):
                await found.writer.write_policy(name)
        assert found.stage.server.writes() == []


async def test_status_never_goes_to_another_policy_of_the_same_name() -> None:
    async with desk() as found:
        server = found.stage.server
        assert found.post().policies == ["p"]
        server.objects.delete(NPU_NODE_POLICIES, "p")
        found.stage.apply(node_policy("p", mode="Container"))
        await found.writer.write_policy("p")
        assert found.stage.status("p") == {}
        assert found.replans == 1
        entry = found.policies.entry("p")
        assert entry is not None
        assert entry.uid == server.objects.get(NPU_NODE_POLICIES, "p")["metadata"]["uid"]


async def test_orders_made_from_an_older_state_are_not_sent() -> None:
    async with desk() as found:
        server = found.stage.server
        found.post()
        found.stage.cards["n0"][A].users = ["training"]
        found.stage.answer("n0")
        await found.writer.write_node("n0")
        [attempt] = [r for r in server.calls("PATCH", NPU_NODE_STATES) if not r.subresource]
        assert attempt.body["metadata"]["resourceVersion"]
        assert found.stage.orders("n0") == {}, "the compare-and-swap lost"
        assert found.writer.in_flight == {}
        state = found.states.get("n0")
        assert state is not None and state.inventory is not None
        assert state.inventory.devices[0].users == ("training",)


async def test_orders_for_a_state_that_was_deleted_do_not_bring_it_back() -> None:
    async with desk() as found:
        server = found.stage.server
        found.post()
        server.objects.delete(NPU_NODE_STATES, "n0")
        await found.writer.write_node("n0")
        assert server.objects.find(NPU_NODE_STATES, "n0") is None
        assert found.writer.in_flight == {}


async def test_node_that_came_back_at_the_last_moment_keeps_its_state() -> None:
    async with desk(1) as found:
        server = found.stage.server
        node = server.objects.get(NODES, "n0")
        server.objects.delete(NODES, "n0")
        found.writer.post(found.plan(), {"p": read_policy(server.objects.get(NPU_NODE_POLICIES, "p"))}, records(found))
        await found.writer.write_node("n0")
        made = plan(World({}, {}, records(found), grace_seconds=0), START)
        assert set(made.deletions) == {"n0"}
        found.writer.post(made, {}, records(found))
        server.objects.create(NODES, {"metadata": {"name": "n0"}, "status": node["status"]})
        await found.writer.write_node("n0")
        assert server.objects.find(NPU_NODE_STATES, "n0") is not None


async def test_end_of_a_drain_is_told_and_counted_once_the_state_says_so() -> None:
    async with desk(1) as found:
        server = found.stage.server
        state = records(found)["n0"]
        events = [PlanEvent(about, name, True, "DrainAborted", "p is in the way", node="n0") for about, name in ABOUT]
        made = replace(
            found.plan(),
            specs={},
            rollouts={"n0": NodeRollout(admitted=Admission.ABORTED)},
            events=tuple(events),
            drain_seconds=(DrainTime("n0", "p", 42.0, "DrainTimedOut"),),
        )
        policies = {key.name: record for key, record in found.policies.items()}
        found.writer.post(made, policies, {"n0": state})
        await found.writer.write_policy("p")
        fault = server.fail("PATCH", NPU_NODE_STATES, code=422, reason="Invalid")
        with pytest.raises(Invalid):
            await found.writer.write_node("n0")
        await found.recorder.drain(5)
        assert server.calls("POST", EVENTS) == []
        server.heal(fault)
        await found.writer.write_node("n0")
        await found.recorder.drain(5)
        told = [request.body for request in server.calls("POST", EVENTS)]
        uid = policies["p"].uid
        assert [body["regarding"] for body in told] == [
            {"apiVersion": "v1", "kind": "Node", "name": "n0", "uid": "uid-n0"},
            {"apiVersion": "npufleet.io/v1alpha1", "kind": "NPUNodePolicy", "name": "p", "uid": uid},
        ]
        assert {(body["type"], body["reason"]) for body in told} == {("Warning", "DrainAborted")}
        labels = {"outcome": "DrainTimedOut"}
        assert found.metrics.registry.get_sample_value("npufleet_drain_seconds_sum", labels) == 42.0
        assert found.metrics.registry.get_sample_value("npufleet_drain_seconds_count", labels) == 1


def rollouts_written(found: Desk) -> int:
    return len([r for r in found.stage.server.calls("PATCH", NPU_NODE_STATES) if r.subresource])


async def read_anew(found: Desk) -> None:
    """The watch catches up."""
    await list_into(found.writer._api, NPU_NODE_STATES, found.states)


async def ordered(found: Desk) -> None:
    """n0 has its orders, and its binder is still at work on them."""
    found.stage.silent.add("n0")
    found.post()
    await found.writer.write_node("n0")
    assert set(found.stage.orders("n0")) == {A}
    assert found.post().nodes == ["n0"], "that the change has begun is worth a word"


async def test_node_that_is_done_within_seconds_is_told_of_once() -> None:
    async with desk(1) as found:
        await ordered(found)
        assert await found.writer.write_node("n0") == BEGUN_SECONDS
        found.now += BEGUN_SECONDS / 2
        assert await found.writer.write_node("n0") == BEGUN_SECONDS / 2
        found.stage.silent.clear()
        found.stage.answer("n0")
        await read_anew(found)
        found.post()
        assert await found.writer.write_node("n0") is None
        assert rollouts_written(found) == 1
        state = found.states.get("n0")
        assert state is not None and state.rollout is not None
        available = find_condition(state.rollout.conditions, "Available")
        assert available is not None and available.status is Status.TRUE


async def test_node_that_takes_longer_is_told_of_as_changing() -> None:
    async with desk(1) as found:
        await ordered(found)
        assert await found.writer.write_node("n0") == BEGUN_SECONDS
        found.now += BEGUN_SECONDS
        assert await found.writer.write_node("n0") is None
        assert rollouts_written(found) == 1
        state = found.states.get("n0")
        assert state is not None and state.rollout is not None
        available = find_condition(state.rollout.conditions, "Available")
        assert available is not None and available.reason == "Changing"
        found.now += 1
        assert found.post().nodes == []


async def test_orders_that_another_process_wrote_are_not_young() -> None:
    async with desk(1) as found:
        await ordered(found)
        found.writer._ordered.clear()
        assert await found.writer.write_node("n0") is None
        assert rollouts_written(found) == 1


async def test_device_that_fails_is_told_of_at_once() -> None:
    async with desk(1) as found:
        found.stage.cards["n0"][A].fails = True
        await ordered(found)
        found.stage.silent.clear()
        found.stage.answer("n0")
        await read_anew(found)
        found.post()
        assert await found.writer.write_node("n0") is None
        assert rollouts_written(found) == 1


async def test_counts_of_a_policy_are_written_every_two_seconds_and_what_turned_at_once() -> None:
    async with desk(3) as found:
        server = found.stage.server
        found.stage.apply(node_policy("p", rollout={"maxUnavailable": 1}))
        await list_into(found.writer._api, NPU_NODE_POLICIES, found.policies)

        async def step(name: str) -> float | None:
            """One node gets its orders and obeys; then the policy's status is due."""
            found.post()
            await found.writer.write_node(name)
            await read_anew(found)
            assert found.post().policies == ["p"]
            return await found.writer.write_policy("p")

        def written() -> int:
            return len(server.calls("PATCH", NPU_NODE_POLICIES))

        assert await step("n0") is None
        assert await step("n1") == COUNTS_SECONDS
        assert written() == 1
        found.now += COUNTS_SECONDS
        assert await found.writer.write_policy("p") is None
        assert found.stage.status("p")["nodes"]["ready"] == 2
        assert await step("n2") is None, "it is Ready now"
        assert found.stage.condition("p") == ("True", "AllDevicesReady")
        assert written() == 3


async def test_node_whose_state_was_made_since_the_plan_gets_none_anew() -> None:
    async with desk(1) as found:
        server = found.stage.server
        known = records(found)
        found.writer.post(plan(World({}, nodes(found), {}), START), {}, {})
        await found.writer.write_node("n0")
        assert server.calls("POST", NPU_NODE_STATES) == []
        assert records(found) == known and found.replans == 1


async def test_taking_changes_back_tells_for_whom_nothing_is_left_to_do() -> None:
    async with desk() as found:
        assert set(found.post().nodes) == {"n0", "n1"}
        name = "n0"
        assert found.writer.withdraw_changes() == [name], "the other one waits, and that is still to be told"
        found.post()
        fault = found.stage.server.fail("PATCH", NPU_NODE_STATES, code=500)
        with pytest.raises(ApiError):
            await found.writer.write_node(name)
        assert found.writer.withdraw_changes() == [], "whether it happened is still to be found out"
        found.stage.server.heal(fault)


def nodes(found: Desk) -> dict[str, NodeView]:
    return {item["metadata"]["name"]: read_node(item) for item in found.stage.server.objects.items(NODES)}


def records(found: Desk) -> dict[str, StateView]:
    return {key.name: record for key, record in found.states.items()}
