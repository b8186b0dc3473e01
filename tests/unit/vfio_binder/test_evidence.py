"""What cannot be read counts against touching a device: journal, publication, open handles, host evidence."""

import errno
import json
import threading
from collections.abc import Callable

import pytest

from node_host.acting.journal import JOURNAL
from node_host.evidence.publication import PUBLISHED
from node_host.pci.device import DEVICES
from simulated_node.in_process import InProcessHost
from simulated_node.kernel import SimulatedKernel
from tests.builders.binder import NPU, TWIN, Bench, condition_of, host, nic, npu, order, report_of, verdict
from tests.builders.waiting import until

POD = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"
Make = Callable[..., Bench]


class FaultyHost(InProcessHost):
    """A host on which some files cannot be read; ``broken`` maps parts of paths to errnos."""

    def __init__(self, kernel: SimulatedKernel) -> None:
        super().__init__(kernel)
        self.broken: dict[str, int] = {}

    def _check(self, path: str) -> None:
        for part, number in self.broken.items():
            if part in path:
                raise OSError(number, "broken", path)

    def read(self, path: str) -> bytes:
        self._check(path)
        return super().read(path)

    def read_link(self, path: str) -> str:
        self._check(path)
        return super().read_link(path)

    def list(self, path: str) -> list[str]:
        self._check(path)
        return super().list(path)


def faulty(bench: Bench) -> FaultyHost:
    made = FaultyHost(bench.kernel)
    bench.restart(host=made)
    return made


async def test_what_a_lost_journal_may_have_named_is_not_called_released_until_a_person_has_looked(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    path = bench.kernel.host().local(JOURNAL)
    path.write_bytes(path.read_bytes()[:-20])
    bench.restart()
    bench.mark()
    done = await bench.run()
    assert verdict(done) == ("Ready", "Adopted")
    status, reason, message = condition_of(done.bindings, "JournalIntact")
    assert (status, reason) == ("False", "JournalUnreadable")
    assert "journal.json.corrupt-1" in message
    for changed in ({"intent": "Release"}, {"mode": "Container"}):
        bench.order(order(**changed))
        done = await bench.run()
        assert verdict(done) == ("Blocked", "JournalUnreadable")
        assert "whether npufleet put it there is not known" in (report_of(done).message or "")
    bench.order(order(intent="Release"))
    path.with_name("journal.json.corrupt-1").unlink()
    done = await bench.run()
    assert verdict(done) == ("Released", "Released")
    assert condition_of(done.bindings, "JournalIntact")[:2] == ("True", "JournalRead")
    assert bench.driver() == "vfio-pci"
    assert bench.writes == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\0" * 100,
        b'{"version": 2, "devices": {}}',
        b'{"version": 3, "checksum": "0", "devices": {}}',
        b'{"version": 1, "checksum": "0", "devices": {}}',
        b"[" * 9999,
    ],
)
async def test_any_other_journal_than_one_of_this_version_is_set_aside_and_work_goes_on(
    make: Make, content: bytes
) -> None:
    bench = make(host(npu()))
    path = bench.kernel.host().local(JOURNAL)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert path.with_name("journal.json.corrupt-1").read_bytes() == content
    assert condition_of(done.bindings, "JournalIntact")[0] == "False"


async def test_without_a_journal_that_can_be_written_nothing_is_changed(make: Make) -> None:
    bench = make(host(npu()))
    path = bench.kernel.host().local(JOURNAL)
    path.parent.parent.mkdir(parents=True)
    path.parent.write_text("a file where the directory should be")
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "JournalUnreadable")
    assert bench.sysfs_writes == []
    assert bench.driver() == "rebellions"


