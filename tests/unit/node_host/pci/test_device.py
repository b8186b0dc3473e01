"""Reading one PCI function: what it says, what it does not say, and what happens when it talks nonsense."""

import errno
from pathlib import Path

import pytest

from node_host.host import KernelFiles
from node_host.pci.device import (
    DeviceGoneError,
    DeviceUnreadableError,
    MalformedError,
    PCIDevice,
    last_address,
    list_addresses,
    parse_decimal,
    parse_hex,
    parse_override,
    read_device,
    read_serial,
    same_identity,
)
from node_host.pci.iommu import read_groups
from simulated_node.kernel import SimulatedKernel
from tests.builders.binder import NPU, TWIN, bridge, graphics, host, npu
from tests.builders.fault_scenes import SRIOV_CARD, sriov_card
from tests.builders.paper_host import paper_host

HERE = "/sys/devices/pci0000:20/0000:20:01.0/0000:23:00.0"
FUNCTION = {
    f"/sys/bus/pci/devices/{NPU}": f"-> {HERE}",
    f"{HERE}/vendor": "0x1eff\n",
    f"{HERE}/device": "0x1250\n",
    f"{HERE}/class": "0x120000\n",
}


def test_a_function_of_a_simulated_machine_is_read_in_full(tmp_path: Path) -> None:
    machine = host(
        bridge("0000:20:01.0", 40),
        npu(parent="0000:20:01.0", serial="001eff1250000001", sriovTotalVFs=16, numaNode=1),
        graphics(bootVGA=1),
    )
    with SimulatedKernel(tmp_path / "root", machine) as kernel:
        kernel.write(f"/sys/bus/pci/devices/{NPU}/driver_override", b"none")
        device = read_serial(kernel.host(), read_device(kernel.host(), NPU))
        assert (device.vendor, device.device, device.class_code) == ("1eff", "1250", "120000")
        assert (device.driver, device.driver_override, device.iommu_group) == ("rebellions", "none", 20)
        assert (device.numa_node, device.pcie_root, device.serial) == (1, "pci0000:20", "00-1e-ff-12-50-00-00-01")
        assert (device.total_vfs, device.num_vfs, device.is_virtual, device.is_bridge) == (16, 0, False, False)
        assert device.modalias.startswith("pci:v00001EFFd00001250")
        assert device.identity == "1eff:1250:00-1e-ff-12-50-00-00-01"
        assert device.faults == {}
        assert read_device(kernel.host(), "0000:25:00.0").boot_vga is True
        assert read_device(kernel.host(), "0000:20:01.0").is_bridge
        assert list_addresses(kernel.host()) == ["0000:20:01.0", NPU, "0000:25:00.0"]
        assert read_groups(kernel.host()).of(20) == (NPU,)


def test_a_bare_function_says_nothing_more_than_its_ids(tmp_path: Path) -> None:
    device = read_device(paper_host(tmp_path, FUNCTION), NPU)
    absent = (device.driver, device.iommu_group, device.numa_node, device.serial, device.subsystem)
    assert absent == (None,) * 5
    assert device.pcie_root == "pci0000:20"
    assert (device.num_vfs, device.total_vfs, device.boot_vga, device.faults) == (0, None, False, {})


def test_numa_node_minus_one_is_unknown(tmp_path: Path) -> None:
    assert read_device(paper_host(tmp_path, FUNCTION | {f"{HERE}/numa_node": "-1\n"}), NPU).numa_node is None


def test_a_virtual_function_and_its_card_know_each_other(tmp_path: Path) -> None:
    functions = FUNCTION | {
        f"{HERE}/sriov_totalvfs": "16\n",
        f"{HERE}/sriov_numvfs": "2\n",
        f"{HERE}/virtfn0": f"-> {HERE}",
        f"{HERE}/virtfn10": "-> /sys/devices/pci0000:20/0000:23:01.4",
        f"{HERE}/virtfn2": "-> /sys/devices/pci0000:20/0000:23:00.4",
        f"{HERE}/physfn": "-> /sys/devices/pci0000:20/0000:22:00.0",
    }
    device = read_device(paper_host(tmp_path, functions), NPU)
    assert device.virtual_functions == (NPU, "0000:23:00.4", "0000:23:01.4")
    assert (device.physical_function, device.num_vfs) == ("0000:22:00.0", 2)


