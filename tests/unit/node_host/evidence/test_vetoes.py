"""What the host needs is found whatever stands in between: bonds, bridges, VLANs, volumes, arrays, multipath, USB."""

import errno
from collections.abc import Mapping
from pathlib import Path

import pytest

from crds.models.node_state import VetoReason
from node_host.evidence.disks import parse_mountinfo, parse_swaps
from node_host.evidence.network import (
    parse_if_inet6,
    parse_ipv6_route,
    parse_local_addresses,
    parse_route,
    read_network_evidence,
)
from node_host.evidence.vetoes import read_evidence, vetoes_of
from node_host.host import KernelFiles
from node_host.pci.device import PCIDevice
from node_host.pci.iommu import IOMMUGroups
from tests.builders.paper_host import paper_host

CARD = "0000:01:00.0"
OTHER = "0000:02:00.0"
CARD_PATH = f"/sys/devices/pci0000:00/{CARD}"
OTHER_PATH = f"/sys/devices/pci0000:00/{OTHER}"

ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
LOCAL = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n"
MOUNTS = "21 1 {number} / {point} rw,relatime shared:1 - {kind} {source} rw\n"
QUIET = {
    "/proc/1/mountinfo": MOUNTS.format(number="0:21", point="/", kind="overlay", source="overlay"),
    "/proc/1/net/route": ROUTES,
    "/proc/1/net/fib_trie": LOCAL,
    "/proc/1/net/ipv6_route": "",
    "/proc/1/net/if_inet6": "",
    "/proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n",
    "/sys/block/": "",
}


def default_route(name: str) -> str:
    return f"{name}\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"


def connected(name: str, network: str = "0000000A", mask: str = "00FFFFFF") -> str:
    return f"{name}\t{network}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n"


def local(address: str) -> str:
    return f"     |-- {address}\n        /32 host LOCAL\n"


def interface(name: str, path: str | None = None, *, links: Mapping[str, str] | None = None) -> dict[str, str]:
    """An interface on a function (or a virtual one), with links in its directory by name."""
    here = f"{path}/net/{name}" if path else f"/sys/devices/virtual/net/{name}"
    found = {f"/sys/class/net/{name}": f"-> {here}", f"{here}/flags": "0x1003\n"}
    return found | {f"{here}/{link}": f"-> {target}" for link, target in (links or {}).items()}


