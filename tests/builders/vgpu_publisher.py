"""A simulated node with two L40S: the real profile writer and the publisher's real look, before an API in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from crds.models.node_state import Bindings, BoundDevice, DeviceState, NodeStateStatus
from dra_publisher.look import Done
from node_host.orders import Orders
from tests.builders.binder import NODE_UID, FakeClock
from tests.builders.publisher_bench import PublisherBench
from tests.builders.slice_server import SliceServer
from tests.builders.writer import WriterBench


class CardsBench:
    """The writer's bench in the words of the publisher's; the binder has nothing to do on such a node, and says so."""

    def __init__(self, root: Path) -> None:
        self.writing = WriterBench(root, inline=True)
        self.kernel = self.writing.kernel

    @property
    def clock(self) -> FakeClock:
        return self.writing.clock

    @property
    def orders(self) -> Orders:
        return self.writing.orders

    @property
    def status(self) -> NodeStateStatus:
        entries = self.orders.spec.devices if self.orders.spec is not None else ()
        released = DeviceState.RELEASED
        bound = tuple(
            BoundDevice(
                address=one.address,
                state=released if one.intent == "Release" else DeviceState.READY,
                reason="Released" if one.intent == "Release" else "NativeDriver",
            )
            for one in entries
        )
        bindings = Bindings(observed_generation=self.orders.generation, boot_id=self.kernel.boot_id, devices=bound)
        return NodeStateStatus(bindings=bindings, profiles=self.writing.status.profiles)

    async def run(self) -> None:
        await self.writing.run()

    def close(self) -> None:
        self.writing.close()


class VGPUNode(PublisherBench):
    """`bind` is a pass of the profile writer."""

    bench: Any

    @property
    def writing(self) -> WriterBench:
        found: WriterBench = self.bench.writing
        return found

    def orders(self) -> Orders:
        orders = self.bench.orders
        status = self.bench.status.model_copy(update={"publication": self.publication})
        return Orders(orders.spec, NODE_UID, orders.generation, status, orders.unreadable, self.advertised)

    async def settle(self) -> Done:
        """Both daemons in turn until neither has anything to do."""
        return await self.rounds(6)


@asynccontextmanager
async def vgpu_node(root: Path) -> AsyncIterator[VGPUNode]:
    """The node, with a publisher that has made no look yet."""
    bench: Any = CardsBench(root)
    try:
        async with SliceServer() as server, server.client() as api:
            made = VGPUNode(bench, server, api)
            await made.restart()
            try:
                yield made
            finally:
                await made.stop()
    finally:
        bench.close()
