"""IOMMU groups: they go to a VM as a whole, or not at all, and each member goes back to its own driver."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.builders.binder import (
    NPU,
    Bench,
    audio,
    bridge,
    disk,
    graphics,
    host,
    nic,
    npu,
    order,
    report_of,
    verdict,
)

Make = Callable[..., Bench]

CARD = "0000:25:00.0"
AUDIO = "0000:25:00.1"
BRIDGE = "0000:20:01.0"
NIC = "0000:26:00.0"


def card(intent: str = "Apply", mode: str = "Passthrough", companions: str = "Bind") -> dict[str, Any]:
    blocks = {"companions": companions} if mode == "Passthrough" else {}
    return order(CARD, vendor="10de", device="26b1", intent=intent, mode=mode, **blocks)


async def test_t12_companions_are_bound_and_each_goes_back_to_its_own_former_driver(make: Make) -> None:
    bench = make(host(bridge(), graphics(), audio(), npu("0000:25:00.2", 24)))
    bench.move("0000:25:00.2", None)
    bench.mark()
    bench.order(card())
    done = await bench.run()
    assert verdict(done, CARD) == ("Ready", "Bound")
    assert {CARD, AUDIO, "0000:25:00.2"} == bench.touched()
    assert bench.driver(CARD) == bench.driver(AUDIO) == bench.driver("0000:25:00.2") == "vfio-pci"
    assert bench.driver(BRIDGE) == "pcieport"
    assert verdict(done, AUDIO) == ("Ready", "Companion")
    assert report_of(done, AUDIO).former_driver == "snd_hda_intel"
    assert report_of(done, "0000:25:00.2").former_driver == ""
    assert {device.address: device.group_viability for device in done.inventory.devices}[CARD] == "Viable"
    bench.kernel.open_device("/dev/vfio/24")
    bench.kernel.close_device("/dev/vfio/24")
    bench.order(card(intent="Release"))
    done = await bench.run()
    assert verdict(done, CARD) == ("Released", "Released")
    assert bench.driver(CARD) == "nvidia"
    assert bench.driver(AUDIO) == "snd_hda_intel"
    assert bench.driver("0000:25:00.2") is None
    assert bench.journal().entries == {}


async def test_companions_go_before_the_device_that_they_are_for(make: Make) -> None:
    bench = make(host(graphics(), audio()))
    bench.order(card())
    await bench.run()
    unbound = [data for path, data in bench.writes if path.endswith("/unbind")]
    assert unbound == [AUDIO, CARD]


async def test_t12_a_companion_on_a_host_driver_refuses_the_group_when_companions_are_not_taken_along(
    make: Make,
) -> None:
    bench = make(host(graphics(), audio()))
    bench.order(card(companions="Refuse"))
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "CompanionsRefused")
    assert report_of(done, CARD).message == (
        f"{AUDIO} of the same IOMMU group is on snd_hda_intel; companions: Bind would take it along"
    )
    assert bench.writes == []
    viability = {device.address: device.group_viability for device in done.inventory.devices}
    assert viability == {CARD: "NotViable"}


async def test_refused_companions_that_are_driverless_or_on_a_stub_are_left_as_they_are(make: Make) -> None:
    bench = make(host(bridge(), graphics(), audio(), audio("0000:25:00.2")))
    bench.kernel.load_module("pci_stub")
    bench.move(AUDIO, None)
    bench.move("0000:25:00.2", "pci-stub", override="pci-stub")
    bench.mark()
    bench.order(card(companions="Refuse"))
    assert verdict(await bench.run(), CARD) == ("Ready", "Bound")
    assert bench.touched() == {CARD}
    bench.kernel.open_device("/dev/vfio/24")


@pytest.mark.parametrize(
    ("member", "facts", "why"),
    [
        (
            nic(
                NIC,
                24,
                interfaces=[{"name": "ens1", "addresses": ["10.0.0.7/24"], "gateways": ["10.0.0.1"]}],
            ),
            {},
            f"the host needs it: {NIC} of its IOMMU group: network interface ens1 carries the default route",
        ),
        (
            disk(NIC, 24),
            {"mounts": [{"source": "nvme0n1p2", "point": "/"}]},
            f"the host needs it: {NIC} of its IOMMU group: nvme0n1p2 is mounted on /",
        ),
        (
            graphics(NIC, 24, bootVGA=1),
            {},
            f"the host needs it: {NIC} of its IOMMU group: it is the boot display (boot_vga is 1)",
        ),
    ],
    ids=["default-route", "mounted-disk", "boot-display"],
)
async def test_t12_a_member_that_the_host_needs_vetoes_the_whole_group(
    make: Make, member: dict[str, Any], facts: dict[str, Any], why: str
) -> None:
    bench = make(host(graphics(), audio(), member, **facts))
    bench.order(card())
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "CompanionVetoed")
    assert report_of(done, CARD).message == why
    assert bench.writes == []


async def test_a_device_that_the_host_needs_is_vetoed_itself(make: Make) -> None:
    bench = make(host(graphics(bootVGA=1), audio()))
    bench.order(card())
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "Vetoed")
    assert bench.writes == []


async def test_a_companion_in_use_keeps_the_whole_group_where_it_is(make: Make) -> None:
    bench = make(host(graphics(), npu(AUDIO, 24)))
    bench.kernel.open_device("/dev/rbln0", comm="vllm", pid=3107)
    bench.order(card())
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "CompanionInUse")
    assert report_of(done, CARD).message == (
        f"{AUDIO} of its IOMMU group: in use by vllm (pid 3107 has /dev/rbln0 open)"
    )
    assert bench.writes == []


async def test_an_idle_network_card_is_taken_along_and_one_that_is_up_is_not(make: Make) -> None:
    bench = make(host(graphics(), nic(AUDIO, 24, interfaces=[{"name": "ens1", "state": "Down"}])))
    bench.order(card())
    assert verdict(await bench.run(), CARD) == ("Ready", "Bound")
    busy = make(host(graphics(), nic(AUDIO, 24, interfaces=[{"name": "ens1", "state": "Up"}])))
    busy.order(card())
    done = await busy.run()
    assert verdict(done, CARD) == ("Blocked", "CompanionInUse")
    assert "ens1 (network interface is up)" in report_of(done, CARD).message
    assert busy.writes == []


@pytest.mark.parametrize("intent", ["Apply", "Hold"])
async def test_a_companion_that_another_order_wants_otherwise_is_not_taken_along(make: Make, intent: str) -> None:
    bench = make(host(graphics(), npu(AUDIO, 24)))
    bench.order(card(), order(AUDIO, mode="Container", intent=intent))
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "CompanionManaged")
    assert "by policy vms, rule npus" in report_of(done, CARD).message
    assert verdict(done, AUDIO) == ("Ready", "NativeDriver")
    assert bench.writes == []


async def test_two_ordered_devices_of_a_group_are_bound_together_or_not_at_all(make: Make) -> None:
    bench = make(host(npu(), npu("0000:23:00.1", 20)))
    bench.kernel.open_device("/dev/rbln1", comm="vllm")
    bench.order(order(), order("0000:23:00.1"))
    done = await bench.run()
    assert verdict(done) == ("Blocked", "CompanionInUse")
    assert verdict(done, "0000:23:00.1") == ("Blocked", "InUse")
    assert bench.writes == []
    bench.kernel.close_device("/dev/rbln1")
    done = await bench.run()
    assert verdict(done) == verdict(done, "0000:23:00.1") == ("Ready", "Bound")


async def test_a_member_that_fails_takes_the_whole_group_back(make: Make) -> None:
    bench = make(host(graphics(), audio()))
    bench.kernel.fail_next(f"probe:vfio-pci:{CARD}", "EIO", times=2)
    bench.order(card())
    done = await bench.run()
    assert verdict(done, CARD) == ("Failed", "BindFailed")
    assert bench.driver(CARD) == "nvidia"
    assert bench.driver(AUDIO) == "snd_hda_intel"
    assert bench.journal().entries == {}
    bench.clock.advance(60)
    assert verdict(await bench.run(), CARD) == ("Ready", "Bound")


async def test_a_released_device_that_another_of_its_group_needs_stays_as_its_companion(make: Make) -> None:
    bench = make(host(npu(), npu("0000:23:00.1", 20)))
    bench.order(order(companions="Bind"), order("0000:23:00.1"))
    await bench.run()
    bench.mark()
    bench.order(order(companions="Bind"), order("0000:23:00.1", intent="Release"))
    done = await bench.run()
    assert verdict(done, "0000:23:00.1") == ("Released", "Companion")
    assert bench.writes == []
    bench.order(order(companions="Bind"))
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert verdict(done, "0000:23:00.1") == ("Ready", "Companion")
    bench.order(order(intent="Release"))
    await bench.run()
    assert bench.driver() == bench.driver("0000:23:00.1") == "rebellions"
    assert bench.journal().entries == {}


async def test_a_companion_that_got_orders_of_its_own_is_held_when_they_vanish(make: Make) -> None:
    bench = make(host(npu(), npu("0000:23:00.1", 20)))
    bench.order(order(companions="Bind"))
    await bench.run()
    bench.mark()
    bench.order(order(companions="Bind"), order("0000:23:00.1"))
    done = await bench.run()
    assert verdict(done, "0000:23:00.1") == ("Ready", "Bound")
    assert (await bench.run()).planned.is_empty
    bench.order(order(companions="Bind"))
    assert verdict(await bench.run(), "0000:23:00.1") == ("Pending", "Orphaned")
    assert bench.writes == []


async def test_companions_stay_while_the_orders_of_their_device_are_held_or_gone(make: Make) -> None:
    bench = make(host(graphics(), audio()))
    bench.order(card())
    await bench.run()
    bench.mark()
    bench.order(card(intent="Hold"))
    assert verdict(await bench.run(), AUDIO) == ("Ready", "Companion")
    bench.order()
    done = await bench.run()
    assert verdict(done, CARD) == ("Pending", "Orphaned")
    assert verdict(done, AUDIO) == ("Ready", "Companion")
    assert bench.writes == []


async def test_companions_go_back_when_their_device_is_ordered_to_containers(make: Make) -> None:
    bench = make(host(graphics(), audio()))
    bench.order(card())
    await bench.run()
    bench.order(card(mode="Container"))
    done = await bench.run()
    assert verdict(done, CARD) == ("Ready", "NativeDriver")
    assert bench.driver(CARD) == "nvidia"
    assert bench.driver(AUDIO) == "snd_hda_intel"


async def test_a_companion_that_cannot_go_back_yet_is_reported_and_goes_back_later(make: Make) -> None:
    bench = make(host(graphics(), audio()))
    bench.order(card())
    await bench.run()
    bench.kernel.fail_next(f"probe:snd_hda_intel:{AUDIO}", "EIO", times=2)
    bench.order(card(intent="Release"))
    done = await bench.run()
    assert verdict(done, CARD) == ("Released", "Released")
    assert verdict(done, AUDIO) == ("Failed", "RestoreFailed")
    bench.order()
    bench.clock.advance(60)
    done = await bench.run()
    assert done.bindings.devices == ()
    assert bench.driver(AUDIO) == "snd_hda_intel"
    assert NPU not in bench.touched()
