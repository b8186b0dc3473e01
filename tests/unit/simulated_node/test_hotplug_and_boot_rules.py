"""Devices that come and go, and the machine that goes down and comes up."""

from collections.abc import Iterator
from pathlib import Path

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
