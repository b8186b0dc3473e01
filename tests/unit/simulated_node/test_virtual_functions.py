"""Virtual functions of the simulated kernel: how they come, what they are like, who gets them, how they go."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import DRIVERS, PROBE, Sleeper
from tests.builders.kernel_rules import allows, shows
from tests.builders.sriov import AUTOPROBE, BRIDGE, NUMVFS, PF, PORT, TOTALVFS, VFS, physical, set_vfs, there, with_pf
from tests.builders.waiting import eventually


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with with_pf(tmp_path) as kernel:
        yield kernel


@shows("sriov.creates-vfs", "sriov.vf-address", "sriov.vf-group")
@allows(
    "sriov.not-a-number",
    "sriov.too-many",
    "sriov.no-driver",
    "sriov.driver-without-support",
    "sriov.number-cannot-change",
    "sriov.driver-error",
    "sriov.no-bus-number",
)
def test_vfs_come_linked_with_their_physical_function(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_vfs(host, 3)
    assert hosts.text(host, NUMVFS) == "3\n"
    assert there(host) == list(VFS[:3])
    for address in VFS[:3]:
        assert host.read_link(hosts.attribute(address, "physfn")) == f"../{PF}"
        assert host.resolve(hosts.attribute(address, "physfn")) == f"/sys/devices/pci0000:00/{PORT}/{PF}"
    groups = [host.resolve(hosts.attribute(address, "iommu_group")).rpartition("/")[2] for address in VFS[:3]]
    assert groups == ["0", "2", "4"], "the lowest free numbers"
    assert host.list(f"/sys/kernel/iommu_groups/{groups[0]}/devices") == [VFS[0]]


@shows("sriov.creates-vfs")
def test_vf_has_an_identity_of_its_own(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_vfs(host, 1)
    facts = {name: hosts.text(host, hosts.attribute(VFS[0], name)).strip() for name in ("vendor", "device", "class")}
    assert facts == {"vendor": "0x8086", "device": "0x10ca", "class": "0x020000"}
    assert hosts.text(host, hosts.attribute(VFS[0], "subsystem_vendor")) == "0x8086\n"
    assert hosts.text(host, hosts.attribute(VFS[0], "subsystem_device")) == "0xa03c\n"
    assert hosts.text(host, hosts.attribute(VFS[0], "numa_node")) == "1\n"
    assert hosts.text(host, hosts.attribute(VFS[0], "modalias")).startswith("pci:v00008086d000010CA")
    for absent in ("sriov_numvfs", "sriov_totalvfs", "sriov_drivers_autoprobe", "boot_vga", "virtfn0"):
        assert not host.exists(hosts.attribute(VFS[0], absent)), absent
    assert host.read(hosts.attribute(VFS[0], "config"))[0x100:0x104] == bytes(4), "no serial number"
    assert hosts.text(host, hosts.attribute(PF, "sriov_offset")) == "128\n"
    assert hosts.text(host, hosts.attribute(PF, "sriov_stride")) == "2\n"
    assert hosts.text(host, hosts.attribute(PF, "sriov_vf_device")) == "10ca\n"


def test_vf_may_have_the_ids_of_its_physical_function_or_others(tmp_path: Path) -> None:
    with with_pf(tmp_path / "same", virtualFunctions={"firstOffset": 4, "stride": 1}) as kernel:
        set_vfs(kernel.host(), 2)
        assert there(kernel.host()) == ["0000:01:00.4", "0000:01:00.5"]
        assert hosts.text(kernel.host(), hosts.attribute("0000:01:00.5", "device")) == "0x10c9\n"
        assert hosts.driver_of(kernel.host(), "0000:01:00.5") == "igb"
    other = {"device": "10ca", "class": "120000", "subsystemVendor": "1eff", "subsystemDevice": "0001"}
    with with_pf(tmp_path / "other", virtualFunctions=other) as kernel:
        set_vfs(kernel.host(), 1)
        assert hosts.text(kernel.host(), hosts.attribute(VFS[0], "class")) == "0x120000\n"
        assert hosts.text(kernel.host(), hosts.attribute(VFS[0], "subsystem_vendor")) == "0x1eff\n"
        assert hosts.text(kernel.host(), hosts.attribute(VFS[0], "subsystem_device")) == "0x0001\n"


@shows("sriov.vf-address")
def test_vfs_may_lie_on_the_next_bus_and_still_beside_their_physical_function(tmp_path: Path) -> None:
    with with_pf(tmp_path, virtualFunctions={"device": "10ca", "firstOffset": 254, "stride": 1}) as kernel:
        set_vfs(kernel.host(), 3)
        assert there(kernel.host()) == ["0000:01:1f.6", "0000:01:1f.7", "0000:02:00.0"]
        where = kernel.host().resolve(f"{hosts.DEVICES}/0000:02:00.0")
        assert where == f"/sys/devices/pci0000:00/{PORT}/0000:02:00.0"


@shows("sriov.vf-group")
def test_vfs_share_the_group_of_a_physical_function_that_nothing_isolates(tmp_path: Path) -> None:
    with with_pf(tmp_path, virtualFunctions={"device": "10ca", "iommuGroups": "PhysicalFunction"}) as kernel:
        set_vfs(kernel.host(), 2)
        assert kernel.host().list("/sys/kernel/iommu_groups/3/devices") == [PF, *VFS[:2]]


def test_vf_has_no_group_without_an_iommu(tmp_path: Path) -> None:
    devices = [BRIDGE, physical()]
    nothing: dict[str, list[str]] = {"virtualInterfaces": [], "volumes": [], "mounts": []}
    with hosts.running(tmp_path, devices=devices, kernel={"iommu": "Disabled"}, **nothing) as kernel:
        set_vfs(kernel.host(), 1)
        assert not kernel.host().exists(hosts.attribute(VFS[0], "iommu_group"))


def test_vfs_move_no_memory_of_others(tmp_path: Path) -> None:
    behind = {**physical(), "address": "0000:01:1f.7", "sriovTotalVFs": None}
    del behind["virtualFunctions"]
    with with_pf(tmp_path, behind) as kernel:
        host = kernel.host()
        before = host.read(hosts.attribute("0000:01:1f.7", "resource"))
        set_vfs(host, 7)
        assert host.read(hosts.attribute("0000:01:1f.7", "resource")) == before
        lines = {host.read(hosts.attribute(address, "resource")).splitlines()[0] for address in there(host)}
        assert len(lines) == 7, "each has memory of its own"


@shows("sriov.destroys-vfs", "unbind.succeeds")
def test_vfs_go_although_a_driver_holds_them(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_vfs(host, 4)
    hosts.give_to_vfio(host, VFS[1])
    assert host.exists("/dev/vfio/2")
    set_vfs(host, 0)
    assert hosts.text(host, NUMVFS) == "0\n"
    assert there(host) == []
    for path in (f"{hosts.DEVICES}/{VFS[1]}", f"{DRIVERS}/vfio-pci/{VFS[1]}", "/dev/vfio/2", "/sys/class/vfio/2"):
        assert not host.exists(path), path
    assert host.list("/sys/kernel/iommu_groups") == ["1", "3"]
    set_vfs(host, 2)
    assert hosts.driver_of(host, VFS[1]) is None, "the override went with the VF"
    assert hosts.text(host, hosts.attribute(VFS[1], "driver_override")) == "(null)\n"


@shows("sriov.autoprobe-off-keeps-drivers-away", "sriov.override-beats-autoprobe")
@allows("sriov.autoprobe-format")
def test_vfs_are_kept_from_drivers_until_an_override_asks_for_one(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("igbvf")
    host.load_module("vfio-pci")
    host.write(AUTOPROBE, b"0\n")
    assert hosts.text(host, AUTOPROBE) == "0\n"
    set_vfs(host, 2)
    host.write(PROBE, VFS[0].encode())
    assert [hosts.driver_of(host, address) for address in VFS[:2]] == [None, None]
    with hosts.refused("ENODEV"):
        host.write(f"{DRIVERS}/igbvf/bind", VFS[0].encode())
    host.write(hosts.attribute(VFS[0], "driver_override"), b"vfio-pci")
    host.write(PROBE, VFS[0].encode())
    assert hosts.driver_of(host, VFS[0]) == "vfio-pci"


@allows("sriov.autoprobe-off-keeps-drivers-away")
def test_vfs_go_to_their_driver_with_autoprobe_on(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("igbvf")
    set_vfs(host, 2)
    assert [hosts.driver_of(host, address) for address in VFS[:2]] == ["igbvf"] * 2
    host.write(AUTOPROBE, b"0")
    assert hosts.driver_of(host, VFS[0]) == "igbvf", "who is bound stays"


@shows("sriov.destroying-waits-for-vfio-user", "unbind.waits-for-vfio-user")
def test_destroying_vfs_sleeps_at_the_one_that_a_vm_has(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_vfs(host, 4)
    hosts.give_to_vfio(host, VFS[2])
    group = host.resolve(hosts.attribute(VFS[2], "iommu_group")).rpartition("/")[2]
    kernel.open_device(f"/dev/vfio/{group}")
    order = Sleeper(lambda: set_vfs(host, 0))
    eventually(lambda: kernel.sleeping == [NUMVFS], every=0.005)
    assert [host.exists(f"{hosts.DEVICES}/{address}") for address in VFS] == [False, False, True, True]
    assert there(host) == [VFS[3]], "the link goes before its VF"
    assert not host.exists(hosts.attribute(VFS[2], "physfn"))
    others = [
        Sleeper(lambda: host.write(hosts.attribute(PF, "driver_override"), b"\n")),
        Sleeper(lambda: host.write(hosts.attribute(VFS[2], "driver_override"), b"\n")),
    ]
    eventually(lambda: len(kernel.sleeping) == 3, every=0.005)
    host.write(hosts.attribute(VFS[3], "driver_override"), b"vfio-pci")
    kernel.close_device(f"/dev/vfio/{group}")
    assert order.result() == "ok"
    assert others[0].result() == "ok"
    assert others[1].result() in ("ok", "ENODEV"), "whichever woke first"
    assert there(host) == []
    assert hosts.text(host, NUMVFS) == "0\n"


@shows("sriov.driver-destroys-vfs-when-it-leaves")
def test_vfs_go_with_a_driver_that_destroys_them(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_vfs(host, 2)
    host.write(f"{DRIVERS}/igb/unbind", PF.encode())
    assert hosts.driver_of(host, PF) is None
    assert hosts.text(host, NUMVFS) == "0\n"
    assert there(host) == []
    assert not host.exists(f"{hosts.DEVICES}/{VFS[0]}")


@shows("sriov.destroying-waits-for-vfio-user", "sriov.driver-destroys-vfs-when-it-leaves")
def test_driver_of_the_physical_function_leaves_when_the_vm_lets_its_vf_go(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_vfs(host, 2)
    hosts.give_to_vfio(host, VFS[0])
    kernel.open_device("/dev/vfio/0")
    order = Sleeper(lambda: host.write(f"{DRIVERS}/igb/unbind", PF.encode()))
    eventually(lambda: kernel.sleeping, every=0.005)
    assert hosts.text(host, TOTALVFS) == "7\n", "the driver is not gone yet"
    kernel.close_device("/dev/vfio/0")
    assert order.result() == "ok"
    assert hosts.driver_of(host, PF) is None


@shows("sriov.driver-leaves-vfs-when-it-leaves")
def test_vfs_outlive_a_driver_that_leaves_them(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    hosts.give_to_vfio(host, PF, "pci-pf-stub")
    set_vfs(host, 8)
    host.write(f"{DRIVERS}/pci-pf-stub/unbind", PF.encode())
    assert hosts.text(host, NUMVFS) == "8\n"
    assert len(there(host)) == 8
    with hosts.refused("ENOENT"):
        set_vfs(host, 0)
    host.write(hosts.attribute(PF, "driver_override"), b"\n")
    host.write(PROBE, PF.encode())
    assert hosts.driver_of(host, PF) == "igb"
    with hosts.refused("ERANGE"):
        set_vfs(host, 8)
    set_vfs(host, 0)
    assert there(host) == []


@shows("sriov.removal-takes-vfs")
@pytest.mark.parametrize("driver", ["igb", "pci-pf-stub", None])
@pytest.mark.parametrize("removed", [PF, PORT])
def test_removed_physical_function_takes_its_vfs_along(
    kernel: SimulatedKernel, driver: str | None, removed: str
) -> None:
    host = kernel.host()
    if driver != "igb":
        hosts.give_to_vfio(host, PF, "pci-pf-stub")
    set_vfs(host, 2)
    if driver is None:
        host.write(f"{DRIVERS}/pci-pf-stub/unbind", PF.encode())
    hosts.give_to_vfio(host, VFS[0])
    kernel.hot_remove(removed)
    assert host.list(hosts.DEVICES) == ([PORT] if removed == PF else [])
    assert host.list("/dev/vfio") == ["vfio"]


def test_vf_that_is_removed_alone_is_missing_and_still_counted(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_vfs(host, 2)
    kernel.hot_remove(VFS[0])
    assert not host.exists(f"{hosts.DEVICES}/{VFS[0]}")
    assert hosts.text(host, NUMVFS) == "2\n"
    set_vfs(host, 0)
    assert there(host) == []


@shows("sriov.removal-takes-vfs", "hotplug.rescan-finds-what-is-there")
def test_physical_function_that_is_found_again_has_no_vfs_and_its_switch_is_on(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.write(AUTOPROBE, b"0")
    set_vfs(host, 2)
    host.write(hosts.attribute(PF, "remove"), b"1")
    host.write("/sys/bus/pci/rescan", b"1")
    assert host.list(hosts.DEVICES) == [PORT, PF]
    assert hosts.driver_of(host, PF) == "igb"
    assert hosts.text(host, NUMVFS) == "0\n"
    assert hosts.text(host, AUTOPROBE) == "1\n"


@shows("boot.forgets-bindings")
def test_reboot_leaves_no_vf(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.write(AUTOPROBE, b"0")
    set_vfs(host, 4)
    kernel.reboot()
    assert hosts.text(host, NUMVFS) == "0\n"
    assert hosts.text(host, AUTOPROBE) == "1\n"
    assert there(host) == []
    assert not host.exists(f"{hosts.DEVICES}/{VFS[0]}")


async def test_vfs_are_announced_one_by_one_and_their_physical_function_last(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("igbvf")
    async with host.events() as stream, asyncio.timeout(5):
        set_vfs(host, 2)
        told = [await anext(stream) for _ in range(7)]
        assert [(event.action, event.slot) for event in told] == [
            *((action, address) for address in VFS[:2] for action in ("add", "change", "bind")),
            ("change", PF),
        ]
        set_vfs(host, 0)
        told = [await anext(stream) for _ in range(4)]
        assert [(event.action, event.slot) for event in told] == [
            (action, address) for address in VFS[:2] for action in ("unbind", "remove")
        ]
