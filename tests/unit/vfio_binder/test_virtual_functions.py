"""Plain virtual functions: made by npufleet or adopted, each on a VFIO driver, while their card stays with the host."""

import json
from collections.abc import Callable

import pytest

from node_host.acting.journal import JOURNAL, Journal
from node_host.acting.locks import Locks
from node_host.handover.tokens import WAITS
from node_host.pci.device import DEVICES
from tests.builders.binder import Bench, condition_of, host, npu, order, report_of, verdict
from tests.builders.fault_scenes import SRIOV_CARD, functions_of, sriov_card

Make = Callable[..., Bench]

CARD = SRIOV_CARD
FIRST, SECOND, THIRD = "0000:61:10.0", "0000:61:10.2", "0000:61:10.4"
LOADED = [{"name": "vfio_pci", "state": "Loaded"}, {"name": "igbvf", "state": "Loaded"}]


def number(bench: Bench) -> int:
    return int(bench.kernel.host().read(f"{DEVICES}/{CARD}/sriov_numvfs"))


def offered(bench: Bench) -> bool:
    return bench.kernel.host().read(f"{DEVICES}/{CARD}/sriov_drivers_autoprobe") == b"1\n"


def write(bench: Bench, attribute: str, value: int) -> None:
    bench.kernel.write(f"{DEVICES}/{CARD}/{attribute}", str(value).encode())


def group(bench: Bench, address: str) -> str:
    return bench.kernel.host().read_link(f"{DEVICES}/{address}/iommu_group").rpartition("/")[2]


def parts(reported: object) -> dict[str, tuple[str, str]]:
    report = report_of(reported, CARD)  # type: ignore[arg-type]
    return {part.address: (str(part.state), part.reason) for part in report.virtual_functions}


async def made(make: Make, wanted: int = 2, **card: object) -> Bench:
    bench = make(host(sriov_card(**card), modules=LOADED))
    bench.order(functions_of(wanted))
    assert verdict(await bench.run(), CARD) == ("Ready", "FunctionsBound")
    bench.mark()
    return bench


async def test_functions_are_made_unseen_by_the_host_s_drivers_and_bound_one_by_one(make: Make) -> None:
    bench = make(host(sriov_card(), modules=LOADED))
    bench.order(functions_of(2))
    done = await bench.run()
    assert bench.sysfs_writes == [
        (f"{CARD}/sriov_drivers_autoprobe", "0"),
        (f"{CARD}/sriov_numvfs", "2"),
        (f"{FIRST}/driver_override", "vfio-pci"),
        ("drivers_probe", FIRST),
        (f"{SECOND}/driver_override", "vfio-pci"),
        ("drivers_probe", SECOND),
        (f"{CARD}/sriov_drivers_autoprobe", "1"),
    ]
    assert verdict(done, CARD) == ("Ready", "FunctionsBound")
    assert parts(done) == {FIRST: ("Ready", "Bound"), SECOND: ("Ready", "Bound")}
    assert bench.driver(CARD) == "igb"
    listed = {device.address: (device.function, device.driver) for device in done.inventory.devices}
    assert listed == {CARD: ("Physical", "igb"), FIRST: ("Virtual", "vfio-pci"), SECOND: ("Virtual", "vfio-pci")}
    entry = bench.journal().entries[CARD].functions
    assert entry is not None
    assert (entry.former_number, entry.former_autoprobe, entry.made) == (0, True, 2)
    bench.mark()
    bench.restart()
    assert (await bench.run()).planned.is_empty
    assert bench.writes == []


async def test_a_released_card_has_no_functions_again_and_its_switch_as_it_was(make: Make) -> None:
    bench = await made(make)
    bench.order(functions_of(2, intent="Release"))
    assert verdict(await bench.run(), CARD) == ("Released", "Released")
    assert bench.sysfs_writes == [(f"{CARD}/sriov_numvfs", "0")]
    assert (number(bench), offered(bench), bench.journal().entries) == (0, True, {})
    bench.mark()
    assert (await bench.run()).planned.is_empty
    assert bench.writes == []