def vetoes(root: Path, *parts: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    files = dict(QUIET)
    for part in parts:
        files |= part
    devices = {address: PCIDevice(address, "8086", "1592", "020000") for address in (CARD, OTHER)}
    found = vetoes_of(devices, IOMMUGroups(), read_evidence(paper_host(root, files)))
    return {address: [(str(veto.reason), veto.message) for veto in vetoes] for address, vetoes in found.items()}


def test_a_quiet_host_vetoes_nothing(tmp_path: Path) -> None:
    assert vetoes(tmp_path, interface("ens1", CARD_PATH)) == {}


def test_the_card_of_the_default_route_and_one_with_an_address(tmp_path: Path) -> None:
    found = vetoes(
        tmp_path,
        interface("ens1", CARD_PATH),
        interface("ens2", OTHER_PATH),
        {
            "/proc/1/net/route": ROUTES + default_route("ens1") + connected("ens2"),
            "/proc/1/net/fib_trie": LOCAL + local("10.0.0.7"),
        },
    )
    assert found == {
        CARD: [("DefaultRoute", "network interface ens1 carries the default route")],
        OTHER: [("NetworkAddress", "network interface ens2 has address 10.0.0.7")],
    }


def test_an_address_belongs_to_the_longest_connected_network_that_covers_it(tmp_path: Path) -> None:
    found = vetoes(
        tmp_path,
        interface("ens1", CARD_PATH),
        interface("ens2", OTHER_PATH),
        {
            "/proc/1/net/route": ROUTES + connected("ens1", mask="000000FF") + connected("ens2"),
            "/proc/1/net/fib_trie": LOCAL + local("10.0.0.7"),
        },
    )
    assert list(found) == [OTHER]


def test_ipv6_addresses_and_default_routes_count_and_the_kernel_s_own_unreachable_route_does_not(
    tmp_path: Path,
) -> None:
    zero = "0" * 32
    routes = f"{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 1 0 00000003     ens1\n"
    routes += f"{zero} 00 {zero} 00 {zero} ffffffff 1 0 00200200       lo\n"
    addresses = "fe80000000000000000000000000abcd 03 40 20 80     ens2\n" + "0" * 31 + "1 01 80 10 80       lo\n"
    found = vetoes(
        tmp_path,
        interface("ens1", CARD_PATH),
        interface("ens2", OTHER_PATH),
        {"/proc/1/net/ipv6_route": routes, "/proc/1/net/if_inet6": addresses},
    )
    assert found == {
        CARD: [("DefaultRoute", "network interface ens1 carries the IPv6 default route")],
        OTHER: [("NetworkAddress", "network interface ens2 has address fe80::abcd")],
    }


@pytest.mark.parametrize(
    "links",
    [
        {"ens1": {"master": "/sys/devices/virtual/net/bond0"}},
        {"ens1": {"upper_bond0": "/sys/devices/virtual/net/bond0"}},
        {"bond0": {"lower_ens1": f"{CARD_PATH}/net/ens1"}},
        {"bond0": {"brif/ens1": f"{CARD_PATH}/net/ens1"}},
    ],
    ids=["master", "upper", "lower", "bridge-port"],
)
def test_a_member_carries_what_its_bond_or_bridge_has_whichever_way_the_kernel_shows_it(
    tmp_path: Path, links: dict[str, dict[str, str]]
) -> None:
    found = vetoes(
        tmp_path,
        interface("ens1", CARD_PATH, links=links.get("ens1")),
        interface("bond0", links=links.get("bond0")),
        {"/proc/1/net/route": ROUTES + default_route("bond0")},
    )
    assert found == {CARD: [("DefaultRoute", "network interface ens1 is below bond0, which carries the default route")]}


def test_slaves_that_only_the_bond_lists_are_found(tmp_path: Path) -> None:
    found = vetoes(
        tmp_path,
        interface("ens1", CARD_PATH),
        interface("bond0"),
        {
            "/sys/devices/virtual/net/bond0/bonding/slaves": "ens1\n",
            "/proc/1/net/route": ROUTES + default_route("bond0"),
        },
    )
    assert list(found) == [CARD]


def test_a_vlan_on_a_bridge_on_a_bond_reaches_the_card(tmp_path: Path) -> None:
    virtual = "/sys/devices/virtual/net"
    found = vetoes(
        tmp_path,
        interface("ens1", CARD_PATH, links={"master": f"{virtual}/bond0"}),
        interface("bond0", links={"upper_br0": f"{virtual}/br0"}),
        interface("br0", links={"upper_br0.7": f"{virtual}/br0.7"}),
        interface("br0.7"),
        {
            "/proc/1/net/route": ROUTES + connected("br0.7"),
            "/proc/1/net/fib_trie": LOCAL + local("10.0.0.7"),
        },
    )
    assert list(found) == [CARD]
    assert "10.0.0.7" in found[CARD][0][1]


def test_a_port_of_open_vswitch_is_needed_because_its_address_stands_elsewhere(tmp_path: Path) -> None:
    found = vetoes(
        tmp_path,
        interface("ens1", CARD_PATH, links={"master": "/sys/devices/virtual/net/ovs-system"}),
        interface("ovs-system"),
    )
    assert [reason for reason, _ in found[CARD]] == ["NetworkAddress"]


def test_a_network_card_on_usb_vetoes_its_usb_controller(tmp_path: Path) -> None:
    found = vetoes(
        tmp_path,
        interface("usb0", f"{CARD_PATH}/usb1/1-1/1-1:1.0"),
        {"/proc/1/net/route": ROUTES + default_route("usb0")},
    )
    assert list(found) == [CARD]


def test_process_1_is_asked_not_the_network_namespace_of_the_daemon(tmp_path: Path) -> None:
    found = vetoes(
        tmp_path,
        interface("ens1", CARD_PATH),
        {"/proc/1/net/route": ROUTES + default_route("ens1"), "/proc/net/route": ROUTES},
    )
    assert list(found) == [CARD]


DISK = f"{CARD_PATH}/nvme/nvme0/nvme0n1"
BLOCK = {
    "/sys/block/nvme0n1": f"-> {DISK}",
    f"{DISK}/dev": "259:0\n",
    f"{DISK}/nvme0n1p2/dev": "259:2\n",
    f"{DISK}/nvme0n1p2/partition": "2\n",
}


def volume(name: str, number: str, *slaves: str, label: str = "") -> dict[str, str]:
    here = f"/sys/devices/virtual/block/{name}"
    found = {f"/sys/block/{name}": f"-> {here}", f"{here}/dev": f"{number}\n", f"{here}/slaves/": ""}
    found |= {f"{here}/slaves/{slave}": f"-> {DISK}/{slave}" for slave in slaves}
    return found | ({f"{here}/dm/name": f"{label}\n"} if label else {})


def mounted(number: str, source: str, point: str = "/", kind: str = "ext4") -> dict[str, str]:
    return {"/proc/1/mountinfo": MOUNTS.format(number=number, point=point, kind=kind, source=source)}


def test_a_mounted_partition_vetoes_the_controller(tmp_path: Path) -> None:
    found = vetoes(tmp_path, BLOCK, mounted("259:2", "/dev/root"))
    assert found == {CARD: [("MountedDisk", "nvme0n1p2 is mounted on /")]}


def test_volumes_and_arrays_are_followed_down_to_the_disks(tmp_path: Path) -> None:
    stacked = volume("dm-1", "253:1", "dm-0", label="vg-root") | volume("dm-0", "253:0", "md0", label="crypt")
    array = volume("md0", "9:0", "nvme0n1p2")
    found = vetoes(tmp_path, BLOCK, stacked, array, mounted("253:1", "/dev/mapper/vg-root"))
    assert found == {CARD: [("MountedDisk", "dm-1 is mounted on /")]}


def test_holders_alone_show_the_chain_too(tmp_path: Path) -> None:
    holders = {f"{DISK}/nvme0n1p2/holders/dm-0": "-> /sys/devices/virtual/block/dm-0"}
    found = vetoes(tmp_path, BLOCK, holders, volume("dm-0", "253:0"), mounted("253:0", "/dev/dm-0"))
    assert list(found) == [CARD]


@pytest.mark.parametrize("source", ["/dev/nvme0n1p2", "/dev/disk/by-uuid/1", "/dev/mapper/vg-data"])
def test_a_file_system_with_an_anonymous_number_is_found_by_its_source(tmp_path: Path, source: str) -> None:
    found = vetoes(
        tmp_path,
        BLOCK,
        volume("dm-0", "253:0", "nvme0n1p2", label="vg-data"),
        {"/dev/disk/by-uuid/1": "-> /dev/nvme0n1p2", "/dev/nvme0n1p2": ""},
        mounted("0:33", source, kind="btrfs"),
    )
    assert list(found) == [CARD]


def test_every_disk_of_a_btrfs_is_needed(tmp_path: Path) -> None:
    second = f"{OTHER_PATH}/ata1/host0/target0:0:0/0:0:0:0/block/sda"
    found = vetoes(
        tmp_path,
        BLOCK,
        {
            "/sys/block/sda": f"-> {second}",
            f"{second}/dev": "8:0\n",
            "/sys/fs/btrfs/u/devices/nvme0n1p2": f"-> {DISK}/nvme0n1p2",
            "/sys/fs/btrfs/u/devices/sda": f"-> {second}",
        },
        mounted("0:33", "/dev/nvme0n1p2", kind="btrfs"),
    )
    assert sorted(found) == [CARD, OTHER]


def test_a_mounted_zfs_may_lie_on_any_disk(tmp_path: Path) -> None:
    found = vetoes(tmp_path, BLOCK, mounted("0:40", "tank/home", "/home", "zfs"))
    assert found == {CARD: [("MountedDisk", "zfs tank/home is mounted on /home, its disks cannot be told")]}


def test_nvme_multipath_leads_to_every_controller_of_the_subsystem(tmp_path: Path) -> None:
    subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    found = vetoes(
        tmp_path,
        {
            "/sys/block/nvme0n1": f"-> {subsystem}/nvme0n1",
            f"{subsystem}/nvme0n1/dev": "259:0\n",
            f"{subsystem}/nvme0": f"-> {CARD_PATH}/nvme/nvme0",
            f"{subsystem}/nvme1": f"-> {OTHER_PATH}/nvme/nvme1",
            f"{CARD_PATH}/nvme/nvme0/": "",
            f"{OTHER_PATH}/nvme/nvme1/": "",
        },
        mounted("259:0", "/dev/nvme0n1"),
    )
    assert sorted(found) == [CARD, OTHER]


def test_swap_counts_and_files_named_with_escapes_do_not_confuse(tmp_path: Path) -> None:
    swaps = "Filename\tType\tSize\n/dev/nvme0n1p2 partition 1 0 -2\n/a\\040file file 1 0 -3\n"
    assert vetoes(tmp_path, BLOCK, {"/proc/swaps": swaps}) == {CARD: [("MountedDisk", "nvme0n1p2 is swap")]}


def test_many_mounts_of_a_disk_make_a_short_message(tmp_path: Path) -> None:
    lines = "".join(MOUNTS.format(number="259:2", point=f"/m{n}", kind="ext4", source="x") for n in range(50))
    found = vetoes(tmp_path, BLOCK, {"/proc/1/mountinfo": lines})
    text = "nvme0n1p2 is mounted on /m0 and is mounted on /m1 and is mounted on /m2 and in 47 more places"
    assert found[CARD] == [("MountedDisk", text)]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/proc/1/mountinfo", ""),
        ("/proc/1/mountinfo", "nonsense\n"),
        ("/proc/1/net/route", ROUTES + "too few\n"),
        ("/proc/1/net/route", ROUTES + "ens1 zz 0 zz 0 0 0 0 0 0 0\n"),
        ("/proc/1/net/ipv6_route", "a b c\n"),
        ("/proc/1/net/if_inet6", "zz 03 40 20 80 ens2\n"),
    ],
)
def test_evidence_that_is_not_what_the_kernel_writes_vetoes_every_device(
    tmp_path: Path, path: str, content: str
) -> None:
    found = vetoes(tmp_path, {path: content})
    assert [(reason, path in text) for reason, text in found[CARD]] == [("Unreadable", True)]
    assert sorted(found) == [CARD, OTHER]


