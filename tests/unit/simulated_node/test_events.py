"""Events of the simulated kernel, as a listener in the same process gets them."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from node_host.host import Host, Uevent
from simulated_node.description_files import parse_device
from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import DRIVERS, NPU, PORT
from tests.builders.kernel_rules import allows, shows

DEVPATH = f"/devices/pci0000:20/{PORT}/{NPU}"


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with hosts.running(tmp_path) as kernel:
        yield kernel


async def heard(host: Host, until: Uevent, order: object) -> list[Uevent]:
    """What a listener hears of an order, up to one event."""
    events: list[Uevent] = []
    async with host.events() as stream:
        await asyncio.to_thread(order)  # type: ignore[arg-type]
        async with asyncio.timeout(5):
            while until not in events:
                events.append(await anext(stream))
    return events


@shows("uevent.bind-names-driver")
async def test_rebinding_is_told_in_order(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("vfio-pci")
    events = await heard(host, Uevent("bind", DEVPATH, "pci", "vfio-pci", NPU), lambda: hosts.give_to_vfio(host, NPU))
    assert events == [
        Uevent("remove", f"{DEVPATH}/rebellions/rbln0", "rebellions", None, None),
        Uevent("unbind", DEVPATH, "pci", None, NPU),
        Uevent("add", f"{DEVPATH}/vfio-dev/vfio0", "vfio-dev", None, None),
        Uevent("bind", DEVPATH, "pci", "vfio-pci", NPU),
    ]


async def test_loading_a_module_tells_of_module_and_driver(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    last = Uevent("add", "/module/vfio_pci", "module", None, None)
    events = await heard(host, last, lambda: host.load_module("vfio_pci"))
    assert Uevent("add", "/bus/pci/drivers/vfio-pci", "drivers", None, None) in events
    assert Uevent("add", "/module/vfio", "module", None, None) in events


async def test_hotplug_is_told(kernel: SimulatedKernel) -> None:
    device = kernel.description.devices[1].model_dump(mode="json", by_alias=True, exclude_unset=True)
    gone = await heard(kernel.host(), Uevent("remove", DEVPATH, "pci", None, NPU), lambda: kernel.hot_remove(NPU))
    assert [event.action for event in gone if event.subsystem == "pci"] == ["unbind", "remove"]
    back = await heard(
        kernel.host(), Uevent("bind", DEVPATH, "pci", "rebellions", NPU), lambda: kernel.hot_add(parse_device(device))
    )
    assert [event.action for event in back if event.subsystem == "pci"] == ["add", "bind"]


@allows("uevent.synthetic")
async def test_written_event_is_sent(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    change = Uevent("change", DEVPATH, "pci", "rebellions", NPU)
    events = await heard(host, change, lambda: host.write(hosts.attribute(NPU, "uevent"), b"change\n"))
    assert events == [change]


@shows("uevent.synthetic")
@pytest.mark.parametrize("written", [b"nonsense", b"\n"])
def test_event_without_an_action_is_refused(kernel: SimulatedKernel, written: bytes) -> None:
    with hosts.refused("EINVAL"):
        kernel.host().write(hosts.attribute(NPU, "uevent"), written)


@shows("uevent.lost-when-reader-lags")
async def test_listener_that_lags_is_told_of_its_loss(kernel: SimulatedKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedKernel, "event_capacity", 3)
    host = kernel.host()
    received: list[str] = []
    async with host.events() as stream:
        for _ in range(3):
            host.write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
            host.write(f"{DRIVERS}/rebellions/bind", NPU.encode())
        with hosts.refused("ENOBUFS"):
            async with asyncio.timeout(5):
                for _ in range(9):
                    received.append((await anext(stream)).action)  # noqa: PERF401 - it ends with an error
    assert received == ["remove", "unbind", "add"]


@allows("uevent.lost-when-reader-lags")
async def test_listener_that_keeps_up_loses_nothing(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    async with host.events() as stream, asyncio.timeout(5):
        for _ in range(20):
            await asyncio.to_thread(host.write, hosts.attribute(NPU, "uevent"), b"change")
        actions = [(await anext(stream)).action for _ in range(20)]
    assert actions == ["change"] * 20


async def test_ordered_loss_is_told(kernel: SimulatedKernel) -> None:
    async with kernel.host().events() as stream:
        kernel.lose_events()
        with hosts.refused("ENOBUFS"):
            await anext(stream)
    async with kernel.host().events() as stream:
        kernel.host().write(hosts.attribute(NPU, "uevent"), b"change")
        assert (await anext(stream)).action == "change", "a new listener hears again"


@shows("uevent.lost-when-reader-lags")
async def test_dropped_events_reach_nobody_and_it_is_told(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    async with host.events() as stream, asyncio.timeout(5):
        host.write(hosts.attribute(NPU, "uevent"), b"change")
        kernel.drop_events(2)
        for action in (b"add", b"remove", b"move"):
            host.write(hosts.attribute(NPU, "uevent"), action)
        assert (await anext(stream)).action == "change"
        with hosts.refused("ENOBUFS"):
            await anext(stream)


async def test_events_may_be_lost_without_a_word(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    async with host.events() as stream, asyncio.timeout(5):
        kernel.drop_events(2, silently=True)
        for action in (b"add", b"remove", b"move"):
            host.write(hosts.attribute(NPU, "uevent"), action)
        assert (await anext(stream)).action == "move"


async def test_listener_does_not_outlive_the_boot(kernel: SimulatedKernel) -> None:
    async with kernel.host().events() as stream:
        kernel.reboot()
        with hosts.refused("ESHUTDOWN"):
            await anext(stream)


async def test_state_is_in_place_when_its_event_arrives(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    async with host.events() as stream, asyncio.timeout(5):
        order = asyncio.create_task(asyncio.to_thread(hosts.give_to_vfio, host, NPU))
        async for event in stream:
            if event.action == "bind":
                assert hosts.driver_of(host, NPU) == "vfio-pci"
                assert host.exists("/dev/vfio/20")
                break
        with suppress(asyncio.CancelledError):
            await order
