"""Which PCI functions the names mean that device plugins and DRA drivers give their devices."""

import pytest

from node_host.evidence.pod_devices import KnownDevices, pod_users, served_by_plugins
from node_host.evidence.pod_resources import ClaimedDevice, PluginDevice, PodDevices, PodResources
from node_host.pci.device import PCIDevice

NPU, TWIN, ON_VFIO, MATE = "0000:23:00.0", "0000:24:00.0", "0000:27:00.0", "0000:27:00.1"
GPU, GPU_TWIN, NIC, DRIVERLESS = "0000:41:00.0", "0000:42:00.0", "0000:51:00.0", "0000:61:00.0"
UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
POD_UID = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"


def device(address: str, vendor: str, driver: str | None, group: int, class_code: str = "120000") -> PCIDevice:
    return PCIDevice(address, vendor, "1250", class_code, driver=driver, iommu_group=group)


KNOWN = KnownDevices(
    devices={
        one.address: one
        for one in (
            device(NPU, "1eff", "rebellions", 20),
            device(TWIN, "1eff", "rebellions", 21),
            device(ON_VFIO, "1eff", "vfio-pci", 25),
            device(MATE, "1eff", "vfio-pci", 25),
            device(DRIVERLESS, "1eff", None, 61),
            device(GPU, "10de", "nvidia", 41, "030000"),
            device(GPU_TWIN, "10de", "nvidia", 42, "030000"),
            device(NIC, "10de", "mlx5_core", 51, "020000"),
        )
    },
    names={"rbln0": NPU, "rbln1": TWIN, "nvidia0": GPU, UUID: GPU, "card1": GPU_TWIN},
    vendors_of=lambda domain: {
        "rebellions.ai": frozenset({"1eff"}),
        "nvidia.com": frozenset({"10de"}),
        "gpu.nvidia.com": frozenset({"10de"}),
    }.get(domain, frozenset()),
    may_be_meant=lambda one: not one.class_code.startswith("02"),
)


@pytest.mark.parametrize(
    ("resource", "name", "means"),
    [
        # By address, however it is written.
        ("rebellions.ai/ATOM", NPU, {NPU}),
        ("example.com/any", "pci-0000_23_00.0", {NPU}),
        ("example.com/any", "0000-23-00-0", {NPU}),
        ("example.com/any", "0000:23:00.0::3", {NPU}),
        ("example.com/any", "23:00.0", {NPU}),
        ("example.com/any", "0000:9A:1F.7", {"0000:9a:1f.7"}),
        # By what the kernel or the driver calls it, also where several pods share it.
        ("rebellions.ai/ATOM", "rbln1", {TWIN}),
        ("gpu.intel.com/i915", "card1-0", {GPU_TWIN}),
        ("nvidia.com/gpu", UUID, {GPU}),
        ("nvidia.com/gpu", f"{UUID}::7", {GPU}),
        # By IOMMU group, of what is on VFIO.
        ("devices.kubevirt.io/npu", "25", {ON_VFIO, MATE}),
        # Nothing tells: any device of the vendor that a driver of the host has, but no network card.
        ("rebellions.ai/ATOM", "7", {NPU, TWIN}),
        ("rebellions.ai/ATOM", "20", {NPU, TWIN}),
        ("nvidia.com/mig-1g.5gb", "MIG-4cf9db4e-7e55-5d1b-a2a4-2d9f4a1f2b3c", {GPU, GPU_TWIN}),
        # Nothing tells, and npufleet knows no devices of that vendor.
        ("devices.kubevirt.io/kvm", "kvm12", set()),
        ("example.com/any", "20", set()),
        ("example.com/any", "aa:bb", set()),
    ],
)
def test_the_device_of_a_plugin(resource: str, name: str, means: set[str]) -> None:
    assert KNOWN.of_plugin(PluginDevice(resource, name)) == means


@pytest.mark.parametrize(
    ("driver", "name", "means"),
    [
        ("npu.rebellions.ai", "vfio-0000-27-00-0", {ON_VFIO}),
        ("npufleet.io", "hard-0000-23-00-0-vir02-1", {NPU}),
        ("gpu.nvidia.com", "gpu-0", {GPU, GPU_TWIN}),
        ("gpu.nvidia.com", "nvidia0", {GPU}),
        ("dra.net", "eth0", set()),
    ],
)
def test_the_device_of_a_claim(driver: str, name: str, means: set[str]) -> None:
    assert KNOWN.of_claim(driver, name) == means


def test_pods_are_users_by_name_and_uid_with_what_they_were_given() -> None:
    claimed = frozenset({ClaimedDevice("team-a/npu", "npufleet.io", "node", "npu-0000-23-00-0")})
    plugins = frozenset({PluginDevice("rebellions.ai/ATOM", "rbln0"), PluginDevice("rebellions.ai/ATOM", "rbln1")})
    resources = PodResources(
        (PodDevices("team-a", "trainer", plugins, claimed, POD_UID), PodDevices("team-b", "other", plugins))
    )
    users = pod_users(resources, KNOWN)
    told = {(user.kind.value, user.name, user.detail, user.pod_uid) for user in users[NPU]}
    assert told == {
        ("Pod", "pod team-a/trainer", "the kubelet gave it claim team-a/npu and 1 more", POD_UID),
        ("Pod", "pod team-b/other", "the kubelet gave it rebellions.ai/ATOM rbln0", None),
    }
    assert users.keys() == {NPU, TWIN}


def test_a_pod_with_the_longest_names_is_a_user_too() -> None:
    plugins = frozenset({PluginDevice("rebellions.ai/ATOM", "rbln0" + "-" + "9" * 5000)})
    users = pod_users(PodResources((PodDevices("n" * 63, "p" * 253, plugins),)), KNOWN)
    (user,) = users[NPU]
    assert len(user.name) == 253
    assert len(user.detail) < 300


def test_the_resources_of_plugins_are_told_by_device() -> None:
    served = [
        PluginDevice("rebellions.ai/ATOM", "rbln0"),
        PluginDevice("example.com/npu", NPU),
        PluginDevice("nvidia.com/gpu", "unknown"),
    ]
    assert served_by_plugins(served, KNOWN) == {
        NPU: ("example.com/npu", "rebellions.ai/ATOM"),
        GPU: ("nvidia.com/gpu",),
        GPU_TWIN: ("nvidia.com/gpu",),
    }
