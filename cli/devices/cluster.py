"""Reading the API server for `npufleet devices`: paged lists, only as much of them as is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from cli.devices.assemble import Found
from cli.devices.cluster_facts import ClaimFacts, SliceFacts, read_blockers, read_claim, read_slice
from cli.devices.node_facts import NodeFacts, read_node_facts
from cli.devices.rows import Note, Why
from cli.errors import CommandError, ExitCode
from controllers.node_policy.drain.pods import Pod, read_pod
from crds.near_matches import did_you_mean
from runtime.api import Api, ApiError, CredentialsError, Forbidden, NotFound
from runtime.list_watch import describe
from runtime.resources import (
    NPU_NODE_POLICIES,
    NPU_NODE_STATES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)

T = TypeVar("T")

_COMPONENT: Final = "npufleet"
_SECONDS: Final = 30.0
_AT_ONCE: Final = 8
# Of one node or of a few, the server sends the slices of each; beyond that, all of them cost less.
_FEW: Final = 8
_LAUNCHERS: Final = "kubevirt.io=virt-launcher"


async def read_cluster(kubeconfig: Path | None, nodes: Sequence[str]) -> Found:
    """What the API server has of these nodes, of all without names.

    What may not be read of slices, claims and pods is told in a note; everything else that fails raises CommandError.
    """
    try:
        async with Api.connect(kubeconfig=kubeconfig, component=_COMPONENT, timeout_seconds=_SECONDS) as api:
            return await _Reader(api, nodes).read()
    except CredentialsError as error:
        raise CommandError(str(error)) from error


class _Reader:
    def __init__(self, api: Api, nodes: Sequence[str]) -> None:
        self._api = api
        self._names = tuple(dict.fromkeys(nodes))
        self._notes: list[Note] = []

    async def read(self) -> Found:
        nodes, slices, claims = await asyncio.gather(self._nodes(), self._slices(), self._claims())
        pods, blockers = await asyncio.gather(self._pods(nodes, claims), self._blockers(nodes))
        return Found(nodes, slices, claims, pods, blockers, self._notes)

    async def _nodes(self) -> list[NodeFacts]:
        if not self._names:
            return await self._list(NPU_NODE_STATES, read_node_facts)
        return await _few([partial(self._node, name) for name in self._names])

    async def _node(self, name: str) -> NodeFacts:
        try:
            return read_node_facts(await self._api.get(NPU_NODE_STATES, name))
        except NotFound:
            known = await self._list(NPU_NODE_STATES, lambda obj: str(obj["metadata"]["name"]))
            raise CommandError(f"node {name} has no NPUNodeState{did_you_mean(name, known)}", ExitCode.USAGE) from None
        except ApiError as error:
            raise CommandError(describe(error, NPU_NODE_STATES)) from error

    async def _slices(self) -> list[SliceFacts] | None:
        few = 0 < len(self._names) <= _FEW
        selectors = [f"spec.nodeName={name}" for name in self._names] if few else [None]
        found = await _few([partial(self._allowed, RESOURCE_SLICES, read_slice, selector) for selector in selectors])
        return None if any(part is None for part in found) else [one for part in found for one in part or ()]

    async def _claims(self) -> list[ClaimFacts] | None:
        found = await self._allowed(RESOURCE_CLAIMS, read_claim)
        return None if found is None else [claim for claim in found if claim is not None]

    async def _pods(self, nodes: Iterable[NodeFacts], claims: Sequence[ClaimFacts] | None) -> dict[str, Pod]:
        """The pods of VMs, where claims are reserved for pods; and those whose processes use devices."""
        found: dict[str, Pod] = {}
        wanted = {
            facts.name: {user.pod_uid for device in facts.devices for user in device.users} - {""} for facts in nodes
        }
        if any(claim.pods for claim in claims or ()):
            launchers = await self._allowed(PODS, read_pod, labels=_LAUNCHERS)
            if launchers is None:
                return found
            found |= {pod.uid: pod for pod in launchers}
        places = [name for name, uids in wanted.items() if uids - found.keys()]
        for pods in await _few([partial(self._allowed, PODS, read_pod, f"spec.nodeName={name}") for name in places]):
            for pod in pods or ():
                found |= {pod.uid: pod} | ({pod.static_uid: pod} if pod.static_uid else {})
        return found

    async def _blockers(self, nodes: Iterable[NodeFacts]) -> dict[tuple[str, str, str], Why]:
        """Why devices are held: their daemon knows only that they are."""
        if not any(device.is_held for facts in nodes for device in facts.devices):
            return {}
        found = await self._allowed(NPU_NODE_POLICIES, read_blockers)
        return {place: why for blockers in found or () for place, why in blockers.items()}

    async def _list(self, resource: Resource, convert: Callable[[dict[str, Any]], T]) -> list[T]:
        try:
            return (await self._api.list(resource, convert=convert)).items
        except ApiError as error:
            raise CommandError(describe(error, resource)) from error

    async def _allowed(
        self,
        resource: Resource,
        convert: Callable[[dict[str, Any]], T],
        fields: str | None = None,
        labels: str | None = None,
    ) -> list[T] | None:
        """None, and a note, where this identity may not list it."""
        try:
            listing = await self._api.list(resource, field_selector=fields, label_selector=labels, convert=convert)
        except Forbidden as error:
            note = Note("", f"{resource.full_name} cannot be listed, so what they tell is missing: {error.message}")
            if note not in self._notes:
                self._notes.append(note)
            return None
        except ApiError as error:
            raise CommandError(describe(error, resource)) from error
        return listing.items


async def _few(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """The results in the order of the calls, with a few under way at once."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with room:
            return await call()

    return list(await asyncio.gather(*(one(call) for call in calls)))
