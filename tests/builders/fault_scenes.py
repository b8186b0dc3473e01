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
from node_host.handover.binder_half import BinderHalf
from node_host.handover.entry import entry_digest
from node_host.handover.publisher_half import PublisherHalf
from node_host.host import Host
from node_host.pci.device import DEVICES
from node_host.pci.vfio_drivers import is_vfio_driver
from simulated_node.kernel import SimulatedKernel
from tests.builders.binder import NPU, Bench, audio, graphics, host, npu, order, spec
from tests.builders.inline import InlineCalls, InlineWriter
from tests.builders.strikes import Crash, Kind, Step, Strike, Struck, StruckHost, StruckJournal, StruckTokens
from vfio_binder.binder import Pass

CARD, AUDIO = "0000:25:00.0", "0000:25:00.1"
SRIOV_CARD = "0000:61:00.0"
BYSTANDER, STRANGER = "0000:2a:00.0", "0000:2b:00.0"

Entry = dict[str, Any]
# Driver and driver_override; number of virtual functions and sriov_drivers_autoprobe, empty where there are none.
Place = tuple[str | None, str, str, str]


def card(**more: Any) -> Entry:
    """The order for the graphics card."""
    return order(CARD, vendor="10de", device="26b1", **more)


def sriov_card(**more: Any) -> Entry:
    """A network card with up to 7 virtual functions, on driver igb after boot."""
    facts = {"vendor": "8086", "device": "10c9", "class": "020000", "sriovTotalVFs": 7}
    return {**npu(SRIOV_CARD, 30), **facts, "virtualFunctions": {"device": "10ca"}, **more}


def functions_of(number: int | None, **more: Any) -> Entry:
    """The order for that many virtual functions of the network card; None: for the card itself."""
    wanted: dict[str, Any] = {} if number is None else {"virtualFunctions": number}
    return order(SRIOV_CARD, vendor="8086", device="10c9", **wanted, **more)


@dataclass(frozen=True)
class Scene:
    """A move. ``first`` is ordered and done beforehand, ``then`` is what strikes fall on.

    ``ends`` says for each device that moves on which driver it is when all is well; None: no driver. ``functions`` is
    how many virtual functions, each on a VFIO driver, the network card has then. ``published`` are devices that pods
    may have, and that are handed over for ``then``.
    """

    name: str
    devices: tuple[Entry, ...]
    then: tuple[Entry, ...]
    ends: Mapping[str, str | None]
    first: tuple[Entry, ...] = ()
    settle: Callable[[SimulatedKernel], None] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    functions: int | None = None
    published: tuple[str, ...] = ()


def _not_offered(kernel: SimulatedKernel) -> None:
    kernel.write(f"{DEVICES}/{SRIOV_CARD}/sriov_drivers_autoprobe", b"0")


def _has_two_already(kernel: SimulatedKernel) -> None:
    kernel.load_module("igbvf")
    kernel.write(f"{DEVICES}/{SRIOV_CARD}/sriov_numvfs", b"2")


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


IGB = {SRIOV_CARD: "igb"}
# The bystander is bound first, so what loads the module is not a step of the card.
LOADED = {"modules": [{"name": "vfio_pci", "state": "Loaded"}]}
FUNCTION_SCENES = (
    Scene("functions are made", (sriov_card(),), (functions_of(2),), IGB, more=LOADED, functions=2),
    Scene(
        "functions are made where none are offered to drivers",
        (sriov_card(),),
        (functions_of(1),),
        IGB,
        settle=_not_offered,
        more=LOADED,
        functions=1,
    ),
    Scene("fewer functions", (sriov_card(),), (functions_of(1),), IGB, (functions_of(2),), more=LOADED, functions=1),
    Scene(
        "functions go",
        (sriov_card(),),
        (functions_of(2, intent="Release"),),
        IGB,
        (functions_of(2),),
        more=LOADED,
        functions=0,
    ),
    Scene(
        "functions go for containers",
        (sriov_card(),),
        (functions_of(None, mode="Container"),),
        IGB,
        (functions_of(1),),
        more=LOADED,
        functions=0,
    ),
    Scene(
        "functions go for the card itself",
        (sriov_card(),),
        (functions_of(None),),
        {SRIOV_CARD: "vfio-pci"},
        (functions_of(1),),
        more=LOADED,
        functions=0,
    ),
    Scene(
        "the card goes for its functions",
        (sriov_card(),),
        (functions_of(1),),
        IGB,
        (functions_of(None),),
        more=LOADED,
        functions=1,
    ),
    Scene(
        "functions of others are adopted",
        (sriov_card(),),
        (functions_of(2),),
        IGB,
        settle=_has_two_already,
        more=LOADED,
        functions=2,
    ),
)


