"""Marks on a Node: all in one write, to the Node that the plan knew, and to no other."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from controllers.node_policy.drain.marks import NodeMarker
from controllers.node_policy.plan import NodeView, read_node
from controllers.node_policy.plan.drains import NodeMarks
from runtime.api import ApiError, Forbidden
from runtime.list_watch import list_into
from runtime.resources import NODES
from runtime.store import Store
from runtime.work_queue import Retry
from tests.builders import objects
from tests.builders.fake_api import FakeApi

CORDON = NodeMarks("uid-n", unschedulable=True, cordoned_by="p", drain_request="r1", drain_done=None)
CLEAR = NodeMarks("uid-n", unschedulable=False, cordoned_by="", drain_request="", drain_done="")
OURS = {"npufleet.io/cordoned-by": "p", "npufleet.io/drain-request": "r1", "npufleet.io/drain-done": "r1"}


class Bench:
    def __init__(self, server: FakeApi, nodes: Store[NodeView], marker: NodeMarker) -> None:
        self.server, self.nodes, self.marker = server, nodes, marker
        self.leads = True
        self.replans = self.changes = 0

    def post(self, marks: NodeMarks) -> list[str]:
        return self.marker.post({"n": marks}, {key.name: record for key, record in self.nodes.items()})

    @property
    def node(self) -> dict[str, Any]:
        return self.server.objects.get(NODES, "n")


@asynccontextmanager
async def bench(**given: Any) -> AsyncIterator[Bench]:
    async with FakeApi() as server, server.client("npufleet-node-policy") as api:
        server.objects.create(NODES, objects.node("n", uid="uid-n", **given))
        nodes = Store(read_node)
        await list_into(api, NODES, nodes)
        found: Bench

        def replan() -> None:
            found.replans += 1

        def changed() -> None:
            found.changes += 1

        marker = NodeMarker(api, nodes, may_write=lambda: found.leads, replan=replan, changed=changed)
        found = Bench(server, nodes, marker)
        yield found


async def test_cordon_and_annotations_are_one_write() -> None:
    async with bench(annotations={"example.io/other": "stays"}) as found:
        assert found.post(CORDON) == ["n"]
        await found.marker.write("n")
        assert found.node["spec"]["unschedulable"] is True
        assert found.node["metadata"]["annotations"] == {
            "example.io/other": "stays",
            "npufleet.io/cordoned-by": "p",
            "npufleet.io/drain-request": "r1",
        }
        assert len(found.server.writes()) == 1
        known = found.nodes.get("n")
        assert known is not None and known.unschedulable and known.cordoned_by == "p"
        assert found.replans == 1


async def test_all_marks_are_taken_away_in_one_write() -> None:
    async with bench(unschedulable=True, annotations={**OURS, "example.io/other": "stays"}) as found:
        found.post(CLEAR)
        await found.marker.write("n")
        assert not found.node["spec"].get("unschedulable")
        assert found.node["metadata"]["annotations"] == {"example.io/other": "stays"}
        assert len(found.server.writes()) == 1


async def test_cordon_and_answer_of_others_stay_where_they_are_not_meant() -> None:
    async with bench(unschedulable=True, annotations={"npufleet.io/drain-done": "r0"}) as found:
        found.post(replace(CORDON, unschedulable=None, cordoned_by=""))
        await found.marker.write("n")
        assert found.node["spec"]["unschedulable"] is True
        assert found.node["metadata"]["annotations"] == {
            "npufleet.io/drain-done": "r0",
            "npufleet.io/drain-request": "r1",
        }


async def test_node_that_a_person_wrote_meanwhile_is_looked_at_again() -> None:
    async with bench() as found:
        found.post(CORDON)
        found.server.objects.edit(NODES, "n", spec={"taints": [{"key": "x"}]})
        await found.marker.write("n")
        assert found.node["spec"] == {"taints": [{"key": "x"}]}
        entry = found.nodes.entry("n")
        assert entry is not None
        assert str(entry.resource_version) == found.node["metadata"]["resourceVersion"]
        assert found.replans == 1


async def test_another_node_of_the_name_is_never_marked() -> None:
    async with bench() as found:
        found.post(CORDON)
        found.server.objects.delete(NODES, "n")
        await found.marker.write("n")
        assert found.server.objects.find(NODES, "n") is None
        found.server.objects.create(NODES, objects.node("n", uid="another"))
        await found.marker.write("n")
        assert "unschedulable" not in found.node["spec"]
        assert found.replans == 2


async def test_plan_made_from_an_older_node_is_not_carried_out() -> None:
    async with bench() as found:
        stale = {key.name: record for key, record in found.nodes.items()}
        found.nodes.apply_event("MODIFIED", found.server.objects.edit(NODES, "n", spec={"unschedulable": True}))
        found.marker.post({"n": CORDON}, stale)
        await found.marker.write("n")
        assert found.server.writes() == []
        assert found.replans == 1


async def test_missing_right_is_named_until_it_is_given() -> None:
    async with bench() as found:
        message = 'nodes "n" is forbidden: User "x" cannot patch resource "nodes" in API group ""'
        fault = found.server.fail("PATCH", NODES, code=403, reason="Forbidden", message=message)
        assert found.post(CORDON) == ["n"]
        with pytest.raises(Forbidden):
            await found.marker.write("n")
        assert "grant patch on nodes to npufleet-node-policy" in found.marker.problem("n")
        assert found.changes == 1
        assert found.post(CORDON) == [], "it waits for its own next attempt"
        assert found.post(CLEAR) == ["n"], "but anything else is tried at once"
        found.server.heal(fault)
        found.post(CORDON)
        await found.marker.write("n")
        assert found.marker.problem("n") == ""
        assert found.changes == 2


async def test_problem_ends_with_the_wish() -> None:
    async with bench() as found:
        found.server.fail("PATCH", NODES, code=422, reason="Invalid", message="a webhook says no")
        found.post(CORDON)
        with pytest.raises(ApiError):
            await found.marker.write("n")
        assert found.marker.problem("n") == "the Node cannot be marked: a webhook says no"
        found.marker.post({}, {})
        assert found.marker.problem("n") == ""
        await found.marker.write("n")
        assert len(found.server.writes()) == 1


async def test_one_that_does_not_lead_marks_nothing() -> None:
    async with bench() as found:
        found.post(CORDON)
        found.leads = False
        with pytest.raises(Retry):
            await found.marker.write("n")
        assert found.server.writes() == []


async def test_answer_that_was_lost_is_found_out() -> None:
    async with bench() as found:
        found.post(CORDON)
        found.server.fail("PATCH", NODES, drop=True, after=True, times=1)
        with pytest.raises(ApiError):
            await found.marker.write("n")
        await found.marker.write("n")
        known = found.nodes.get("n")
        assert known is not None and known.cordoned_by == "p"
        assert found.replans == 1
