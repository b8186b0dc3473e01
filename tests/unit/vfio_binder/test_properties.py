"""Whatever the host and the orders: one pass does all that can be done, and nothing that may not be."""

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders.binder import Bench, host, npu, order
from tests.builders.inline import InlineCalls, InlineWriter

EXAMPLES = 2000

# A network card that the host may need, graphics and audio with drivers of their own, and NPUs.
KINDS = {
    "npu": {"vendor": "1eff", "device": "1250", "class": "120000"},
    "graphics": {"vendor": "10de", "device": "26b1", "class": "030000"},
    "audio": {"vendor": "10de", "device": "22ba", "class": "040300"},
    "nic": {"vendor": "8086", "device": "1592", "class": "020000"},
    "port": {"vendor": "8086", "device": "2030", "class": "060400"},
}
VFIO = "vfio-pci"


@dataclass(frozen=True)
class Function:
    """One function of a random host: what it is, where somebody put it before, what is ordered for it."""

    kind: str
    group: int | None
    moved: str
    in_use: bool
    needed: bool
    mode: str | None
    intent: str
    companions: str
    right_identity: bool

    @property
    def host_needs_it(self) -> bool:
        """A boot display always; a network card while its driver shows the interface."""
        stays_native = self.moved == "native" or (self.moved == "vfio" and self.group is None)
        return self.needed and (self.kind == "graphics" or (self.kind == "nic" and stays_native))


FUNCTIONS = st.builds(
    Function,
    kind=st.sampled_from(["npu", "npu", "graphics", "audio", "nic", "port"]),
    group=st.sampled_from([20, 20, 21, 22, None]),
    moved=st.sampled_from(["native", "native", "none", "vfio"]),
    in_use=st.sampled_from([False, False, False, True]),
    needed=st.sampled_from([False, False, False, True]),
    mode=st.sampled_from([None, "Passthrough", "Passthrough", "Passthrough", "Container", "Unmanaged"]),
    intent=st.sampled_from(["Apply", "Apply", "Apply", "Hold", "Release"]),
    companions=st.sampled_from(["Bind", "Bind", "Refuse"]),
    right_identity=st.sampled_from([True, True, True, True, False]),
)
# Orders that follow the first ones on the same host.
LATER = st.lists(
    st.tuples(
        st.sampled_from([None, "Passthrough", "Container"]),
        st.sampled_from(["Apply", "Hold", "Release"]),
        st.sampled_from(["Bind", "Refuse"]),
    ),
    min_size=4,
    max_size=4,
)


@dataclass
class Scene:
    """A random host with a binder on it."""

    functions: list[Function]
    bench: Bench = field(init=False)

    def __post_init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="binder-", dir=_fast_directory()))
        self.addresses = [f"0000:2{number}:00.0" for number in range(len(self.functions))]
        devices = [self._device(*pair) for pair in self.pairs()]
        machine = host(*devices, modules=[{"name": "vfio_pci", "state": "Loaded"}])
        self.bench = Bench(self.root / "host", machine, calls=InlineCalls(), in_memory=True)
        self.bench.restart(writer=InlineWriter(self.bench.host))
        self.opened: set[str] = set()
        for address, function in self.pairs():
            self._move(address, function)
        for address, function in self.pairs():
            if function.in_use:
                self._open(address, function)
        self.bench.mark()

    def pairs(self) -> "zip[tuple[str, Function]]":
        return zip(self.addresses, self.functions, strict=True)

    def close(self) -> None:
        self.bench.close()
        shutil.rmtree(self.root)

    def _device(self, address: str, function: Function) -> dict[str, Any]:
        facts: dict[str, Any] = dict(KINDS[function.kind])
        if function.kind == "nic":
            number = address[6]
            facts["interfaces"] = [
                {
                    "name": f"ens{number}",
                    "state": "Up" if function.needed else "Down",
                    "addresses": [f"10.0.{number}.7/24"] if function.needed else [],
                }
            ]
        if function.kind == "graphics":
            facts["bootVGA"] = int(function.needed)
        return npu(address, function.group, **facts)

    def _move(self, address: str, function: Function) -> None:
        if function.kind == "port" or function.moved == "native":
            return
        if function.moved == "none":
            self.bench.move(address, None)
        elif function.group is not None:
            self.bench.move(address, VFIO, override=VFIO)

    def _open(self, address: str, function: Function) -> None:
        device = self.bench.kernel._machine.devices[address]
        nodes = [node.name for node in device.nodes]
        if function.moved == "vfio" and function.group is not None:
            nodes = [f"vfio/{function.group}"]
        for node in nodes[:1]:
            try:
                self.bench.kernel.open_device(f"/dev/{node}", pid=4000 + int(address[6]), comm="user")
            except OSError:
                continue  # a group that is open already, or that the kernel gives to nobody
            self.opened.add(address)

    def orders(self) -> list[dict[str, Any]]:
        return [
            self._order(address, function, function.mode, function.intent, function.companions)
            for address, function in self.pairs()
            if function.mode is not None
        ]

    def _order(self, address: str, function: Function, mode: str, intent: str, companions: str) -> dict[str, Any]:
        kind = KINDS[function.kind]
        device = kind["device"] if function.right_identity else "ffff"
        blocks = {"companions": companions} if mode == "Passthrough" else {}
        return order(address, mode=mode, intent=intent, vendor=kind["vendor"], device=device, **blocks)

    def later_orders(self, later: list[tuple[str | None, str, str]]) -> list[dict[str, Any]]:
        return [
            self._order(address, function, mode, intent, companions)
            for address, function, (mode, intent, companions) in zip(
                self.addresses, self.functions, later[: len(self.functions)], strict=True
            )
            if mode is not None
        ]

    def group(self, address: str) -> list[str]:
        number = self.functions[self.addresses.index(address)].group
        if number is None:
            return [address]
        return [one for one, function in self.pairs() if function.group == number]

    def untouchable(self, entries: list[dict[str, Any]]) -> set[str]:
        """What no write may name, computed from the scene and not from the binder's own view."""
        ordered = {entry["address"]: entry for entry in entries}
        found = set()
        for address, function in self.pairs():
            members = [self.functions[self.addresses.index(one)] for one in self.group(address)]
            is_needed = any(member.host_needs_it for member in members)
            is_open = address in self.opened or any(
                one in self.opened and self.functions[self.addresses.index(one)].moved == "vfio"
                for one in self.group(address)
            )
            takes_group = any(
                one in ordered
                and ordered[one]["mode"] == "Passthrough"
                and ordered[one]["intent"] == "Apply"
                and ordered[one]["passthrough"]["companions"] == "Bind"
                for one in self.group(address)
            )
            entry = ordered.get(address)
            is_meant = takes_group or (entry is not None and entry["intent"] != "Hold")
            is_other = entry is not None and not function.right_identity and not takes_group
            if function.kind == "port" or is_needed or is_open or not is_meant or is_other or function.group is None:
                found.add(address)
            # Nothing here was bound by npufleet before: such a device has no reason to be written to.
            if entry is not None and (
                entry["intent"] == "Hold"
                or (entry["intent"] == "Apply" and entry["mode"] != "Passthrough")
                or (entry["intent"] == "Release" and not takes_group)
            ):
                found.add(address)
        return found


