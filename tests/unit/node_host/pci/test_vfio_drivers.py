"""Choosing a VFIO driver by modalias, and the names that modules and drivers go by."""

from pathlib import Path

from node_host.pci.device import PCIDevice
from node_host.pci.vfio_drivers import (
    VFIOAliases,
    driver_directory,
    is_vfio_driver,
    parse_aliases,
    parse_modules,
    read_aliases,
)
from node_host.pci.viability import group_viability, obstacles
from tests.builders.paper_host import paper_host

MODALIAS = "pci:v000010DEd00002342sv000010DEsd000016EBbc03sc02i00"
ALIASES = """\
# Aliases extracted from modules themselves.
alias pci:v000010DEd*sv*sd*bc03sc02i* nvidia
alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci
alias vfio_pci:v000010DEd*sv*sd*bc*sc*i* some_vfio_pci
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
alias vfio_pci:v00008086d000056C0sv*sd*bc*sc*i* xe_vfio_pci
a broken line
"""


def test_the_pattern_with_the_fewest_wildcards_wins_and_vfio_pci_is_no_variant() -> None:
    aliases = parse_aliases(ALIASES)
    assert aliases.module_for(MODALIAS) == "nvgrace_gpu_vfio_pci"
    assert aliases.module_for(MODALIAS.replace("2342", "9999")) == "some_vfio_pci"
    assert aliases.module_for("pci:v00001EFFd00001250sv00000000sd00000000bc12sc00i00") is None
    assert aliases.module_for("") is None
    assert VFIOAliases().module_for(MODALIAS) is None


def test_equally_near_patterns_are_chosen_by_name_not_by_the_order_in_the_file() -> None:
    lines = [
        "alias vfio_pci:v*d00002342sv*sd*bc*sc*i* b_vfio_pci",
        "alias vfio_pci:v000010DEd*sv*sd*bc*sc*i* a_vfio_pci",
    ]
    assert {parse_aliases("\n".join(order)).module_for(MODALIAS) for order in (lines, lines[::-1])} == {"a_vfio_pci"}


def test_aliases_are_those_of_the_running_kernel_and_none_without_a_module_tree(tmp_path: Path) -> None:
    files = {"/proc/sys/kernel/osrelease": "6.8.0-60\n", "/lib/modules/6.8.0-60/modules.alias": ALIASES}
    assert read_aliases(paper_host(tmp_path, files)).module_for(MODALIAS) == "nvgrace_gpu_vfio_pci"
    assert read_aliases(paper_host(tmp_path / "bare", {"/proc/": ""})) == VFIOAliases()


def test_a_driver_s_directory_is_found_whichever_way_it_is_spelt() -> None:
    registered = frozenset({"vfio-pci", "mlx5_vfio_pci", "xe-vfio-pci", "nvidia"})
    assert driver_directory("vfio_pci", registered) == "vfio-pci"
    assert driver_directory("mlx5_vfio_pci", registered) == "mlx5_vfio_pci"
    assert driver_directory("xe_vfio_pci", registered) == "xe-vfio-pci"
    assert driver_directory("nvgrace_gpu_vfio_pci", registered) is None


def test_vfio_drivers_are_known_by_name() -> None:
    assert all(map(is_vfio_driver, ("vfio-pci", "nvgrace_gpu_vfio_pci", "hisi-acc-vfio-pci", "xe-vfio-pci")))
    assert not any(map(is_vfio_driver, (None, "", "nvidia", "pci-stub", "uio_pci_generic", "vfiox")))


def test_a_group_is_viable_when_each_member_leaves_it_to_a_user() -> None:
    def function(address: str, driver: str | None, kind: str = "120000", **more: str) -> PCIDevice:
        return PCIDevice(address, "1eff", "1250", kind, driver=driver, iommu_group=7, **more)  # type: ignore[arg-type]

    fine = {
        "0000:01:00.0": function("0000:01:00.0", "vfio-pci"),
        "0000:01:00.1": function("0000:01:00.1", None),
        "0000:01:00.2": function("0000:01:00.2", "pci-stub"),
        "0000:01:00.3": function("0000:01:00.3", "pcieport", "060400"),
        "0000:01:00.4": function("0000:01:00.4", None, "060400"),
        "0000:01:00.5": function("0000:01:00.5", "nvidia", "030000", vfio_device="vfio1"),
    }
    assert obstacles(fine, fine) == []
    assert group_viability(7, fine, fine) == "Viable"
    assert group_viability(None, (), {}) == "NoGroup"
    bad = fine | {
        "0000:01:00.6": function("0000:01:00.6", "nvidia"),
        "0000:01:00.7": function("0000:01:00.7", "i2c", "060400"),
    }
    assert obstacles([*bad, "arm-smmu.1", "0000:02:00.0"], bad) == [
        "0000:01:00.6 is on nvidia",
        "0000:01:00.7 is on i2c",
        "arm-smmu.1 is no PCI device",
        "0000:02:00.0 cannot be read",
    ]
    assert group_viability(7, bad, bad) == "NotViable"


def test_modules_are_known_by_the_files_of_the_module_tree_compressed_or_not() -> None:
    text = """kernel/drivers/vfio/pci/vfio-pci.ko.zst: kernel/drivers/vfio/vfio.ko.zst kernel/virt/lib/irqbypass.ko.zst
kernel/net/bridge.ko:
updates/dkms/nvidia.ko.xz: kernel/x.ko.xz
kernel/fs/ext4/ext4.ko
# nothing
"""
    assert parse_modules(text) == {"vfio_pci", "bridge", "nvidia", "ext4"}


def test_a_module_is_lacking_only_where_the_whole_list_can_be_read(tmp_path: Path) -> None:
    tree = "/lib/modules/6.8.0-60"
    files = {"/proc/sys/kernel/osrelease": "6.8.0-60\n", f"{tree}/modules.alias": ALIASES}
    files[f"{tree}/modules.dep"] = "kernel/net/bridge.ko:\n"
    assert not read_aliases(paper_host(tmp_path / "part", files)).lacks("vfio_pci")
    files[f"{tree}/modules.builtin"] = "kernel/drivers/vfio/vfio.ko\n"
    aliases = read_aliases(paper_host(tmp_path / "whole", files))
    assert aliases.lacks("vfio-pci")
    assert not aliases.lacks("vfio")
    assert not VFIOAliases().lacks("vfio-pci")