async def test_a_published_device_is_left_and_so_is_every_device_when_that_cannot_be_read(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    path = bench.kernel.host().local(PUBLISHED)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "bootID": bench.kernel.boot_id, "addresses": [NPU]}))
    bench.order(order(), order(TWIN))
    done = await bench.run()
    assert verdict(done) == ("Blocked", "Published")
    assert verdict(done, TWIN) == ("Ready", "Bound")
    assert bench.touched() == {TWIN}
    for content in ("", "[]", '{"version": 1, "bootID": "x"}', '{"version": 9, "bootID": "x", "addresses": []}'):
        path.write_text(content)
        bench.mark()
        bench.order(order(), order(TWIN, intent="Release"))
        done = await bench.run()
        assert verdict(done) == verdict(done, TWIN) == ("Blocked", "Published")
        assert "cannot be read" in report_of(done).message
        assert bench.writes == []
        assert [user.kind for user in done.inventory.devices[0].used_by] == ["Unreadable"]
    path.write_text(json.dumps({"version": 1, "bootID": "another", "addresses": [NPU]}))
    assert verdict(await bench.run()) == ("Ready", "Bound")


@pytest.mark.parametrize(
    "part", ["/proc/1/mountinfo", "net/route", "net/fib_trie", "net/if_inet6", "/sys/class/net", "/sys/block", "swaps"]
)
async def test_host_evidence_that_cannot_be_read_vetoes_every_device(make: Make, part: str) -> None:
    bench = make(host(npu()))
    faults = faulty(bench)
    faults.broken[part] = errno.EIO
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "Vetoed")
    assert part in report_of(done).message
    assert [veto.reason for veto in done.inventory.devices[0].vetoes] == ["Unreadable"]
    assert bench.writes == []
    faults.broken.clear()
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_interfaces_of_another_network_namespace_than_the_host_s_veto_every_device(make: Make) -> None:
    bench = make(
        host(npu(), nic(interfaces=[{"name": "ens1", "addresses": ["10.0.0.7/24"], "gateways": ["10.0.0.1"]}]))
    )

    class PodNetwork(InProcessHost):
        def list(self, path: str) -> list[str]:
            return ["eth0", "lo"] if path == "/sys/class/net" else super().list(path)

    bench.order(order())
    whole = bench.host
    bench.restart(host=PodNetwork(bench.kernel))
    done = await bench.run()
    assert verdict(done) == ("Blocked", "Vetoed")
    assert (
        "network interface ens1 carries the default route and has address 10.0.0.7, but is" in report_of(done).message
    )
    assert bench.writes == []
    bench.restart(host=whole)
    assert verdict(await bench.run()) == ("Ready", "Bound")


@pytest.mark.parametrize("directory", ["/proc", "/proc/99/fd"])
async def test_open_handles_that_cannot_be_read_count_as_use(make: Make, directory: str) -> None:
    bench = make(host(npu()))
    bench.kernel.open_device("/dev/rsd0", comm="other", pid=99)

    class Deaf(InProcessHost):
        def list(self, path: str) -> list[str]:
            if path == directory:
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return super().list(path)

    bench.restart(host=Deaf(bench.kernel))
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "InUse")
    assert "open handles cannot be read" in report_of(done).message
    assert bench.writes == []


@pytest.mark.parametrize("attribute", ["vendor", "device", "class", "driver", "iommu_group", "driver_override"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV])
async def test_a_device_whose_identity_or_place_cannot_be_read_is_one_condition_and_the_others_go_on(
    make: Make, attribute: str, number: int
) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.order(order(), order(TWIN))
    faults = faulty(bench)
    first = await bench.run()
    assert [device.address for device in first.inventory.devices] == [NPU, TWIN]
    bench.move(TWIN, "rebellions")
    bench.mark()
    faults.broken[f"{NPU}/{attribute}"] = number
    done = await bench.run()
    assert verdict(done) == ("Blocked", "DeviceUnreadable")
    assert verdict(done, TWIN) == ("Ready", "Bound")
    assert bench.touched() == {TWIN}
    status, reason, message = condition_of(done.inventory, "DevicesReadable")
    assert (status, reason) == ("False", "DevicesUnreadable")
    assert message.startswith(f"{NPU}: cannot be read: {attribute}: ")
    kept = done.inventory.devices[0]
    assert (kept.address, [user.kind for user in kept.used_by]) == (NPU, ["Unreadable"])
    assert condition_of(done.inventory)[0] == "True"


