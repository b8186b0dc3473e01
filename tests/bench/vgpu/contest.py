"""The writer and the bare loop on the same cards, in turns, each from cards as a boot leaves them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cli.progress import Progress
from crds.catalogue.catalogue import Catalogue
from crds.models.node_state import DeviceState, NodeStateSpec
from node_host.acting.bounded_tool import BoundedTools
from node_host.acting.bounded_write import BoundedWriter
from node_host.host import HostWithTools
from node_host.orders import Orders
from node_host.wall_clock import now
from profile_writer.record import RECORD, Record
from profile_writer.tools import ToolPaths
from profile_writer.writer import ProfileWriter
from tests.bench.result import Result

BENCH = "vgpu"
PEER = "bare loop"
NODE_UID = "7b9d4a0e-6d0c-4f0e-8f57-0d2b6a5f1c11"
_PCI = "/sys/bus/pci/devices"


class BenchError(Exception):
    """There is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Cards:
    """What is to be made: on each card every virtual function gets one profile. `type_id` is its number for the bare
    loop, which knows what to write; the writer is told its name."""

    host: HostWithTools
    catalogue: Catalogue
    paths: ToolPaths
    addresses: tuple[str, ...]
    functions: int
    profile: str
    type_id: int

    def spec(self) -> NodeStateSpec:
        return NodeStateSpec.model_validate(
            {"revision": "5d0f4c1e9b7a", "nodeUID": NODE_UID, "devices": [self._order(one) for one in self.addresses]}
        )

    def _order(self, address: str) -> dict[str, Any]:
        names = ("vendor", "device")
        ids = {name: self.host.read(f"{_PCI}/{address}/{name}").decode().strip()[2:] for name in names}
        layout = [{"profile": self.profile, "count": self.functions}]
        return {
            "address": address,
            "identity": ids,
            "mode": "VGPU",
            "intent": "Apply",
            "onRelease": "Restore",
            "decidedBy": {"policy": "vms", "rule": "cards"},
            "vgpu": {"profileMapRef": {"name": "bench"}, "layout": layout},
        }

    def virtual_functions(self, address: str) -> list[str]:
        links = [self.host.read_link(f"{_PCI}/{address}/virtfn{number}") for number in range(self.functions)]
        return [link.rpartition("/")[2] for link in links]

    def typed(self) -> int:
        """How many functions have the type, as their attributes say."""
        wanted = b"%d" % self.type_id
        return sum(
            self.host.read(f"{_PCI}/{function}/nvidia/current_vgpu_type").strip() == wanted
            for address in self.addresses
            for function in self.virtual_functions(address)
        )


def bare_loop(cards: Cards) -> None:
    """The vendor's tool and one write for each function: nothing is asked, looked at or kept."""
    for address in cards.addresses:
        cards.host.run_tool(cards.paths.sriov_manage, ("-e", address))
        for function in cards.virtual_functions(address):
            cards.host.write(f"{_PCI}/{function}/nvidia/current_vgpu_type", b"%d\n" % cards.type_id)


def new_writer(cards: Cards) -> ProfileWriter:
    """A writer as at the start of its daemon; each write is a child process, as there."""
    return ProfileWriter(
        cards.host,
        cards.catalogue,
        Record(cards.host.local(RECORD)),
        BoundedWriter(cards.host),
        BoundedTools(cards.host),
        now=now,
        paths=cards.paths,
    )


def one_pass(writer: ProfileWriter, spec: NodeStateSpec) -> None:
    """Raises BenchError when a card is not ready after it."""
    done = asyncio.run(writer.run(Orders(spec, NODE_UID, 1)))
    for card in done.profiles.devices:
        if card.state is not DeviceState.READY:
            raise BenchError(f"{card.address}: {card.state} {card.reason}: {card.message}")


def contest(
    where: str, boot: Callable[[], Cards], rounds: int, progress: Progress, count: Callable[[Cards], str]
) -> list[Result]:
    """`boot` brings the cards to where a boot leaves them. Raises BenchError."""
    times: Mapping[str, list[float]] = {"writer": [], PEER: [], "idle": []}
    what = ""
    with progress.step(f"{where}: {rounds} rounds", f"{where}: {rounds} rounds") as step:
        for number in range(rounds):
            step.tick(f"round {number + 1}")
            for who in ("writer", PEER) if number % 2 else (PEER, "writer"):
                cards = boot()
                what = count(cards)
                started = time.monotonic()
                if who == PEER:
                    bare_loop(cards)
                else:
                    writer, spec = new_writer(cards), cards.spec()
                    one_pass(writer, spec)
                times[who].append(time.monotonic() - started)
                _expect_all(cards)
                if who == "writer":
                    started = time.monotonic()
                    one_pass(writer, spec)
                    times["idle"].append(time.monotonic() - started)
    return list(_results(f"{where}, {what}", times))


def _expect_all(cards: Cards) -> None:
    typed, wanted = cards.typed(), cards.functions * len(cards.addresses)
    if typed != wanted:
        raise BenchError(f"{typed} of {wanted} functions have their type")


def _results(case: str, times: Mapping[str, Sequence[float]]) -> list[Result]:
    ours, bare = median(times["writer"]), median(times[PEER])
    slowest, peers = max(times["writer"]), max(times[PEER])
    return [
        Result(BENCH, f"{case}: boot to all typed, median", ours, "s", PEER, bare),
        Result(BENCH, f"{case}: boot to all typed, slowest", slowest, "s", PEER, peers),
        Result(BENCH, f"{case}: a pass with nothing to do, median", median(times["idle"]), "s"),
    ]


def forget(root: Path) -> None:
    """The writer's record gone, as on a host where it has never been."""
    (root / RECORD.removeprefix("/")).unlink(missing_ok=True)