@pytest.mark.parametrize("path", ["/proc/1/mountinfo", "/proc/1/net/route", "/proc/1/net/fib_trie"])
def test_evidence_that_every_host_has_is_missed_when_it_is_not_there(tmp_path: Path, path: str) -> None:
    paper_host(tmp_path, {name: text for name, text in QUIET.items() if name != path})
    assert len(read_evidence(KernelFiles(tmp_path)).unreadable) == 1


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"/proc/1/net/route": ROUTES + default_route("ens1")},
            "ens1 carries the default route, but is not in /sys/cl",
        ),
        ({"/proc/1/net/if_inet6": "fd" + "0" * 30 + " 03 40 20 80 ens2\n"}, "ens2 has address fd00::, but is not in"),
        (
            {"/proc/1/net/route": ROUTES + default_route("bond0")} | interface("bond0", links={"lower_ens3": "/sys/x"}),
            "ens3 is below bond0, which carries the default route, but is not in /sys/class/net",
        ),
        (
            {"/proc/1/net/route": ROUTES + default_route("ens1"), "/sys/class/net/ens1/flags": "0x1003\n"},
            None,
        ),
    ],
)
def test_a_needed_interface_that_sysfs_does_not_show_may_be_on_any_device(
    tmp_path: Path, files: dict[str, str], says: str | None
) -> None:
    found = vetoes(tmp_path, files)
    if says is None:
        assert found == {}
        return
    assert sorted(found) == [CARD, OTHER]
    [(reason, text)] = found[CARD]
    assert reason == "Unreadable"
    assert says in text


