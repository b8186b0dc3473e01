"""Twenty nodes with binders on paper that talk to the API server directly, whatever the controller's way there is like.

Binders answer after short delays drawn from a seed, and every card remembers who moved it and when.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from runtime.api import Api, ApiError, Conflict, Gone, NotFound
from runtime.resources import NODES, NPU_NODE_POLICIES, NPU_NODE_STATES, PODS, Resource
from tests.builders.paper_binder import Card, address, report_on
from tests.builders.workloads import pod
from tests.cluster.faults.background import Background

Object = dict[str, Any]
POOL = {"faults": "pool"}
OURS, FOREIGN = address(0), address(1)
"""Addresses on each node: the card that policies are about, and one of another product that none is about."""
NODE_COUNT = 20
PODS_IN = "default"
PARTS = 4


def node_name(number: int) -> str:
    return f"flt-{number:02d}"


class Fleet:
    """The nodes of one run as the test sees them: what the API server holds, and where each card really is."""

    def __init__(
        self, api: Api, *, seed: str | int, size: int = NODE_COUNT, background: Background | None = None
    ) -> None:
        self.api = api
        self.background = background or Background()
        self.also_told: Callable[[], str] = lambda: ""
        """What else is worth knowing when something was waited for in vain; may take seconds."""
        self.size = size
        self.cards: dict[str, dict[str, Card]] = {}
        self.boots: dict[str, str] = {}
        self.states: dict[str, Object] = {}
        self.policies: dict[str, Object] = {}
        self.moves: list[tuple[str, str, bool]] = []
        """Each change of a card since the last `forget_moves`: node, address, and whether it is bound now."""
        self.silent: set[str] = set()
        self._rng = random.Random(f"fleet/{seed}")
        self._due: set[str] = set()
        self._changed = asyncio.Condition()

    @property
    def pool(self) -> list[str]:
        """Nodes that policies select."""
        return [node_name(number) for number in range(self.size)]

    @property
    def strangers(self) -> list[str]:
        """Nodes that no policy selects."""
        return [node_name(number) for number in range(self.size, self.size + 2)]

    async def build(self) -> None:
        for number, name in enumerate(self.pool + self.strangers):
            self.cards[name] = {OURS: Card(), FOREIGN: Card(product="RBLN-CA22", device="1220")}
            self.boots[name] = f"boot-{name}"
            await self.add_node(name, {**POOL, "part": str(number % PARTS)} if number < self.size else {})

    async def add_node(self, name: str, labels: Mapping[str, str]) -> None:
        await self.api.create(NODES, {"metadata": {"name": name, "labels": dict(labels)}})
        boot = {"status": {"nodeInfo": {"bootID": self.boots[name]}}}
        await self.api.patch(NODES, name, boot, subresource="status")

    async def label(self, name: str, labels: Mapping[str, str | None]) -> None:
        await self.api.patch(NODES, name, {"metadata": {"labels": dict(labels)}})

    async def recreate_node(self, name: str) -> None:
        """The machine comes back under its name with another UID and another boot; its cards keep their place."""
        found = await self.api.get(NODES, name)
        await self.api.delete(NODES, name)
        self.boots[name] += "-again"
        await self.add_node(name, found["metadata"]["labels"])
        self._schedule(name)

    async def reboot(self, name: str) -> None:
        """The machine starts anew: another boot id, and every card on its own driver again."""
        self.boots[name] += "-again"
        for card in self.cards[name].values():
            card.bound = False
        boot = {"status": {"nodeInfo": {"bootID": self.boots[name]}}}
        await self.api.patch(NODES, name, boot, subresource="status")
        self._schedule(name)

    async def apply(self, policy: Object) -> None:
        """Create or update, as kubectl apply does; status and other metadata are the server's."""
        name = policy["metadata"]["name"]
        body = {"metadata": {"name": name}, "spec": policy["spec"]}
        try:
            found = await self.api.get(NPU_NODE_POLICIES, name)
        except NotFound:
            answer = await self.api.create(NPU_NODE_POLICIES, body)
        else:
            body["metadata"] |= {"resourceVersion": found["metadata"]["resourceVersion"]}
            try:
                answer = await self.api.replace(NPU_NODE_POLICIES, body)
            except Conflict:  # its status has just been written
                await self.apply(policy)
                return
        self.policies[name] = answer

    async def delete(self, name: str) -> None:
        await self.api.delete(NPU_NODE_POLICIES, name)
        self.policies.pop(name, None)

    async def use(self, node: str) -> None:
        """A pod on the node, of a workload that starts it again elsewhere, opens the card without a claim."""
        made = await self.api.create(PODS, pod(f"uses-{node}", node=node, namespace=PODS_IN, grace=1), PODS_IN)
        self.cards[node][OURS].pods.append(made["metadata"]["uid"])
        self._schedule(node)

    def order(self, node: str, place: str = OURS) -> Object:
        """The order for a card; empty when there is none."""
        state = self.states.get(node) or {"spec": {}}
        return next((entry for entry in state["spec"].get("devices", []) if entry["address"] == place), {})

    def ordered(self, mode: str, intent: str = "Apply", *, among: Collection[str] | None = None) -> int:
        """On how many nodes (of these, or of all) the card is ordered so."""
        orders = [self.order(name) for name in self.pool if among is None or name in among]
        return sum(order.get("mode") == mode and order.get("intent") == intent for order in orders)

    def forget_moves(self) -> None:
        self.moves.clear()

    async def until(self, condition: Callable[[], bool], *, seconds: float = 150.0, what: str = "") -> None:
        """Wait until the objects are so. Fails at once when what works beside the run has failed."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self.background.failed or condition())
        except TimeoutError:
            more = await asyncio.to_thread(self.also_told)
            told = f"not within {seconds:g} s: {what or condition}; {self.standing()}"
            raise AssertionError("\n".join(filter(None, (told, more)))) from None
        self.background.check()

    def standing(self) -> str:
        """What every node of the pool is ordered and has answered, for whoever reads of a run that did not go on."""
        told = []
        for name in self.pool:
            state, order = self.states.get(name), self.order(name)
            status = (state or {}).get("status") or {}
            answers = [each["state"] for each in status.get("bindings", {}).get("devices", [])]
            if answers and not self.has_answered(name):
                answers.append("to earlier orders")
            admitted = status.get("rollout", {}).get("admitted", "-")
            silent = " silent" if name in self.silent else ""
            words = f"{order.get('mode', 'no order')} {order.get('intent', '')}".strip()
            told.append(f"{name}{silent}: {words}, {'/'.join(answers) or 'no answer'}, {admitted}")
        return "; ".join(told)

    def has_answered(self, name: str) -> bool:
        """The binder of the node has answered the orders as they are now."""
        state = self.states.get(name)
        if state is None:
            return False
        bindings = (state.get("status") or {}).get("bindings") or {}
        return bool(bindings.get("observedGeneration") == state["metadata"]["generation"])

    # The binders.

    def answer_again(self) -> None:
        """No binder is silent any more."""
        self.silent.clear()
        for name in self.cards:
            self._schedule(name)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Binders work, and `states` and `policies` are kept up to date, inside the block."""
        caches = ((NPU_NODE_STATES, self.states), (NPU_NODE_POLICIES, self.policies))
        self.background.on_failure.append(self._alarm)
        for resource, cache in caches:
            self.background.start(self._follow(resource, cache), f"the watch of {resource.plural}")
        self.background.start(self._end_pods(), "the end of pods")
        try:
            yield
        finally:
            await self.background.end()

    async def _follow(self, resource: Resource, cache: dict[str, Object]) -> None:
        while True:
            try:
                listing = await self.api.list(resource)
                cache.clear()
                cache.update({item["metadata"]["name"]: item for item in listing.items})
                await self._tell(cache.keys())
                async for event in self.api.watch(resource, resource_version=listing.resource_version):
                    if event["type"] == "BOOKMARK":
                        continue
                    name = event["object"]["metadata"]["name"]
                    if event["type"] == "DELETED":
                        cache.pop(name, None)
                    else:
                        cache[name] = event["object"]
                    await self._tell([name])
            except Gone:
                continue
            except ApiError:  # the kind is not served just now
                await asyncio.sleep(0.3)

    async def _end_pods(self) -> None:
        """As the kubelets do with pods that were evicted: they end, and their processes are gone."""
        while True:
            await asyncio.sleep(0.2)
            used = {uid: node for node, cards in self.cards.items() for uid in cards[OURS].pods}
            if not used:
                continue
            with suppress(ApiError):  # it is asked again
                found = {item["metadata"]["uid"]: item for item in (await self.api.list(PODS, PODS_IN)).items}
                for uid, node in used.items():
                    if uid in found and "deletionTimestamp" not in found[uid]["metadata"]:
                        continue
                    if uid in found:
                        with suppress(NotFound):
                            await self.api.delete(PODS, found[uid]["metadata"]["name"], PODS_IN, grace_seconds=0)
                    self.cards[node][OURS].pods.remove(uid)
                    self._schedule(node)

    async def _tell(self, names: Iterable[str]) -> None:
        for name in list(names):
            if name in self.cards:
                self._schedule(name)
        await self._wake()

    def _alarm(self) -> None:
        self.background.start(self._wake(), "the alarm", finite=True)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _schedule(self, name: str) -> None:
        if name in self._due:
            return
        self._due.add(name)
        answer = self._answer(name, self._rng.uniform(0.01, 0.08))
        self.background.start(answer, f"the binder of {name}", finite=True)

    async def _answer(self, name: str, delay: float) -> None:
        await asyncio.sleep(delay)
        self._due.discard(name)
        state = self.states.get(name)
        if state is None or name in self.silent or state["spec"]["nodeUID"] == "":
            return
        before = {place: card.bound for place, card in self.cards[name].items()}
        said = report_on(state, self.cards[name], self.boots[name])
        for place, card in self.cards[name].items():
            if card.bound != before[place]:
                self.moves.append((name, place, card.bound))
        status = state.get("status") or {}
        if all(status.get(subtree) == report for subtree, report in said.items()):
            return
        metadata = {key: state["metadata"][key] for key in ("uid", "resourceVersion")}
        body: list[Object] = [
            {"op": "test", "path": f"/metadata/{key}", "value": value} for key, value in metadata.items()
        ]
        if "status" not in state:
            body.append({"op": "add", "path": "/status", "value": {}})
        body += [{"op": "add", "path": f"/status/{subtree}", "value": report} for subtree, report in said.items()]
        with suppress(ApiError):  # somebody wrote meanwhile: the next event brings the next answer
            await self.api.patch(NPU_NODE_STATES, name, body, subresource="status")
            return
        await asyncio.sleep(0.02)
        if name in self.states:
            self._schedule(name)


async def remove_all(api: Api) -> None:
    """Remove every policy, node and state of a former run."""
    for item in (await api.list(PODS, PODS_IN)).items:
        await api.delete(PODS, item["metadata"]["name"], PODS_IN, grace_seconds=0)
    for resource in (NPU_NODE_POLICIES, NODES, NPU_NODE_STATES):
        listing = await api.list(resource)
        names = [item["metadata"]["name"] for item in listing.items]
        for start in range(0, len(names), 8):
            done = (api.delete(resource, name) for name in names[start : start + 8])
            for error in await asyncio.gather(*done, return_exceptions=True):
                if isinstance(error, BaseException) and not isinstance(error, NotFound):
                    raise error


def seconds_since(moment: float | None) -> float:
    return time.monotonic() - moment if moment is not None else float("inf")