class Stage:
    """A scene on a simulated host, up to the pass that is struck."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.root = Path(tempfile.mkdtemp(prefix="strikes-", dir=_fast_directory()))
        machine = host(*scene.devices, npu(BYSTANDER, 40), npu(STRANGER, 41), **scene.more)
        self.bench = Bench(self.root / "host", machine, calls=InlineCalls(), in_memory=True)
        self.publisher = PublisherHalf(self.bench.kernel.host())
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
        self._hand_over()

    def _hand_over(self) -> None:
        """What the publisher does when nobody has the devices, and keeps from anybody who would."""
        boot_id = self.bench.kernel.boot_id
        self.publisher.write_published(self.scene.published, boot_id)
        digests = {entry["address"]: entry_digest(spec(entry).devices[0]) for entry in self.scene.then}
        for address in self.scene.published:
            self.publisher.offer(address, boot_id, digests.get(address, next(iter(digests.values()))))

    def restart(self, strikes: Mapping[int, Strike], port_of: Callable[[Struck], Host] = StruckHost) -> Struck:
        """A new binder, struck at these steps; ``port_of`` says what is a step."""
        kernel = self.bench.kernel
        struck = Struck(kernel, lambda step: self._concerns(step, struck.steps), strikes)
        port = port_of(struck)
        journal = StruckJournal(kernel.host().local(JOURNAL), struck)
        tokens = BinderHalf(StruckTokens(port, struck))
        self.bench.restart(writer=InlineWriter(port), host=port, journal=journal, tokens=tokens)
        return struck

    def _concerns(self, step: Step, taken: list[Step]) -> bool:
        """Modules are for all devices: the first try is for the ones that move, a second one for the bystander."""
        if step.kind is Kind.MODULE:
            return all(former.kind is not Kind.MODULE for former in taken)
        names = self.moving if self.scene.functions is None else ("0000:61:",)
        return any(name in step.text for name in names)

    def place(self, address: str) -> Place:
        if not self.is_there(address):
            return None, "", "", ""
        number, autoprobe = (self._read(address, name) for name in ("sriov_numvfs", "sriov_drivers_autoprobe"))
        return self.bench.driver(address), self.bench.override(address), number, autoprobe

    def _read(self, address: str, name: str) -> str:
        path = f"{DEVICES}/{address}/{name}"
        kernel = self.bench.kernel.host()
        return kernel.read(path).decode().strip() if kernel.exists(path) else ""

    def functions(self) -> dict[str, str | None]:
        """The virtual functions that there are, with their drivers."""
        kernel = self.bench.kernel.host()
        names = [name for name in kernel.list(DEVICES) if kernel.exists(f"{DEVICES}/{name}/physfn")]
        return {name: self.bench.driver(name) for name in names}

    def is_there(self, address: str) -> bool:
        return self.bench.kernel.host().exists(f"{DEVICES}/{address}")

    async def struck_pass(
        self, strikes: Mapping[int, Strike], port_of: Callable[[Struck], Host] = StruckHost
    ) -> tuple[Struck, Pass | None]:
        """One pass with strikes; None where the process died."""
        struck = self.restart(strikes, port_of)
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
            if place[:2] == was[:2]:
                made = entries[address].functions
                assert made is not None
                assert (str(made.former_number), str(int(bool(made.former_autoprobe)))) == was[2:]
                continue
            assert entries[address].former_driver == (was[0] or "")
            assert entries[address].former_override == (None if was[1] == "(null)" else was[1])
        if self.scene.functions is not None:
            self._check_functions()
        self.check_strangers()

    def _check_functions(self) -> None:
        """The card is never bound beside its functions, and what its functions had is remembered."""
        functions, entries = self.functions(), self.bench.journal().entries
        assert not functions or not is_vfio_driver(self.bench.driver(SRIOV_CARD))
        for name, driver in functions.items():
            if is_vfio_driver(driver):
                former = "igbvf" if self.former[SRIOV_CARD][2] == "2" else ""
                assert entries[name].former_driver == former
                assert former or entries[SRIOV_CARD].functions is not None

    def _is_left(self) -> bool:
        return any(entry["onRelease"] == "Leave" for entry in self.scene.then)

    def check_strangers(self) -> None:
        touched = self.bench.touched()
        assert STRANGER not in touched
        assert {name for name in touched if not name.startswith("0000:61:1")} <= {*self.moving, BYSTANDER}

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
            wants_functions = "virtualFunctions" in entry.get("passthrough", {})
            if report.state is DeviceState.READY and wants_functions:
                wanted = entry["passthrough"]["virtualFunctions"]
                drivers = self.functions()
                assert [part.address for part in report.virtual_functions] == sorted(drivers)
                assert len(drivers) == wanted
                assert all(is_vfio_driver(one) for one in drivers.values()), report
                assert {part.state for part in report.virtual_functions} == {DeviceState.READY}
            elif report.state is DeviceState.READY:
                assert is_vfio_driver(driver) == (entry["mode"] == "Passthrough"), report
            elif report.state is DeviceState.RELEASED:
                ends = self.scene.ends[entry["address"]]
                assert driver == ends or not self.is_there(entry["address"]), report
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
            if self.scene.functions is not None:
                assert list(self.functions().values()) == ["vfio-pci"] * self.scene.functions
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
        for address in self.scene.published:
            taken = self.publisher.tokens(address).taken
            assert address in taken or not bench.touched() & set(self.moving), f"{address} was changed without a token"
        self.publisher.write_published([], bench.kernel.boot_id)
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