@pytest.mark.parametrize(
    ("attribute", "content"),
    [
        ("vendor", ""),
        ("vendor", "0x1eff0\n"),
        ("vendor", "1eff\n"),
        ("device", "\xff\xfe"),
        ("class", "0x1200\n"),
        ("class", "0x120000" * 10000),
        ("driver", "-> /sys/bus/pci/drivers/a b"),
        ("iommu_group", "-> /sys/kernel/iommu_groups/x"),
        ("iommu_group", "-> /sys/kernel/iommu_groups/99999999999"),
        ("physfn", "-> /sys/devices/elsewhere"),
    ],
)
def test_nonsense_where_nothing_may_be_guessed_makes_the_function_unreadable(
    tmp_path: Path, attribute: str, content: str
) -> None:
    functions = {path: text for path, text in FUNCTION.items() if not path.endswith(f"/{attribute}")}
    with pytest.raises(DeviceUnreadableError, match=f"^{attribute}: ") as caught:
        read_device(paper_host(tmp_path, functions | {f"{HERE}/{attribute}": content}), NPU)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("attribute", "content", "field", "value"),
    [
        ("numa_node", "", "numa_node", None),
        ("numa_node", "9" * 100, "numa_node", None),
        ("modalias", "usb:v1D6B", "modalias", ""),
        ("subsystem_vendor", "0x1e", "subsystem", None),
        ("boot_vga", "maybe", "boot_vga", None),
        ("sriov_numvfs", "many", "num_vfs", None),
    ],
)
def test_nonsense_elsewhere_is_a_fault_of_one_attribute(
    tmp_path: Path, attribute: str, content: str, field: str, value: object
) -> None:
    more = {f"{HERE}/{attribute}": content, f"{HERE}/sriov_totalvfs": "8\n", f"{HERE}/subsystem_device": "0x0001\n"}
    device = read_device(paper_host(tmp_path, FUNCTION | more), NPU)
    assert getattr(device, field) == value
    assert list(device.faults) == [attribute]


class Failing(KernelFiles):
    """A host on which one attribute fails, and the function is then gone or not."""

    def __init__(self, root: Path, attribute: str, number: int, *, goes: bool) -> None:
        super().__init__(root)
        self._attribute, self._number, self._goes = attribute, number, goes
        self._gone = False

    def read(self, path: str) -> bytes:
        if path.endswith(f"/{self._attribute}"):
            self._gone = self._goes
            raise OSError(self._number, "failed", path)
        return super().read(path)

    def resolve(self, path: str) -> str:
        if self._gone:
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        return super().resolve(path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.ENOENT])
def test_a_function_that_vanishes_while_it_is_read_is_gone_and_one_that_fails_is_unreadable(
    tmp_path: Path, number: int
) -> None:
    paper_host(tmp_path, FUNCTION)
    with pytest.raises(DeviceGoneError):
        read_device(Failing(tmp_path, "class", number, goes=True), NPU)
    with pytest.raises(DeviceUnreadableError, match=r"^class: E"):
        read_device(Failing(tmp_path, "class", number, goes=False), NPU)


def test_a_display_whose_boot_vga_fails_is_not_taken_for_a_second_one(tmp_path: Path) -> None:
    paper_host(tmp_path, FUNCTION | {f"{HERE}/class": "0x030000\n", f"{HERE}/boot_vga": "0\n"})
    assert read_device(Failing(tmp_path, "boot_vga", errno.EIO, goes=False), NPU).boot_vga is None


def test_a_function_that_is_not_there_is_gone(tmp_path: Path) -> None:
    with pytest.raises(DeviceGoneError):
        read_device(paper_host(tmp_path, FUNCTION), TWIN)


