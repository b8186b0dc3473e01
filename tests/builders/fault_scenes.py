"""Moves of devices that faults are tried on, and what must hold of the devices whatever strikes.

Beside the devices that move stands a bystander, which is ordered too and must get there whatever happens to the others,
and a stranger, which is in no order and must never be written to.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crds.models.node_state import DeviceState
from node_host.acting.journal import JOURNAL
from node_host.pci.device import DEVICES
from node_host.pci.vfio_drivers import is_vfio_driver
from simulated_node.kernel import SimulatedKernel
from tests.builders.binder import NPU, Bench, audio, graphics, host, npu, order
from tests.builders.inline import InlineCalls, InlineWriter
from tests.builders.strikes import Crash, Kind, Step, Strike, Struck, StruckHost, StruckJournal
from vfio_binder.binder import Pass

CARD, AUDIO = "0000:25:00.0", "0000:25:00.1"
BYSTANDER, STRANGER = "0000:2a:00.0", "0000:2b:00.0"

Entry = dict[str, Any]
Place = tuple[str | None, str]  # driver and driver_override


def card(**more: Any) -> Entry:
    """The order for the graphics card."""
    return order(CARD, vendor="10de", device="26b1", **more)


@dataclass(frozen=True)
class Scene:
    """A move. ``first`` is ordered and done beforehand, ``then`` is what strikes fall on.

    ``ends`` says for each device that moves on which driver it is when all is well; None: no driver.
    """

    name: str
    devices: tuple[Entry, ...]
    then: tuple[Entry, ...]
    ends: Mapping[str, str | None]
    first: tuple[Entry, ...] = ()
    settle: Callable[[SimulatedKernel], None] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def _driverless(address: str) -> Callable[[SimulatedKernel], None]:
    def take_away(kernel: SimulatedKernel) -> None:
        kernel.write("/sys/bus/pci/drivers/rebellions/unbind", address.encode())

    return take_away


def _pinned(kernel: SimulatedKernel) -> None:
    kernel.write(f"{DEVICES}/{NPU}/driver_override", b"rebellions\n")


SCENES = (
    Scene("a bind", (npu(),), (order(),), {NPU: "vfio-pci"}),
    Scene("a bind of a driverless device", (npu(),), (order(),), {NPU: "vfio-pci"}, settle=_driverless(NPU)),
    Scene("a bind of a pinned device", (npu(),), (order(),), {NPU: "vfio-pci"}, settle=_pinned),
    Scene(
        "a bind with a companion",
        (graphics(), audio()),
        (card(companions="Bind"),),
        {CARD: "vfio-pci", AUDIO: "vfio-pci"},
    ),
    Scene("a return", (npu(),), (order(intent="Release"),), {NPU: "rebellions"}, (order(),)),
    Scene(
        "a return of a driverless device",
        (npu(),),
        (order(intent="Release"),),
        {NPU: None},
        (order(),),
        settle=_driverless(NPU),
    ),
    Scene(
        "a return of a pinned device", (npu(),), (order(intent="Release"),), {NPU: "rebellions"}, (order(),), _pinned
    ),
    Scene("a return for containers", (npu(),), (order(mode="Container"),), {NPU: "rebellions"}, (order(),)),
    Scene(
        "a return with a companion",
        (graphics(), audio()),
        (card(intent="Release"),),
        {CARD: "nvidia", AUDIO: "snd_hda_intel"},
        (card(companions="Bind"),),
    ),
    Scene(
        "a release that leaves the device",
        (npu(),),
        (order(intent="Release", on_release="Leave"),),
        {NPU: "vfio-pci"},
        (order(),),
    ),
)


class Stage:
    """A scene on a simulated host, up to the pass that is struck."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.root = Path(tempfile.mkdtemp(prefix="strikes-", dir=_fast_directory()))
        machine = host(*scene.devices, npu(BYSTANDER, 40), npu(STRANGER, 41), **scene.more)
        self.bench = Bench(self.root / "host", machine, calls=InlineCalls())
        self.moving = tuple(scene.ends)
        if scene.settle is not None:
            scene.settle(self.bench.kernel)
        self.former = {address: self.place(address) for address in self.moving}

    def close(self) -> None:
        self.bench.close()
        shutil.rmtree(self.root)

    async def begin(self) -> None:
        """What is done before the pass that counts."""
        self.restart({})
        if self.scene.first:
            self.bench.order(*self.scene.first)
            await self.bench.run()
        self.bench.mark()
        self.bench.order(*self.scene.then, order(BYSTANDER))

    def restart(self, strikes: Mapping[int, Strike]) -> Struck:
        """A new binder, struck at these steps."""
        kernel = self.bench.kernel
        struck = Struck(kernel, lambda step: self._concerns(step, struck.steps), strikes)
        port = StruckHost(struck)
        journal = StruckJournal(kernel.host().local(JOURNAL), struck)
        self.bench.restart(writer=InlineWriter(port), host=port, journal=journal)
        return struck

    def _concerns(self, step: Step, taken: list[Step]) -> bool:
        """Modules are for all devices: the first try is for the ones that move, a second one for the bystander."""
        if step.kind is Kind.MODULE:
            return all(former.kind is not Kind.MODULE for former in taken)
        return any(address in step.text for address in self.moving)

    def place(self, address: str) -> Place:
        if not self.is_there(address):
            return None, ""
        return self.bench.driver(address), self.bench.override(address)

    def is_there(self, address: str) -> bool:
        return self.bench.kernel.host().exists(f"{DEVICES}/{address}")

    async def struck_pass(self, strikes: Mapping[int, Strike]) -> tuple[Struck, Pass | None]:
        """One pass with strikes; None where the process died."""
        struck = self.restart(strikes)
        try:
            return struck, await self.bench.run()
        except Crash:
            return struck, None

    def check_nothing_is_lost(self) -> None:
        """True at every moment, also right after a death: what was moved, and is not as it was, is remembered."""
        entries = self.bench.journal().entries
        for address in self.moving:
            if not self.is_there(address):
                continue
            place, was = self.place(address), self.former[address]
            if place == was or (self.scene.ends[address] == place[0] and address not in entries and self._is_left()):
                continue
            assert address in entries, f"{address} is {place}, was {was}, and nothing remembers that"
            assert entries[address].former_driver == (was[0] or "")
            assert entries[address].former_override == (None if was[1] == "(null)" else was[1])
        self.check_strangers()

    def _is_left(self) -> bool:
        return any(entry["onRelease"] == "Leave" for entry in self.scene.then)

    def check_strangers(self) -> None:
        touched = self.bench.touched()
        assert STRANGER not in touched
        assert touched <= {*self.moving, BYSTANDER}

    def check_reports(self, done: Pass) -> None:
        """Each device has one report, which is true; the bystander is where it should be."""
        reports = {report.address: report for report in done.bindings.devices}
        assert len(reports) == len(done.bindings.devices)
        bystander = reports[BYSTANDER]
        assert (bystander.state, bystander.reason) == (DeviceState.READY, "Bound")
        assert is_vfio_driver(self.bench.driver(BYSTANDER))
        for entry in self.scene.then:
            report = reports[entry["address"]]
            driver = self.place(entry["address"])[0]
            assert report.reason, report
            if report.state is DeviceState.READY:
                assert is_vfio_driver(driver) == (entry["mode"] == "Passthrough"), report
            elif report.state is DeviceState.RELEASED:
                wanted = self.scene.ends[entry["address"]]
                assert driver == wanted or not self.is_there(entry["address"]), report
            else:
                assert report.state in (DeviceState.BLOCKED, DeviceState.FAILED), report
                assert report.message, report
        for address in set(self.moving) - {entry["address"] for entry in self.scene.then}:
            if address not in reports and self.is_there(address):
                assert self.place(address) == self.former[address], "a companion that nobody speaks of"

    async def check_it_ends_well(self) -> None:
        """Later passes, without strikes, get there; then there is nothing to do, and all can be given back."""
        bench = self.bench
        self.restart({})
        for _ in range(4):
            bench.clock.advance(400)
            done = await bench.run()
            if done.planned.is_empty:
                break
        if all(self.is_there(entry["address"]) for entry in self.scene.then):
            for address, wanted in self.scene.ends.items():
                if self.is_there(address):
                    assert self.bench.driver(address) == wanted
        self.check_reports(done)
        self.check_nothing_is_lost()
        written = len(bench.kernel.writes)
        assert (await bench.run()).planned.is_empty
        assert len(bench.kernel.writes) == written
        releases = [
            {**entry, "intent": "Release", "onRelease": "Restore", "mode": "Passthrough"} for entry in self.scene.then
        ]
        for entry in releases:
            entry.pop("passthrough", None)
        bench.order(*releases, order(BYSTANDER, intent="Release"))
        await bench.run()
        bench.order()
        await bench.run()
        assert bench.journal().entries == {}
        if not self._is_left():
            for address in self.moving:
                if self.is_there(address):
                    assert self.place(address) == self.former[address]
        assert STRANGER not in bench.touched()


def _fast_directory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