def test_a_needed_interface_whose_device_sysfs_does_not_show_may_be_on_any_device(tmp_path: Path) -> None:
    class Partial(KernelFiles):
        def resolve(self, path: str) -> str:
            if path.startswith("/sys/class/net"):
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            return super().resolve(path)

    paper_host(tmp_path, QUIET | interface("ens1", CARD_PATH) | {"/proc/1/net/route": ROUTES + default_route("ens1")})
    [text] = read_evidence(Partial(tmp_path)).unreadable
    assert "ens1 carries the default route" in text


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"/proc/1/mountinfo": MOUNTS.format(number="259:1", point="/", kind="ext4", source="/dev/root")}, "259:1"),
        (
            {"/proc/1/mountinfo": MOUNTS.format(number="0:40", point="/", kind="btrfs", source="/dev/nvme0n1p1")},
            "/dev/nvme0n1p1",
        ),
        ({"/proc/swaps": "Filename\n/dev/nvme0n1p2 partition 1 0 -2\n"}, "swap on /dev/nvme0n1p2"),
        (
            {
                "/proc/1/mountinfo": MOUNTS.format(number="253:0", point="/", kind="xfs", source="/dev/mapper/root"),
                "/sys/block/dm-0/dev": "253:0\n",
                "/sys/block/dm-0/slaves/nvme0n1p3": "",
            },
            "nvme0n1p3 is needed",
        ),
    ],
)
def test_a_needed_disk_that_sysfs_does_not_show_may_be_on_any_device(
    tmp_path: Path, files: dict[str, str], says: str
) -> None:
    found = vetoes(tmp_path, files)
    assert sorted(found) == [CARD, OTHER]
    [(reason, text)] = found[CARD]
    assert (reason, "not in /sys/block" in text) == ("Unreadable", True)
    assert says in text


