"""A kubelet's PodResources socket that says what a test tells it to."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from kubelet_api import pod_resources_v1_pb2 as messages
from kubelet_api import pod_resources_v1_pb2_grpc as stubs
from node_host.evidence.pod_resources import DIRECTORY, POD_LOGS, PODS, SOCKET
from node_host.host import Host


@dataclass
class PodResourcesAnswers(stubs.PodResourcesListerServicer):
    """What is answered next. ``fails`` is the code that calls end with; None: they are answered."""

    pods: list[messages.PodResources] = field(default_factory=list)
    allocatable: dict[str, list[str]] = field(default_factory=dict)
    fails: grpc.StatusCode | None = None
    calls: int = 0

    def List(self, request: Any, context: Any) -> messages.ListPodResourcesResponse:  # noqa: N802 - gRPC's name
        self._begin(context)
        return messages.ListPodResourcesResponse(pod_resources=self.pods)

    def GetAllocatableResources(  # noqa: N802 - gRPC's name
        self, request: Any, context: Any
    ) -> messages.AllocatableResourcesResponse:
        self._begin(context)
        return messages.AllocatableResourcesResponse(devices=_devices(self.allocatable))

    def Get(self, request: Any, context: Any) -> messages.GetPodResourcesResponse:  # noqa: N802 - gRPC's name
        self._begin(context)
        found = [pod for pod in self.pods if (pod.name, pod.namespace) == (request.pod_name, request.pod_namespace)]
        return messages.GetPodResourcesResponse(pod_resources=found[0] if found else None)

    def _begin(self, context: Any) -> None:
        self.calls += 1
        if self.fails is not None:
            context.abort(self.fails, "as the test wants")


def pod_of(
    name: str,
    *,
    namespace: str = "team-a",
    plugins: Mapping[str, Iterable[str]] | None = None,
    claims: Mapping[str, tuple[str, str]] | None = None,
) -> messages.PodResources:
    """A pod with device ids of plugins, by resource, and claims, by name, of a driver and a device each."""
    dynamic = [
        messages.DynamicResource(
            claim_name=claim,
            claim_namespace=namespace,
            claim_resources=[messages.ClaimResource(driver_name=driver, pool_name="node", device_name=device)],
        )
        for claim, (driver, device) in (claims or {}).items()
    ]
    container = messages.ContainerResources(name="main", devices=_devices(plugins or {}), dynamic_resources=dynamic)
    return messages.PodResources(name=name, namespace=namespace, containers=[container])


def _devices(by_resource: Mapping[str, Iterable[str]]) -> list[messages.ContainerDevices]:
    return [messages.ContainerDevices(resource_name=name, device_ids=ids) for name, ids in by_resource.items()]


@contextmanager
def answering(host: Host) -> Iterator[PodResourcesAnswers]:
    """A kubelet that answers on the host's socket."""
    answers = PodResourcesAnswers()
    with ThreadPoolExecutor(2) as threads, _opened(host) as address:
        server = grpc.server(threads)
        stubs.add_PodResourcesListerServicer_to_server(answers, server)
        server.add_insecure_port(f"unix:{address}")
        server.start()
        try:
            yield answers
        finally:
            server.stop(None).wait()
    with suppress(FileNotFoundError):
        (host.local(DIRECTORY) / SOCKET).unlink()


@contextmanager
def silent(host: Host) -> Iterator[None]:
    """A kubelet that takes connections and says nothing."""
    with _opened(host) as address, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(8)
        yield
    (host.local(DIRECTORY) / SOCKET).unlink()


def leave_dead_socket(host: Host) -> None:
    """What a kubelet that was killed leaves behind."""
    with _opened(host) as address, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)


def make_pod_directories(host: Host, namespace: str, name: str, uid: str, *, is_gone: bool = False) -> None:
    """What the kubelet makes on the host for a pod, and what stays of it when it is gone."""
    _make(host.local(f"{POD_LOGS}/{namespace}_{name}_{uid}"))
    if not is_gone:
        _make(host.local(f"{PODS}/{uid}"))


@contextmanager
def _opened(host: Host) -> Iterator[str]:
    """The socket's path, short however deep the host's root is."""
    path = host.local(DIRECTORY)
    _make(path)
    directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{SOCKET}"
    finally:
        os.close(directory)


def _make(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
