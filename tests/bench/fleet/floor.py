"""The floor: the same objects written by a bare loop, with the same client and as many writers, and nothing decided.

Three writes for each node, as a change of a policy makes them: orders, the binder's report, the controller's judgement.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.api import Api
from runtime.resources import NPU_NODE_STATES
from tests.bench.fleet.machines import BINDER

Object = dict[str, Any]
CONTROLLER = "npufleet-node-policy"
_NO_LIMIT = 10**6


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds that the loop took for all nodes, and its own processor seconds for the two writes of the controller."""

    orders: float
    reports: float
    judgements: float
    cpu_seconds: float
    scale: float
    """How many times the nodes that were written the fleet has; the seconds are those of the whole fleet."""

    @property
    def controller(self) -> float:
        """What the controller writes."""
        return self.orders + self.judgements

    @property
    def everything(self) -> float:
        """With the reports of the daemons."""
        return self.controller + self.reports


async def measure_floor(
    controller_kubeconfig: Path, admin_kubeconfig: Path, *, nodes: int, writers: int, say: Callable[[str], None]
) -> Floor:
    """Write NPUNodeStates anew, of at most `nodes` nodes; each process that would answer must have ended."""
    async with _connect(admin_kubeconfig) as admin, _connect(controller_kubeconfig) as controller:
        found = (await admin.list(NPU_NODE_STATES)).items
        states = found[:nodes]
        scale = len(found) / len(states)

        async def order(state: Object) -> None:
            metadata = {"name": state["metadata"]["name"], "uid": state["metadata"]["uid"]}
            body = {"metadata": metadata, "spec": _changed(state["spec"])}
            answer = await controller.apply(NPU_NODE_STATES, body, field_manager=CONTROLLER)
            state["metadata"] = answer["metadata"]

        async def report(state: Object) -> None:
            status = {name: _of_generation(state, name) for name in ("inventory", "bindings")}
            await admin.apply(NPU_NODE_STATES, _status(state, status), field_manager=BINDER, subresource="status")

        async def judge(state: Object) -> None:
            body = _status(state, {"rollout": _of_generation(state, "rollout")})
            await controller.apply(NPU_NODE_STATES, body, field_manager=CONTROLLER, subresource="status")

        say(f"floor: {len(states)} orders")
        used = time.process_time()
        orders = await _timed(states, order, writers)
        used = time.process_time() - used
        say(f"floor: {len(states)} reports")
        reports = await _timed(states, report, writers)
        say(f"floor: {len(states)} judgements")
        again = time.process_time()
        judgements = await _timed(states, judge, writers)
        used += time.process_time() - again
        return Floor(orders * scale, reports * scale, judgements * scale, used * scale, scale)


def _connect(kubeconfig: Path) -> Any:
    return Api.connect(
        kubeconfig=kubeconfig, component=CONTROLLER, writes_per_second=_NO_LIMIT, burst=_NO_LIMIT, timeout_seconds=60
    )


async def _timed(states: Iterable[Object], write: Callable[[Object], Awaitable[None]], writers: int) -> float:
    rest = iter(states)

    async def work() -> None:
        for state in rest:
            await write(state)

    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(writers):
            group.create_task(work())
    return time.monotonic() - started


def _changed(spec: Object) -> Object:
    """Orders of the same size that differ in every device."""
    changed = copy.deepcopy(spec)
    changed["revision"] = spec["revision"][::-1]
    for entry in changed["devices"]:
        entry["onRelease"] = "Leave" if entry["onRelease"] == "Restore" else "Restore"
    return changed


def _of_generation(state: Object, subtree: str) -> Object:
    generation = state["metadata"]["generation"]
    found: Object = copy.deepcopy(state["status"][subtree])
    found["observedGeneration"] = generation
    for condition in found["conditions"]:
        condition["observedGeneration"] = generation
    return found


def _status(state: Object, status: Object) -> Object:
    return {"metadata": {"name": state["metadata"]["name"], "uid": state["metadata"]["uid"]}, "status": status}
