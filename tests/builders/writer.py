"""A profile writer on a simulated host with two L40S, and orders for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from crds.catalogue import load_catalogue
from crds.models.node_state import NodeStateStatus
from crds.models.vgpu_state import ProfiledCard
from node_host.acting.bounded_tool import BoundedTools
from node_host.acting.bounded_write import BoundedWriter
from node_host.bounded_call import BoundedCalls
from node_host.host import HostWithTools
from node_host.orders import Orders
from node_host.pci.device import DEVICES
from node_host.records_file import RecordsState
from profile_writer.record import RECORD, CardEntry, Record
from profile_writer.writer import Pass, ProfileWriter
from simulated_node.description import HostDescription
from simulated_node.description_files import load_description
from simulated_node.kernel import SimulatedKernel
from tests.builders.binder import NODE_UID, FakeClock, spec
from tests.builders.inline import InlineCalls, InlineTools, InlineWriter

CARD: Final = "0000:21:00.0"
OTHER: Final = "0000:22:00.0"
FUNCTIONS: Final = tuple(f"0000:21:{number >> 3:02x}.{number & 7}" for number in range(4, 20))
"""The virtual functions of the first card, all that it can have."""
TYPES: Final = {
    "L40S-6Q": 1151,
    "L40S-8Q": 1152,
    "L40S-12Q": 1153,
    "L40S-16Q": 1154,
    "L40S-24Q": 1155,
    "L40S-48Q": 1156,
}
TWO: Final = {"L40S-24Q": 2}
MIXED: Final = {"L40S-24Q": 1, "L40S-12Q": 2}


@cache
def l40s() -> HostDescription:
    """The node of the demo: two L40S with 16 virtual functions each, and the vendor's programs."""
    return load_description("node-l40s")


def without_programs() -> HostDescription:
    """The same where the driver itself makes virtual functions, and no program of the vendor is installed."""
    known = load_description("node-l40s")
    return known.model_copy(update={"tools": ()})


def carries(
    layout: Mapping[str, int],
    address: str = CARD,
    *,
    intent: str = "Apply",
    mixed: bool | None = None,
    on_release: str = "Restore",
    device: str = "26b9",
    **settings: Any,
) -> dict[str, Any]:
    """The order that a card carries a layout, as profiles and counts; mixed sizes are allowed where it needs them."""
    several = len(layout) > 1 if mixed is None else mixed
    return {
        "address": address,
        "identity": {"vendor": "10de", "device": device},
        "mode": "VGPU",
        "intent": intent,
        "onRelease": on_release,
        "decidedBy": {"policy": "vms", "rule": "vgpus"},
        "vgpu": {
            "profileMapRef": {"name": "l40s"},
            "mixedSizes": "Allow" if several else "Forbid",
            "layout": [{"profile": profile, "count": count} for profile, count in layout.items()],
            **settings,
        },
    }


async def no_pause(_: float) -> None:
    """Time that a test does not wait for."""


