"""Many virtual functions of one card, which are bound one by one, and other devices of the same host."""

import asyncio
from collections.abc import Callable

from node_host.acting.locks import Locks
from node_host.pci.device import DEVICES
from tests.builders.binder import Bench, host, npu, order, verdict
from tests.builders.fault_scenes import SRIOV_CARD, functions_of, sriov_card
from tests.builders.inline import InlineWriter

LATER = "0000:71:00.0"


class SlowCard(InlineWriter):
    """The first write to a function of the card waits for one to another device, and that one for it."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.host)
        self.begun = asyncio.Event()
        self.gone_on = asyncio.Event()
        self.waited = 0

    async def write(self, path: str, data: bytes, locks: Locks) -> None:
        async with asyncio.timeout(20):
            if LATER in path:
                await self.begun.wait()
                self.gone_on.set()
            elif "0000:61:1" in path and not self.gone_on.is_set():
                self.waited += 1
                self.begun.set()
                await self.gone_on.wait()
        await super().write(path, data, locks)


async def test_functions_that_wait_for_their_card_keep_no_other_device_waiting(make: Callable[..., Bench]) -> None:
    bench = make(host(sriov_card(), npu(LATER, 71), modules=[{"name": "vfio_pci", "state": "Loaded"}]))
    bench.kernel.write(f"{DEVICES}/{SRIOV_CARD}/sriov_numvfs", b"7")
    writer = SlowCard(bench)
    bench.restart(writer=writer)
    bench.order(functions_of(7), order(LATER))
    done = await bench.run()
    assert writer.waited == 1
    assert verdict(done, LATER) == ("Ready", "Bound")
    assert verdict(done, SRIOV_CARD) == ("Ready", "FunctionsBound")