@pytest.mark.parametrize("hangs", [False, True], ids=["refused", "hung"])
async def test_a_serial_number_that_cannot_be_read_for_a_moment_changes_nothing(make: Make, hangs: bool) -> None:
    serial = "00-1e-ff-12-50-00-00-01"
    bench = make(host(npu(serial="001eff1250000001"), npu(TWIN, 21)), read_seconds=0.3 if hangs else 5)
    bench.order(order(serial=serial))
    before = await bench.run()
    assert verdict(before) == ("Ready", "Bound")
    answer = threading.Event()

    class Silent(InProcessHost):
        def read(self, path: str) -> bytes:
            if path.endswith(f"{NPU}/config"):
                if hangs:
                    answer.wait(20)
                raise OSError(errno.EIO, "Input/output error", path)
            return super().read(path)

    whole = bench.host
    bench.restart(host=Silent(bench.kernel))
    bench.mark()
    try:
        done = await bench.run()
        assert verdict(done) == ("Ready", "Bound")
        assert done.inventory.devices == before.inventory.devices
        assert condition_of(done.inventory, "DevicesReadable")[:2] == ("False", "DevicesUnreadable")
        assert bench.writes == []
        bench.order(order(serial=serial, intent="Release"))
        assert verdict(await bench.run()) == ("Released", "Released")
        assert bench.driver() == "rebellions"
    finally:
        answer.set()
    bench.restart(host=whole)
    assert bench.journal().entries == {}


async def test_a_member_that_cannot_be_read_keeps_its_group_from_a_vm(make: Make) -> None:
    bench = make(host(npu(), npu("0000:23:00.1", 20)))
    faults = faulty(bench)
    faults.broken["0000:23:00.1/vendor"] = errno.EIO
    bench.order(order(companions="Bind"))
    done = await bench.run()
    assert verdict(done) == ("Blocked", "DeviceUnreadable")
    assert "0000:23:00.1 of its IOMMU group" in report_of(done).message
    assert bench.writes == []


async def test_group_members_that_cannot_be_listed_keep_the_group_from_a_vm(make: Make) -> None:
    bench = make(host(npu()))
    faults = faulty(bench)
    faults.broken["/sys/kernel/iommu_groups/20"] = errno.EIO
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "DeviceUnreadable")
    assert bench.writes == []


