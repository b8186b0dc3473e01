"""Setting the number of virtual functions of the simulated kernel: what is taken, what is refused and how."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulated_node.description_files import parse_device
from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import DRIVERS, Sleeper
from tests.builders.kernel_rules import allows, shows
from tests.builders.sriov import AUTOPROBE, NUMVFS, PF, TOTALVFS, VFS, physical, set_vfs, there, with_pf
from tests.builders.waiting import eventually


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with with_pf(tmp_path) as kernel:
        yield kernel


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
        b"1" * 5000,
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
