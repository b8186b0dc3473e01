"""The pod of a process, told from its cgroup as kubelets, runtimes and init systems name it."""

import errno
from pathlib import Path

import pytest

from node_host.evidence.open_handles import read_open_handles
from node_host.evidence.pods import pod_uid, read_pod_uid
from node_host.host import Host, KernelFiles
from tests.builders.paper_host import paper_host

UID = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"
OTHER = "9a1c7e44-0d2b-4c83-8a6f-51d0c2b7e9aa"
UNDERSCORES = UID.replace("-", "_")
HASH = "0b1f2c3d4e5f60718293a4b5c6d7e8f9"
CONTAINER = "8d0f" * 16
V1 = "".join(
    f"{number}:{controller}:/kubepods/burstable/pod{UID}/{CONTAINER}\n"
    for number, controller in ((12, "pids"), (11, "cpu,cpuacct"), (3, "devices"), (1, "name=systemd"))
)


@pytest.mark.parametrize(
    ("cgroups", "uid"),
    [
        pytest.param(V1, UID, id="v1 cgroupfs"),
        pytest.param(V1 + "0::/\n", UID, id="hybrid"),
        pytest.param(V1.replace("/burstable", ""), UID, id="v1 cgroupfs guaranteed"),
        pytest.param(f"0::/kubepods/besteffort/pod{UID}/{CONTAINER}\n", UID, id="v2 cgroupfs"),
        pytest.param(
            "0::/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{UNDERSCORES}.slice/cri-containerd-{CONTAINER}.scope\n",
            UID,
            id="v2 systemd containerd",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UNDERSCORES}.slice/crio-{CONTAINER}.scope/container\n",
            UID,
            id="v2 systemd CRI-O guaranteed",
        ),
        pytest.param(
            f"1:name=systemd:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORES}.slice\n",
            UID,
            id="v1 systemd, the pod's own cgroup",
        ),
        pytest.param(f"0::/kubepods/burstable/pod{HASH}/{CONTAINER}\n", HASH, id="static pod cgroupfs"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{HASH}.slice/crio-{CONTAINER}.scope\n",
            HASH,
            id="static pod systemd",
        ),
        pytest.param(
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
            f"kubelet-kubepods-burstable-pod{UNDERSCORES}.slice/cri-containerd-{CONTAINER}.scope\n",
            UID,
            id="kind systemd",
        ),
        pytest.param(
            f"11:devices:/docker/{CONTAINER}/kubelet/kubepods/burstable/pod{UID}/{CONTAINER}\n", UID, id="kind cgroupfs"
        ),
        pytest.param(
            f"0::/system.slice/docker-{CONTAINER}.scope/kubelet.slice/kubelet-kubepods.slice/"
            f"kubelet-kubepods-pod{UNDERSCORES}.slice/cri-containerd-{CONTAINER}.scope\n",
            UID,
            id="kind seen from outside",
        ),
        pytest.param(
            f"0::/kubepods/burstable/pod{UID}/{CONTAINER}/kubelet/kubepods/besteffort/pod{OTHER}/{CONTAINER}\n",
            UID,
            id="a cluster inside a pod",
        ),
        pytest.param(
            f"0::/../../kubepods-besteffort-pod{UNDERSCORES}.slice/cri-containerd-{CONTAINER}.scope\n",
            UID,
            id="seen from a cgroup namespace, systemd",
        ),
        pytest.param(f"0::/../../pod{UID}/{CONTAINER}\n", UID, id="seen from a cgroup namespace, cgroupfs"),
        pytest.param(
            f"0::/kubepods/burstable/pod{UID}/{CONTAINER}/machine/qemu-1-vm.libvirt-qemu/emulator\n",
            UID,
            id="a VM below its pod",
        ),
        pytest.param("0::/machine.slice/machine-qemu.scope\n", None, id="a VM of the host"),
        pytest.param("0::/system.slice/vllm.service\n", None, id="a service"),
        pytest.param("0::/\n", None, id="the root"),
        pytest.param(f"0::/machine.slice/libpod-{CONTAINER}.scope\n", None, id="podman"),
        pytest.param(f"0::/machine.slice/machine-libpod_pod_{CONTAINER}.slice\n", None, id="a pod of podman"),
        pytest.param(f"0::/user.slice/some-pod{UNDERSCORES}.slice\n", None, id="a slice with a like name"),
        pytest.param(f"0::/kubepods/pod{UID}x/{CONTAINER}\n", None, id="more than a UID"),
        pytest.param(f"0::/kubepods/pod{UID[:-1]}/{CONTAINER}\n", None, id="less than a UID"),
        pytest.param(f"2:cpu:/kubepods/pod{UID}/a\n1:pids:/kubepods/pod{OTHER}/a\n", None, id="two pods at once"),
        pytest.param("", None, id="empty"),
        pytest.param("\x00\xff no such form", None, id="nonsense"),
        pytest.param(f"0::{'/a' * 5000}/pod{UID}", UID, id="very deep"),
    ],
)
def test_the_pod_is_told_from_the_cgroup(cgroups: str, uid: str | None) -> None:
    assert pod_uid(cgroups) == uid


class _Unreadable(KernelFiles):
    def read(self, path: str) -> bytes:
        if path.endswith("/cgroup"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().read(path)


def holding(root: Path, cgroup: str | None) -> KernelFiles:
    files = {"/proc/4242/comm": "python3\n", "/proc/4242/fd/": ""}
    made = paper_host(root, files | ({} if cgroup is None else {"/proc/4242/cgroup": cgroup}))
    (root / "proc/4242/fd/3").symlink_to("/dev/rbln0")
    return made


def opener(host: Host) -> str:
    (handle,) = read_open_handles(host).by_path["/dev/rbln0"]
    return handle.pod_uid


def test_a_handle_names_the_pod_of_its_process(tmp_path: Path) -> None:
    assert opener(holding(tmp_path, f"0::/kubepods/pod{UID}/{CONTAINER}\n")) == UID


@pytest.mark.parametrize("cgroup", [None, "0::/system.slice/trainer.service\n"], ids=["no file", "of the host"])
def test_a_process_without_a_pod_is_one_of_the_host(tmp_path: Path, cgroup: str | None) -> None:
    assert opener(holding(tmp_path, cgroup)) == ""


def test_a_cgroup_that_cannot_be_read_is_nobodys_and_hides_no_handle(tmp_path: Path) -> None:
    holding(tmp_path, f"0::/kubepods/pod{UID}\n")
    host = _Unreadable(tmp_path)
    assert read_pod_uid(host, 4242) is None
    assert opener(host) == ""
    assert read_open_handles(host).unreadable is None