async def test_a_bus_that_cannot_be_listed_is_no_empty_bus(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    faults = faulty(bench)
    before = await bench.run()
    faults.broken["/sys/bus/pci/devices"] = errno.EIO
    bench.mark()
    done = await bench.run()
    assert verdict(done) == ("Blocked", "DeviceUnreadable")
    assert condition_of(done.inventory)[:2] == ("False", "BusUnreadable")
    assert done.inventory.devices == before.inventory.devices
    assert bench.writes == []
    assert bench.journal().entries.keys() == {NPU}


class Bare(InProcessHost):
    """A host whose /sys is not mounted, or mounted empty; /proc is there."""

    def __init__(self, kernel: SimulatedKernel, *, is_empty: bool) -> None:
        super().__init__(kernel)
        self._is_empty = is_empty

    def list(self, path: str) -> list[str]:
        if path.startswith("/sys/"):
            if self._is_empty and path == DEVICES:
                return []
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return super().list(path)

    def resolve(self, path: str) -> str:
        if path.startswith("/sys/"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return super().resolve(path)


@pytest.mark.parametrize("on_release", ["Restore", "Leave"])
@pytest.mark.parametrize("is_empty", [False, True], ids=["absent", "empty"])
async def test_a_host_without_its_sysfs_is_not_one_whose_devices_are_gone(
    make: Make, is_empty: bool, on_release: str
) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.order(order(), order(TWIN))
    before = await bench.run()
    remembered = bench.journal().entries
    whole = bench.host
    bench.restart(host=Bare(bench.kernel, is_empty=is_empty))
    bench.mark()
    bench.order(order(intent="Release", on_release=on_release))
    done = await bench.run()
    assert verdict(done) == ("Blocked", "DeviceUnreadable")
    assert "/sys/bus/pci/devices cannot be listed" in report_of(done).message
    assert condition_of(done.inventory)[:2] == ("False", "BusUnreadable")
    assert done.inventory.devices == before.inventory.devices
    assert bench.journal().entries == remembered
    assert bench.writes == []
    bench.restart(host=whole)
    assert verdict(await bench.run()) == ("Released", "Released")
    assert bench.driver() == ("rebellions" if on_release == "Restore" else "vfio-pci")


async def test_entries_of_another_boot_stay_while_the_host_cannot_be_read(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.kernel.reboot()
    bench.restart(host=Bare(bench.kernel, is_empty=False))
    bench.order()
    assert (await bench.run()).planned.is_empty
    assert bench.journal().entries.keys() == {NPU}


@pytest.mark.parametrize("value", [b"", b"garbage\n", b"0x\n", b"\xff\xfe", b"0x1eff" * 100000])
async def test_an_identity_that_is_garbage_is_never_acted_on(make: Make, value: bytes) -> None:
    bench = make(host(npu()))

    class Garbage(InProcessHost):
        def read(self, path: str) -> bytes:
            return value if path.endswith(f"{NPU}/vendor") else super().read(path)

    bench.restart(host=Garbage(bench.kernel))
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "DeviceUnreadable")
    assert bench.writes == []
    assert len(report_of(done).message) < 300


async def test_a_read_that_hangs_is_one_device_s_condition_until_it_answers(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)), read_seconds=0.3)
    answer = threading.Event()
    hung = threading.Event()

    class Hanging(InProcessHost):
        def read(self, path: str) -> bytes:
            if path.endswith(f"{NPU}/numa_node") and not answer.is_set():
                hung.set()
                answer.wait(20)
            return super().read(path)

    bench.restart(host=Hanging(bench.kernel))
    bench.order(order(), order(TWIN))
    done = await bench.run()
    assert hung.is_set()
    assert verdict(done) == ("Blocked", "DeviceUnreadable")
    assert report_of(done).message == f"the device cannot be read: no answer within 0.3 s ({NPU})"
    assert verdict(done, TWIN) == ("Ready", "Bound")
    assert report_of(await bench.run()) == report_of(done)
    answer.set()
    await until(lambda: not bench.binder._calls._hung)
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_only_the_last_user_who_goes_or_the_last_of_no_pod_is_a_reason_to_look_at_everything_again(
    make: Make,
) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.order(order(intent="Hold"))
    await bench.run()
    assert not bench.binder.watches_users()
    for node in ("/dev/rbln0", "/dev/rbln1"):
        bench.kernel.open_device(node, pid=77, comm="train", pod_uid=POD)
    bench.kernel.open_device("/dev/rbln0", pid=78, comm="rbln-smi")
    await bench.run()
    assert bench.binder.watches_users()
    assert not await bench.binder.is_let_go()
    # No order speaks of this one, and one more user changes nothing.
    bench.kernel.close_device("/dev/rbln1")
    bench.kernel.open_device("/dev/rbln0", pid=79, comm="eval", pod_uid=POD)
    bench.kernel.close_device("/dev/rbln0", pid=77)
    assert not await bench.binder.is_let_go()
    bench.kernel.close_device("/dev/rbln0", pid=78)
    assert await bench.binder.is_let_go()
    await bench.run()
    assert not await bench.binder.is_let_go()
    bench.kernel.close_device("/dev/rbln0", pid=79)
    assert await bench.binder.is_let_go()
    await bench.run()
    assert not bench.binder.watches_users()


async def test_a_device_that_goes_along_is_watched_with_the_one_that_is_ordered(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 20)))
    bench.order(order(companions="Bind"))
    bench.kernel.open_device("/dev/rbln1", pid=77, comm="train")
    assert verdict(await bench.run()) == ("Blocked", "CompanionInUse")
    assert bench.binder.watches_users()
    bench.kernel.close_device("/dev/rbln1")
    assert await bench.binder.is_let_go()
