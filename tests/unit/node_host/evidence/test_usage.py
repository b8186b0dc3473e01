"""Who uses a device: by its own nodes, its group's, its vendor's, its disks, its interfaces, its virtual functions."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crds.models.node_state import DeviceUser
from node_host.evidence.device_nodes import read_device_nodes
from node_host.evidence.open_handles import OpenHandles, read_open_handles
from node_host.evidence.usage import as_told_before, users_of
from node_host.host import KernelFiles
from node_host.pci.device import PCIDevice
from tests.builders.paper_host import paper_host

CARD, TWIN = "0000:23:00.0", "0000:24:00.0"
POD = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"
NO_PROCESSES = {"/proc/": ""}


def function(address: str, *parts: dict[str, str]) -> dict[str, str]:
    here = f"/sys/devices/pci0000:20/{address}"
    files = {f"/sys/bus/pci/devices/{address}": f"-> {here}", f"{here}/vendor": "0x1eff\n"}
    for part in parts:
        files |= {f"{here}/{path}": text for path, text in part.items()}
    return files


def node(path: str, number: str, name: str = "") -> dict[str, str]:
    found = {f"{path}/dev": f"{number}\n"}
    return found | ({f"{path}/uevent": f"MAJOR=1\nDEVNAME={name}\n"} if name else {})


def process(pid: int, comm: str, *nodes: str) -> dict[str, str]:
    files = {f"/proc/{pid}/comm": f"{comm}\n", f"/proc/{pid}/fd/": ""}
    return files | {f"/proc/{pid}/fd/{number}": f"-> {path}" for number, path in enumerate(nodes, 3)}


def host(root: Path, *parts: dict[str, str]) -> KernelFiles:
    made = paper_host(root, {path: text for part in parts for path, text in part.items() if "/fd/" not in path})
    for part in parts:
        for path, text in part.items():
            if "/fd/" in path:
                place = root / path.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                if not path.endswith("/"):
                    place.symlink_to(text.removeprefix("-> "))
    return made


def device(address: str = CARD, **more: Any) -> PCIDevice:
    return PCIDevice(address, "1eff", "1250", "120000", **more)


def users(made: KernelFiles, one: PCIDevice, *patterns: str, taken: dict[str, str] | None = None) -> list[str]:
    nodes = read_device_nodes(made, one, patterns)
    found = users_of(one, nodes, read_open_handles(made), taken_paths=taken or {})
    return [f"{user.kind}: {user.name} ({user.detail})" for user in found]


def test_an_idle_device_has_no_users(tmp_path: Path) -> None:
    made = host(tmp_path, function(CARD, node("rebellions/rbln0", "240:0", "rbln0")), process(7, "vllm", "/dev/rbln1"))
    assert users(made, device(driver="rebellions", iommu_group=20)) == []


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/dev/rbln0", {"driver": "rebellions"}),
        ("/dev/rbln0 (deleted)", {"driver": "rebellions"}),
        ("/dev/vfio/20", {"driver": "vfio-pci", "iommu_group": 20}),
        ("/dev/vfio/noiommu-20", {"driver": "vfio-pci", "iommu_group": 20}),
        ("/dev/vfio/devices/vfio3", {"driver": "vfio-pci", "vfio_device": "vfio3"}),
        ("/dev/dri/renderD128", {"driver": "i915"}),
    ],
)
def test_open_nodes_of_the_device_or_its_group_are_use(tmp_path: Path, path: str, more: dict[str, Any]) -> None:
    nodes = node("rebellions/rbln0", "240:0", "rbln0") | node("drm/renderD128", "226:128", "dri/renderD128")
    made = host(tmp_path, function(CARD, nodes), process(4242, "qemu-kvm", "/dev/null", path))
    shown = path.removesuffix(" (deleted)")
    assert users(made, replace(device(), **more)) == [f"Process: qemu-kvm (pid 4242 has {shown} open)"]


def test_a_node_without_an_event_file_is_known_by_its_directory(tmp_path: Path) -> None:
    made = host(tmp_path, function(CARD, node("misc/rbln0", "10:77")), process(7, "tool", "/dev/rbln0"))
    assert users(made, device(driver="rebellions")) == ["Process: tool (pid 7 has /dev/rbln0 open)"]


def test_nodes_of_other_functions_below_a_bridge_are_not_the_bridge_s(tmp_path: Path) -> None:
    below = node(f"{TWIN}/rebellions/rbln0", "240:0", "rbln0")
    made = host(tmp_path, function(CARD, below), process(7, "vllm", "/dev/rbln0"))
    assert users(made, device(driver="pcieport")) == []


def test_a_vendor_s_node_without_a_class_device_is_use_of_each_twin_unless_it_is_known_whose_it_is(
    tmp_path: Path,
) -> None:
    made = host(tmp_path, function(CARD), function(TWIN), process(9, "npu-smi", "/dev/davinci1"))
    says = ["Process: npu-smi (pid 9 has /dev/davinci1 open)"]
    assert users(made, device(driver="davinci"), "/dev/davinci[0-9]*") == says
    assert users(made, device(driver="davinci"), "/dev/davinci[0-9]*", taken={"/dev/davinci1": CARD}) == says
    assert users(made, device(driver="davinci"), "/dev/davinci[0-9]*", taken={"/dev/davinci1": TWIN}) == []


def test_nvidia_s_own_list_tells_whose_node_is_whose(tmp_path: Path) -> None:
    listing = {f"/proc/driver/nvidia/gpus/{CARD}/information": "Bus Location: \t 0\nDevice Minor: \t 1\n"}
    processes = process(9, "python", "/dev/nvidia0") | process(10, "train", "/dev/nvidia1", "/dev/nvidiactl")
    made = host(tmp_path, function(CARD), processes, listing)
    assert users(made, device(driver="nvidia")) == ["Process: train (pid 10 has /dev/nvidia1 open)"]
    blind = host(tmp_path / "blind", function(CARD), processes)
    assert len(users(blind, device(driver="nvidia"))) == 2


def test_holders_of_disks_and_interfaces_that_are_up_or_bound_together_are_use(tmp_path: Path) -> None:
    disk = node("nvme/nvme0/nvme0n1", "259:0", "nvme0n1") | {"nvme/nvme0/nvme0n1/nvme0n1p1/holders/dm-0": ""}
    made = host(tmp_path, function(CARD, disk), NO_PROCESSES)
    assert users(made, device(driver="nvme")) == ["Holder: dm-0 (stands on nvme0n1p1)"]
    up = host(tmp_path / "up", function(CARD, {"net/ens1/flags": "0x1003\n"}), NO_PROCESSES)
    assert users(up, device(driver="ice")) == ["Holder: ens1 (network interface is up)"]
    port = {"net/ens1/flags": "0x1002\n", "net/ens1/master": "-> /sys/devices/virtual/net/br0"}
    bridged = host(tmp_path / "port", function(CARD, port), NO_PROCESSES)
    assert users(bridged, device(driver="ice")) == ["Holder: br0 (network interface ens1 is a port of it)"]
    down = host(tmp_path / "down", function(CARD, {"net/ens1/flags": "0x1002\n"}), NO_PROCESSES)
    assert users(down, device(driver="ice")) == []


def test_an_interface_in_another_network_namespace_is_use_that_cannot_be_read(tmp_path: Path) -> None:
    made = host(tmp_path, function(CARD, {"net/": ""}), NO_PROCESSES)
    assert users(made, device(driver="ice")) == [
        "Unreadable: unknown (its network interface is in another network namespace, e.g. of a pod)"
    ]


def test_virtual_functions_are_use_and_so_is_their_number_when_it_cannot_be_read(tmp_path: Path) -> None:
    made = host(tmp_path, function(CARD), NO_PROCESSES)
    assert users(made, device(num_vfs=4)) == ["VirtualFunctions: virtual functions (4 are enabled)"]
    assert users(made, device(num_vfs=None))[0].startswith("Unreadable")


def test_a_process_that_ends_while_it_is_looked_at_is_no_fault(tmp_path: Path) -> None:
    class Ending(KernelFiles):
        number = errno.ESRCH

        def list(self, path: str) -> list[str]:
            if path == "/proc/7/fd":
                raise OSError(self.number, "failed", path)
            return super().list(path)

    host(tmp_path, process(7, "vllm", "/dev/rbln0"))
    ending = Ending(tmp_path)
    assert read_open_handles(ending).unreadable is None
    ending.number = errno.EACCES
    assert read_open_handles(ending).unreadable == "/proc/7/fd: failed"


def test_a_vfio_device_held_without_its_group_is_told_by_fdinfo_or_charged_to_every_vfio_device(
    tmp_path: Path,
) -> None:
    held = {"/proc/7/fd/9": "-> anon_inode:[vfio-device]", "/proc/7/comm": "qemu\n"}
    bound = device(driver="vfio-pci", iommu_group=20)
    blind = host(tmp_path / "blind", function(CARD), held, {"/proc/7/fdinfo/9": "pos:\t0\n"})
    assert users(blind, bound) == [
        "Unreadable: unknown (qemu (pid 7) holds a VFIO device; the kernel does not say which)"
    ]
    assert users(blind, device(driver="rebellions")) == []
    telling = {"/proc/7/fdinfo/9": f"pos:\t0\nvfio-device-syspath: /sys/devices/pci0000:20/{CARD}\n"}
    told = host(tmp_path / "told", function(CARD), held | telling)
    assert users(told, bound) == ["Process: qemu (pid 7 has anon_inode:[vfio-device] open)"]
    assert users(told, device(TWIN, driver="vfio-pci")) == []
    explained = host(tmp_path / "explained", function(CARD), held | {"/proc/7/fd/8": "-> /dev/vfio/99"})
    assert users(explained, bound) == []


def test_on_a_real_procfs_a_node_is_known_by_its_number_whatever_its_path_in_a_container() -> None:
    descriptor = os.open("/dev/null", os.O_RDONLY)
    try:
        handles = read_open_handles(KernelFiles("/"))
    finally:
        os.close(descriptor)
    number = Path("/dev/null").stat().st_rdev
    openers = handles.by_number[(False, os.major(number), os.minor(number))]
    assert os.getpid() in {handle.pid for handle in openers}


def test_evidence_that_cannot_be_read_is_a_user(tmp_path: Path) -> None:
    made = host(tmp_path, function(CARD))
    nodes = read_device_nodes(made, device())
    [user] = users_of(device(), nodes, OpenHandles(unreadable="/proc: failed"), taken_paths={})
    assert (user.kind, user.detail) == ("Unreadable", "open handles cannot be read: /proc: failed")


def of_pod(pid: int, comm: str, *nodes: str, pod: str = POD) -> dict[str, str]:
    return {**process(pid, comm, *nodes), f"/proc/{pid}/cgroup": f"0::/kubepods/burstable/pod{pod}/c\n"}


def users_on(root: Path, *parts: dict[str, str], **more: Any) -> tuple[DeviceUser, ...]:
    made = host(root, function(CARD, node("rebellions/rbln0", "240:0", "rbln0")), *parts)
    one = device(driver="rebellions", **more)
    return users_of(one, read_device_nodes(made, one, ()), read_open_handles(made), taken_paths={})


def test_many_users_are_cut_to_what_the_status_takes_and_the_rest_is_counted(tmp_path: Path) -> None:
    found = users_on(tmp_path, *(process(pid, f"worker{pid}", "/dev/rbln0") for pid in range(100, 140)))
    assert len(found) == 15
    assert (found[-1].name, found[-1].detail, found[-1].pod_uid) == ("more users", "26 more are not listed", None)


def test_processes_of_a_pod_with_the_same_node_open_are_one_user(tmp_path: Path) -> None:
    workers = (of_pod(pid, "a-loader", "/dev/rbln0") for pid in range(100, 140))
    found = users_on(tmp_path, *workers, process(999, "z-daemon", "/dev/rbln0"), num_vfs=2)
    assert [(user.kind, user.name, user.detail, user.pod_uid) for user in found] == [
        ("VirtualFunctions", "virtual functions", "2 are enabled", None),
        ("Process", "z-daemon", "pid 999 has /dev/rbln0 open", None),
        ("Process", "a-loader", "pid 100 and 39 more have /dev/rbln0 open", POD),
    ]


def test_who_is_not_moved_by_an_eviction_is_never_cut_away_by_pods(tmp_path: Path) -> None:
    workers = (of_pod(pid, f"a-loader-{pid}", "/dev/rbln0") for pid in range(100, 140))
    found = users_on(tmp_path, *workers, process(999, "z-daemon", "/dev/rbln0"), num_vfs=None)
    assert [user.name for user in found[:2]] == ["z-daemon", "unknown"]
    assert len(found) == 15
    assert (found[-1].detail, found[-1].pod_uid) == ("28 more are not listed", POD)


def test_each_pod_is_named_before_one_is_named_again(tmp_path: Path) -> None:
    second = POD.replace("3f6b8a52", "ffffffff")
    workers = (of_pod(pid, f"a-loader-{pid}", "/dev/rbln0") for pid in range(100, 140))
    found = users_on(tmp_path, *workers, of_pod(999, "z-loader", "/dev/rbln0", pod=second))
    assert {user.pod_uid for user in found[:2]} == {POD, second}


def test_a_process_that_follows_another_within_its_pod_is_told_in_the_same_words(tmp_path: Path) -> None:
    before = users_on(tmp_path / "1", of_pod(100, "loader", "/dev/rbln0"), process(7, "rbln-smi", "/dev/rbln0"))
    same = (of_pod(pid, "loader", "/dev/rbln0") for pid in (200, 201))
    after = users_on(tmp_path / "2", *same, process(7, "rbln-smi", "/dev/rbln0"))
    assert after != before
    assert as_told_before(after, before) == before
    others = (
        users_on(tmp_path / "3", of_pod(200, "server", "/dev/rbln0"), process(7, "rbln-smi", "/dev/rbln0")),
        users_on(tmp_path / "4", of_pod(100, "loader", "/dev/rbln0"), process(8, "rbln-smi", "/dev/rbln0")),
        users_on(tmp_path / "5", of_pod(100, "loader", "/dev/rbln0", pod=POD.replace("3f", "4f"))),
        users_on(tmp_path / "6", of_pod(100, "loader", "/dev/rbln0")),
    )
    for users in others:
        assert as_told_before(users, before) == users != before


def test_what_the_kernel_and_the_driver_call_a_function_are_its_names(tmp_path: Path) -> None:
    uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
    listing = {f"/proc/driver/nvidia/gpus/{CARD}/information": f"Device Minor: \t 1\nGPU UUID: \t {uuid}\n"}
    made = host(tmp_path, function(CARD, node("drm/card0", "226:0", "dri/card0")), NO_PROCESSES, listing)
    nodes = read_device_nodes(made, device(driver="nvidia"))
    assert nodes.names == {"card0", "nvidia1", uuid}
    other = read_device_nodes(made, device(driver="vfio-pci"))
    assert other.names == {"card0"}, "only NVIDIA's own driver keeps its list up to date"
