"""What the simulated kernel says of its devices: the files that a real one has, in its formats."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import DISK, DRIVERS, GRAPHICS, NIC, NPU, PORT, TWIN
from tests.builders.kernel_rules import shows


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with hosts.running(tmp_path) as kernel:
        yield kernel


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vendor", "0x1eff\n"),
        ("device", "0x1250\n"),
        ("subsystem_vendor", "0x1eff\n"),
        ("subsystem_device", "0x0101\n"),
        ("class", "0x120000\n"),
        ("revision", "0x00\n"),
        ("numa_node", "1\n"),
        ("modalias", "pci:v00001EFFd00001250sv00001EFFsd00000101bc12sc00i00\n"),
        ("enable", "1\n"),
        ("driver_override", "(null)\n"),
        (
            "uevent",
            "DRIVER=rebellions\nPCI_CLASS=120000\nPCI_ID=1EFF:1250\nPCI_SUBSYS_ID=1EFF:0101\nPCI_SLOT_NAME=0000:21:00.0\n"
            "MODALIAS=pci:v00001EFFd00001250sv00001EFFsd00000101bc12sc00i00\n",
        ),
    ],
)
def test_attribute_has_the_kernels_format(kernel: SimulatedKernel, name: str, content: str) -> None:
    assert hosts.text(kernel.host(), hosts.attribute(NPU, name)) == content


def test_device_hangs_in_the_tree_below_its_bridge(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    assert host.resolve(f"{hosts.DEVICES}/{NPU}") == f"/sys/devices/pci0000:20/{PORT}/{NPU}"
    assert host.read_link(f"{hosts.DEVICES}/{NPU}") == f"../../../devices/pci0000:20/{PORT}/{NPU}"
    assert host.resolve(hosts.attribute(NPU, "driver/module")) == "/sys/module/rebellions"
    assert host.resolve(hosts.attribute(NPU, "subsystem")) == "/sys/bus/pci"
    assert hosts.text(host, hosts.attribute(TWIN, "numa_node")) == "-1\n"


@shows("identity.serial-number-capability")
def test_serial_number_is_in_the_configuration_space(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        space = kernel.host().read(hosts.attribute(NPU, "config"))
        assert len(space) == 4096
        assert struct.unpack_from("<HH", space, 0) == (0x1EFF, 0x1250)
        assert struct.unpack_from("<HH", space, 0x2C) == (0x1EFF, 0x0101)
        capability, number = struct.unpack_from("<IQ", space, 0x100)
        assert capability & 0xFFFF == 0x0003
        assert f"{number:016x}" == "0123456789abcdef"
        without = kernel.host().read(hosts.attribute(TWIN, "config"))
        assert struct.unpack_from("<I", without, 0x100) == (0,)


def test_header_type_tells_bridges(kernel: SimulatedKernel) -> None:
    assert kernel.host().read(hosts.attribute(PORT, "config"))[0x0E] == 1
    assert kernel.host().read(hosts.attribute(NPU, "config"))[0x0E] == 0


def test_conventional_function_has_little_configuration_space(tmp_path: Path) -> None:
    device = {"address": NPU, "parent": "pci0000:20", "vendor": "1eff", "device": "1250", "class": "120000"}
    nothing: dict[str, list[str]] = {"volumes": [], "mounts": []}
    with hosts.running(tmp_path, devices=[{**device, "express": False}], **nothing) as kernel:
        assert len(kernel.host().read(hosts.attribute(NPU, "config"))) == 256
    with pytest.raises(ValueError, match="only a PCI Express function"):
        hosts.bench(devices=[{**device, "express": False, "serial": "0123456789abcdef"}], **nothing)


def test_resource_has_a_line_for_each_bar(kernel: SimulatedKernel) -> None:
    lines = hosts.text(kernel.host(), hosts.attribute(NPU, "resource")).splitlines()
    assert len(lines) == 13
    start, end, flags = (int(word, 16) for word in lines[0].split())
    assert end - start + 1 == 16 << 20
    assert start % (16 << 20) == 0
    assert flags & 0x200, "memory (IORESOURCE_MEM)"
    assert set(lines[1:]) == {"0x0000000000000000 0x0000000000000000 0x0000000000000000"}


@shows("identity.boot-vga")
def test_boot_vga_is_on_vga_functions_only(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        assert hosts.text(kernel.host(), hosts.attribute(GRAPHICS, "boot_vga")) == "1\n"
        assert not kernel.host().exists(hosts.attribute(NPU, "boot_vga"))


@shows("identity.sriov-files-on-pf-only")
def test_sriov_files_are_on_functions_that_can_have_vfs(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        host = kernel.host()
        assert hosts.text(host, hosts.attribute(GRAPHICS, "sriov_totalvfs")) == "16\n"
        assert hosts.text(host, hosts.attribute(GRAPHICS, "sriov_numvfs")) == "0\n"
        assert hosts.text(host, hosts.attribute(GRAPHICS, "sriov_drivers_autoprobe")) == "1\n"
        assert not host.exists(hosts.attribute(NPU, "sriov_totalvfs"))


@shows("identity.group-needs-iommu")
def test_device_and_group_name_each_other(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        host = kernel.host()
        assert host.resolve(hosts.attribute(GRAPHICS, "iommu_group")) == "/sys/kernel/iommu_groups/24"
        assert host.list("/sys/kernel/iommu_groups/24/devices") == ["0000:25:00.0", "0000:25:00.1"]
        assert host.resolve("/sys/kernel/iommu_groups/24/devices/0000:25:00.1").endswith("/0000:25:00.1")


def test_no_group_without_an_iommu(tmp_path: Path) -> None:
    with hosts.running(tmp_path, kernel={"iommu": "Disabled"}) as kernel:
        assert kernel.host().list("/sys/kernel/iommu_groups") == []
        assert not kernel.host().exists(hosts.attribute(NPU, "iommu_group"))


def test_whose_a_node_is_can_be_told(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    assert hosts.text(host, hosts.attribute(NPU, "rebellions/rbln0/uevent")) == "MAJOR=240\nMINOR=0\nDEVNAME=rbln0\n"
    assert host.resolve("/sys/class/rebellions/rbln1/device") == host.resolve(f"{hosts.DEVICES}/{TWIN}")
    assert "Device Minor: \t 0\n" in hosts.text(host, f"/proc/driver/nvidia/gpus/{GRAPHICS}/information")


def test_network_of_the_host_is_told_as_by_a_real_one(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    assert host.resolve("/sys/class/net/ens1").startswith(f"/sys/devices/pci0000:20/{PORT}/{NIC}/net/")
    assert int(hosts.text(host, hosts.attribute(NIC, "net/ens1/flags")), 16) & 1
    assert hosts.text(host, hosts.attribute(NIC, "net/ens1/operstate")) == "up\n"
    routes = [line.split("\t")[:4] for line in hosts.text(host, "/proc/1/net/route").splitlines()[1:]]
    assert ["ens1", "00000000", "0100170A", "0003"] in routes
    assert ["ens1", "0000170A", "00000000", "0001"] in routes
    assert "     |-- 10.23.0.10\n        /32 host LOCAL\n" in hosts.text(host, "/proc/1/net/fib_trie")
    assert "fd000023000000000000000000000010 03 40 00 80     ens1" in hosts.text(host, "/proc/1/net/if_inet6")
    defaults = [line.split() for line in hosts.text(host, "/proc/net/ipv6_route").splitlines()]
    assert [row[9] for row in defaults if int(row[0], 16) == 0 and row[1] == "00"] == ["ens1", "lo"]
    assert host.resolve(hosts.attribute(NIC, "net/ens2/master")) == "/sys/devices/virtual/net/bond0"
    assert hosts.text(host, "/sys/class/net/bond0/bonding/slaves") == "ens2\n"


@shows("host.no-driver-no-interface")
def test_card_on_vfio_has_taken_its_addresses_along(kernel: SimulatedKernel) -> None:
    hosts.give_to_vfio(kernel.host(), NIC)
    assert not kernel.host().exists(hosts.attribute(NIC, "net"))
    assert "ens1" not in hosts.text(kernel.host(), "/proc/1/net/route")


def test_disks_volumes_and_mounts_lead_to_the_controller(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    mounted = hosts.text(host, "/proc/self/mountinfo").splitlines()[0].split()
    assert mounted[2:5] == ["253:0", "/", "/"]
    assert host.resolve("/sys/dev/block/253:0") == "/sys/devices/virtual/block/dm-0"
    below = host.resolve("/sys/block/dm-0/slaves/nvme0n1p1")
    assert f"/{DISK}/nvme/nvme0/nvme0n1/nvme0n1p1" in below
    assert hosts.text(host, f"{below}/dev") == "259:1\n"
    assert host.exists(f"{below}/holders/dm-0")


@shows("host.no-driver-no-disk")
def test_controller_without_its_driver_shows_no_disk(kernel: SimulatedKernel) -> None:
    kernel.host().write(f"{DRIVERS}/nvme/unbind", DISK.encode())
    assert kernel.host().list("/sys/block") == []
    assert " / / " in hosts.text(kernel.host(), "/proc/1/mountinfo")


def test_ata_disks_hang_below_their_port(tmp_path: Path) -> None:
    device = {
        "address": DISK,
        "parent": "pci0000:20",
        "vendor": "8086",
        "device": "a182",
        "class": "010601",
        "storage": {"kind": "ATA", "name": "ata1", "disks": [{"name": "sda", "number": "8:0"}]},
    }
    with hosts.running(tmp_path, devices=[device], volumes=[], mounts=[{"source": "sda", "point": "/"}]) as kernel:
        path = kernel.host().resolve("/sys/block/sda")
        assert path == f"/sys/devices/pci0000:20/{DISK}/ata1/host0/target0:0:0/0:0:0:0/block/sda"
