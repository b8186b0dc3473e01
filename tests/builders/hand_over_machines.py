"""Machines on which hand-overs are played: their devices, and orders that these may get."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crds.models.node_state import NodeStateStatus
from node_host.orders import Orders
from tests.builders.binder import NPU, TWIN, Bench, host, npu, order
from tests.builders.fault_scenes import SRIOV_CARD, functions_of, sriov_card
from tests.builders.inline import InlineCalls

Entry = dict[str, Any]
LOADED = [{"name": "vfio_pci", "state": "Loaded"}]
_FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True)
class Layout:
    """The devices of a node, and orders that they may get. ``fits``: whether orders can all be met side by side."""

    name: str
    devices: tuple[Entry, ...]
    orders: dict[str, tuple[Entry, ...]]
    fits: Callable[[dict[str, Entry]], bool] = lambda _: True


def _npu_orders(address: str) -> tuple[Entry, ...]:
    vm, containers = order(address), order(address, mode="Container")
    holds = tuple({**one, "intent": "Hold"} for one in (vm, containers))
    return (vm, vm, containers, containers, *holds, {**vm, "intent": "Release"})


def _same_mode(orders: dict[str, Entry]) -> bool:
    kinds = {(entry["mode"], entry["intent"]) for entry in orders.values()}
    return len(kinds) == 1 and len(orders) == 2


def _card_orders() -> tuple[Entry, ...]:
    itself = functions_of(None, mode="Container")
    two = functions_of(2)
    return (functions_of(1), two, two, itself, {**two, "intent": "Hold"}, {**two, "intent": "Release"})


LAYOUTS = (
    Layout("apart", (npu(), npu(TWIN, 21)), {NPU: _npu_orders(NPU), TWIN: _npu_orders(TWIN)}),
    Layout("one group", (npu(), npu(TWIN, 20)), {NPU: _npu_orders(NPU), TWIN: _npu_orders(TWIN)}, _same_mode),
    Layout("functions", (sriov_card(),), {SRIOV_CARD: _card_orders()}),
)


class Machine:
    """A simulated machine that many episodes take place on, each in a boot of its own."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.root = Path(tempfile.mkdtemp(prefix="hand-over-", dir=_FAST))
        machine = host(*layout.devices, modules=LOADED)
        self.bench = Bench(self.root / "host", machine, calls=InlineCalls(), in_memory=True)

    def reset(self) -> None:
        """A new boot, and nothing remembered."""
        bench = self.bench
        bench.kernel.reboot()
        shutil.rmtree(bench.kernel.root / "var/lib/npufleet", ignore_errors=True)
        bench.status = NodeStateStatus()
        bench.orders = Orders(None, None)

    def close(self) -> None:
        self.bench.close()
        shutil.rmtree(self.root)