async def test_another_number_goes_through_none_and_reuses_nothing(make: Make) -> None:
    bench = await made(make, 2)
    bench.order(functions_of(3))
    done = await bench.run()
    assert [write for write in bench.sysfs_writes if write[0].endswith("sriov_numvfs")] == [
        (f"{CARD}/sriov_numvfs", "0"),
        (f"{CARD}/sriov_numvfs", "3"),
    ]
    assert parts(done) == dict.fromkeys((FIRST, SECOND, THIRD), ("Ready", "Bound"))
    assert bench.journal().entries.keys() == {CARD, FIRST, SECOND, THIRD}
    bench.order(functions_of(1))
    assert parts(await bench.run()) == {FIRST: ("Ready", "Bound")}
    assert bench.journal().entries.keys() == {CARD, FIRST}
    assert offered(bench)


@pytest.mark.parametrize("then", [functions_of(3), functions_of(2, intent="Release"), functions_of(None)])
async def test_while_a_vm_has_one_function_nothing_of_the_card_is_written_and_the_vm_is_named(
    make: Make, then: dict[str, object]
) -> None:
    bench = await made(make)
    node = f"/dev/vfio/{group(bench, SECOND)}"
    bench.kernel.open_device(node, comm="qemu", pid=4711)
    bench.order(then)
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "InUse")
    assert f"in use by qemu (pid 4711 has {node} open), through its virtual function {SECOND}" in (
        report_of(done, CARD).message
    )
    assert (bench.writes, number(bench)) == ([], 2)
    bench.kernel.close_device(node)
    assert verdict(await bench.run(), CARD)[0] in ("Ready", "Released")


async def test_a_vm_that_opened_one_between_the_look_and_the_write_is_seen(make: Make) -> None:
    bench = await made(make)
    bench.order(functions_of(3))

    async def vm_opens(_: object) -> None:
        bench.kernel.open_device(f"/dev/vfio/{group(bench, FIRST)}", comm="qemu")

    done = await bench.binder.run(bench.orders, progress=vm_opens)
    assert verdict(done, CARD) == ("Blocked", "InUse")
    assert bench.writes == []


async def test_fewer_than_asked_is_a_failure_with_both_numbers_and_undone(make: Make) -> None:
    bench = make(host(sriov_card(virtualFunctions={"device": "10ca", "enabledAtMost": 3}), npu(), modules=LOADED))
    bench.order(functions_of(5), order())
    done = await bench.run()
    assert verdict(done, CARD) == ("Failed", "VerifyFailed")
    assert report_of(done, CARD).message == (
        "asked for 5 virtual functions, the kernel has 3; undone: it has 0 of them"
    )
    assert (number(bench), offered(bench)) == (0, True)
    assert bench.journal().entries.keys() == {"0000:23:00.0"}
    assert verdict(done) == ("Ready", "Bound")
    bench.mark()
    assert (await bench.run()).planned.is_empty
    assert bench.writes == []


async def test_more_than_the_card_can_have_is_said_with_both_numbers_before_anything_is_written(make: Make) -> None:
    bench = make(host(sriov_card()))
    bench.order(functions_of(9))
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "TooManyFunctions")
    assert report_of(done, CARD).message == "9 virtual functions are ordered, it can have 7 (sriov_totalvfs)"
    assert bench.sysfs_writes == []


async def test_a_card_without_sriov_or_without_a_driver_is_not_touched(make: Make) -> None:
    bench = make(host(sriov_card(sriovTotalVFs=None, virtualFunctions={})))
    bench.order(functions_of(2))
    assert verdict(await bench.run(), CARD) == ("Blocked", "NoSRIOV")
    assert bench.sysfs_writes == []
    bench = make(host(sriov_card()))
    bench.move(CARD, None)
    bench.mark()
    bench.order(functions_of(2))
    assert verdict(await bench.run(), CARD) == ("Blocked", "NoDriver")
    assert bench.sysfs_writes == []


