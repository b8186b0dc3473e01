"""Which devices the kubelet has given to pods, by its own word: the socket of the PodResources API.

A host without the socket's directory has no kubelet. Where the directory is and the kubelet does not answer, any device
may be in a pod. The socket is the kubelet's, and is asked anew each time: a kubelet that starts again makes another.
Source: k8s.io/kubelet/pkg/apis/podresources/v1; kubelet pkg/kubelet/apis/podresources (16 MiB a message at most; calls
beyond 100 a second are refused).
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from node_host.host import Host

if TYPE_CHECKING:
    from kubelet_api import pod_resources_v1_pb2 as messages
    from kubelet_api import pod_resources_v1_pb2_grpc as stubs

R = TypeVar("R")

DIRECTORY: Final = "/var/lib/kubelet/pod-resources"
SOCKET: Final = "kubelet.sock"
POD_LOGS: Final = "/var/log/pods"
PODS: Final = "/var/lib/kubelet/pods"
ANSWER_SECONDS: Final = 3.0
_MAX_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """A device of a device plugin: its resource, as `vendor.example/resource`, and the plugin's own name for it."""

    resource: str
    name: str


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device of a ResourceClaim of the pod's namespace."""

    claim: str
    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class PodDevices:
    """What one pod has. ``uid`` is None where it is not known."""

    namespace: str
    name: str
    plugin_devices: frozenset[PluginDevice] = frozenset()
    claimed: frozenset[ClaimedDevice] = frozenset()
    uid: str | None = None


@dataclass(frozen=True, slots=True)
class PodResources:
    """Pods that have devices; ``unreadable`` says why they are not known, or None."""

    pods: tuple[PodDevices, ...] = ()
    unreadable: str | None = None

    @property
    def doubt(self) -> str | None:
        """Why any device may be in a pod, or None."""
        return None if self.unreadable is None else f"the kubelet does not say which pods have it: {self.unreadable}"


@dataclass(frozen=True, slots=True)
class PluginDevices:
    """All devices that device plugins serve on this node; ``unreadable`` says why they are not known, or None."""

    devices: frozenset[PluginDevice] = frozenset()
    unreadable: str | None = None


def read_pod_resources(host: Host, *, answer_seconds: float = ANSWER_SECONDS) -> PodResources:
    """Ask the kubelet. Takes at most about ``answer_seconds``; never raises."""

    def ask(stub: "stubs.PodResourcesListerStub") -> tuple[PodDevices, ...]:
        from kubelet_api import pod_resources_v1_pb2 as messages

        answer = stub.List(messages.ListPodResourcesRequest(), timeout=answer_seconds)
        return tuple(found for pod in answer.pod_resources if (found := _pod(pod)) is not None)

    found = _asked(host, ask)
    if found is None:
        return PodResources()
    return PodResources(unreadable=found) if isinstance(found, str) else PodResources(_with_uids(host, found))


def read_plugin_devices(host: Host, *, answer_seconds: float = ANSWER_SECONDS) -> PluginDevices:
    """Ask the kubelet what device plugins serve (GetAllocatableResources). Never raises."""

    def ask(stub: "stubs.PodResourcesListerStub") -> frozenset[PluginDevice]:
        from kubelet_api import pod_resources_v1_pb2 as messages

        answer = stub.GetAllocatableResources(messages.AllocatableResourcesRequest(), timeout=answer_seconds)
        return _plugin_devices(answer.devices)

    found = _asked(host, ask)
    if found is None:
        return PluginDevices()
    return PluginDevices(unreadable=found) if isinstance(found, str) else PluginDevices(found)


def _asked(host: Host, ask: "Callable[[stubs.PodResourcesListerStub], R]") -> R | str | None:
    """The answer; why there is none; None where there is no kubelet."""
    where = f"{DIRECTORY}/{SOCKET}"
    try:
        if not host.exists(DIRECTORY):
            return None
        with _address(host) as address:
            return _answer(address, ask)
    except FileNotFoundError:
        return f"{where} is not there: the kubelet does not run"
    except OSError as error:
        return f"{where}: {error.strerror or error}"


def _answer(address: str, ask: "Callable[[stubs.PodResourcesListerStub], R]") -> R:
    """Raises OSError."""
    # Only hosts with a kubelet pay for the library: 17 MB and 16 ms.
    import grpc

    from kubelet_api import pod_resources_v1_pb2_grpc as stubs

    options = [
        ("grpc.max_receive_message_length", _MAX_BYTES),
        ("grpc.enable_http_proxy", 0),
        # The address is the number of a descriptor: no connection may be shared by it.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    try:
        with grpc.insecure_channel(address, options=options) as channel:
            return ask(stubs.PodResourcesListerStub(channel))
    except grpc.RpcError as error:
        # What the library says of a refused connection has times and numbers in it, which would change a status.
        code = getattr(error, "code", lambda: None)()
        if code is grpc.StatusCode.UNAVAILABLE:
            raise OSError(errno.ECONNREFUSED, "the kubelet does not answer") from error
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise OSError(errno.ETIMEDOUT, "the kubelet did not answer in time") from error
        raise OSError(errno.EPROTO, f"the kubelet refused: {code.name if code is not None else error}") from error


@contextmanager
def _address(host: Host) -> Iterator[str]:
    """The socket as gRPC's address; through the directory's descriptor, for a path may be too long for one."""
    directory = os.open(host.local(DIRECTORY), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.stat(SOCKET, dir_fd=directory)
        yield f"unix:/proc/self/fd/{directory}/{SOCKET}"
    finally:
        os.close(directory)


def _pod(pod: "messages.PodResources") -> PodDevices | None:
    """None for a pod without devices."""
    devices: set[PluginDevice] = set()
    claimed: set[ClaimedDevice] = set()
    for container in pod.containers:
        devices |= _plugin_devices(container.devices)
        for claim in container.dynamic_resources:
            name = f"{claim.claim_namespace}/{claim.claim_name}"
            claimed |= {
                ClaimedDevice(name, one.driver_name, one.pool_name, one.device_name) for one in claim.claim_resources
            }
    if not devices and not claimed:
        return None
    return PodDevices(pod.namespace, pod.name, frozenset(devices), frozenset(claimed))


def _plugin_devices(listed: "Iterable[messages.ContainerDevices]") -> frozenset[PluginDevice]:
    return frozenset(PluginDevice(one.resource_name, name) for one in listed for name in one.device_ids)


def _with_uids(host: Host, pods: tuple[PodDevices, ...]) -> tuple[PodDevices, ...]:
    """With the UIDs that the kubelet's directories tell: `<namespace>_<name>_<uid>` of its logs, `<uid>` of its pods.

    A directory of logs outlives its pod, so of several the one counts whose pod has a directory too.
    """
    if not pods:
        return pods
    uids: dict[tuple[str, str], list[str]] = {}
    with suppress(OSError):
        for entry in host.list(POD_LOGS):
            namespace, _, rest = entry.partition("_")
            name, _, uid = rest.rpartition("_")
            uids.setdefault((namespace, name), []).append(uid)
    found = []
    for pod in pods:
        with suppress(OSError):
            there = [uid for uid in uids.get((pod.namespace, pod.name), ()) if host.exists(f"{PODS}/{uid}")]
            pod = replace(pod, uid=there[0]) if len(there) == 1 else pod  # noqa: PLW2901 - the same pod, known better
        found.append(pod)
    return tuple(found)
