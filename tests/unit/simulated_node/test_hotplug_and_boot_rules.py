"""Devices that come and go, and the machine that goes down and comes up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulated_node.description_files import parse_device
from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import DRIVERS, NOBODY, NPU, PORT, TWIN, Sleeper
from tests.builders.kernel_rules import allows, shows
from tests.builders.waiting import eventually

NEW = "0000:2b:00.0"


def new_device(address: str = NEW, parent: str = PORT) -> dict[str, object]:
    return {
        "address": address,
        "parent": parent,
        "vendor": "1eff",
        "device": "1250",
        "class": "120000",
        "iommuGroup": 50,
    }


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with hosts.running(tmp_path) as kernel:
        yield kernel


@shows("hotplug.remove")
@allows("hotplug.no-such-device")
def test_removed_device_has_no_name_left(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    where = host.resolve(f"{hosts.DEVICES}/{NPU}")
    kernel.hot_remove(NPU)
    for path in (
        f"{hosts.DEVICES}/{NPU}",
        where,
        f"{DRIVERS}/rebellions/{NPU}",
        "/sys/kernel/iommu_groups/20",
        "/dev/rbln0",
    ):
        assert not host.exists(path), path
    with hosts.refused("ENOENT"):
        host.write(f"{hosts.DEVICES}/{NPU}/driver_override", b"vfio-pci")
    with hosts.refused("ENODEV"):
        host.write(f"{DRIVERS}/rebellions/unbind", NPU.encode())


@shows("hotplug.remove")
def test_everything_below_a_removed_bridge_goes_too(kernel: SimulatedKernel) -> None:
    kernel.hot_remove(PORT)
    assert kernel.host().list(hosts.DEVICES) == []
    assert kernel.host().list("/sys/class/net") == ["bond0", "lo"]


@shows("unbind.waits-for-vfio-user", "hotplug.remove")
def test_removal_waits_for_the_vm(kernel: SimulatedKernel) -> None:
    hosts.give_to_vfio(kernel.host(), NPU)
    kernel.open_device("/dev/vfio/20")
    removal = Sleeper(lambda: kernel.hot_remove(NPU))
    eventually(lambda: kernel.sleeping, every=0.005)
    override = Sleeper(lambda: kernel.host().write(hosts.attribute(NPU, "driver_override"), b"\n"))
    eventually(lambda: len(kernel.sleeping) == 2, every=0.005)
    kernel.close_device("/dev/vfio/20")
    assert removal.result() == "ok"
    assert override.result() in ("ok", "ENODEV"), "whichever woke first"
    assert not kernel.host().exists(f"{hosts.DEVICES}/{NPU}")


@shows("write.device-vanished")
def test_write_to_a_device_that_goes_while_it_is_under_way_fails(kernel: SimulatedKernel) -> None:
    hold = kernel.block(f"{hosts.DEVICES}/{NPU}/driver_override")
    write = Sleeper(lambda: kernel.host().write(hosts.attribute(NPU, "driver_override"), b"vfio-pci"))
    assert hold.wait_until_blocked()
    kernel.hot_remove(NPU)
    hold.release()
    assert write.result() == "ENODEV"


@allows("write.device-vanished")
def test_held_write_to_a_device_that_stays_is_done(kernel: SimulatedKernel) -> None:
    hold = kernel.block(f"{hosts.DEVICES}/{NPU}/*")
    write = Sleeper(lambda: kernel.host().write(hosts.attribute(NPU, "driver_override"), b"vfio-pci"))
    assert hold.wait_until_blocked()
    assert hosts.text(kernel.host(), hosts.attribute(NPU, "driver_override")) == "(null)\n"
    hold.release()
    assert write.result() == "ok"
    assert hosts.text(kernel.host(), hosts.attribute(NPU, "driver_override")) == "vfio-pci\n"


@shows("hotplug.no-such-device")
def test_what_is_not_there_is_not_removed(kernel: SimulatedKernel) -> None:
    with hosts.refused("ENODEV"):
        kernel.hot_remove(NOBODY)


@shows("hotplug.add")
@allows("hotplug.address-taken", "hotplug.no-such-parent")
def test_added_device_is_complete_and_goes_to_its_driver(kernel: SimulatedKernel) -> None:
    kernel.hot_add(parse_device(new_device()))
    host = kernel.host()
    assert hosts.driver_of(host, NEW) == "rebellions"
    assert host.resolve(f"{hosts.DEVICES}/{NEW}") == f"/sys/devices/pci0000:20/{PORT}/{NEW}"
    assert host.exists(f"/sys/kernel/iommu_groups/50/devices/{NEW}")
    assert host.exists("/dev/rbln2")


@shows("hotplug.address-taken")
def test_address_holds_one_device(kernel: SimulatedKernel) -> None:
    with hosts.refused("EEXIST"):
        kernel.hot_add(parse_device(new_device(NPU)))


@shows("hotplug.no-such-parent")
@pytest.mark.parametrize("parent", [NOBODY, NPU])
def test_device_is_added_below_a_bridge_only(kernel: SimulatedKernel, parent: str) -> None:
    with hosts.refused("ENODEV"):
        kernel.hot_add(parse_device(new_device(parent=parent)))


REMOVE = hosts.attribute(NPU, "remove")
RESCAN = "/sys/bus/pci/rescan"


@shows("hotplug.remove-attribute", "hotplug.remove", "hotplug.rescan-finds-what-is-there")
@allows("hotplug.not-a-number")
def test_device_taken_off_the_bus_is_found_again_by_a_rescan(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.write(hosts.attribute(NPU, "driver_override"), b"none")
    host.write(REMOVE, b"1\n")
    assert not host.exists(f"{hosts.DEVICES}/{NPU}")
    host.write(RESCAN, b"0")
    assert not host.exists(f"{hosts.DEVICES}/{NPU}")
    host.write(f"{DRIVERS}/rebellions/unbind", TWIN.encode())
    host.write(RESCAN, b"1")
    assert hosts.driver_of(host, NPU) == "rebellions"
    assert hosts.text(host, hosts.attribute(NPU, "driver_override")) == "(null)\n"
    assert hosts.driver_of(host, TWIN) is None, "what is known stays as it is"


@shows("hotplug.rescan-finds-what-is-there")
def test_rescan_finds_a_bridge_and_everything_below_it(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    before = host.list(hosts.DEVICES)
    host.write(hosts.attribute(PORT, "remove"), b"1")
    assert host.list(hosts.DEVICES) == []
    host.write(RESCAN, b"1")
    assert host.list(hosts.DEVICES) == before
    assert hosts.driver_of(host, PORT) == "pcieport"


@shows("hotplug.rescan-finds-what-is-there")
def test_rescan_of_a_devices_bus_finds_its_neighbours_only(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    other = {**new_device("0000:00:02.0", "pci0000:00")}
    kernel.hot_add(parse_device(other), announced=False)
    kernel.hot_add(parse_device(new_device()), announced=False)
    assert not host.exists(f"{hosts.DEVICES}/{NEW}")
    host.write(hosts.attribute(NPU, "rescan"), b"1")
    assert hosts.driver_of(host, NEW) == "rebellions"
    assert not host.exists(f"{hosts.DEVICES}/0000:00:02.0")
    host.write(RESCAN, b"1")
    assert host.exists(f"{hosts.DEVICES}/0000:00:02.0")


def test_device_pulled_out_is_found_by_no_rescan(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    kernel.hot_remove(NPU)
    host.write(hosts.attribute(TWIN, "remove"), b"1")
    kernel.hot_remove(TWIN)
    host.write(RESCAN, b"1")
    assert not host.exists(f"{hosts.DEVICES}/{NPU}")
    assert not host.exists(f"{hosts.DEVICES}/{TWIN}")


@shows("hotplug.not-a-number")
@pytest.mark.parametrize("path", [REMOVE, RESCAN, hosts.attribute(NPU, "rescan")])
@pytest.mark.parametrize("written", [b"yes", b"\n", b" 1", b"-1"])
def test_remove_and_rescan_want_a_number(kernel: SimulatedKernel, path: str, written: bytes) -> None:
    with hosts.refused("EINVAL"):
        kernel.host().write(path, written)
    assert kernel.host().exists(f"{hosts.DEVICES}/{NPU}")


@shows("hotplug.remove-attribute", "hotplug.one-at-a-time", "unbind.waits-for-vfio-user")
def test_removal_that_sleeps_keeps_every_other_waiting(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    hosts.give_to_vfio(host, NPU)
    kernel.open_device("/dev/vfio/20")
    removal = Sleeper(lambda: host.write(REMOVE, b"1"))
    eventually(lambda: kernel.sleeping == [REMOVE], every=0.005)
    with hosts.refused("ENOENT"):
        host.write(REMOVE, b"1")
    other = hosts.attribute(TWIN, "remove")
    others = [Sleeper(lambda: host.write(other, b"1")), Sleeper(lambda: host.write(RESCAN, b"1"))]
    eventually(lambda: len(kernel.sleeping) == 3, every=0.005)
    host.write(f"{DRIVERS}/rebellions/unbind", TWIN.encode())
    assert host.exists(f"{hosts.DEVICES}/{TWIN}")
    kernel.close_device("/dev/vfio/20")
    assert [removal.result(), *(order.result() for order in others)] == ["ok"] * 3


@shows("boot.addresses-and-groups-may-move")
def test_card_put_in_while_the_machine_is_off_moves_the_others(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    kernel.rebuild(
        move={"0000:21": "0000:22", "0000:22": "0000:23"},
        groups={20: 21, 21: 22},
        add=[parse_device({**new_device("0000:21:00.0"), "iommuGroup": 20, "device": "1220"})],
    )
    assert host.exists(f"{hosts.DEVICES}/{NPU}"), "not before the reboot"
    kernel.reboot()
    serial = bytes.fromhex("0123456789abcdef")[::-1]
    where = [bdf for bdf in host.list(hosts.DEVICES) if serial in host.read(hosts.attribute(bdf, "config"))]
    assert where == ["0000:22:00.0"]
    assert host.resolve(hosts.attribute("0000:22:00.0", "iommu_group")) == "/sys/kernel/iommu_groups/21"
    assert hosts.text(host, hosts.attribute("0000:21:00.0", "device")) == "0x1220\n"
    assert hosts.driver_of(host, "0000:23:00.0") == "rebellions"
    kernel.reboot()
    assert host.exists(f"{hosts.DEVICES}/0000:23:00.0"), "it stays so"


def test_card_taken_out_is_gone_after_the_reboot(kernel: SimulatedKernel) -> None:
    kernel.rebuild(remove=[NPU], groups={21: 20})
    kernel.reboot()
    assert not kernel.host().exists(f"{hosts.DEVICES}/{NPU}")
    assert kernel.host().exists(f"/sys/kernel/iommu_groups/20/devices/{TWIN}")


def test_bridge_moves_with_everything_below_it(kernel: SimulatedKernel) -> None:
    kernel.rebuild(move={PORT: "0000:20:02.0"})
    kernel.reboot()
    assert kernel.host().resolve(f"{hosts.DEVICES}/{NPU}") == f"/sys/devices/pci0000:20/0000:20:02.0/{NPU}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"move": {NPU: TWIN}}, "stands twice"),
        ({"remove": [NOBODY]}, NOBODY),
        ({"remove": [PORT]}, "is no bridge"),
        ({"move": {NPU: "nowhere"}}, "address"),
    ],
)
def test_machine_that_does_not_hang_together_is_not_built(
    kernel: SimulatedKernel, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        kernel.rebuild(**changes)
    kernel.reboot()
    assert kernel.host().exists(f"{hosts.DEVICES}/{NPU}")


@shows("boot.new-boot-id", "boot.forgets-bindings", "boot.loads-modules-by-modalias")
def test_reboot_brings_every_device_back_to_its_native_driver(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    before = kernel.boot_id
    hosts.give_to_vfio(host, NPU)
    host.write(hosts.attribute(TWIN, "driver_override"), b"none")
    kernel.open_device("/dev/vfio/20", pid=99)
    after = kernel.reboot()
    assert after == kernel.boot_id != before
    assert hosts.text(host, "/proc/sys/kernel/random/boot_id") == f"{after}\n"
    assert hosts.driver_of(host, NPU) == "rebellions"
    assert hosts.text(host, hosts.attribute(NPU, "driver_override")) == "(null)\n"
    assert hosts.text(host, hosts.attribute(TWIN, "driver_override")) == "(null)\n"
    assert not host.exists("/sys/module/vfio_pci")
    assert not host.exists("/proc/99")
    assert host.exists("/dev/rbln0")


@shows("boot.tmpfs-emptied")
def test_reboot_empties_what_lies_in_memory_and_keeps_the_disk(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    for directory in ("/run/npufleet/locks", "/dev/shm", "/var/lib/npufleet"):
        host.local(directory).mkdir(parents=True)
        (host.local(directory) / "file").write_text("x")
    (host.local("/var/run") / "through-the-link").write_text("x")
    kernel.reboot()
    assert host.list("/run") == []
    assert not host.exists("/dev/shm")
    assert hosts.text(host, "/var/lib/npufleet/file") == "x"


@shows("boot.sleeping-writes-die")
def test_write_that_sleeps_dies_with_the_machine(kernel: SimulatedKernel) -> None:
    hosts.give_to_vfio(kernel.host(), NPU)
    kernel.open_device("/dev/vfio/20")
    unbind = Sleeper(lambda: kernel.host().write(f"{DRIVERS}/vfio-pci/unbind", NPU.encode()))
    eventually(lambda: kernel.sleeping, every=0.005)
    kernel.reboot()
    assert unbind.result() == "ESHUTDOWN"
    assert hosts.driver_of(kernel.host(), NPU) == "rebellions"


@allows("boot.sleeping-writes-die")
def test_write_after_the_reboot_is_served(kernel: SimulatedKernel) -> None:
    kernel.reboot()
    kernel.host().write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
    assert hosts.driver_of(kernel.host(), NPU) is None


def test_removed_device_is_back_after_a_reboot_and_an_added_one_is_gone(kernel: SimulatedKernel) -> None:
    kernel.hot_remove(NPU)
    kernel.hot_add(parse_device(new_device()))
    kernel.reboot()
    assert kernel.host().exists(f"{hosts.DEVICES}/{NPU}")
    assert not kernel.host().exists(f"{hosts.DEVICES}/{NEW}")


def test_starting_over_an_old_root_is_a_reboot(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as first:
        first_boot = first.boot_id
        hosts.give_to_vfio(first.host(), NPU)
        first.host().local("/var/lib/kept").write_text("x")
        first.host().local("/run/lost").write_text("x")
        written = len(first.writes)
    with hosts.running(tmp_path) as second:
        assert second.boot_id != first_boot
        assert hosts.driver_of(second.host(), NPU) == "rebellions"
        assert second.host().exists("/var/lib/kept")
        assert not second.host().exists("/run/lost")
        second.host().write(hosts.attribute(NPU, "driver_override"), b"\n")
        assert second.writes[-1].seq == written + 1


def test_root_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "host" / "dev").mkdir(parents=True)
    with pytest.raises(ValueError, match="choose an empty directory"), hosts.running(tmp_path):
        pass
    with pytest.raises(ValueError, match="real root"):
        SimulatedKernel("/", hosts.bench())


def test_root_has_one_kernel_at_a_time(tmp_path: Path) -> None:
    with hosts.running(tmp_path), pytest.raises(ValueError, match="another simulated kernel"):
        SimulatedKernel(tmp_path / "host", hosts.bench())


def test_same_description_gives_the_same_tree(tmp_path: Path) -> None:
    def snapshot(root: Path) -> dict[str, object]:
        return {
            str(path.relative_to(root)): path.readlink() if path.is_symlink() else path.is_dir() or path.read_bytes()
            for path in sorted(root.rglob("*"))
            if ".simulated-kernel" not in path.parts
        }

    trees = []
    for name in ("a", "b"):
        with hosts.running(tmp_path / name) as kernel:
            trees.append(snapshot(kernel.root))
    assert trees[0] == trees[1]
    assert len(trees[0]) > 300