async def test_a_driver_that_makes_none_is_named_and_the_switch_is_as_before(make: Make) -> None:
    bench = make(host(npu(sriovTotalVFs=4, virtualFunctions={"firstOffset": 8})))
    bench.order(order(virtualFunctions=2))
    done = await bench.run()
    assert verdict(done) == ("Failed", "NoSRIOV")
    assert "sriov_numvfs: ENOENT" in report_of(done).message
    assert "its driver makes no virtual functions; undone" in report_of(done).message
    assert bench.journal().entries == {}
    assert bench.kernel.host().read(f"{DEVICES}/0000:23:00.0/sriov_drivers_autoprobe") == b"1\n"


async def test_a_bus_without_room_names_the_remedy(make: Make) -> None:
    bench = make(host(sriov_card(virtualFunctions={"device": "10ca", "errors": [{"errno": "ENOMEM", "times": 1}]})))
    bench.order(functions_of(2))
    done = await bench.run()
    assert verdict(done, CARD) == ("Failed", "FunctionsFailed")
    assert "pci=realloc" in report_of(done, CARD).message
    bench.clock.advance(10)
    assert verdict(await bench.run(), CARD) == ("Ready", "FunctionsBound")


async def test_as_many_as_ordered_that_were_there_are_adopted_and_stay_on_release(make: Make) -> None:
    bench = make(host(sriov_card(), modules=LOADED))
    write(bench, "sriov_numvfs", 2)
    assert bench.driver(FIRST) == "igbvf"
    bench.move(SECOND, "vfio-pci", override="vfio-pci")
    bench.mark()
    bench.order(functions_of(2))
    done = await bench.run()
    assert verdict(done, CARD) == ("Ready", "FunctionsBound")
    assert "were there before npufleet" in report_of(done, CARD).message
    assert parts(done) == {FIRST: ("Ready", "Bound"), SECOND: ("Ready", "Adopted")}
    assert bench.touched() == {FIRST}
    bench.order(functions_of(2, intent="Release"))
    assert verdict(await bench.run(), CARD) == ("Released", "Released")
    assert (number(bench), bench.driver(FIRST), bench.driver(SECOND)) == (2, "igbvf", "vfio-pci")
    assert bench.journal().entries == {}


async def test_functions_that_were_adopted_go_back_when_the_card_is_for_containers(make: Make) -> None:
    bench = make(host(sriov_card(), modules=LOADED))
    write(bench, "sriov_numvfs", 1)
    bench.order(functions_of(1))
    await bench.run()
    bench.order(functions_of(None, mode="Container"))
    assert verdict(await bench.run(), CARD) == ("Ready", "NativeDriver")
    assert (number(bench), bench.driver(FIRST), bench.journal().entries) == (1, "igbvf", {})


async def test_another_number_of_somebody_else_s_is_left_alone(make: Make) -> None:
    bench = make(host(sriov_card(), modules=LOADED))
    write(bench, "sriov_numvfs", 3)
    bench.mark()
    for then in (functions_of(2), functions_of(None), functions_of(2, intent="Release")):
        bench.order(then)
        done = await bench.run()
        assert verdict(done, CARD)[0] in ("Blocked", "Released")
        assert bench.sysfs_writes == []
    bench.order(functions_of(2))
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "FunctionsOfOthers")
    assert "has 3 virtual functions that npufleet did not make, the order wants 2" in report_of(done, CARD).message


async def test_the_card_itself_is_never_bound_beside_functions_of_others(make: Make) -> None:
    bench = make(host(sriov_card(), modules=LOADED))
    write(bench, "sriov_numvfs", 1)
    bench.mark()
    bench.order(functions_of(None))
    assert verdict(await bench.run(), CARD) == ("Blocked", "InUse")
    assert bench.sysfs_writes == []


async def test_after_a_boot_they_are_made_again(make: Make) -> None:
    bench = await made(make)
    bench.kernel.reboot()
    assert number(bench) == 0
    bench.restart()
    done = await bench.run()
    assert verdict(done, CARD) == ("Ready", "FunctionsBound")
    assert {entry.boot_id for entry in bench.journal().entries.values()} == {bench.kernel.boot_id}
    assert (number(bench), offered(bench)) == (2, True)


