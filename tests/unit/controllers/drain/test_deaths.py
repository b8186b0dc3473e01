"""A controller that dies right after any one of its writes in a drain: the next one ends it as if nothing had been."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runtime.resources import EVENTS, LEASES, NAMESPACE, NODES, NPU_NODE_POLICIES, NPU_NODE_STATES, PODS
from tests.builders.fake_api import FakeApi
from tests.builders.fake_objects import Object, Step
from tests.builders.node_policy_stage import Stage, replica
from tests.builders.objects import node_policy
from tests.builders.paper_binder import Card, address
from tests.builders.waiting import until
from tests.builders.workloads import pod

A = address(0)
WRITES = {"POST", "PUT", "PATCH", "DELETE"}
AT_ONCE = 5


class Scene:
    """One node whose only device a pod uses without a claim; `kubelet` ends the pod once it was evicted."""

    def __init__(self, server: FakeApi) -> None:
        self.server = server
        self.stage = Stage(server)
        self.reached: Callable[[int], None] = lambda count: None
        user = pod("train", node="n0")
        user["metadata"]["finalizers"] = ["example.io/kubelet"]
        made = server.objects.create(PODS, user)
        self.stage.add_node("n0", {A: Card(pods=[made["metadata"]["uid"]])})
        server.objects.listeners.append(self._on_step)

    def _on_step(self, step: Step) -> None:
        if step.resource == PODS and step.after is not None and step.after["metadata"].get("deletionTimestamp"):
            asyncio.get_running_loop().call_soon(self._end_pod)
        self.reached(self.writes)

    def _end_pod(self) -> None:
        if self.server.objects.find(PODS, "train", "team") is None:
            return
        self.server.objects.edit(PODS, "train", "team", metadata_finalizers=[])
        self.stage.cards["n0"][A].pods.clear()
        self.stage.answer("n0")

    @property
    def writes(self) -> int:
        """Writes of controllers that have arrived, Leases and Events apart."""
        return len([r for r in self.server.requests if r.verb in WRITES and r.resource not in (LEASES, EVENTS)])

    @property
    def evictions(self) -> int:
        return len([r for r in self.server.calls("POST", PODS) if r.subresource == "eviction"])

    @property
    def rollout(self) -> Object:
        state = self.server.objects.find(NPU_NODE_STATES, "n0") or {}
        found: Object = (state.get("status") or {}).get("rollout") or {}
        return found

    def draining(self) -> tuple[str, str]:
        for condition in self.rollout.get("conditions", []):
            if condition["type"] == "Draining":
                return condition["status"], condition["reason"]
        return "", ""

    def unmarked(self) -> bool:
        """The Node takes pods again, and says nothing of npufleet."""
        node = self.server.objects.get(NODES, "n0")
        annotations = node["metadata"].get("annotations") or {}
        calm = not node["spec"].get("unschedulable") and not self.rollout.get("cordonedBy")
        return calm and not any("npufleet.io/" in key for key in annotations)

    async def play(self, timeout: int, over: Callable[[], bool], dies_after: int | None) -> None:
        """Until the drain is `over`; with `dies_after` under two controllers, the first of which dies then."""
        rollout = {"drain": "IfInUse", "drainTimeoutSeconds": timeout}
        self.server.objects.create(NPU_NODE_POLICIES, node_policy("p", rollout=rollout))
        if dies_after is not None:
            dead = asyncio.Event()
            self.reached = lambda count: dead.set() if count >= dies_after else None
            async with replica(self.server, "first") as first:
                await until(lambda: dead.is_set() or over(), seconds=30, what=f"write {dies_after}")
                await first.kill()
            self.server.objects.delete(LEASES, "npufleet-node-policy", NAMESPACE)
        async with replica(self.server, "second"):
            await until(over, seconds=30, what=f"the end after a death at write {dies_after}: {self.rollout}")


async def die_after_each_write(
    timeout: int, ended: Callable[[Scene], bool], check: Callable[[Scene], None], *, refused: bool = False
) -> int:
    """Play the scene once as it is, and once for each write that it took; `refused`: nobody may be evicted."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def play(dies_after: int | None) -> int:
        async with gate, FakeApi() as server:
            found = Scene(server)
            if refused:
                server.fail("POST", PODS, code=429, reason="TooManyRequests", message="not now")
            await found.play(timeout, lambda: ended(found), dies_after)
            check(found)
            return found.writes

    count = await play(None)
    async with asyncio.TaskGroup() as group:
        for number in range(1, count + 1):
            group.create_task(play(number))
    return count


async def test_drain_ends_the_same_whichever_write_its_controller_dies_after() -> None:
    def ended(found: Scene) -> bool:
        ready = found.stage.condition("p") == ("True", "AllDevicesReady")
        return ready and found.unmarked() and found.draining() == ("False", "Drained")

    def check(found: Scene) -> None:
        assert found.evictions == 1
        assert found.stage.cards["n0"][A].bound

    deaths = await die_after_each_write(30, ended, check)
    print(f"{deaths} deaths")
    assert deaths >= 8


async def test_drain_is_given_up_the_same_whichever_write_its_controller_dies_after() -> None:
    def ended(found: Scene) -> bool:
        held = {order["intent"] for order in found.stage.orders("n0").values()} == {"Hold"}
        return held and found.unmarked() and found.draining() == ("False", "DrainTimedOut")

    def check(found: Scene) -> None:
        assert found.rollout["admitted"] == "Aborted"
        assert not found.stage.cards["n0"][A].bound
        assert found.server.objects.find(PODS, "train", "team") is not None

    deaths = await die_after_each_write(2, ended, check, refused=True)
    print(f"{deaths} deaths")
    assert deaths >= 8
