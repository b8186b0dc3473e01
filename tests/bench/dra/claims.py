"""Claims as a scheduler leaves them, and a kubelet's calls for them, timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import grpc

from cli.cluster.access.api_access import ApiAccess
from kubelet_api import dra_v1_pb2 as messages
from kubelet_api.dra_v1_pb2_grpc import DRAPluginStub
from tests.bench.dra.stage import NODE, Contestant
from tests.builders.real_node import CLAIMS, claim_spec

_CALL_SECONDS = 60.0
_numbers = itertools.count()


class BenchError(Exception):
    """The bench cannot go on; the text says why."""


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    name: str
    uid: str

    @property
    def message(self) -> messages.Claim:
        return messages.Claim(namespace="default", uid=self.uid, name=self.name)


def allocate(api: ApiAccess, who: Contestant, devices: Sequence[str]) -> AllocatedClaim:
    """A claim that has these devices of the driver's pool."""
    name = f"bench-{next(_numbers)}"
    body = {"metadata": {"name": name}, "spec": claim_spec(who.device_class, count=len(devices))}
    claim: dict[str, Any] = api.call("POST", CLAIMS, body)
    results = [{"request": "npu", "driver": who.driver, "pool": NODE, "device": device} for device in devices]
    claim["status"] = {"allocation": {"devices": {"results": results}}}
    api.call("PUT", f"{CLAIMS}/{name}/status", claim)
    return AllocatedClaim(name, claim["metadata"]["uid"])


def forget(api: ApiAccess, claim: AllocatedClaim) -> None:
    found = api.call("GET", f"{CLAIMS}/{claim.name}")
    found["status"] = {}
    api.call("PUT", f"{CLAIMS}/{claim.name}/status", found)
    api.call("DELETE", f"{CLAIMS}/{claim.name}")


class PluginClient:
    """The kubelet's end of a plugin's socket."""

    def __init__(self, who: Contestant) -> None:
        self._who = who
        self._channel = grpc.insecure_channel(f"unix:{who.socket}")
        self._stub = DRAPluginStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def prepare(self, claim: AllocatedClaim, devices: int) -> float:
        """Seconds that the call took. Raises BenchError when the claim was not prepared, or not all of it."""
        request = messages.NodePrepareResourcesRequest(claims=[claim.message])
        started = time.perf_counter()
        answer = self._stub.NodePrepareResources(request, timeout=_CALL_SECONDS)
        took = time.perf_counter() - started
        said = answer.claims[claim.uid]
        if said.error or len(said.devices) != devices:
            raise BenchError(f"{self._who.name} prepared {len(said.devices)} of {devices} devices: {said.error}")
        return took

    def unprepare(self, claim: AllocatedClaim) -> float:
        request = messages.NodeUnprepareResourcesRequest(claims=[claim.message])
        started = time.perf_counter()
        answer = self._stub.NodeUnprepareResources(request, timeout=_CALL_SECONDS)
        took = time.perf_counter() - started
        if answer.claims[claim.uid].error:
            raise BenchError(f"{self._who.name}: {answer.claims[claim.uid].error}")
        return took
