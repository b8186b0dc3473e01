"""The inventory: accelerators alone, each by its address, with what is known of it."""

from collections.abc import Callable

from crds.models.node_state import Bindings
from tests.builders.binder import (
    NPU,
    TWIN,
    Bench,
    audio,
    bridge,
    condition_of,
    disk,
    graphics,
    host,
    nic,
    npu,
    order,
)

Make = Callable[..., Bench]


def addresses(bench: Bench) -> list[str]:
    assert bench.status.inventory is not None
    return [device.address for device in bench.status.inventory.devices]


async def test_a_device_is_described_in_full(make: Make) -> None:
    bench = make(
        host(
            bridge("0000:20:01.0", 40),
            npu(
                parent="0000:20:01.0",
                serial="001eff1250000001",
                subsystemVendor="1eff",
                subsystemDevice="0101",
                numaNode=1,
            ),
        )
    )
    bench.order()
    done = await bench.run()
    assert done.inventory.boot_id == bench.kernel.boot_id
    assert done.inventory.observed_generation == 1
    assert condition_of(done.inventory) == ("True", "InventoryRead", "")
    [device] = done.inventory.to_object()["devices"]
    assert device == {
        "address": NPU,
        "vendor": "1eff",
        "device": "1250",
        "subsystem": "1eff:0101",
        "class": "120000",
        "product": "RBLN-CA25",
        "serial": "00-1e-ff-12-50-00-00-01",
        "driver": "rebellions",
        "iommuGroup": 20,
        "groupViability": "NotViable",
        "numaNode": 1,
        "pcieRoot": "pci0000:20",
        "function": "Physical",
        "usedBy": [],
        "vetoes": [],
    }


async def test_what_is_unknown_is_left_out(make: Make) -> None:
    bench = make(host(npu(group=None, numaNode=-1, device="ffff"), kernel={"iommu": "Disabled"}))
    bench.move(NPU, None)
    bench.order()
    [device] = (await bench.run()).inventory.to_object()["devices"]
    assert device.keys().isdisjoint({"product", "serial", "driver", "iommuGroup", "numaNode"})
    assert device["groupViability"] == "NoGroup"


async def test_accelerators_are_listed_and_other_functions_are_not(make: Make) -> None:
    bench = make(
        host(
            bridge(),
            npu(),
            npu(TWIN, 21, vendor="abcd", device="0001"),
            graphics(),
            audio(),
            graphics("0000:28:00.0", 28, vendor="1a03", device="2000"),
            nic(),
            disk(),
        )
    )
    bench.order()
    await bench.run()
    assert addresses(bench) == [NPU, TWIN, "0000:25:00.0"]


async def test_a_device_that_orders_name_is_listed_whatever_it_is(make: Make) -> None:
    bench = make(host(npu(), nic()))
    bench.order(order("0000:26:00.0", vendor="8086", device="1592", mode="Unmanaged"))
    await bench.run()
    assert addresses(bench) == [NPU, "0000:26:00.0"]


async def test_t21_devices_that_share_a_group_are_all_listed_and_show_their_group(make: Make) -> None:
    cards = [npu(f"0000:23:00.{function}", 20 + function // 2) for function in range(6)]
    bench = make(host(*cards))
    bench.order()
    done = await bench.run()
    assert [(device.address[-1], device.iommu_group) for device in done.inventory.devices] == [
        ("0", 20),
        ("1", 20),
        ("2", 21),
        ("3", 21),
        ("4", 22),
        ("5", 22),
    ]


async def test_t20_what_somebody_else_changed_is_in_the_next_report(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.order()
    await bench.run()
    bench.kernel.load_module("vfio_pci")
    bench.move(TWIN, "vfio-pci", override="vfio-pci")
    bench.kernel.hot_remove(NPU)
    bench.hot_add(npu("0000:2c:00.0", 31))
    done = await bench.run()
    assert {device.address: device.driver for device in done.inventory.devices} == {
        TWIN: "vfio-pci",
        "0000:2c:00.0": "rebellions",
    }


async def test_virtual_functions_enabled_count_as_use_of_their_card(make: Make) -> None:
    bench = make(host(npu(sriovTotalVFs=4)))
    numvfs = bench.kernel.root / "sys/devices/pci0000:20" / NPU / "sriov_numvfs"
    numvfs.write_text("4\n")
    bench.order(order())
    done = await bench.run()
    [device] = done.inventory.devices
    assert [(user.kind, user.detail) for user in device.used_by] == [("VirtualFunctions", "4 are enabled")]
    assert done.bindings.devices[0].reason == "InUse"
    numvfs.write_text("rubbish\n")
    done = await bench.run()
    assert [user.kind for user in done.inventory.devices[0].used_by] == ["Unreadable"]
    assert bench.sysfs_writes == []


async def test_transition_times_move_only_when_a_status_changes(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    first = await bench.run()
    bench.clock.advance(7)
    bench.order(order(), order(TWIN))
    second = await bench.run()
    bench.clock.advance(7)
    third = await bench.run()

    def since(bindings: Bindings, type: str) -> str:
        return next(item.last_transition_time for item in bindings.conditions if item.type == type)

    assert since(first.bindings, "Ready") < since(second.bindings, "Ready") == since(third.bindings, "Ready")
    assert since(first.bindings, "JournalIntact") == since(third.bindings, "JournalIntact")
    assert third.bindings == second.bindings