@pytest.mark.parametrize(
    "files", [{"/sys/": ""}, {"/sys/bus/pci/devices/": ""}, {"/sys/bus/pci/devices/nonsense/": ""}]
)
def test_a_bus_that_is_missing_or_empty_is_no_host_without_devices(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(OSError, match=r"No such file|no device at all"):
        list_addresses(paper_host(tmp_path, files))


def test_parsers_take_what_the_kernel_writes_and_nothing_else() -> None:
    assert parse_hex(b"0x1eff\n", 4) == "1eff"
    assert parse_decimal(b"-1\n") == -1
    assert parse_override(b"(null)\n") is None
    assert parse_override(b"\n") is None
    assert parse_override(b"vfio-pci\n") == "vfio-pci"
    for wrong in (b"", b"0x1EFF\n", b"0x1ef", b"0x1eff\n\n", b"0x1eff "):
        with pytest.raises(MalformedError):
            parse_hex(wrong, 4)
    for wrong in (b"", b"1 2", b"0x10", b"--1", b"1" * 40):
        with pytest.raises(MalformedError):
            parse_decimal(wrong)


def test_the_last_address_of_a_path_is_the_function_that_the_thing_hangs_on() -> None:
    path = "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/net/usb0"
    assert last_address(path) == "0000:00:14.0"
    assert last_address("/sys/devices/virtual/net/lo") is None


def test_identities_are_compared_by_serial_only_where_both_have_one() -> None:
    assert same_identity("1eff:1250:a", "1eff:1250:a")
    assert same_identity("1eff:1250", "1eff:1250:a")
    assert not same_identity("1eff:1250:a", "1eff:1250:b")
    assert not same_identity("1eff:1250", "1eff:1220")


def test_group_members_that_cannot_be_listed_are_said_not_to_be_known(tmp_path: Path) -> None:
    made = paper_host(tmp_path, {"/sys/kernel/iommu_groups/7/devices": "no directory"})
    groups = read_groups(made)
    assert groups.of(7) == ()
    assert groups.fault(7) is not None
    assert groups.fault(8) == "/sys/kernel/iommu_groups/8/devices: not there"
    assert groups.fault(None) is None
    assert read_groups(paper_host(tmp_path / "none", {"/sys/": ""})).members == {}


@pytest.mark.parametrize(
    ("address", "total", "offset", "stride", "first", "last"),
    [
        ("0000:61:00.0", 7, 128, 2, "0000:61:10.0", "0000:61:11.4"),
        ("0000:23:00.0", 16, 1, 1, "0000:23:00.1", "0000:23:02.0"),
        ("0001:23:1f.7", 2, 1, 1, "0001:24:00.0", "0001:24:00.1"),
        ("0000:ff:1f.6", 4, 1, 1, "0000:ff:1f.7", "0000:ff:1f.7"),
    ],
)
def test_the_functions_that_a_card_could_have_are_told_before_there_are_any(
    address: str, total: int, offset: int, stride: int, first: str, last: str
) -> None:
    """SR-IOV specification, 3.3.9: First VF Offset and VF Stride are routing ids; the last bus is 255."""
    device = PCIDevice(address, "8086", "10c9", "020000", total_vfs=total, first_vf_offset=offset, vf_stride=stride)
    found = sorted(device.possible_functions)
    assert (found[0], found[-1]) == (first, last)
    assert len(found) == (1 if address == "0000:ff:1f.6" else total)


def test_a_simulated_card_makes_the_functions_that_it_was_said_to_be_able_to(tmp_path: Path) -> None:
    with SimulatedKernel(tmp_path, host(sriov_card(), modules=[{"name": "vfio_pci", "state": "Loaded"}])) as kernel:
        before = read_device(kernel.host(), SRIOV_CARD)
        kernel.write(f"/sys/bus/pci/devices/{SRIOV_CARD}/sriov_numvfs", b"7")
        made = read_device(kernel.host(), SRIOV_CARD).virtual_functions
    assert before.virtual_functions == () and before.possible_functions == set(made)
    assert len(made) == 7


def test_a_card_that_does_not_say_where_its_functions_go_has_those_that_are_there() -> None:
    device = PCIDevice("0000:61:00.0", "8086", "10c9", "020000", total_vfs=7, virtual_functions=("0000:61:10.0",))
    assert device.possible_functions == {"0000:61:10.0"}