class WriterBench:
    """A profile writer on a simulated host. ``restart`` gives it a new one, as after a crash or an upgrade.

    ``inline`` makes calls where they stand: where nothing hangs, thousands of passes are made.
    """

    def __init__(
        self,
        root: Path,
        description: HostDescription | None = None,
        *,
        deadline_seconds: float = 20.0,
        in_memory: bool = True,
        inline: bool = False,
        host: Callable[[HostWithTools], HostWithTools] = lambda host: host,
    ) -> None:
        self.kernel = SimulatedKernel(root, description or l40s(), in_memory=in_memory)
        self.host = host(self.kernel.host())
        self.clock = FakeClock()
        self.status = NodeStateStatus()
        self.orders = Orders(None, NODE_UID)
        self._generations = itertools.count(1)
        self._deadline = deadline_seconds
        self._inline = inline
        self._marked = 0
        self.restart()

    def close(self) -> None:
        self.kernel.close()

    def restart(self, host: HostWithTools | None = None) -> None:
        port = host or self.host
        writer, tools, calls = (
            (InlineWriter, InlineTools, InlineCalls) if self._inline else (BoundedWriter, BoundedTools, BoundedCalls)
        )
        self.writer = ProfileWriter(
            port,
            load_catalogue(),
            Record(self.kernel.host().local(RECORD)),
            writer(port, deadline_seconds=self._deadline),
            tools(port, deadline_seconds=self._deadline),
            now=lambda: "2026-12-01T12:00:00Z",
            calls=calls(deadline_seconds=self._deadline),
            clock=self.clock,
            jitter=lambda: 1.0,
            sleep=no_pause,
        )

    def order(self, *entries: dict[str, Any]) -> None:
        """New orders: a new generation."""
        self.orders = Orders(spec(*entries), NODE_UID, next(self._generations))

    async def run(self) -> Pass:
        """One pass; the status that it reports is what the next one finds."""
        orders = Orders(self.orders.spec, self.orders.node_uid, self.orders.generation, self.status)
        done = await self.writer.run(orders)
        self.status = NodeStateStatus(profiles=done.profiles)
        return done

    async def settled(self, *, passes: int = 8) -> Pass:
        """Passes, with time between them for what failed, until one does nothing."""
        for _ in range(passes):
            done = await self.run()
            if not any(card.steps for card in done.cards):
                return done
            self.clock.advance(600)
        raise AssertionError(f"no pass of {passes} was without a step: {done}")

    def mark(self) -> None:
        """Changes from now on are what `writes` returns."""
        self._marked = len(self.kernel.writes)

    @property
    def writes(self) -> list[tuple[str, str]]:
        """What changed the host since the mark: writes as (last parts of the path, data), programs as (name, their
        arguments); what a program writes is its own affair, and a program that only tells is left out."""
        found = []
        inside = dict.fromkeys((CARD, OTHER), 0)
        for record in self.kernel.writes[self._marked :]:
            path, data = record.path, record.data.strip()
            if path.startswith("tool:"):
                name = path.rpartition("/")[2]
                if name == "sriov-manage":
                    inside[data.split()[-1]] = _WRITES_OF_SRIOV_MANAGE
                if " -q" not in f" {data}":
                    found.append((name, data))
            elif path.endswith("current_vgpu_type"):
                found.append((path.split("/")[-3], data))
            elif path.startswith("module:"):
                continue
            elif inside[card := next(card for card in inside if card in f"{path} {data}")]:
                inside[card] -= 1
            else:
                found.append(("/".join(path.split("/")[-2:]), data))
        return found

    def type_of(self, function: str) -> int:
        """The number in its current_vgpu_type."""
        return int(self.kernel.host().read(f"{DEVICES}/{function}/nvidia/current_vgpu_type"))

    def profiles(self, card: str = CARD) -> dict[str, str]:
        """The profiles of the card's functions that have one."""
        named = {number: profile for profile, number in TYPES.items()}
        types = {one: self.type_of(one) for one in self.functions(card)}
        return {one: named[number] for one, number in types.items() if number}

    def functions(self, card: str = CARD) -> list[str]:
        host = self.kernel.host()
        number = int(host.read(f"{DEVICES}/{card}/sriov_numvfs"))
        return [host.read_link(f"{DEVICES}/{card}/virtfn{index}").rpartition("/")[2] for index in range(number)]

    def group(self, function: str) -> str:
        """The node that a virtual machine opens to have the function."""
        return f"/dev/vfio/{self.kernel.host().read_link(f'{DEVICES}/{function}/iommu_group').rpartition('/')[2]}"

    def set_type(self, function: str, number: int) -> None:
        """What somebody else does by hand."""
        self.kernel.write(f"{DEVICES}/{function}/nvidia/current_vgpu_type", b"%d\n" % number)

    def record(self) -> RecordsState[CardEntry]:
        return Record(self.kernel.host().local(RECORD)).load(set_aside=False)


_WRITES_OF_SRIOV_MANAGE: Final = 7


def card_of(done: Pass, address: str = CARD) -> ProfiledCard:
    """What the report says of a card."""
    return next(card for card in done.profiles.devices if card.address == address)


def stand(done: Pass, address: str = CARD) -> tuple[str, str]:
    """State and reason of a card."""
    card = card_of(done, address)
    return str(card.state), str(card.reason)
