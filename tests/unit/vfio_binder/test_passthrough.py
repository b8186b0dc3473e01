"""Single devices: bound as ordered, verified, adopted, given back; a second pass writes nothing."""

from collections.abc import Callable

from tests.builders.binder import (
    NODE_UID,
    NPU,
    TWIN,
    Bench,
    condition_of,
    host,
    npu,
    order,
    report_of,
    verdict,
)

Make = Callable[..., Bench]


async def settled(bench: Bench) -> None:
    """The next pass has nothing to do and says the same."""
    bench.mark()
    before = bench.status
    done = await bench.run()
    assert bench.writes == []
    assert done.planned.is_empty
    assert bench.status == before


async def test_an_idle_device_is_bound_in_the_robust_order(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    done = await bench.run()
    assert bench.writes == [
        ("module:vfio_pci", ""),
        (f"{NPU}/driver_override", "vfio-pci"),
        ("rebellions/unbind", NPU),
        ("drivers_probe", NPU),
    ]
    assert verdict(done) == ("Ready", "Bound")
    assert report_of(done).former_driver == "rebellions"
    assert condition_of(done.bindings)[:2] == ("True", "AllDevicesBound")
    assert bench.override() == "vfio-pci"
    await settled(bench)


async def test_t11_the_listed_idle_device_is_bound_and_its_twins_stay_on_the_host_driver(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21), npu("0000:28:00.0", 22)))
    bench.order(order())
    await bench.run()
    assert bench.driver() == "vfio-pci"
    assert bench.driver(TWIN) == bench.driver("0000:28:00.0") == "rebellions"
    assert bench.touched() == {NPU}
    await settled(bench)


