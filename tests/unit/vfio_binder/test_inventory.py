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
    report_of,
)

POD = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"
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


async def test_a_process_that_follows_another_within_its_pod_changes_no_status(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    bench.kernel.open_device("/dev/rbln0", pid=100, comm="loader", pod_uid=POD)
    first = await bench.run()
    assert report_of(first).message == "in use by loader (pid 100 has /dev/rbln0 open)"
    bench.kernel.close_device("/dev/rbln0", pid=100)
    bench.kernel.open_device("/dev/rbln0", pid=200, comm="loader", pod_uid=POD)
    second = await bench.run()
    assert (second.inventory, second.bindings) == (first.inventory, first.bindings)
    bench.kernel.close_device("/dev/rbln0", pid=200)
    bench.kernel.open_device("/dev/rbln0", pid=200, comm="loader")
    assert (await bench.run()).inventory != first.inventory


async def test_an_unreadable_publication_is_a_user_beside_any_number_of_pods(make: Make) -> None:
    bench = make(host(npu()))
    for pid in range(100, 140):
        bench.kernel.open_device("/dev/rbln0", pid=pid, comm=f"loader-{pid}", pod_uid=POD)
    bench.kernel.host().local("/run/npufleet").mkdir(parents=True, exist_ok=True)
    bench.kernel.host().local("/run/npufleet/published.json").write_bytes(b"{")
    bench.order(order())
    [device] = (await bench.run()).inventory.devices
    assert len(device.used_by) == 16
    assert [user.kind for user in device.used_by if user.pod_uid is None] == ["Unreadable"]
