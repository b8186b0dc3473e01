"""What the exploration found, each as the smallest case of its own, on a simulated kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.binder import NPU, Bench, audio, graphics, host, npu, order, report_of, verdict

CARD, AUDIO = "0000:25:00.0", "0000:25:00.1"
FUNCTION = "0000:23:00.1"
VARIANT = "rbln-vfio-pci"


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        bench.close()


def _bench(benches: list[Bench], root: Path, *devices: dict[str, Any]) -> Bench:
    driver = {"name": VARIANT, "module": "rbln_vfio_pci", "kind": "VFIO", "overrideOnlyIds": [{"vendor": "1234"}]}
    names = ("rbln_vfio_pci", "vfio_pci", "pci_stub")
    modules = [{"name": name, "state": "Loaded"} for name in names]
    bench = Bench(root, host(*devices, drivers=[driver], modules=modules))
    benches.append(bench)
    return bench


@pytest.mark.parametrize(
    "step", [f"/sys/bus/pci/devices/{NPU}/driver_override", "/sys/bus/pci/drivers/vfio-pci/unbind"]
)
async def test_a_move_between_two_vfio_drivers_that_fails_does_not_make_the_device_a_stranger(
    benches: list[Bench], tmp_path: Path, step: str
) -> None:
    bench = _bench(benches, tmp_path, npu())
    bench.order(order())
    await bench.run()
    bench.kernel.fail_next(step, "EIO")
    bench.order(order(driver=VARIANT))
    await bench.run()
    bench.clock.advance(60)
    assert verdict(await bench.run()) == ("Ready", "Bound")
    assert bench.driver() == VARIANT
    bench.order(order(intent="Release"))
    assert verdict(await bench.run()) == ("Released", "Released")
    assert bench.driver() == "rebellions"


async def test_a_companion_that_is_released_to_be_left_goes_back_when_nobody_needs_it(
    benches: list[Bench], tmp_path: Path
) -> None:
    bench = _bench(benches, tmp_path, graphics(), audio())
    card = order(CARD, vendor="10de", device="26b1", companions="Bind")
    bench.order(card, order(AUDIO, vendor="10de", device="22ba", intent="Release", on_release="Leave"))
    done = await bench.run()
    assert (verdict(done, CARD), verdict(done, AUDIO)) == (("Ready", "Bound"), ("Released", "Companion"))
    bench.order(order(CARD, vendor="10de", device="26b1", intent="Release"))
    await bench.run()
    assert (bench.driver(CARD), bench.driver(AUDIO)) == ("nvidia", "snd_hda_intel")


async def test_nothing_is_bound_beside_a_member_that_goes_back_to_the_host(
    benches: list[Bench], tmp_path: Path
) -> None:
    bench = _bench(benches, tmp_path, npu(), npu(FUNCTION, 20))
    bench.order(order(), order(FUNCTION))
    await bench.run()
    bench.move(NPU, "rebellions")
    bench.order(order(), order(FUNCTION, mode="Container"))
    bench.mark()
    done = await bench.run()
    assert verdict(done) == ("Blocked", "CompanionManaged")
    assert verdict(done, FUNCTION) == ("Ready", "NativeDriver")
    assert bench.touched() == {FUNCTION}
    assert bench.driver() == bench.driver(FUNCTION) == "rebellions"


async def test_a_device_on_a_stub_is_not_ready_for_containers(benches: list[Bench], tmp_path: Path) -> None:
    bench = _bench(benches, tmp_path, npu())
    bench.move(NPU, "pci-stub", override="pci-stub")
    bench.mark()
    bench.order(order(mode="Container"))
    done = await bench.run()
    assert verdict(done) == ("Blocked", "BoundByOthers")
    assert "pci-stub" in report_of(done).message
    bench.order(order(mode="Container", intent="Hold"))
    assert verdict(await bench.run()) == ("Pending", "Held")
    assert bench.writes == []


async def test_a_held_device_that_a_vm_could_not_open_is_pending_and_not_failed(
    benches: list[Bench], tmp_path: Path
) -> None:
    bench = _bench(benches, tmp_path, npu())
    bench.move(NPU, "vfio-pci", override="vfio-pci")
    bench.mark()
    bench.order(order(intent="Hold"))
    assert verdict(await bench.run()) == ("Ready", "Adopted")
    bench.order(order(intent="Hold", iommu="IOMMUFD"))
    bench.kernel.host().local("/dev/vfio/devices/vfio0").unlink()
    done = await bench.run()
    assert verdict(done) == ("Pending", "Held")
    assert "/dev/vfio/devices/vfio0 does not exist" in report_of(done).message
    assert bench.writes == []
