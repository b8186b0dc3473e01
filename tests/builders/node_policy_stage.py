"""The node-policy controller on a fake API server, with binders on paper that answer whenever their orders change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from controllers.node_policy.controller import NodePolicyController, Options
from crds.device_classes import BASE_DRIVERS, device_classes
from runtime.api import Api
from runtime.metrics import Metrics
from runtime.process import Process
from runtime.resources import DEVICE_CLASSES, NODES, NPU_NODE_POLICIES, NPU_NODE_STATES
from tests.builders import objects
from tests.builders.fake_api import FakeApi
from tests.builders.fake_objects import Object, Refused, Step
from tests.builders.paper_binder import Card, address, report_on
from tests.builders.waiting import until


class Stage:
    """Nodes with cards on `server`; their binders answer new orders in the next turn of the event loop."""

    def __init__(self, server: FakeApi) -> None:
        self.server = server
        self.cards: dict[str, dict[str, Card]] = {}
        self.silent: set[str] = set()
        for driver in BASE_DRIVERS:
            self.install_classes(driver)
        server.objects.listeners.append(self._on_step)

    def install_classes(self, driver: str) -> None:
        """The DeviceClasses of a driver name, as `npufleet deviceclasses` prints them."""
        for found in device_classes(driver):
            self.server.objects.create(DEVICE_CLASSES, found)

    def add_node(
        self, name: str, cards: Mapping[str, Card] | int = 1, *, labels: Mapping[str, str] | None = None
    ) -> None:
        found = {address(n): Card() for n in range(cards)} if isinstance(cards, int) else dict(cards)
        self.cards[name] = found
        self.server.objects.create(NODES, objects.node(name, uid=f"uid-{name}", boot_id=f"boot-{name}", labels=labels))

    def apply(self, policy: Object) -> None:
        """Create or update a policy, as kubectl apply does."""
        name = policy["metadata"]["name"]
        if self.server.objects.find(NPU_NODE_POLICIES, name) is None:
            body = {**policy, "metadata": {"name": name}}
            self.server.objects.create(NPU_NODE_POLICIES, body)
        else:
            self.server.objects.edit(NPU_NODE_POLICIES, name, spec=policy["spec"])

    def answer(self, name: str) -> None:
        """The binder of a node obeys and reports."""
        state = self.server.objects.find(NPU_NODE_STATES, name)
        if state is None or name in self.silent or self.server.objects.find(NODES, name) is None:
            return
        status = {**(state.get("status") or {}), **report_on(state, self.cards[name], f"boot-{name}")}
        self.server.objects.edit(NPU_NODE_STATES, name, status=status)

    def orders(self, name: str) -> dict[str, Object]:
        state = self.server.objects.find(NPU_NODE_STATES, name) or {"spec": {}}
        return {entry["address"]: entry for entry in state["spec"].get("devices", [])}

    def status(self, policy: str) -> Object:
        found = self.server.objects.find(NPU_NODE_POLICIES, policy) or {}
        status: Object = found.get("status") or {}
        return status

    def condition(self, policy: str, kind: str = "Ready") -> tuple[str, str]:
        for found in self.status(policy).get("conditions", []):
            if found["type"] == kind:
                return found["status"], found["reason"]
        return "", ""

    async def ready(self, policy: str, reason: str = "AllDevicesReady", *, seconds: float = 15.0) -> None:
        """Wait until the policy is ready for its present generation."""

        def is_ready() -> bool:
            found = self.server.objects.get(NPU_NODE_POLICIES, policy)
            current = self.status(policy).get("observedGeneration") == found["metadata"]["generation"]
            return current and self.condition(policy) == ("True", reason)

        await until(is_ready, seconds=seconds, what=f"{policy} is Ready with {reason}: {self.status(policy)}")

    def _on_step(self, step: Step) -> None:
        if step.resource == NPU_NODE_STATES and step.after is not None:
            before = step.before["spec"] if step.before is not None else None
            if before != step.after["spec"]:
                name = step.after["metadata"]["name"]
                asyncio.get_running_loop().call_soon(self._answer_quietly, name)

    def _answer_quietly(self, name: str) -> None:
        with suppress(Refused):  # the object may be gone by now
            self.answer(name)


class Replica:
    """One running controller."""

    def __init__(self, api: Api, metrics: Metrics, identity: str, options: Options) -> None:
        self.metrics = metrics
        self.controller = NodePolicyController(api, metrics, identity=identity, options=options)
        self.process = Process()
        self.task = asyncio.create_task(self.controller.run(self.process))

    async def stop(self) -> None:
        """As on SIGTERM."""
        self.process.stop.set()
        async with asyncio.timeout(20):
            await self.task
        await self.process._cancel_rest()

    async def kill(self) -> None:
        """As on SIGKILL: nothing is finished, the Lease stays behind."""
        self.task.cancel()
        for task in list(self.process._tasks):
            task.cancel()
        await asyncio.gather(self.task, *self.process._tasks, return_exceptions=True)
        self.process.stop.set()

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def replica(
    server: FakeApi, identity: str = "replica-1", *, settle_seconds: float = 0.05, grace: int = 1800, **options: Any
) -> AsyncIterator[Replica]:
    """A controller that runs until the block is left."""
    metrics = Metrics("npufleet-node-policy")
    async with server.client("npufleet-node-policy", metrics=metrics, **options) as api:
        found = Replica(api, metrics, identity, Options(settle_seconds, grace))
        try:
            yield found
        finally:
            if not found.task.done():
                await found.stop()