async def test_a_driverless_twin_is_not_taken_along(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.move(TWIN, None)
    bench.mark()
    bench.order(order())
    await bench.run()
    assert bench.driver() == "vfio-pci"
    assert bench.driver(TWIN) is None
    assert bench.touched() == {NPU}
    await settled(bench)


async def test_t2_a_flip_to_the_host_driver_changes_the_driver_once_and_then_writes_nothing(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.mark()
    bench.order(order(mode="Container"))
    done = await bench.run()
    assert verdict(done) == ("Ready", "NativeDriver")
    assert bench.writes == [(f"{NPU}/driver_override", ""), ("vfio-pci/unbind", NPU), ("drivers_probe", NPU)]
    assert bench.driver() == "rebellions"
    assert bench.override() == "(null)"
    await settled(bench)
    bench.order(order())
    assert verdict(await bench.run()) == ("Ready", "Bound")
    await settled(bench)


async def test_t3_devices_in_no_order_and_not_ours_are_never_written_to(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.kernel.load_module("vfio_pci")
    bench.move(TWIN, "vfio-pci", override="vfio-pci")
    bench.mark()
    bench.order()
    done = await bench.run()
    assert bench.writes == []
    assert done.planned.is_empty
    assert done.bindings.devices == ()
    assert condition_of(done.bindings)[:2] == ("True", "NothingOrdered")
    assert [device.address for device in done.inventory.devices] == [NPU, TWIN]
    bench.order(order())
    await bench.run()
    assert bench.touched() == {NPU}


async def test_t5_the_live_host_decides_even_when_an_old_status_says_that_all_is_done(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    status = bench.status
    bench.kernel.reboot()
    assert bench.driver() == "rebellions"
    bench.restart()
    bench.status = status
    assert verdict(bench.status) == ("Ready", "Bound")
    assert verdict(await bench.run()) == ("Ready", "Bound")
    assert bench.driver() == "vfio-pci"


async def test_t9_a_bind_that_reports_success_and_does_nothing_is_failed_and_rolled_back(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    bench.kernel.swallow_next("/sys/bus/pci/drivers_probe")
    bench.kernel.swallow_next("/sys/bus/pci/drivers/vfio-pci/bind")
    done = await bench.run()
    assert verdict(done) == ("Failed", "VerifyFailed")
    assert "rolled back to rebellions" in report_of(done).message
    assert condition_of(done.bindings)[:2] == ("False", "DevicesFailed")
    assert bench.driver() == "rebellions"
    assert bench.override() == "(null)"
    assert bench.journal().entries == {}


async def test_t9_a_device_that_another_driver_snatched_is_not_called_ready(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    bench.kernel.fail_next(f"probe:vfio-pci:{NPU}", "EIO", times=2)
    done = await bench.run()
    assert verdict(done) == ("Failed", "BindFailed")
    assert report_of(done).message == "bind to vfio-pci: EIO (Input/output error); rolled back to rebellions"
    assert bench.driver() == "rebellions"


async def test_a_failed_bind_waits_longer_each_time_and_its_report_does_not_flicker(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    bench.kernel.fail_next(f"probe:vfio-pci:{NPU}", "EIO", times=6)
    failed = await bench.run()
    for wait in (5, 10):
        bench.mark()
        bench.clock.advance(wait - 1)
        again = await bench.run()
        assert bench.writes == []
        assert again.bindings.devices == failed.bindings.devices
        assert bench.binder.next_due() == 1
        bench.clock.advance(1)
        seen = []

        async def note(under_way: object) -> None:
            seen.append(verdict(under_way))  # type: ignore[arg-type]  # noqa: B023

        done = await bench.binder.run(bench.orders, progress=note)
        assert seen == [("Failed", "BindFailed")]
        assert verdict(done) == ("Failed", "BindFailed")
        assert bench.writes != []
    bench.clock.advance(20)
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_new_orders_are_tried_at_once_whatever_failed_before(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    bench.kernel.fail_next(f"probe:vfio-pci:{NPU}", "EIO", times=2)
    assert verdict(await bench.run()) == ("Failed", "BindFailed")
    bench.order(order())
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_t10_a_restarted_binder_writes_nothing_whether_or_not_a_vm_runs(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.kernel.open_device("/dev/vfio/20", comm="qemu-kvm")
    bench.restart()
    bench.mark()
    done = await bench.run()
    assert bench.writes == []
    assert verdict(done) == ("Ready", "Bound")
    assert report_of(done).former_driver == "rebellions"
    used = done.inventory.devices[0].used_by
    assert [(user.kind, user.name) for user in used] == [("Process", "qemu-kvm")]
    assert used[0].detail == "pid 4242 has /dev/vfio/20 open"


async def test_a_change_that_needs_a_device_in_use_waits_and_names_the_user(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.kernel.open_device("/dev/vfio/devices/vfio0", comm="qemu-kvm", pid=77)
    for entry in (order(mode="Container"), order(intent="Release")):
        bench.mark()
        bench.order(entry)
        done = await bench.run()
        assert bench.writes == []
        assert verdict(done) == ("Blocked", "InUse")
        assert report_of(done).message == "in use by qemu-kvm (pid 77 has /dev/vfio/devices/vfio0 open)"
    bench.kernel.close_device("/dev/vfio/devices/vfio0")
    assert verdict(await bench.run()) == ("Released", "Released")
    assert bench.driver() == "rebellions"


async def test_a_device_whose_vendor_node_is_open_is_not_taken(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.kernel.open_device("/dev/rbln0", comm="vllm", pid=3107)
    bench.order(order(), order(TWIN))
    done = await bench.run()
    assert verdict(done) == ("Blocked", "InUse")
    assert report_of(done).message == "in use by vllm (pid 3107 has /dev/rbln0 open)"
    assert verdict(done, TWIN) == ("Ready", "Bound")
    assert bench.touched() == {TWIN}
    bench.kernel.close_device("/dev/rbln0")
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_t13_a_device_on_vfio_before_us_is_adopted_without_a_write_and_stays_there_on_release(make: Make) -> None:
    bench = make(host(npu(), modules=[{"name": "vfio_pci", "state": "Loaded", "ids": ["1eff:1250"]}]))
    if bench.driver() != "vfio-pci":
        bench.move(NPU, "vfio-pci", override="vfio-pci")
    bench.mark()
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Ready", "Adopted")
    assert report_of(done).former_driver is None
    bench.order(order(intent="Release"))
    assert verdict(await bench.run()) == ("Released", "Released")
    assert bench.driver() == "vfio-pci"
    assert bench.writes == []
    assert bench.journal().entries == {}


async def test_t13_what_npufleet_bound_goes_back_to_what_it_had_and_is_then_forgotten(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.order(order(intent="Release"))
    done = await bench.run()
    assert verdict(done) == ("Released", "Released")
    assert bench.driver() == "rebellions"
    assert bench.override() == "(null)"
    assert bench.journal().entries == {}
    bench.order()
    assert (await bench.run()).bindings.devices == ()
    await settled(bench)


async def test_a_device_that_had_no_driver_has_none_after_release(make: Make) -> None:
    bench = make(host(npu()))
    bench.move(NPU, None)
    bench.order(order())
    done = await bench.run()
    assert report_of(done).former_driver == ""
    bench.mark()
    bench.order(order(intent="Release"))
    assert verdict(await bench.run()) == ("Released", "Released")
    assert bench.driver() is None
    assert ("drivers_probe", NPU) not in bench.writes
    await settled(bench)


async def test_a_driver_override_of_the_host_is_there_again_after_release(make: Make) -> None:
    bench = make(host(npu()))
    bench.move(NPU, None, override="none")
    bench.order(order())
    assert verdict(await bench.run()) == ("Ready", "Bound")
    bench.order(order(intent="Release"))
    assert verdict(await bench.run()) == ("Released", "Released")
    assert (bench.driver(), bench.override()) == (None, "none")


async def test_on_release_leave_leaves_the_device_where_it_is(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.mark()
    bench.order(order(intent="Release", on_release="Leave"))
    assert verdict(await bench.run()) == ("Released", "Released")
    assert bench.writes == []
    assert bench.driver() == "vfio-pci"
    assert bench.journal().entries == {}


async def test_t14_another_boot_binds_anew_and_the_same_boot_does_nothing(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    first_boot = bench.kernel.boot_id
    bench.kernel.reboot()
    bench.restart()
    bench.mark()
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert done.bindings.boot_id == bench.kernel.boot_id != first_boot
    assert bench.journal().entries[NPU].boot_id == bench.kernel.boot_id
    assert ("rebellions/unbind", NPU) in bench.writes
    await settled(bench)


async def test_t14_what_somebody_else_bound_in_this_boot_is_adopted_and_no_longer_ours(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.kernel.reboot()
    bench.kernel.load_module("vfio_pci")
    bench.move(NPU, "vfio-pci", override="vfio-pci")
    bench.restart()
    bench.mark()
    done = await bench.run()
    assert verdict(done) == ("Ready", "Adopted")
    assert bench.writes == []
    assert bench.journal().entries == {}
    bench.order(order(intent="Release"))
    await bench.run()
    assert bench.driver() == "vfio-pci"
    assert bench.writes == []


async def test_t1_orders_released_while_the_binder_was_away_are_undone_at_its_start(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.order(order(), order(TWIN))
    await bench.run()
    bench.order(order(intent="Release"), order(TWIN))
    bench.restart()
    bench.mark()
    done = await bench.run()
    assert verdict(done) == ("Released", "Released")
    assert verdict(done, TWIN) == ("Ready", "Bound")
    assert bench.driver() == "rebellions"
    assert bench.touched() == {NPU}


async def test_t1_leftovers_are_not_called_released_while_they_cannot_be_undone(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.order(order(intent="Release"))
    bench.restart()
    bench.kernel.fail_next("/sys/bus/pci/drivers/vfio-pci/unbind", "EIO")
    done = await bench.run()
    assert verdict(done) == ("Failed", "RestoreFailed")
    assert report_of(done).message == "unbind from vfio-pci: EIO (Input/output error)"
    assert condition_of(done.bindings)[:2] == ("False", "DevicesFailed")
    bench.clock.advance(60)
    assert verdict(await bench.run()) == ("Released", "Released")


async def test_t1_a_release_during_a_reboot_needs_no_write_and_forgets(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.kernel.reboot()
    bench.restart()
    bench.mark()
    bench.order(order(intent="Release"))
    done = await bench.run()
    assert verdict(done) == ("Released", "Released")
    assert bench.writes == []
    assert bench.driver() == "rebellions"
    assert bench.journal().entries == {}


async def test_orders_that_are_gone_or_meant_for_another_node_write_nothing(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.mark()
    bench.order(order(intent="Release"), node_uid="another")
    done = await bench.run()
    assert verdict(done) == ("Pending", "Held")
    assert condition_of(done.bindings) == (
        "Unknown",
        "OrdersHeld",
        f"the orders are for the node with UID another, this one has {NODE_UID}: nothing is changed",
    )
    bench.orders = type(bench.orders)(None, NODE_UID)
    done = await bench.run()
    assert done.planned.held == "there is no NPUNodeState for this node: nothing is changed"
    bench.order(order(intent="Release"))
    bench.orders = type(bench.orders)(bench.orders.spec, None, bench.orders.generation)
    done = await bench.run()
    assert done.planned.held == "the UID of this node cannot be read: nothing is changed"
    assert bench.writes == []
    assert bench.driver() == "vfio-pci"
    assert bench.journal().entries.keys() == {NPU}


async def test_an_entry_that_vanished_is_held_as_an_orphan_until_a_release_comes(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.mark()
    bench.order()
    done = await bench.run()
    assert verdict(done) == ("Pending", "Orphaned")
    assert report_of(done).former_driver == "rebellions"
    assert bench.writes == []
    bench.order(order(intent="Release"))
    assert verdict(await bench.run()) == ("Released", "Released")
    assert bench.driver() == "rebellions"


async def test_an_orphan_of_another_boot_is_forgotten(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.kernel.reboot()
    bench.restart()
    bench.order()
    bench.mark()
    done = await bench.run()
    assert done.bindings.devices == ()
    assert bench.journal().entries == {}
    assert bench.writes == []


async def test_held_entries_are_reported_as_they_are_and_not_written_to(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.order(order())
    await bench.run()
    bench.mark()
    bench.order(order(intent="Hold"), order(TWIN, intent="Hold"))
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert verdict(done, TWIN) == ("Pending", "Held")
    bench.order(order(mode="Container", intent="Hold"), order(TWIN, mode="Container", intent="Hold"))
    done = await bench.run()
    assert verdict(done) == ("Pending", "Held")
    assert verdict(done, TWIN) == ("Ready", "NativeDriver")
    assert bench.writes == []


async def test_another_device_at_the_address_is_never_touched(make: Make) -> None:
    bench = make(host(npu(serial="001eff1250000001"), npu(TWIN, 21, device="1220")))
    bench.order(order(serial="00-1e-ff-12-50-00-00-99"), order(TWIN))
    done = await bench.run()
    assert verdict(done) == ("Blocked", "IdentityMismatch")
    assert report_of(done).message == (
        "ordered for serial 00-1e-ff-12-50-00-00-99, but the device tells 00-1e-ff-12-50-00-00-01"
    )
    assert verdict(done, TWIN) == ("Blocked", "IdentityMismatch")
    assert report_of(done, TWIN).message == "ordered for 1eff:1250, but the device is 1eff:1220"
    assert bench.writes == []
    bench.order(order(serial="00-1e-ff-12-50-00-00-01"))
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_a_device_that_is_not_there_is_reported(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order(), order("0000:77:00.0"))
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert verdict(done, "0000:77:00.0") == ("Blocked", "DeviceMissing")
    assert report_of(done, "0000:77:00.0").message == "there is no PCI device at 0000:77:00.0"


async def test_container_and_unmanaged_devices_that_are_not_ours_are_reported_and_left(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21), npu("0000:28:00.0", 22), npu("0000:29:00.0", 23)))
    bench.kernel.load_module("vfio_pci")
    bench.move(TWIN, "vfio-pci", override="vfio-pci")
    bench.move("0000:28:00.0", None)
    bench.mark()
    bench.order(
        order(mode="SoftVNPU"),
        order(TWIN, mode="Container"),
        order("0000:28:00.0", mode="Container"),
        order("0000:29:00.0", mode="Unmanaged"),
    )
    done = await bench.run()
    assert verdict(done) == ("Ready", "NativeDriver")
    assert verdict(done, TWIN) == ("Blocked", "BoundByOthers")
    assert verdict(done, "0000:28:00.0") == ("Blocked", "NoDriver")
    assert verdict(done, "0000:29:00.0") == ("Ready", "LeftAlone")
    assert bench.writes == []
