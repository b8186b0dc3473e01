"""Virtual functions that somebody else has a say in: orders of their own, changes behind the binder's back, and what
cannot be read. Nobody's functions go, and nothing is called released, on a guess."""

from collections.abc import Callable
from typing import Any

import pytest

from node_host.host import Host
from node_host.pci.device import DEVICES
from tests.builders.binder import Bench, host, order, report_of, verdict
from tests.builders.fault_scenes import SRIOV_CARD, functions_of, sriov_card

Make = Callable[..., Bench]

CARD = SRIOV_CARD
FIRST, SECOND = "0000:61:10.0", "0000:61:10.2"
LOADED = [{"name": "vfio_pci", "state": "Loaded"}, {"name": "igbvf", "state": "Loaded"}]


def number(bench: Bench) -> int:
    return int(bench.kernel.host().read(f"{DEVICES}/{CARD}/sriov_numvfs"))


def offered(bench: Bench) -> bool:
    return bench.kernel.host().read(f"{DEVICES}/{CARD}/sriov_drivers_autoprobe") == b"1\n"


def own_order(**more: Any) -> dict[str, Any]:
    return order(SECOND, vendor="8086", device="10ca", **more)


async def made(make: Make) -> Bench:
    bench = make(host(sriov_card(), modules=LOADED))
    bench.order(functions_of(2))
    assert verdict(await bench.run(), CARD) == ("Ready", "FunctionsBound")
    bench.mark()
    return bench


class SomebodyBefore:
    """A host on which somebody else changes the card right before a write of ours to this attribute of it."""

    def __init__(self, bench: Bench, attribute: str, number: int) -> None:
        self._inner: Host = bench.host
        self._bench = bench
        self._path = f"{DEVICES}/{CARD}/{attribute}"
        self._number: int | None = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, path: str, data: bytes) -> None:
        if path == self._path and self._number is not None:
            self._bench.kernel.write(f"{DEVICES}/{CARD}/sriov_numvfs", str(self._number).encode())
            self._number = None
        self._inner.write(path, data)


@pytest.mark.parametrize("attribute", ["sriov_drivers_autoprobe", "sriov_numvfs"])
async def test_functions_that_somebody_makes_while_ours_are_made_are_his(make: Make, attribute: str) -> None:
    bench = make(host(sriov_card(), modules=LOADED))
    bench.restart(host=SomebodyBefore(bench, attribute, 5))
    bench.order(functions_of(2))
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "FunctionsOfOthers")
    assert [outcome.reason for outcome in done.outcomes] == ["Changed"]
    assert "somebody else changed it meanwhile" in done.outcomes[0].message
    assert (number(bench), offered(bench), bench.journal().entries) == (5, True, {})


@pytest.mark.parametrize("name", ["sriov_numvfs", "sriov_drivers_autoprobe"])
@pytest.mark.parametrize(
    "then", [functions_of(2, intent="Release"), functions_of(None), functions_of(None, mode="VGPU")]
)
async def test_a_card_that_cannot_be_read_is_neither_forgotten_nor_released(
    make: Make, name: str, then: dict[str, Any]
) -> None:
    bench = await made(make)
    remembered = bench.journal().entries
    bench.kernel.fail_next(f"read:{DEVICES}/{CARD}/{name}", "EIO", times=None)
    bench.order(then)
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "DeviceUnreadable")
    assert report_of(done, CARD).message.startswith(f"{name} cannot be read: EIO")
    assert (bench.writes, bench.journal().entries) == ([], remembered)
    bench.kernel.faults.clear()
    bench.order(functions_of(2, intent="Release"))
    assert verdict(await bench.run(), CARD) == ("Released", "Released")
    assert (number(bench), offered(bench), bench.journal().entries) == (0, True, {})


async def test_a_function_that_is_ordered_to_have_functions_is_told_and_the_others_go_on(make: Make) -> None:
    bench = await made(make)
    bench.order(functions_of(2), own_order(virtualFunctions=2))
    done = await bench.run()
    assert verdict(done, SECOND) == ("Blocked", "NoSRIOV")
    assert verdict(done, CARD) == ("Blocked", "CompanionManaged")
    assert (bench.writes, number(bench)) == ([], 2)


@pytest.mark.parametrize("then", [functions_of(3), functions_of(None), functions_of(2, intent="Release")])
async def test_a_function_that_is_held_by_an_order_of_its_own_keeps_the_number(
    make: Make, then: dict[str, Any]
) -> None:
    bench = await made(make)
    bench.order(then, own_order(intent="Hold"))
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "CompanionManaged")
    assert f"its virtual function {SECOND} is ordered Passthrough, intent Hold" in report_of(done, CARD).message
    assert verdict(done, SECOND) == ("Ready", "Bound")
    assert (bench.writes, number(bench)) == ([], 2)
    bench.order(then)
    assert verdict(await bench.run(), CARD)[0] in ("Ready", "Released")


@pytest.mark.parametrize("then", [functions_of(3), functions_of(None), functions_of(2, intent="Release")])
@pytest.mark.parametrize("mode", ["Passthrough", "Container"])
async def test_a_function_that_an_order_of_its_own_applies_to_keeps_the_number(
    make: Make, then: dict[str, Any], mode: str
) -> None:
    bench = await made(make)
    bench.order(then, own_order(mode=mode))
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "CompanionManaged")
    assert f"its virtual function {SECOND} is ordered {mode}, intent Apply" in report_of(done, CARD).message
    assert bench.touched() == ({SECOND} if mode == "Container" else set())
    assert number(bench) == 2
    bench.order(then)
    assert verdict(await bench.run(), CARD)[0] in ("Ready", "Released")


async def test_functions_that_are_released_by_orders_of_their_own_go_with_their_card(make: Make) -> None:
    bench = await made(make)
    bench.order(functions_of(2, intent="Release"), own_order(intent="Release"))
    done = await bench.run()
    assert (verdict(done, CARD), verdict(done, SECOND)) == (("Released", "Released"), ("Released", "Released"))
    assert (number(bench), offered(bench), bench.journal().entries) == (0, True, {})
