"""What the kubelet is asked, what it may answer, and what no answer means."""

import time
from pathlib import Path

import grpc
import pytest

from node_host.evidence.pod_resources import (
    DIRECTORY,
    ClaimedDevice,
    PluginDevice,
    PluginDevices,
    PodDevices,
    PodResources,
    read_plugin_devices,
    read_pod_resources,
)
from node_host.host import Host
from node_host.host.kernel_files import KernelFiles
from tests.builders.pod_resources import answering, leave_dead_socket, make_pod_directories, pod_of, silent

UID = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"
OTHER_UID = "7c0de0c1-8d0e-4a53-9d4b-6f1b6c1c2a11"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return KernelFiles(tmp_path)


@pytest.fixture
def deep_host(tmp_path: Path) -> Host:
    """One whose paths are longer than an address of a Unix socket may be."""
    root = tmp_path / ("deep" * 30)
    root.mkdir()
    return KernelFiles(root)


def test_a_host_without_the_directory_has_no_kubelet(host: Host) -> None:
    assert read_pod_resources(host) == PodResources()
    assert read_plugin_devices(host) == PluginDevices()


def test_pods_are_told_with_their_devices(deep_host: Host) -> None:
    with answering(deep_host) as kubelet:
        kubelet.pods = [
            pod_of("idle"),
            pod_of("trainer", plugins={"nvidia.com/gpu": ["GPU-1", "GPU-2"]}),
            pod_of("vm", claims={"npu": ("npu.rebellions.ai", "vfio-0000-27-00-0")}),
        ]
        found = read_pod_resources(deep_host)
    plugins = frozenset({PluginDevice("nvidia.com/gpu", "GPU-1"), PluginDevice("nvidia.com/gpu", "GPU-2")})
    claimed = frozenset({ClaimedDevice("team-a/npu", "npu.rebellions.ai", "node", "vfio-0000-27-00-0")})
    assert found == PodResources(
        (PodDevices("team-a", "trainer", plugins), PodDevices("team-a", "vm", claimed=claimed))
    )


def test_what_plugins_serve_is_told(host: Host) -> None:
    with answering(host) as kubelet:
        kubelet.allocatable = {"rebellions.ai/ATOM": ["rbln0"], "nvidia.com/gpu": ["GPU-1"]}
        expected = frozenset({PluginDevice("rebellions.ai/ATOM", "rbln0"), PluginDevice("nvidia.com/gpu", "GPU-1")})
        assert read_plugin_devices(host) == PluginDevices(expected)


def test_more_pods_than_a_message_usually_holds_are_read(host: Host) -> None:
    with answering(host) as kubelet:
        kubelet.pods = [pod_of(f"pod-{number}", plugins={"a.b/c": ["x" * 50_000]}) for number in range(110)]
        assert len(read_pod_resources(host).pods) == 110


@pytest.mark.parametrize("read", [read_pod_resources, read_plugin_devices])
def test_a_kubelet_that_does_not_run_is_told(host: Host, read: object) -> None:
    host.local(DIRECTORY).mkdir(parents=True)
    assert callable(read)
    assert read(host).unreadable == f"{DIRECTORY}/kubelet.sock is not there: the kubelet does not run"
    leave_dead_socket(host)
    assert read(host).unreadable == f"{DIRECTORY}/kubelet.sock: the kubelet does not answer"


def test_a_kubelet_that_is_silent_is_waited_for_until_the_deadline(host: Host) -> None:
    with silent(host):
        began = time.monotonic()
        found = read_pod_resources(host, answer_seconds=0.2)
        assert time.monotonic() - began < 5
    assert found.unreadable is not None
    assert found.unreadable.startswith(f"{DIRECTORY}/kubelet.sock: the kubelet did not answer")


def test_a_kubelet_that_refuses_is_told_with_its_code(host: Host) -> None:
    with answering(host) as kubelet:
        kubelet.fails = grpc.StatusCode.RESOURCE_EXHAUSTED
        assert read_pod_resources(host).unreadable == (
            f"{DIRECTORY}/kubelet.sock: the kubelet refused: RESOURCE_EXHAUSTED"
        )
        kubelet.fails = None
        assert read_pod_resources(host) == PodResources()


def test_a_file_in_the_place_of_the_directory_is_told(host: Host) -> None:
    place = host.local(DIRECTORY)
    place.parent.mkdir(parents=True)
    place.write_text("")
    assert read_pod_resources(host).unreadable == f"{DIRECTORY}/kubelet.sock: Not a directory"


def test_the_uid_of_a_pod_is_known_from_its_directories(host: Host) -> None:
    with answering(host) as kubelet:
        kubelet.pods = [pod_of("trainer", plugins={"nvidia.com/gpu": ["GPU-1"]})]
        make_pod_directories(host, "team-a", "trainer-2", "of-another-pod")
        assert [pod.uid for pod in read_pod_resources(host).pods] == [None]
        make_pod_directories(host, "team-a", "trainer", "of-the-pod-before", is_gone=True)
        assert [pod.uid for pod in read_pod_resources(host).pods] == [None]
        make_pod_directories(host, "team-a", "trainer", UID)
        assert [pod.uid for pod in read_pod_resources(host).pods] == [UID]
        make_pod_directories(host, "team-a", "trainer", OTHER_UID)
        assert [pod.uid for pod in read_pod_resources(host).pods] == [None], "either may be meant"
