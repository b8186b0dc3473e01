"""Descriptions of nodes: the shipped ones, and what is said of one that is wrong."""

from pathlib import Path

import pytest

from crds.catalogue import load_catalogue
from simulated_node.description import DescriptionError
from simulated_node.description_files import load_description, parse_description, shipped_descriptions
from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts

SHIPPED = shipped_descriptions()


def test_the_nodes_of_demo_and_tests_are_shipped() -> None:
    wanted = {"node-atom", "node-rebel100", "node-mixed", "node-hostile", "node-l40s", "node-ascend"}
    assert wanted | {"node-sriov", "node-no-iommu", "node-no-vfio-module", "plain-server"} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_description_boots_and_keeps_what_the_host_needs(name: str, tmp_path: Path) -> None:
    with SimulatedKernel(tmp_path / "host", load_description(name)) as kernel:
        host = kernel.host()
        assert kernel.description.name == name
        assert "\t00000000\t" in hosts.text(host, "/proc/1/net/route"), "a default route"
        assert " / / rw" in hosts.text(host, "/proc/1/mountinfo"), "a root disk"
        vga = [bdf for bdf in host.list(hosts.DEVICES) if host.exists(hosts.attribute(bdf, "boot_vga"))]
        assert [bdf for bdf in vga if hosts.text(host, hosts.attribute(bdf, "boot_vga")) == "1\n"]


def booted(name: str, tmp_path: Path) -> SimulatedKernel:
    return SimulatedKernel(tmp_path / "host", load_description(name))


def test_node_atom_has_sixteen_npus_each_alone_in_its_group(tmp_path: Path) -> None:
    with booted("node-atom", tmp_path) as kernel:
        host = kernel.host()
        npus = [
            bdf for bdf in host.list(hosts.DEVICES) if hosts.text(host, hosts.attribute(bdf, "device")) == "0x1250\n"
        ]
        assert len(npus) == 16
        assert npus[0] == "0000:23:00.0"
        assert {hosts.driver_of(host, bdf) for bdf in npus} == {"rebellions"}
        assert [name for name in host.list("/dev") if name.startswith("rbln")] == sorted(f"rbln{n}" for n in range(16))
        numa = [hosts.text(host, hosts.attribute(bdf, "numa_node")) for bdf in npus]
        assert (numa.count("0\n"), numa.count("1\n")) == (8, 8)
        groups = [host.resolve(hosts.attribute(bdf, "iommu_group")) for bdf in npus]
        assert all(len(host.list(f"{group}/devices")) == 1 for group in groups)
        assert len(set(groups)) == 16
        assert len({host.read(hosts.attribute(bdf, "config"))[0x104:0x10C] for bdf in npus}) == 16


def test_node_rebel100_is_the_example_of_the_vendors_documents(tmp_path: Path) -> None:
    with booted("node-rebel100", tmp_path) as kernel:
        host = kernel.host()
        assert host.resolve(hosts.attribute("0000:27:00.0", "iommu_group")) == "/sys/kernel/iommu_groups/42"
        assert host.resolve(f"{hosts.DEVICES}/0000:27:00.0").startswith("/sys/devices/pci0000:20/")
        assert hosts.text(host, hosts.attribute("0000:27:00.0", "device")) == "0x2130\n"
        assert hosts.text(host, hosts.attribute("0000:27:00.0", "numa_node")) == "0\n"


def test_node_mixed_has_three_vendors_a_companion_and_a_user(tmp_path: Path) -> None:
    with booted("node-mixed", tmp_path) as kernel:
        host = kernel.host()
        drivers = {bdf: hosts.driver_of(host, bdf) for bdf in host.list(hosts.DEVICES)}
        assert drivers["0000:25:00.0"] == "nvidia"
        assert drivers["0000:25:00.1"] == "snd_hda_intel"
        assert drivers["0000:26:00.0"] == "i915"
        assert host.list("/sys/kernel/iommu_groups/24/devices") == ["0000:25:00.0", "0000:25:00.1"]
        held = host.read_link("/proc/3107/fd/3").removeprefix("/dev/")
        assert hosts.text(host, "/proc/3107/comm") == "vllm\n"
        assert host.exists(hosts.attribute("0000:24:00.0", f"rebellions/{held}")), "an RBLN-CA22"


def test_node_hostile_has_one_device_of_each_sort_to_be_left_alone(tmp_path: Path) -> None:
    with booted("node-hostile", tmp_path) as kernel:
        host = kernel.host()

        def companions(address: str) -> list[str]:
            return [bdf for bdf in host.list(hosts.attribute(address, "iommu_group/devices")) if bdf != address]

        assert [host.list(hosts.attribute(bdf, "net")) for bdf in companions("0000:21:00.0")] == [["ens1"]]
        assert "0000:04:00.0" in companions("0000:22:00.0")
        assert [
            host.list(hosts.attribute(bdf, "nvme/nvme1/nvme1n1/holders")) for bdf in companions("0000:23:00.0")
        ] == [["dm-0"]]
        assert host.exists(hosts.attribute("0000:24:00.0", "rebellions/rbln3"))
        assert host.read_link("/proc/3203/fd/3") == "/dev/rbln3"
        assert hosts.driver_of(host, "0000:25:00.0") is None
        assert hosts.driver_of(host, "0000:26:00.0") == "vfio-pci"
        assert hosts.driver_of(host, "0000:27:00.0") == "rebellions"
        assert companions("0000:27:00.0") == []
        assert [host.read_link(hosts.attribute(bdf, "net/ens8/master"))[-5:] for bdf in companions("0000:28:00.0")] == [
            "bond0"
        ]
        free = ("0000:25:00.0", "0000:27:00.0")
        for address in free:
            hosts.give_to_vfio(host, address)
            assert hosts.driver_of(host, address) == "vfio-pci"