def _fast_directory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def test_any_host_and_any_orders_converge_without_a_write_to_an_untouchable_device() -> None:
    ran = wrote = 0
    loop = asyncio.new_event_loop()

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(FUNCTIONS, min_size=1, max_size=4), LATER)
    def check(functions: list[Function], later: list[tuple[str | None, str, str]]) -> None:
        nonlocal ran, wrote
        ran += 1
        scene = Scene(functions)
        try:
            wrote += loop.run_until_complete(_converges(scene, later))
        finally:
            scene.close()

    try:
        check()
    finally:
        loop.close()
    print(f"examples: {ran}, with writes: {wrote}")
    assert ran >= EXAMPLES
    assert wrote >= EXAMPLES / 10


async def _converges(scene: Scene, later: list[tuple[str | None, str, str]]) -> bool:
    """Whether anything was written for the first orders."""
    bench = scene.bench
    before = {address: bench.driver(address) for address in scene.addresses}
    entries = scene.orders()
    bench.order(*entries)
    done = await bench.run()
    assert not bench.touched() & scene.untouchable(entries)
    assert (await bench.binder.dry_run(bench.orders)).planned.is_empty
    _is_honest(scene, done)
    wrote = bool(bench.touched())
    if wrote:
        # What follows has to leave alone what is open or needed now just the same.
        await _next_orders(scene, scene.later_orders(later))
    await _gives_all_back(scene, before)
    return wrote


async def _next_orders(scene: Scene, entries: list[dict[str, Any]]) -> None:
    bench = scene.bench
    held = {entry["address"] for entry in entries if entry["intent"] == "Hold"}
    bench.mark()
    bench.order(*entries)
    done = await bench.run()
    assert not bench.touched() & (scene.opened | held)
    assert (await bench.binder.dry_run(bench.orders)).planned.is_empty
    _is_honest(scene, done)


async def _gives_all_back(scene: Scene, before: dict[str, str | None]) -> None:
    """A release of everything leaves every device on the driver that it had, and no trace in the journal."""
    bench = scene.bench
    bench.order(*(scene._order(one, function, "Passthrough", "Release", "Refuse") for one, function in scene.pairs()))
    await bench.run()
    bench.order()
    await bench.run()
    assert {address: bench.driver(address) for address in scene.addresses} == before
    assert bench.journal().entries == {}


def _is_honest(scene: Scene, done: Any) -> None:
    """Ready and Released say what the host shows."""
    for report in done.bindings.devices:
        driver = scene.bench.driver(report.address)
        if report.state == "Ready" and report.reason in ("Bound", "Adopted", "Companion"):
            assert driver == VFIO
        if report.state == "Ready" and report.reason == "NativeDriver":
            assert driver not in (None, VFIO)
        assert report.state != "Failed", report
