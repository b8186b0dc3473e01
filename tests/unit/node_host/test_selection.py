"""Which nodes count as use of a device: its own and those of its partitions, not what all cards share."""

from pathlib import Path

import pytest

from crds.catalogue import load_catalogue
from node_host.bounded_call import BoundedCalls
from node_host.observer import Observer
from node_host.selection import is_accelerator, node_patterns, vendors_of
from tests.builders.paper_host import paper_host

CARD = "0000:c1:00.0"
HERE = f"/sys/devices/pci0000:c0/{CARD}"
FILES = {
    f"/sys/bus/pci/devices/{CARD}": f"-> {HERE}",
    f"{HERE}/vendor": "0x19e5\n",
    f"{HERE}/device": "0xd802\n",
    f"{HERE}/class": "0x120000\n",
    "/proc/sys/kernel/random/boot_id": "5d3c2c0e-2f5e-4a0b-9f57-2f6f8f1f9c10\n",
}


@pytest.mark.parametrize(
    ("node", "is_use"),
    [
        ("/dev/davinci0", True),
        ("/dev/vdavinci100", True),
        ("/dev/davinci_manager", False),
        ("/dev/hisi_hdc", False),
    ],
)
async def test_an_open_node_of_a_card_or_of_a_partition_is_use_and_one_that_all_cards_share_is_not(
    tmp_path: Path, node: str, is_use: bool
) -> None:
    process = {"/proc/9/fd/": "", "/proc/9/comm": "mindie\n"}
    catalogue = load_catalogue()
    made = paper_host(tmp_path, FILES | process)
    (tmp_path / "proc/9/fd/3").symlink_to(node)
    observer = Observer(
        made,
        BoundedCalls(),
        of_interest=is_accelerator(catalogue),
        node_patterns=node_patterns(catalogue),
    )
    users = (await observer.view()).users[CARD]
    assert [user.name for user in users] == (["mindie"] if is_use else [])


def test_the_vendor_of_a_resource_or_driver_is_told_by_its_domain() -> None:
    """Domains that the vendors' own device plugins and DRA drivers use; another's domain tells nothing."""
    vendors = vendors_of(load_catalogue())
    told = {name: vendors(name) for name in ("nvidia.com", "gpu.nvidia.com", "npu.rebellions.ai", "huawei.com")}
    assert told == {
        "nvidia.com": {"10de"},
        "gpu.nvidia.com": {"10de"},
        "npu.rebellions.ai": {"1eff"},
        "huawei.com": {"19e5"},
    }
    for other in ("devices.kubevirt.io", "qat.intel.com", "notnvidia.com", "", "com"):
        assert vendors(other) == frozenset()