def test_variants_without_iommu_and_without_the_module_refuse_vfio(tmp_path: Path) -> None:
    with booted("node-no-iommu", tmp_path / "a") as kernel:
        hosts.give_to_vfio(kernel.host(), "0000:27:00.0")
        assert hosts.driver_of(kernel.host(), "0000:27:00.0") is None
    with booted("node-no-vfio-module", tmp_path / "b") as kernel, hosts.refused("ENOENT"):
        hosts.give_to_vfio(kernel.host(), "0000:27:00.0")


def test_inventory_nodes_are_on_their_vendors_drivers(tmp_path: Path) -> None:
    with booted("node-l40s", tmp_path / "a") as kernel:
        host = kernel.host()
        assert hosts.driver_of(host, "0000:21:00.0") == "nvidia"
        assert hosts.text(host, hosts.attribute("0000:21:00.0", "class")) == "0x030200\n"
        assert hosts.text(host, hosts.attribute("0000:21:00.0", "sriov_totalvfs")) == "16\n"
    with booted("node-ascend", tmp_path / "b") as kernel:
        host = kernel.host()
        assert hosts.driver_of(host, "0000:21:00.0") == "devdrv_device_driver"
        assert hosts.text(host, hosts.attribute("0000:23:00.0", "dev_id")) == "2\n"
        assert [name for name in host.list("/dev") if "davinci" in name] == [
            "davinci0",
            "davinci1",
            "davinci2",
            "davinci_manager",
        ]


def test_node_l40s_has_the_types_of_the_catalogue() -> None:
    product = load_catalogue().product("10de", "26b9")
    assert product is not None
    cards = [device for device in load_description("node-l40s").devices if device.vgpu is not None]
    assert len(cards) == 2
    for card in cards:
        assert card.vgpu is not None
        assert card.sriov_total_vfs == product.virtual_functions
        types = {kind.name: kind.frame_buffer for kind in card.vgpu.types}
        wanted = {f"NVIDIA {profile.name}": profile.frame_buffer_gib for profile in product.profiles}
        assert wanted.items() <= types.items()
        assert len({kind.id for kind in card.vgpu.types}) == len(card.vgpu.types)


GOOD = """
name: good
devices: [{address: "0000:01:00.0", parent: "pci0000:00", vendor: "1eff", device: "1250", class: "120000"}]
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("vendor:", "vendr:"), "devices.0.vendr"),
        (('"1eff"', '"1EFF"'), "devices.0.vendor"),
        (('"1250"', "1250"), "devices.0.device: Input should be a valid string (write it in quotes, YAML reads 1250)"),
        (('"120000"', '"12"'), "devices.0.class"),
        (('"0000:01:00.0"', '"01:00.0"'), "devices.0.address"),
        (('"pci0000:00"', '"0000:00:01.0"'), "parent 0000:00:01.0 is no bridge of this node"),
        (("name: good", "name: Good_"), "name"),
        (("name: good", "name: good\nkernel: {iommu: Maybe}"), "kernel.iommu"),
        (("name: good", "name: good\nmounts: [{source: sda, point: /}]"), "sda is no block device of this node"),
        (("name: good", "name: good\nextends: node-none"), "no description is called 'node-none'"),
        (("name: good", "name: good\nextends: 3"), "extends"),
        (("name: good", "name: good\nprocesses: [{pid: 9, comm: a}, {pid: 9, comm: b}]"), "9 stands twice"),
        (("name: good", "name: good\nvirtualInterfaces: [{name: b, addresses: [nowhere]}]"), "addresses.0"),
        (
            ('class: "120000"', 'class: "120000", probeErrors: [{driver: x, errno: ENONSENSE}]'),
            "devices.0.probeErrors.0.errno",
        ),
        (("name: good", "{"), "not YAML"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(change: tuple[str, str], said: str) -> None:
    parse_description(GOOD)
    with pytest.raises(DescriptionError) as caught:
        parse_description(GOOD.replace(*change), source="mine.yaml")
    assert said in str(caught.value)
    assert "mine.yaml" in str(caught.value) or "node-none" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "just words", "name: x"])
def test_document_that_is_no_description_is_said_so(text: str) -> None:
    with pytest.raises(DescriptionError, match=r"document|devices"):
        parse_description(text)


def test_description_is_found_by_name_or_by_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD)
    assert load_description(tmp_path / "mine.yaml").name == "good"
    assert load_description(str(tmp_path / "mine.yaml")).name == "good"
    with pytest.raises(DescriptionError, match="shipped are node-ascend"):
        load_description("node-nowhere")
    with pytest.raises(DescriptionError, match="No such file"):
        load_description(tmp_path / "none.yaml")


def test_extending_description_replaces_and_adds_by_address(tmp_path: Path) -> None:
    text = """
name: mine
extends: plain-server
kernel: {release: 6.12.1}
devices:
- {address: "0000:01:00.0", parent: "0000:00:01.0", vendor: "1eff", device: "1250", class: "120000"}
"""
    mine, base = parse_description(text), load_description("plain-server")
    assert [device.address for device in mine.devices][-1] == "0000:01:00.0"
    assert len(mine.devices) == len(base.devices)
    assert mine.mounts == base.mounts
    assert mine.kernel.release == "6.12.1"
