"""A node with the real binder and the publisher's real look, checkpoint and slices, before an API server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from crds.catalogue import load_catalogue
from crds.models.node_state import DeviceReport, NodeStateStatus
from dra_publisher.checkpoint.store import CheckpointStore
from dra_publisher.claims.lock import ClaimLock
from dra_publisher.handover.claimed import read_allocations
from dra_publisher.handover.ledger import CheckpointLedger
from dra_publisher.handover.node_slices import NodeSlices
from dra_publisher.look import Done, Look
from dra_publisher.report import publication
from dra_publisher.slices.writer import SliceWriter
from node_host.evidence.publication import read_published
from node_host.observer import Observer
from node_host.orders import Orders
from node_host.selection import is_accelerator, node_patterns, vendors_of
from runtime.api import Api
from runtime.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.builders.binder import NODE_UID, Bench, host
from tests.builders.checkpoints import write_checkpoint
from tests.builders.fake_objects import Object
from tests.builders.hand_over_machines import LOADED
from tests.builders.inline import InlineCalls
from tests.builders.slice_server import SliceServer
from tests.builders.workloads import allocation, claim

NODE, DRIVER = "bench", "npufleet.io"


class PublisherBench:
    """``bench`` is the host with its binder. `restart` gives it a new publisher, as after a crash or an upgrade."""

    def __init__(self, bench: Bench, server: SliceServer, api: Api) -> None:
        self.bench = bench
        self.server = server
        self.api = api
        self.seconds = 1000.0
        self.active = True
        self.node_uid: str | None = NODE_UID
        self.publication: Any = None
        self.others: dict[str, str] = {}
        self.advertised: dict[str, str] = {}
        self.wakes = 0
        self._following: asyncio.Task[None] | None = None

    async def restart(self) -> None:
        await self.stop()
        host, calls, catalogue = self.bench.kernel.host(), InlineCalls(), load_catalogue()
        observer = Observer(
            host,
            calls,
            of_interest=is_accelerator(catalogue),
            node_patterns=node_patterns(catalogue),
            vendors_of=vendors_of(catalogue),
            asks_plugins=True,
        )
        self.store = CheckpointStore(host)
        self.slices = SliceWriter(self.api, NODE, wake=self._wake)
        self.look = Look(
            host,
            catalogue,
            observer,
            calls,
            NodeSlices(self.slices),
            CheckpointLedger(self.store, ClaimLock(self.store)),
            partial(read_allocations, self.api, NODE),
            clock=lambda: self.seconds,
        )
        self.look.other_plugins = lambda drivers: {one: text for one, text in self.others.items() if one in drivers}
        self._following = asyncio.create_task(self.slices.run())
        async with asyncio.timeout(5):
            await self.slices.wait_synced()

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    def _wake(self) -> None:
        self.wakes += 1

    # What happens.

    async def bind(self) -> None:
        """A pass of the binder."""
        self.bench.clock.advance(400)
        await self.bench.run()

    async def run(self) -> Done:
        """A look with the orders of now; its report is what the next one finds."""
        done = await self.look.run(self.orders(), active=self.active)
        if self.active:
            self.publication = publication(
                done.devices,
                generation=self.bench.orders.generation,
                boot_id=done.boot_id,
                held=done.held,
                problem=done.problem,
                kubelet=None,
                doubt=None,
                now="2026-12-01T00:00:00Z",
                former=self.publication,
            )
        return done

    async def rounds(self, number: int = 4) -> Done:
        """Both daemons in turn."""
        for _ in range(number):
            await self.bind()
            done = await self.run()
        return done

    def orders(self) -> Orders:
        orders = self.bench.orders
        status = NodeStateStatus(bindings=self.bench.status.bindings, publication=self.publication)
        return Orders(orders.spec, self.node_uid, orders.generation, status, orders.unreadable, self.advertised)

    def allocate(self, name: str, device: str, *, driver: str = DRIVER) -> None:
        self.server.objects.create(RESOURCE_CLAIMS, claim(name, namespace="team"), "team")
        status = allocation([device], pool=NODE, driver=driver)
        self.server.objects.edit(RESOURCE_CLAIMS, name, "team", status=status)

    def free(self, name: str) -> None:
        self.server.objects.edit(RESOURCE_CLAIMS, name, "team", status={})

    def prepare(self, *claims: Any) -> None:
        """The checkpoint holds these claims, and what it held of devices."""
        write_checkpoint(self.bench.kernel.host(), *claims, published=dict(self.store.checkpoint().published))

    # What is there.

    def offered(self) -> dict[str, tuple[str, ...]]:
        """Devices in the slices with `key=value` of their taints, without the domain of the key."""
        found = {}
        for one in self.server.slices():
            for device in one["spec"].get("devices") or []:
                taints = device.get("taints") or []
                found[device["name"]] = tuple(f"{t['key'].partition('/')[2]}={t['value']}" for t in taints)
        return dict(sorted(found.items()))

    def writes(self) -> list[tuple[str, str]]:
        """Of slices, since the last call."""
        found = [(one.verb, one.name or one.body["metadata"]["name"]) for one in self.server.slice_writes()]
        self.server.requests.clear()
        return found

    def listed(self) -> list[str]:
        kernel = self.bench.kernel
        return sorted(read_published(kernel.host(), kernel.boot_id).addresses)

    def wipe(self) -> None:
        """What the kubelet does with the slices of its node when it starts."""
        for one in self.server.slices():
            self.server.objects.delete(RESOURCE_SLICES, one["metadata"]["name"])

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not holds():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)


def said(done: Done, address: str) -> tuple[str, str]:
    """State and reason of a device."""
    found = report(done, address)
    return str(found.state), str(found.reason)


def report(done: Done, address: str) -> DeviceReport:
    return next(one for one in done.devices if one.address == address)


@asynccontextmanager
async def publisher_bench(root: Path, *devices: Object, **server_options: Any) -> AsyncIterator[PublisherBench]:
    """A host of these devices, with a publisher that has made no look yet."""
    bench = Bench(root, host(*devices, modules=LOADED), calls=InlineCalls(), in_memory=True)
    try:
        async with SliceServer(**server_options) as server, server.client() as api:
            made = PublisherBench(bench, server, api)
            await made.restart()
            try:
                yield made
            finally:
                await made.stop()
    finally:
        bench.close()
