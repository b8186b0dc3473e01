"""VFIO of the simulated kernel: nodes, groups, who may have them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node_host.evidence.pods import read_pod_uid
from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import AUDIO, DRIVERS, GRAPHICS, NPU, PORT, TWIN
from tests.builders.kernel_rules import allows, shows


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with hosts.running(tmp_path) as kernel:
        yield kernel


@shows("vfio.group-node", "vfio.device-node")
@allows("vfio.no-iommu-group", "vfio.bridge-refused")
def test_nodes_of_group_and_device_come_with_the_binding_and_go_with_it(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("vfio-pci")
    assert host.list("/dev/vfio") == ["vfio"]
    hosts.give_to_vfio(host, TWIN)
    hosts.give_to_vfio(host, NPU)
    assert host.list("/dev/vfio") == ["20", "21", "devices", "vfio"]
    assert host.list("/dev/vfio/devices") == ["vfio0", "vfio1"]
    assert host.list(hosts.attribute(NPU, "vfio-dev")) == ["vfio1"]
    assert "DEVNAME=vfio/devices/vfio1\n" in hosts.text(host, hosts.attribute(NPU, "vfio-dev/vfio1/uevent"))
    assert host.resolve("/sys/class/vfio/20/subsystem") == "/sys/class/vfio"
    host.write(f"{DRIVERS}/vfio-pci/unbind", TWIN.encode())
    assert host.list("/dev/vfio") == ["20", "devices", "vfio"]
    hosts.give_to_vfio(host, TWIN)
    assert host.list(hosts.attribute(TWIN, "vfio-dev")) == ["vfio0"], "the lowest free number"


@shows("vfio.group-node")
def test_group_node_stays_until_the_last_member_leaves(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    for address in (GRAPHICS, AUDIO):
        hosts.give_to_vfio(host, address)
    host.write(f"{DRIVERS}/vfio-pci/unbind", GRAPHICS.encode())
    assert host.exists("/dev/vfio/24")
    host.write(f"{DRIVERS}/vfio-pci/unbind", AUDIO.encode())
    assert not host.exists("/dev/vfio/24")


def test_kernel_without_the_cdev_interface_has_group_nodes_only(tmp_path: Path) -> None:
    with hosts.running(tmp_path, kernel={"vfioNodes": "Group"}) as kernel:
        hosts.give_to_vfio(kernel.host(), NPU)
        assert kernel.host().list("/dev/vfio") == ["20", "vfio"]
        assert kernel.host().list(hosts.attribute(NPU, "vfio-dev")) == ["vfio0"]
        assert kernel.host().list(hosts.attribute(NPU, "vfio-dev/vfio0")) == []


@shows("vfio.no-iommu-group")
def test_vfio_refuses_a_device_without_a_group(tmp_path: Path) -> None:
    with hosts.running(tmp_path, kernel={"iommu": "Disabled"}) as kernel:
        host = kernel.host()
        host.load_module("vfio-pci")
        host.write(hosts.attribute(NPU, "driver_override"), b"vfio-pci")
        host.write(hosts.attribute(NPU, "driver/unbind"), NPU.encode())
        with hosts.refused("EINVAL"):
            host.write(f"{DRIVERS}/vfio-pci/bind", NPU.encode())
        host.write(hosts.PROBE, NPU.encode())
        assert hosts.driver_of(host, NPU) is None
        assert host.list("/sys/kernel/iommu_groups") == []


@shows("vfio.unsafe-no-iommu")
def test_unsafe_mode_makes_a_group_for_as_long_as_vfio_holds_the_device(tmp_path: Path) -> None:
    with hosts.running(tmp_path, kernel={"iommu": "UnsafeNoIOMMU"}) as kernel:
        host = kernel.host()
        hosts.give_to_vfio(host, TWIN)
        hosts.give_to_vfio(host, NPU)
        assert hosts.text(host, "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode") == "Y\n"
        assert host.list("/dev/vfio") == ["devices", "noiommu-0", "noiommu-1", "vfio"]
        assert host.resolve(hosts.attribute(NPU, "iommu_group")) == "/sys/kernel/iommu_groups/1"
        kernel.open_device("/dev/vfio/noiommu-1")
        host.write(f"{DRIVERS}/vfio-pci/unbind", TWIN.encode())
        assert host.list("/sys/kernel/iommu_groups") == ["1"]


@shows("vfio.bridge-refused")
def test_vfio_refuses_a_bridge(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("vfio-pci")
    host.write(hosts.attribute(PORT, "driver_override"), b"vfio-pci")
    host.write(hosts.attribute(PORT, "driver/unbind"), PORT.encode())
    with hosts.refused("EINVAL"):
        host.write(f"{DRIVERS}/vfio-pci/bind", PORT.encode())


@shows("open.group-open-once")
@pytest.mark.parametrize("node", ["/dev/vfio/20", "/dev/vfio/devices/vfio0"])
def test_vfio_node_has_one_user(kernel: SimulatedKernel, node: str) -> None:
    hosts.give_to_vfio(kernel.host(), NPU)
    kernel.open_device(node, pid=100)
    with hosts.refused("EBUSY"):
        kernel.open_device(node, pid=200)


@allows("open.group-open-once", "open.no-such-node", "open.group-not-viable", "open.close-what-is-open")
def test_vfio_node_is_free_again_after_its_user(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    hosts.give_to_vfio(host, NPU)
    kernel.open_device("/dev/vfio/20", pid=100, comm="qemu-kvm", cgroup="/machine.slice/vm.scope")
    assert host.read_link("/proc/100/fd/3") == "/dev/vfio/20"
    assert hosts.text(host, "/proc/100/comm") == "qemu-kvm\n"
    assert hosts.text(host, "/proc/100/cgroup") == "0::/machine.slice/vm.scope\n"
    kernel.close_device("/dev/vfio/20", pid=100)
    assert not host.exists("/proc/100")
    kernel.open_device("/dev/vfio/20", pid=200)


@shows("open.pod-in-cgroup")
def test_process_of_a_pod_has_the_pods_uid_in_its_cgroup(kernel: SimulatedKernel) -> None:
    uid = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"
    hosts.give_to_vfio(kernel.host(), NPU)
    kernel.open_device("/dev/vfio/20", pid=100, pod_uid=uid)
    (line,) = hosts.text(kernel.host(), "/proc/100/cgroup").splitlines()
    assert line.startswith("0::/kubepods.slice/kubepods-burstable.slice/")
    assert f"/kubepods-burstable-pod{uid.replace('-', '_')}.slice/" in line
    assert read_pod_uid(kernel.host(), 100) == uid
    assert read_pod_uid(kernel.host(), 1) is None


@shows("open.group-not-viable")
def test_group_with_a_member_on_a_native_driver_is_not_given_away(kernel: SimulatedKernel) -> None:
    hosts.give_to_vfio(kernel.host(), GRAPHICS)
    with hosts.refused("EPERM"):
        kernel.open_device("/dev/vfio/24")


@allows("open.group-not-viable")
@pytest.mark.parametrize("companion", ["vfio-pci", "pci-stub", "driverless"])
def test_group_is_viable_when_no_member_serves_the_host(kernel: SimulatedKernel, companion: str) -> None:
    host = kernel.host()
    hosts.give_to_vfio(host, GRAPHICS)
    if companion == "driverless":
        host.write(f"{DRIVERS}/snd_hda_intel/unbind", AUDIO.encode())
    else:
        hosts.give_to_vfio(host, AUDIO, companion)
    kernel.open_device("/dev/vfio/24")


@allows("open.group-not-viable")
def test_port_on_its_own_driver_does_not_spoil_a_group(tmp_path: Path) -> None:
    devices = [
        {
            "address": PORT,
            "parent": "pci0000:20",
            "vendor": "8086",
            "device": "2030",
            "class": "060400",
            "iommuGroup": 7,
        },
        {"address": NPU, "parent": PORT, "vendor": "1eff", "device": "1250", "class": "120000", "iommuGroup": 7},
    ]
    nothing: dict[str, list[str]] = {"volumes": [], "mounts": []}
    with hosts.running(tmp_path, devices=devices, **nothing) as kernel:
        assert hosts.driver_of(kernel.host(), PORT) == "pcieport"
        hosts.give_to_vfio(kernel.host(), NPU)
        kernel.open_device("/dev/vfio/7")


@shows("open.no-such-node")
@pytest.mark.parametrize("node", ["/dev/vfio/20", "/dev/rbln99", "/dev/vfio", "/etc/passwd"])
def test_what_is_no_node_is_not_opened(kernel: SimulatedKernel, node: str) -> None:
    with hosts.refused("ENOENT"):
        kernel.open_device(node)


@shows("open.close-what-is-open")
def test_closing_what_nobody_holds_is_refused(kernel: SimulatedKernel) -> None:
    with hosts.refused("EBADF"):
        kernel.close_device("/dev/rbln0")