async def test_a_boot_that_leaves_orders_no_more_leaves_nothing_in_the_journal(make: Make) -> None:
    bench = await made(make)
    bench.kernel.reboot()
    bench.restart()
    bench.order(functions_of(2, intent="Release"))
    bench.mark()
    assert verdict(await bench.run(), CARD) == ("Released", "Released")
    assert (bench.sysfs_writes, bench.journal().entries) == ([], {})


async def test_one_function_that_no_driver_takes_is_told_and_the_others_are_ready(make: Make) -> None:
    bench = make(host(sriov_card(), npu(), modules=LOADED))
    bench.kernel.fail_next(f"probe:vfio-pci:{SECOND}", "EINVAL", times=2)
    bench.order(functions_of(3), order())
    done = await bench.run()
    assert parts(done) == {FIRST: ("Ready", "Bound"), SECOND: ("Failed", "BindFailed"), THIRD: ("Ready", "Bound")}
    assert verdict(done, CARD) == ("Failed", "BindFailed")
    assert report_of(done, CARD).message.startswith(f"virtual function {SECOND}: bind to vfio-pci: EINVAL")
    assert condition_of(done.bindings)[:2] == ("False", "DevicesFailed")
    assert verdict(done) == ("Ready", "Bound")
    assert offered(bench)
    bench.mark()
    assert parts(await bench.run())[SECOND] == ("Failed", "BindFailed")
    assert bench.writes == []
    bench.clock.advance(10)
    assert verdict(await bench.run(), CARD) == ("Ready", "FunctionsBound")


async def test_functions_that_share_the_card_s_group_cannot_go_to_a_vm_and_that_is_said(make: Make) -> None:
    shared = {"device": "10ca", "iommuGroups": "PhysicalFunction"}
    bench = make(host(sriov_card(virtualFunctions=shared), modules=LOADED))
    bench.order(functions_of(2, companions="Bind"))
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "CompanionManaged")
    assert "stays with the host for its virtual functions, and shares the IOMMU group" in report_of(done, CARD).message
    assert (bench.driver(CARD), bench.driver(FIRST)) == ("igb", None)
    bench.mark()
    assert (await bench.run()).planned.is_empty
    bench.order(functions_of(2, intent="Release"))
    await bench.run()
    assert (number(bench), offered(bench), bench.journal().entries) == (0, True, {})


async def test_a_card_that_no_order_names_any_more_keeps_its_functions_until_one_does(make: Make) -> None:
    bench = await made(make)
    bench.order()
    done = await bench.run()
    assert verdict(done, CARD) == ("Pending", "Orphaned")
    assert report_of(done, CARD).former_driver == "igb"
    assert [report.address for report in done.bindings.devices] == [CARD]
    assert CARD in {device.address for device in done.inventory.devices}
    assert (bench.writes, number(bench)) == ([], 2)
    # What the controller answers with says nothing of functions.
    bench.order(functions_of(None, intent="Release"))
    assert verdict(await bench.run(), CARD) == ("Released", "Released")
    assert (number(bench), bench.journal().entries) == (0, {})


async def test_held_functions_are_left_as_they_are(make: Make) -> None:
    bench = await made(make)
    bench.order(functions_of(2, intent="Hold"))
    done = await bench.run()
    assert verdict(done, CARD) == ("Ready", "FunctionsBound")
    assert parts(done) == {FIRST: ("Ready", "Bound"), SECOND: ("Ready", "Bound")}
    bench.order(functions_of(5, intent="Hold"))
    assert verdict(await bench.run(), CARD) == ("Pending", "Held")
    assert bench.writes == []


async def test_a_release_that_leaves_the_functions_forgets_them(make: Make) -> None:
    bench = await made(make)
    bench.order(functions_of(2, intent="Release", on_release="Leave"))
    assert verdict(await bench.run(), CARD) == ("Released", "Released")
    assert (bench.writes, number(bench), bench.journal().entries) == ([], 2, {})
    assert (await bench.run()).planned.is_empty


