"""Virtual functions of the simulated kernel: how they come, what they are like, who gets them, how they go."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from node_host.host import Host
from simulated_node.description_files import parse_device
from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import DRIVERS, PROBE, Sleeper
from tests.builders.kernel_rules import allows, shows
from tests.builders.waiting import eventually

PORT = "0000:00:02.0"
PF = "0000:01:00.0"
VFS = ("0000:01:10.0", "0000:01:10.2", "0000:01:10.4", "0000:01:10.6")
NUMVFS = hosts.attribute(PF, "sriov_numvfs")
TOTALVFS = hosts.attribute(PF, "sriov_totalvfs")
AUTOPROBE = hosts.attribute(PF, "sriov_drivers_autoprobe")
UNBIND_VFIO = f"{DRIVERS}/vfio-pci/unbind"

BRIDGE = {
    "address": PORT,
    "parent": "pci0000:00",
    "vendor": "8086",
    "device": "2030",
    "class": "060400",
    "iommuGroup": 1,
}


def physical(**changes: Any) -> dict[str, Any]:
    """A network card as QEMU's igb: eight VFs, of which the driver allows seven."""
    return {
        "address": PF,
        "parent": PORT,
        "vendor": "8086",
        "device": "10c9",
        "class": "020000",
        "subsystemVendor": "8086",
        "subsystemDevice": "a03c",
        "numaNode": 1,
        "iommuGroup": 3,
        "serial": "0102030405060708",
        "sriovTotalVFs": 8,
        "virtualFunctions": {"device": "10ca"},
        **changes,
    }


def with_pf(tmp_path: Path, *others: dict[str, Any], **changes: Any) -> AbstractContextManager[SimulatedKernel]:
    return hosts.running(
        tmp_path,
        devices=[BRIDGE, physical(**changes), *others],
        virtualInterfaces=[],
        volumes=[],
        mounts=[],
    )


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with with_pf(tmp_path) as kernel:
        yield kernel


def there(host: Host) -> list[str]:
    """The addresses behind the virtfn links, in their order."""
    links = [name for name in host.list(f"{hosts.DEVICES}/{PF}") if name.startswith("virtfn")]
    return [host.read_link(hosts.attribute(PF, name)).rpartition("/")[2] for name in sorted(links)]


def set_vfs(host: Host, number: int) -> None:
    host.write(NUMVFS, str(number).encode())


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


@shows("sriov.number-cannot-change")
def test_other_number_of_vfs_is_refused(kernel: SimulatedKernel) -> None:
    set_vfs(kernel.host(), 2)
    for number in (1, 3):
        with hosts.refused("EBUSY"):
            set_vfs(kernel.host(), number)
    assert there(kernel.host()) == list(VFS[:2])


