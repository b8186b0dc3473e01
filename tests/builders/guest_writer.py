"""A profile writer on the real kernel of the lab's guest, whose test driver plays the vGPUs of a card."""

from __future__ import annotations

import asyncio
import functools
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from crds.catalogue.catalogue import Catalogue
from crds.models.node_state import NodeStateStatus
from crds.models.vgpu_state import ProfiledCard
from node_host.acting.bounded_tool import BoundedTools
from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.locks import Locks
from node_host.host import Host, open_host
from node_host.orders import Orders
from profile_writer.record import RECORD, Record
from profile_writer.tools import ToolPaths
from profile_writer.writer import Pass, ProfileWriter
from tests.builders.binder import NODE_UID, FakeClock, order, spec
from tests.builders.guest_binder import NPUFLEET, PCI
from tests.builders.inline import InlineCalls, InlineWriter

TOOLS: Final = Path(__file__).parents[1] / "kernel/modules/vendor_tools"
TOOL_MODES: Final = Path("/run/vendor-tools")
"""What the played tools are told, and what they were called for."""
# The network card whose functions the test driver takes, as if it were a card with vGPUs.
_CARDS: Final = """
id: "8086"
name: Intel
source: ["tests/kernel/modules/sim_vgpu (the types of the test card)"]
products:
- name: L40S
  physical: ["10c9"]
  virtual: ["10ca"]
  frameBufferGB: 48
  profiles:
  - {name: L40S-4Q, frameBufferGiB: 4}
  - {name: L40S-6Q, frameBufferGiB: 6}
  - {name: L40S-8Q, frameBufferGiB: 8}
  - {name: L40S-12Q, frameBufferGiB: 12}
  - {name: L40S-16Q, frameBufferGiB: 16}
  - {name: L40S-24Q, frameBufferGiB: 24}
  - {name: L40S-48Q, frameBufferGiB: 48}
  source: ["tests/kernel/modules/sim_vgpu (the types of the test card)"]
"""


@functools.cache
def cards_under_test() -> Catalogue:
    """A catalogue that knows the test card alone."""
    return Catalogue({"test-cards.yaml": _CARDS})


class HookedTypes(InlineWriter):
    """Something happens right before the first write of a type, as when somebody else is faster."""

    def __init__(self, host: Host, hook: Callable[[str], object]) -> None:
        """``hook`` gets the path that is about to be written."""
        super().__init__(host)
        self._hook: Callable[[str], object] | None = hook

    async def write(self, path: str, data: bytes, locks: Locks) -> None:
        if self._hook is not None and path.endswith("current_vgpu_type"):
            hook, self._hook = self._hook, None
            hook(path)
        await super().write(path, data, locks)


class GuestWriter:
    """The writer of the guest, one pass at a time; `restart` gives a new one, as after a crash or an upgrade."""

    def __init__(self, records: Path = NPUFLEET, *, tools: bool = True) -> None:
        """``records``: a directory that takes the place of /var/lib/npufleet, e.g. one that lives over a reboot.
        ``tools``: whether the host has the vendor's programs."""
        if records != NPUFLEET:
            records.mkdir(parents=True, exist_ok=True)
            NPUFLEET.symlink_to(records)
        self.host = open_host(Path("/"))
        self.clock = FakeClock()
        self.status = NodeStateStatus()
        self.orders = Orders(None, NODE_UID)
        self._generations = itertools.count(1)
        self._tools = TOOLS if tools else Path("/nonexistent")
        self.restart()

    def restart(self, writer: BoundedWriter | None = None) -> None:
        async def sleep(seconds: float) -> None:
            self.clock.advance(seconds)

        self.writer = ProfileWriter(
            self.host,
            cards_under_test(),
            Record(self.host.local(RECORD)),
            writer or InlineWriter(self.host),
            BoundedTools(self.host),
            now=lambda: "2026-11-30T12:00:00Z",
            paths=ToolPaths(str(self._tools / "sriov-manage"), str(self._tools / "nvidia-smi")),
            calls=InlineCalls(),
            clock=self.clock,
            jitter=lambda: 1.0,
            sleep=sleep,
        )

    def order(self, address: str, *layout: tuple[str, int], intent: str = "Apply", **vgpu: Any) -> None:
        """``layout``: profiles of the test card without its name, e.g. 24Q, and how many."""
        ids = {name: (PCI / address / name).read_text().strip().removeprefix("0x") for name in ("vendor", "device")}
        entry = order(address, mode="VGPU", intent=intent, **ids)
        counts = [{"profile": f"L40S-{profile}", "count": count} for profile, count in layout]
        entry["vgpu"] = {"profileMapRef": {"name": "l40s"}, "layout": counts, **vgpu}
        self.orders = Orders(spec(entry), NODE_UID, next(self._generations))

    def run(self) -> Pass:
        """One pass; the status that it reports is what the next one finds."""
        asked = self.orders
        done = asyncio.run(self.writer.run(Orders(asked.spec, asked.node_uid, asked.generation, self.status)))
        self.status = NodeStateStatus(profiles=done.profiles)
        return done

    def ordered(self, address: str, *layout: tuple[str, int], **more: Any) -> ProfiledCard:
        """New orders and a pass: what it reports of the card."""
        self.order(address, *layout, **more)
        return self.report()

    def report(self) -> ProfiledCard:
        """A pass: what it reports of the card."""
        [report] = self.run().profiles.devices
        return report


def forget_all() -> None:
    """As on a host where npufleet has never been."""
    if NPUFLEET.is_symlink():
        NPUFLEET.unlink()
    shutil.rmtree(NPUFLEET, ignore_errors=True)
    shutil.rmtree(TOOL_MODES, ignore_errors=True)


def tell_tools(**modes: int) -> None:
    """How the played tools behave from now on."""
    TOOL_MODES.mkdir(exist_ok=True)
    for name, value in modes.items():
        (TOOL_MODES / name).write_text(f"{value}\n")


def tool_calls() -> list[str]:
    """Each call of a vendor's tool that changes something, since all was forgotten."""
    calls = TOOL_MODES / "calls"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return [line for line in lines if not line.endswith(" -q")]
