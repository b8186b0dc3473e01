"""Plays the binders of all nodes in one process: watches the orders, and reports them done after the time it takes.

`python -m tests.bench.fleet.daemons`. It uses the client library of the real daemon and writes what that one writes,
one report for each new generation. What it has seen and done stands in a small file that the bench reads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.api import Api, Conflict, Unreachable
from runtime.resources import LEASES, NPU_NODE_STATES
from tests.bench.fleet.machines import BINDER, boot_id, cards, lease
from tests.builders.paper_binder import Card, report_on

Object = dict[str, Any]
# Each binder is a process of its own in a real fleet, so none waits for another: reports go before orders.
WORKERS = 24
_RENEW_SECONDS = 300.0
_TOLD_SECONDS = 0.2
_NO_LIMIT = 10**6


@dataclass(slots=True)
class _Machine:
    cards: dict[str, Card]
    state: Object = field(default_factory=dict)
    seen: int = 0
    reported: int = 0


class Daemons:
    """All binders. `bind_seconds`: from orders that move devices to the report that they are carried out."""

    def __init__(self, api: Api, *, devices: int, bind_seconds: float) -> None:
        self._api = api
        self._devices = devices
        self._bind_seconds = bind_seconds
        self._machines: dict[str, _Machine] = {}
        self._due: asyncio.Queue[str] = asyncio.Queue()
        self._reports = 0

    async def run(self, told: Path) -> None:
        listing = await self._api.list(NPU_NODE_STATES, convert=self._see)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(listing.resource_version))
            group.create_task(self._renew())
            group.create_task(self._tell(told))
            for _ in range(WORKERS):
                group.create_task(self._work())

    def _see(self, state: Object) -> None:
        name, generation = state["metadata"]["name"], state["metadata"]["generation"]
        machine = self._machines.get(name)
        if machine is None:
            machine = self._machines[name] = _Machine(cards(self._devices))
        if generation <= machine.seen:
            return  # a status, of whomever
        machine.seen = generation
        machine.state = {"metadata": state["metadata"], "spec": state["spec"]}
        wait = self._bind_seconds if moves(state, machine.cards) else 0.0
        asyncio.get_running_loop().call_later(wait, self._due.put_nowait, name)

    async def _watch(self, version: str) -> None:
        while True:
            try:
                async with aclosing(self._api.watch(NPU_NODE_STATES, resource_version=version)) as events:
                    async for event in events:
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] in {"ADDED", "MODIFIED"}:
                            self._see(event["object"])
            except Unreachable:
                await asyncio.sleep(0.5)

    async def _work(self) -> None:
        while True:
            name = await self._due.get()
            machine = self._machines[name]
            generation = machine.seen
            if generation == machine.reported:
                continue
            report = report_on(machine.state, machine.cards, boot_id(name))
            body = {"metadata": {"name": name, "uid": machine.state["metadata"]["uid"]}, "status": report}
            try:
                await self._api.apply(NPU_NODE_STATES, body, field_manager=BINDER, subresource="status")
            except (Unreachable, Conflict):
                self._due.put_nowait(name)
                continue
            machine.reported = generation
            self._reports += 1

    async def _renew(self) -> None:
        """Every Lease once in five minutes, one after the other."""
        while True:
            for name in list(self._machines):
                await asyncio.sleep(_RENEW_SECONDS / len(self._machines))
                await self._api.apply(LEASES, lease(name), field_manager=BINDER)
            if not self._machines:
                await asyncio.sleep(1)

    async def _tell(self, path: Path) -> None:
        draft = path.with_suffix(".new")
        while True:
            machines = self._machines.values()
            draft.write_text(
                json.dumps(
                    {
                        "nodes": len(machines),
                        "generations": sum(machine.seen for machine in machines),
                        "waiting": sum(machine.reported != machine.seen for machine in machines),
                        "reports": self._reports,
                    }
                )
            )
            draft.rename(path)
            await asyncio.sleep(_TOLD_SECONDS)


def moves(state: Object, found: dict[str, Card]) -> bool:
    """Whether the orders in `state` change a driver of the cards."""
    return any(wanted != found[place].bound for place, wanted in _wanted(state) if place in found)


def _wanted(state: Object) -> Iterator[tuple[str, bool]]:
    for order in state["spec"].get("devices", []):
        yield order["address"], order["mode"] == "Passthrough" and order["intent"] != "Release"


async def _main(options: argparse.Namespace) -> None:
    component, limit = BINDER, _NO_LIMIT
    connection = Api.connect(
        kubeconfig=options.kubeconfig, component=component, writes_per_second=limit, burst=limit, timeout_seconds=60
    )
    async with connection as api:
        await Daemons(api, devices=options.devices, bind_seconds=options.bind_seconds).run(options.told)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--bind-seconds", type=float, required=True)
    parser.add_argument("--told", type=Path, required=True)
    asyncio.run(_main(parser.parse_args()))