@shows("sriov.same-number-does-nothing")
def test_number_that_is_there_succeeds_even_without_a_driver(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_vfs(host, 2)
    hosts.give_to_vfio(host, VFS[0])
    set_vfs(host, 2)
    assert hosts.driver_of(host, VFS[0]) == "vfio-pci"
    set_vfs(host, 0)
    host.write(f"{DRIVERS}/igb/unbind", PF.encode())
    set_vfs(host, 0)


@shows("sriov.not-a-number")
@pytest.mark.parametrize(
    "written",
    [
        b"many",
        b"\n",
        b" 2",
        b"2 ",
        b"2\n\n",
        b"-2",
        b"+-2",
        b"2.0",
        b"0x",
        b"0xg",
        b"08",
        b"65536",
        b"2,",
        b"\0",
        b"1e1",
    ],
)
def test_what_is_no_number_of_vfs_is_refused(kernel: SimulatedKernel, written: bytes) -> None:
    with hosts.refused("EINVAL"):
        kernel.host().write(NUMVFS, written)
    assert hosts.text(kernel.host(), NUMVFS) == "0\n"


@allows("sriov.not-a-number")
@pytest.mark.parametrize(
    ("written", "number"),
    [(b"2", 2), (b"2\n", 2), (b"+2", 2), (b"0x4", 4), (b"0X4\n", 4), (b"03", 3), (b"00", 0), (b"4\0more", 4)],
)
def test_number_of_vfs_is_read_as_the_kernel_reads_numbers(
    kernel: SimulatedKernel, written: bytes, number: int
) -> None:
    kernel.host().write(NUMVFS, written)
    assert hosts.text(kernel.host(), NUMVFS) == f"{number}\n"


@shows("sriov.too-many", "sriov.driver-lowers-total")
def test_more_vfs_than_the_driver_allows_are_refused(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    assert hosts.text(host, TOTALVFS) == "7\n"
    for number in (8, 9, 65535):
        with hosts.refused("ERANGE"):
            set_vfs(host, number)
    set_vfs(host, 7)
    assert len(there(host)) == 7
    host.write(f"{DRIVERS}/igb/unbind", PF.encode())
    assert hosts.text(host, TOTALVFS) == "8\n"


@shows("sriov.no-driver")
def test_without_a_driver_there_are_no_vfs(kernel: SimulatedKernel) -> None:
    kernel.host().write(f"{DRIVERS}/igb/unbind", PF.encode())
    with hosts.refused("ENOENT"):
        set_vfs(kernel.host(), 2)


@shows("sriov.driver-without-support")
@pytest.mark.parametrize("driver", ["vfio-pci", "pci-stub"])
def test_driver_without_support_makes_no_vfs(kernel: SimulatedKernel, driver: str) -> None:
    hosts.give_to_vfio(kernel.host(), PF, driver)
    with hosts.refused("ENOENT"):
        set_vfs(kernel.host(), 2)


@shows("sriov.driver-error")
def test_error_of_the_driver_comes_through_and_no_vf_is_there(tmp_path: Path) -> None:
    virtual = {"device": "10ca", "errors": [{"errno": "ENOMEM", "times": 1}]}
    with with_pf(tmp_path, virtualFunctions=virtual) as kernel:
        with hosts.refused("ENOMEM"):
            set_vfs(kernel.host(), 2)
        assert there(kernel.host()) == []
        assert kernel.writes[-1].rule == "sriov.driver-error"
        kernel.fail_next(f"sriov:{PF}", "EIO")
        with hosts.refused("EIO"):
            set_vfs(kernel.host(), 2)
        set_vfs(kernel.host(), 2)
        kernel.fail_next(f"sriov:{PF}", "EPERM")
        with hosts.refused("EPERM"):
            set_vfs(kernel.host(), 0)
        assert there(kernel.host()) == list(VFS[:2])


@shows("sriov.no-bus-number")
def test_vfs_without_a_bus_number_are_refused(tmp_path: Path) -> None:
    virtual = {"device": "10ca", "firstOffset": 254, "stride": 1, "lastBus": "01"}
    with with_pf(tmp_path, virtualFunctions=virtual) as kernel:
        with hosts.refused("ENOMEM"):
            set_vfs(kernel.host(), 3)
        assert hosts.text(kernel.host(), NUMVFS) == "0\n"
        set_vfs(kernel.host(), 2)


@shows("sriov.fewer-than-asked")
def test_fewer_vfs_than_asked_are_no_error(tmp_path: Path) -> None:
    with with_pf(tmp_path / "some", virtualFunctions={"device": "10ca", "enabledAtMost": 2}) as kernel:
        set_vfs(kernel.host(), 4)
        assert hosts.text(kernel.host(), NUMVFS) == "2\n"
        assert there(kernel.host()) == list(VFS[:2])
    with with_pf(tmp_path / "none", virtualFunctions={"enabledAtMost": 0}) as kernel:
        set_vfs(kernel.host(), 4)
        assert hosts.text(kernel.host(), NUMVFS) == "0\n"


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


@shows("sriov.autoprobe-format")
@pytest.mark.parametrize("written", [b"2", b"\n", b" 1", b"-1", b"o", b"maybe"])
def test_autoprobe_is_a_switch(kernel: SimulatedKernel, written: bytes) -> None:
    with hosts.refused("EINVAL"):
        kernel.host().write(AUTOPROBE, written)
    assert hosts.text(kernel.host(), AUTOPROBE) == "1\n"


@allows("sriov.autoprobe-format")
@pytest.mark.parametrize(
    ("written", "value"),
    [(b"0", 0), (b"1\n", 1), (b"off", 0), (b"ON", 1), (b"no", 0), (b"Yes", 1), (b"f", 0), (b"T", 1), (b"01", 0)],
)
def test_autoprobe_takes_what_the_kernel_takes_for_a_switch(
    kernel: SimulatedKernel, written: bytes, value: int
) -> None:
    kernel.host().write(AUTOPROBE, b"0" if value else b"1")
    kernel.host().write(AUTOPROBE, written)
    assert hosts.text(kernel.host(), AUTOPROBE) == f"{value}\n"


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


@shows("sriov.takes-its-time", "read.takes-device-lock")
def test_making_vfs_may_take_long(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    hold = kernel.block(f"sriov:{PF}")
    order = Sleeper(lambda: set_vfs(host, 2))
    assert hold.wait_until_blocked()
    assert there(host) == []
    read = Sleeper(lambda: host.read(NUMVFS))
    eventually(lambda: len(kernel.sleeping) == 2, every=0.005)
    hold.release()
    assert (order.result(), read.result()) == ("ok", "ok")
    assert there(host) == list(VFS[:2])


@allows("sriov.destroying-waits-for-vfio-user")
def test_destroying_vfs_does_not_wait_for_a_vfio_driver_without_a_user(kernel: SimulatedKernel) -> None:
    set_vfs(kernel.host(), 2)
    hosts.give_to_vfio(kernel.host(), VFS[0])
    set_vfs(kernel.host(), 0)


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sriovTotalVFs": None}, "virtualFunctions or vgpu without sriovTotalVFs"),
        ({"sriovTotalVFs": 65535, "virtualFunctions": {}}, "would have no address"),
        ({"virtualFunctions": {"stride": 0}}, "stride"),
    ],
)
def test_description_of_impossible_vfs_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_device(physical(**changes))


def test_description_in_which_a_vf_meets_a_device_is_refused(tmp_path: Path) -> None:
    other = {**physical(), "address": VFS[3], "sriovTotalVFs": None}
    del other["virtualFunctions"]
    with pytest.raises(ValueError, match=f"its VF 3 and {VFS[3]} meet"), with_pf(tmp_path, other):
        pass
