"""What a person must change is told before what ends with a user: nobody is evicted for a change that cannot be."""

from collections.abc import Callable
from typing import Any

import pytest

from crds.models.node_state import BoundDevice, DeviceReport, DeviceState
from tests.builders.binder import NPU, TWIN, Bench, audio, graphics, host, nic, npu, order, report_of, verdict
from vfio_binder.cards import with_parts

Make = Callable[..., Bench]

CARD = "0000:25:00.0"
AUDIO = "0000:25:00.1"
NIC = "0000:26:00.0"
SRIOV = "0000:2b:00.0"
NODE = "/dev/rbln0"


def card(companions: str) -> dict[str, Any]:
    return order(CARD, vendor="10de", device="26b1", companions=companions)


async def test_companions_that_the_order_does_not_take_are_told_before_the_user(make: Make) -> None:
    bench = make(host(graphics(), audio()))
    bench.kernel.open_device("/dev/nvidia0", pid=77, comm="train")
    bench.order(card("Refuse"))
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "CompanionsRefused")
    bench.order(card("Bind"))
    assert verdict(await bench.run(), CARD) == ("Blocked", "InUse")


async def test_a_companion_that_the_host_needs_is_told_before_the_user(make: Make) -> None:
    network = nic(NIC, 20, interfaces=[{"name": "eth0", "addresses": ["10.0.0.2/24"], "gateways": ["10.0.0.1"]}])
    bench = make(host(npu(), network))
    bench.kernel.open_device(NODE, pid=77, comm="train")
    bench.order(order(companions="Bind"))
    assert verdict(await bench.run()) == ("Blocked", "CompanionVetoed")


async def test_a_companion_with_orders_of_its_own_is_told_before_the_user(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 20)))
    bench.kernel.open_device(NODE, pid=77, comm="train")
    bench.order(order(companions="Bind"), order(TWIN, mode="Container"))
    done = await bench.run()
    assert verdict(done) == ("Blocked", "CompanionManaged")
    assert bench.writes == []


async def test_a_module_that_the_kernel_has_not_is_told_before_the_user_and_without_a_try(make: Make) -> None:
    bench = make(host(npu(), modules=[{"name": "vfio_pci", "state": "Absent"}]))
    bench.kernel.open_device(NODE, pid=77, comm="train")
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "ModuleMissing")
    assert report_of(done).message == "the kernel has no module vfio_pci; install the package that has it"
    assert bench.writes == []


async def test_of_two_that_are_in_the_way_the_one_that_nobody_frees_is_told(make: Make) -> None:
    first, second = "0000:21:00.0", "0000:22:00.0"
    bench = make(host(npu(first, 20), npu(second, 20), npu(NPU, 20)))
    bench.kernel.open_device("/dev/rbln0", pid=77, comm="train")
    bench.order(order(NPU, companions="Bind"), order(second, mode="Container"))
    assert verdict(await bench.run(), NPU) == ("Blocked", "CompanionManaged")


@pytest.mark.parametrize("reason", ["BindFailed", "ModuleMissing"])
async def test_a_failure_stays_the_reason_while_the_device_is_used_again(make: Make, reason: str) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    if reason == "ModuleMissing":
        bench.kernel.fail_next("module:vfio_pci", "EINVAL")
    else:
        bench.kernel.fail_next(f"probe:vfio-pci:{NPU}", "EIO", times=2)
    bench.order(order())
    done = await bench.run()
    told = verdict(done)
    assert told[1] == reason
    assert bench.driver() == "rebellions"
    bench.kernel.open_device(NODE, pid=77, comm="train")
    for seconds in (1, 10, 60, 200):
        bench.clock.advance(seconds)
        bench.mark()
        done = await bench.run()
        assert verdict(done) == told
        assert bench.writes == []
    assert report_of(done).message.endswith("it is in use again: tried when it is free or ordered anew, or later")
    # Orders of others are no reason to ask its users to go.
    bench.order(order(), order(TWIN, mode="Container"))
    assert verdict(await bench.run()) == told
    bench.order(order(intent="Hold"), order(TWIN, mode="Container"))
    await bench.run()
    bench.order(order(), order(TWIN, mode="Container"))
    assert verdict(await bench.run()) == ("Blocked", "InUse")


async def test_a_failure_is_not_told_for_ever_but_longer_each_time(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    for seconds in (300, 600, 1200, 2400, 3600, 3600):
        bench.kernel.fail_next(f"probe:vfio-pci:{NPU}", "EIO", times=2)
        assert verdict(await bench.run()) == ("Failed", "BindFailed")
        bench.kernel.open_device(NODE, pid=77, comm="train")
        bench.clock.advance(seconds - 1)
        assert verdict(await bench.run()) == ("Failed", "BindFailed")
        bench.clock.advance(2)
        assert verdict(await bench.run()) == ("Blocked", "InUse")
        bench.kernel.close_device(NODE, pid=77)
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_a_device_that_failed_is_tried_again_once_its_new_user_has_gone(make: Make) -> None:
    bench = make(host(npu()))
    bench.kernel.fail_next(f"probe:vfio-pci:{NPU}", "EIO", times=2)
    bench.order(order())
    await bench.run()
    bench.kernel.open_device(NODE, pid=77, comm="train")
    bench.clock.advance(60)
    assert verdict(await bench.run()) == ("Failed", "BindFailed")
    bench.kernel.close_device(NODE, pid=77)
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_a_return_that_failed_stays_the_reason_while_the_device_is_used_again(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    assert verdict(await bench.run()) == ("Ready", "Bound")
    bench.kernel.fail_next(f"probe:rebellions:{NPU}", "EIO", times=9)
    bench.kernel.fail_next("/sys/bus/pci/drivers/vfio-pci/unbind", "EIO")
    bench.order(order(intent="Release"))
    assert verdict(await bench.run()) == ("Failed", "RestoreFailed")
    bench.kernel.open_device("/dev/vfio/20", pid=78, comm="qemu-kvm")
    bench.clock.advance(200)
    assert verdict(await bench.run()) == ("Failed", "RestoreFailed")


async def test_a_device_that_something_moves_away_again_and_again_says_so_while_it_is_used(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    for _ in range(3):
        bench.move(NPU, "rebellions")
        assert verdict(await bench.run()) == ("Ready", "Bound")
    bench.move(NPU, "rebellions")
    bench.kernel.open_device(NODE, pid=77, comm="train")
    assert verdict(await bench.run()) == ("Failed", "DriftLoop")


def test_a_card_tells_of_the_function_that_no_user_s_end_helps() -> None:
    parts = [
        DeviceReport(address="0000:2b:02.0", state=DeviceState.BLOCKED, reason="InUse", message="in use by qemu-kvm"),
        DeviceReport(address="0000:2b:02.1", state=DeviceState.BLOCKED, reason="NoIOMMU", message="no group"),
    ]
    ready = BoundDevice(address=SRIOV, state=DeviceState.READY, reason="FunctionsBound")
    told = with_parts(ready, parts)
    assert (told.state, told.reason) == (DeviceState.BLOCKED, "NoIOMMU")
    assert told.message == "virtual function 0000:2b:02.1: no group"
    used = BoundDevice(address=SRIOV, state=DeviceState.BLOCKED, reason="InUse", message="in use by qemu-kvm")
    assert with_parts(used, parts).reason == "NoIOMMU"
    assert with_parts(used, parts[:1]).message == "in use by qemu-kvm"