async def test_a_function_with_another_order_of_its_own_is_told(make: Make) -> None:
    bench = await made(make)
    other = order(SECOND, vendor="8086", device="10ca", mode="Container")
    bench.order(functions_of(2), other)
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "CompanionManaged")
    assert f"its virtual function {SECOND} is ordered Container" in report_of(done, CARD).message


async def test_functions_that_somebody_removed_are_made_again_but_not_for_ever(make: Make) -> None:
    bench = await made(make)
    for _ in range(3):
        write(bench, "sriov_numvfs", 0)
        assert verdict(await bench.run(), CARD) == ("Ready", "FunctionsBound")
    write(bench, "sriov_numvfs", 0)
    bench.mark()
    assert verdict(await bench.run(), CARD) == ("Failed", "DriftLoop")
    assert bench.writes == []


async def test_functions_that_somebody_made_in_place_of_ours_are_not_removed_on_release(make: Make) -> None:
    bench = await made(make)
    write(bench, "sriov_numvfs", 0)
    write(bench, "sriov_numvfs", 4)
    bench.mark()
    bench.order(functions_of(2, intent="Release"))
    assert verdict(await bench.run(), CARD) == ("Released", "Released")
    assert (bench.sysfs_writes, number(bench), bench.journal().entries) == ([], 4, {})


async def test_a_card_that_the_host_needs_gets_none(make: Make) -> None:
    interface = {"name": "ens1", "addresses": ["10.0.0.7/24"], "gateways": ["10.0.0.1"]}
    bench = make(host(sriov_card(interfaces=[interface])))
    bench.order(functions_of(2))
    assert verdict(await bench.run(), CARD) == ("Blocked", "Vetoed")
    assert bench.sysfs_writes == []


async def test_a_function_that_is_offered_to_pods_keeps_the_number(make: Make) -> None:
    bench = await made(make)
    note = bench.kernel.host().local("/run/npufleet/published.json")
    note.write_text(json.dumps({"version": 1, "bootID": bench.kernel.boot_id, "addresses": [SECOND]}))
    bench.order(functions_of(2, intent="Release"))
    done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "Published")
    assert report_of(done, CARD).message == f"{SECOND}, which goes along: {WAITS}"
    assert bench.writes == []


async def test_the_number_is_changed_under_the_card_s_lock_alone(make: Make) -> None:
    bench = make(host(sriov_card(), npu(), modules=LOADED))
    bench.order(functions_of(2), order())
    with Locks(bench.host, [f"pf-{CARD}"], owner="another"):
        done = await bench.run()
    assert verdict(done, CARD) == ("Blocked", "GroupLocked")
    assert verdict(done) == ("Ready", "Bound")
    bench.clock.advance(20)
    assert verdict(await bench.run(), CARD) == ("Ready", "FunctionsBound")


async def test_with_a_lost_journal_functions_are_kept_and_nobody_calls_them_released(make: Make) -> None:
    bench = await made(make)
    bench.kernel.host().local(JOURNAL).write_bytes(b"")
    bench.restart()
    done = await bench.run()
    assert verdict(done, CARD) == ("Ready", "FunctionsBound")
    bench.order(functions_of(2, intent="Release"))
    assert verdict(await bench.run(), CARD) == ("Blocked", "JournalUnreadable")
    assert (bench.writes, number(bench)) == ([], 2)


async def test_a_journal_of_the_version_before_is_read_and_written_anew(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    path = bench.kernel.host().local(JOURNAL)
    path.write_bytes(path.read_bytes().replace(b'"version": 2', b'"version": 1'))
    assert Journal(path).load().problem is None
    bench.restart()
    bench.order(order(intent="Release"))
    assert verdict(await bench.run()) == ("Released", "Released")
    assert b'"version": 2' in path.read_bytes()
    assert bench.driver() == "rebellions"
