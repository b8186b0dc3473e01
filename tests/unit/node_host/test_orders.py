"""Orders are followed by the node that they are for, as far as they can be understood."""

from __future__ import annotations

from typing import Any

import pytest

from crds.models.node_state import NodeStateStatus
from node_host.node_identity import NodeIdentity
from node_host.orders import Orders, StandingOrders, read_orders
from node_host.state_record import read_state
from runtime.errors import NotFound, Unreachable
from runtime.resources import NODES, Resource
from tests.builders.binder import NODE_UID, order, spec

NODE = "bench"
STATUS = NodeStateStatus()


class Server:
    """A Node, and the orders of it; None: there is none. Remembers who asked for the Node."""

    def __init__(self) -> None:
        self.uid: str | None = NODE_UID
        self.state: dict[str, Any] | None = state(1)
        self.unreachable = False
        self.asked = 0

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        assert name == NODE
        if resource != NODES:
            if self.state is None:
                raise NotFound(404, "NotFound", "no such object")
            return self.state
        self.asked += 1
        if self.unreachable:
            raise Unreachable(0, "Unreachable", "no answer")
        if self.uid is None:
            raise NotFound(404, "NotFound", "no such object")
        return {"metadata": {"uid": self.uid}, "status": {"allocatable": {"cpu": "4", "rebellions.ai/ATOM": "2"}}}


def state(generation: int, *, node_uid: str = NODE_UID, **more: Any) -> dict[str, Any]:
    body = {**spec(order(), node_uid=node_uid).to_object(), **more}
    return {"metadata": {"name": NODE, "uid": "of-the-state", "generation": generation}, "spec": body}


@pytest.mark.parametrize(
    ("orders", "held"),
    [
        (Orders(spec(), NODE_UID), None),
        (Orders(None, NODE_UID), "there is no NPUNodeState for this node: nothing is changed"),
        (Orders(spec(), None), "the UID of this node cannot be read: nothing is changed"),
        (
            Orders(spec(node_uid="another"), NODE_UID),
            f"the orders are for the node with UID another, this one has {NODE_UID}: nothing is changed",
        ),
        (Orders(spec(), NODE_UID, unreadable="no"), "the orders cannot be understood: no"),
        (Orders(None, None, unreadable="no"), "the orders cannot be understood: no"),
    ],
)
def test_orders_are_held_for_a_reason(orders: Orders, held: str | None) -> None:
    assert orders.held == held


async def test_orders_that_cannot_be_understood_leave_the_last_ones_standing_and_held() -> None:
    standing = StandingOrders(NodeIdentity(Server(), NODE), clock=lambda: 0.0)
    first = await standing.read(read_state(state(1)), STATUS)
    assert (first.held, first.generation, first.spec) == (None, 1, spec(order()))
    then = await standing.read(read_state(state(2, devices=[{"address": 7}])), STATUS)
    assert (then.spec, then.generation, then.node_uid) == (first.spec, 2, NODE_UID)
    assert (then.held or "").startswith("the orders cannot be understood: spec.devices")
    assert standing.last is then


async def test_orders_that_are_gone_are_none_and_those_before_them_do_not_come_back() -> None:
    standing = StandingOrders(NodeIdentity(Server(), NODE), clock=lambda: 0.0)
    await standing.read(read_state(state(1)), STATUS)
    assert (await standing.read(None, STATUS)).spec is None
    unreadable = await standing.read(read_state(state(2, devices=[{"address": 7}])), STATUS)
    assert (unreadable.spec, unreadable.held is None) == (None, False)


async def test_the_node_is_asked_for_its_uid_again_at_intervals_and_when_orders_name_another() -> None:
    server, now = Server(), [0.0]
    standing = StandingOrders(NodeIdentity(server, NODE), clock=lambda: now[0])

    async def read(**more: Any) -> Orders:
        return await standing.read(read_state(state(1, **more)), STATUS)

    for _ in range(3):
        assert (await read()).held is None
    assert server.asked == 1
    server.uid = "anew"  # the Node was deleted and made again
    now[0] = 299.0
    assert (await read()).node_uid == NODE_UID
    assert (await read(node_uid="anew")).held is None
    assert server.asked == 2
    now[0] = 300.0
    assert (await read()).node_uid == "anew"
    assert server.asked == 3
    server.uid, now[0] = None, 600.0
    assert (await read(node_uid="anew")).node_uid is None
    assert standing.node_uid == "anew"


async def test_orders_and_the_node_are_read_once_for_whoever_looks_once() -> None:
    server = Server()
    orders, record = await read_orders(server, NODE)
    assert (orders.held, orders.generation, dict(orders.advertised)) == (None, 1, {"rebellions.ai/ATOM": "2"})
    assert record is not None and record.uid == "of-the-state"
    server.state = None
    orders, record = await read_orders(server, NODE)
    assert (orders.spec, orders.node_uid, record) == (None, NODE_UID, None)
    server.unreachable = True
    assert (await read_orders(server, NODE))[0].node_uid is None