def test_a_disk_that_only_its_number_leads_to_is_found(tmp_path: Path) -> None:
    files = {
        "/proc/1/mountinfo": MOUNTS.format(number="259:1", point="/", kind="ext4", source="/dev/root"),
        "/sys/dev/block/259:1": f"-> {CARD_PATH}/nvme/nvme0/nvme0n1",
        f"{CARD_PATH}/nvme/nvme0/nvme0n1/dev": "259:1\n",
    }
    assert vetoes(tmp_path, files) == {CARD: [("MountedDisk", "nvme0n1 is mounted on /")]}


def test_file_systems_that_stand_on_no_disk_need_none(tmp_path: Path) -> None:
    kinds = [("overlay", "overlay"), ("tmpfs", "tmpfs"), ("fuse.lxcfs", "/dev/fuse"), ("nfs4", "nas:/export")]
    lines = [
        MOUNTS.format(number=f"0:{20 + index}", point=f"/m{index}", kind=kind, source=source)
        for index, (kind, source) in enumerate(kinds)
    ]
    assert vetoes(tmp_path, {"/proc/1/mountinfo": "".join(lines)}) == {}


@pytest.mark.parametrize("groups", [IOMMUGroups(), IOMMUGroups({7: ()}), IOMMUGroups({8: (OTHER,)})])
def test_a_group_whose_members_are_not_known_may_have_one_that_the_host_needs(
    tmp_path: Path, groups: IOMMUGroups
) -> None:
    device = PCIDevice(CARD, "1eff", "1250", "120000", iommu_group=7)
    found = vetoes_of({CARD: device}, groups, read_evidence(paper_host(tmp_path, QUIET)))
    assert [veto.reason for veto in found[CARD]] == [VetoReason.UNREADABLE]
    assert "/sys/kernel/iommu_groups/7/devices" in found[CARD][0].message


def test_hosts_without_ipv6_or_swap_are_whole(tmp_path: Path) -> None:
    bare = {name: text for name, text in QUIET.items() if "6" not in name and "swaps" not in name}
    assert read_evidence(paper_host(tmp_path, bare)).unreadable == ()


def test_a_link_that_fails_is_unreadable_evidence_and_one_that_went_is_not(tmp_path: Path) -> None:
    class Failing(KernelFiles):
        number = errno.EIO

        def resolve(self, path: str) -> str:
            if path.startswith("/sys/class/net/ens1"):
                raise OSError(self.number, "failed", path)
            return super().resolve(path)

    paper_host(tmp_path, QUIET | interface("ens1", CARD_PATH))
    failing = Failing(tmp_path)
    assert read_network_evidence(failing).unreadable == ("/sys/class/net/ens1: failed",)
    failing.number = errno.ENOENT
    assert read_network_evidence(failing).unreadable == ()


def test_a_group_shares_the_fate_of_the_member_that_the_host_needs(tmp_path: Path) -> None:
    files = QUIET | interface("ens1", CARD_PATH) | {"/proc/1/net/route": ROUTES + default_route("ens1")}
    devices = {
        CARD: PCIDevice(CARD, "8086", "1592", "020000", iommu_group=7),
        OTHER: PCIDevice(OTHER, "1eff", "1250", "120000", iommu_group=7),
    }
    found = vetoes_of(devices, IOMMUGroups({7: (CARD, OTHER)}), read_evidence(paper_host(tmp_path, files)))
    assert [veto.reason for veto in found[OTHER]] == [VetoReason.GROUP_MEMBER]
    assert found[OTHER][0].message == (f"{CARD} of its IOMMU group: network interface ens1 carries the default route")


def test_parsers_read_real_lines() -> None:
    routes = parse_route(ROUTES + default_route("ens1") + connected("ens2"))
    assert routes.default == {"ens1"}
    assert [(str(network), name) for network, name in routes.connected] == [("10.0.0.0/24", "ens2")]
    down = ROUTES + "ens3\t00000000\t00000000\t0000\t0\t0\t0\t00000000\t0\t0\t0\n"
    assert parse_route(down).default == frozenset()
    assert {str(address) for address in parse_local_addresses(LOCAL + local("10.0.0.7"))} == {"10.0.0.7"}
    assert parse_ipv6_route("\n") == frozenset()
    assert parse_if_inet6("") == ()
    [mount] = parse_mountinfo(r"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue")
    assert (mount.number, mount.point, mount.filesystem, mount.source) == ("98:0", "/mnt 2", "ext3", "/dev/root")
    assert parse_swaps("Filename\n") == ()
