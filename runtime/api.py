"""The one way to the API server: raw JSON, a deadline for each call, one limit on writes, errors by type.

`kubernetes.aio` carries connections, TLS and credentials. Its generated models and its watch are not used: models
cost several times the time and memory of plain dicts, and its watch has no inactivity limit.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from runtime import errors
from runtime.credentials import Credentials, CredentialsError
from runtime.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Cause,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerTimeout,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from runtime.rate_limit import TokenBucket
from runtime.resources import PODS, Resource
from runtime.settings import Settings
from runtime.transport import Call, Transport, WriteCounter, send_writes_once

__all__ = [
    "AlreadyExists",
    "Api",
    "ApiError",
    "BadRequest",
    "Cause",
    "Conflict",
    "CredentialsError",
    "Forbidden",
    "Gone",
    "Invalid",
    "Listing",
    "NotFound",
    "Object",
    "ServerTimeout",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "WriteCounter",
]

Object = dict[str, Any]
T = TypeVar("T")

_LIST_RESTARTS = 3


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of a list as of one `resource_version` (the server's text, to watch from)."""

    items: list[T]
    resource_version: str


class Api:
    """A connection to one API server under one identity. Safe for concurrent use within one event loop.

    Every method raises ApiError or a subclass (see `runtime.errors`); a deadline that passes is Unreachable.
    """

    def __init__(self, transport: Transport, component: str) -> None:
        self.component = component
        self._transport = transport

    @property
    def credentials(self) -> Credentials:
        """Server and identity of this connection, for other clients of the process."""
        return self._transport.credentials

    @property
    def clock_skew(self) -> timedelta | None:
        """How far this host's clock was ahead of the API server's at the last answer (header `Date`, whole seconds);
        None before the first."""
        return self._transport.clock_skew

    @classmethod
    def of(cls, settings: Settings, writes: WriteCounter) -> AbstractAsyncContextManager[Api]:
        """`connect` as a process of ours does it, by its settings; ``writes`` counts what it writes."""
        return cls.connect(
            kubeconfig=settings.kubeconfig,
            component=settings.component,
            writes_per_second=settings.writes_per_second,
            burst=settings.burst,
            writes=writes,
        )

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        *,
        kubeconfig: Path | None,
        component: str,
        writes_per_second: float = 20,
        burst: int = 40,
        timeout_seconds: float = 10,
        writes: WriteCounter | None = None,
    ) -> AsyncIterator[Api]:
        """Open the connection pool; nothing is sent yet.

        `kubeconfig` None: the pod's own credentials, else $KUBECONFIG. `timeout_seconds` bounds each call with all its
        retries, from the moment the write limit let it pass. Raises CredentialsError.
        """
        credentials = await Credentials.load(kubeconfig)
        client = credentials.client(send_writes_once)
        transport = Transport(
            client,
            credentials,
            agent=component,
            bucket=TokenBucket(writes_per_second, burst),
            timeout_seconds=timeout_seconds,
            writes=writes,
        )
        try:
            yield cls(transport, component)
        finally:
            await client.close()  # type: ignore[no-untyped-call]

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """One object, read with quorum."""
        return await self._call("GET", resource, resource.path(namespace, name))

    @overload
    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page: int = 500,
    ) -> Listing[Object]: ...

    @overload
    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page: int = 500,
        convert: Callable[[Object], T],
    ) -> Listing[T]: ...

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page: int = 500,
        convert: Callable[[Object], Any] | None = None,
    ) -> Listing[Any]:
        """All objects, read with quorum in pages; each page has its own deadline.

        When the server has compacted the snapshot that a continue token names (410), the list starts over; the
        result is always of one snapshot. `convert` is applied page by page, so that whole bodies never pile up.
        Items of built-in kinds carry no apiVersion and kind (the server leaves them out of lists).
        """
        query = {"limit": str(page), "labelSelector": label_selector, "fieldSelector": field_selector}
        path = resource.path(namespace)
        for restart in range(_LIST_RESTARTS + 1):
            items: list[Any] = []
            version = ""
            token: str | None = None
            try:
                while True:
                    answer = await self._call("GET", resource, path, query={**query, "continue": token})
                    metadata = answer.get("metadata") or {}
                    version = version or str(metadata.get("resourceVersion") or "")
                    found = answer.get("items") or []
                    items.extend(found if convert is None else map(convert, found))
                    token = metadata.get("continue") or None
                    if token is None:
                        return Listing(items, version)
            except Gone:
                if token is None or restart == _LIST_RESTARTS:
                    raise
        raise AssertionError("unreachable")

    async def create(
        self,
        resource: Resource,
        body: Object,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        name: str | None = None,
        urgent: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """POST. With `subresource` (and the `name` of its object): e.g. serviceaccounts/token.

        `dry_run`: the server answers what would be stored, and stores nothing.
        """
        where = _namespace(resource, body, namespace)
        path = resource.path(where, name, subresource) if subresource else resource.path(where)
        if not subresource:
            body = _typed(resource, body)
        query = {"fieldManager": self.component, "dryRun": "All" if dry_run else None}
        return await self._call("POST", resource, path, query=query, body=body, urgent=urgent)

    async def evict(self, name: str, namespace: str, *, uid: str) -> None:
        """Ask for the end of the pod `uid` by the eviction API, with the grace that the pod itself wants.

        Raises TooManyRequests, with the words of whoever refused, when a disruption budget or a webhook does not allow
        it now; NotFound when there is no such pod; Conflict when the pod of that name has another UID.
        """
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        call = Call(
            "POST",
            PODS.path(namespace, name, "eviction"),
            "Eviction",
            {"fieldManager": self.component},
            body,
            # The answer of a budget is not the server asking for patience, and an eviction has a pace of its own.
            busy_is_answer=True,
        )
        await self._transport.exchange(call)

    async def replace(
        self,
        resource: Resource,
        body: Object,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        urgent: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """PUT; metadata.resourceVersion in `body` makes it a compare-and-swap (Conflict when it lost).

        `dry_run`: the server answers what would be stored, and stores nothing.
        """
        path = resource.path(_namespace(resource, body, namespace), _name(body), subresource)
        query = {"fieldManager": self.component, "dryRun": "All" if dry_run else None}
        return await self._call("PUT", resource, path, query=query, body=_typed(resource, body), urgent=urgent)

    async def apply(
        self,
        resource: Resource,
        body: Object,
        *,
        field_manager: str | None = None,
        namespace: str | None = None,
        subresource: str | None = None,
        force: bool = True,
        urgent: bool = False,
    ) -> Object:
        """Server-side apply: sets exactly the fields in `body`, creates the object when it is missing.

        Fields that this manager applied before and that are absent now are removed. metadata.resourceVersion in
        `body` makes it a compare-and-swap between states of an existing object only: if the object is gone it is
        created anew. metadata.uid guards against that (Conflict) and against another incarnation of the name
        (Invalid), but for the status of custom resources, where the server ignores it. All tried on 1.37.
        `field_manager` is the component unless given.
        """
        path = resource.path(_namespace(resource, body, namespace), _name(body), subresource)
        query = {"fieldManager": field_manager or self.component, "force": "true" if force else "false"}
        return await self._call(
            "PATCH",
            resource,
            path,
            query=query,
            body=_typed(resource, body),
            content_type="application/apply-patch+yaml",
            # Without a precondition the same apply twice is the same as once.
            idempotent="resourceVersion" not in (body.get("metadata") or {}),
            urgent=urgent,
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Object | Sequence[Object],
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> Object:
        """A dict is sent as JSON merge patch, a list as JSON patch (whose `test` operations are preconditions)."""
        kind = "application/merge-patch+json" if isinstance(patch, dict) else "application/json-patch+json"
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": self.component}
        return await self._call("PATCH", resource, path, query=query, body=patch, content_type=kind)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Delete in the background. `uid` and `resource_version` are preconditions (Conflict); NotFound is raised.

        `grace_seconds` replaces the object's own grace; 0 is a kubelet's word that a pod has ended.
        """
        preconditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if preconditions:
            body["preconditions"] = preconditions
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self._call("DELETE", resource, resource.path(namespace, name), body=body, idempotent=True)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        field_selector: str | None = None,
        label_selector: str | None = None,
        timeout_seconds: int = 300,
        inactivity_seconds: float = 70.0,
    ) -> AsyncGenerator[Object, None]:
        """Raw events {type, object} after `resource_version`, BOOKMARK included (the server sends one a minute).

        Ends when the server ends the stream (`timeout_seconds`). Raises Gone when `resource_version` is too old,
        Unreachable when the stream breaks or stays silent for `inactivity_seconds`. An async generator: leave it
        through `contextlib.aclosing`, so that the connection is closed at once.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
        }
        call = Call("GET", resource.path(namespace), resource.kind, query)
        async with aclosing(self._transport.lines(call, inactivity_seconds)) as lines:
            async for line in lines:
                yield _event(line, f"WATCH {resource.full_name}")

    async def _call(
        self,
        method: str,
        resource: Resource,
        path: str,
        *,
        query: Mapping[str, str | None] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        idempotent: bool = False,
        urgent: bool = False,
    ) -> Object:
        call = Call(method, path, resource.kind, query or {}, body, content_type, idempotent, urgent)
        return await self._transport.exchange(call)


def _event(line: bytes, call: str) -> Object:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise Unreachable(0, "NotJSON", f"an event is not JSON: {line[:80]!r}", call=call) from error
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        raise Unreachable(0, "NotJSON", f"an event has no object: {line[:80]!r}", call=call)
    if event.get("type") == "ERROR":
        raise errors.from_status(event["object"], call=call)
    return event


def _typed(resource: Resource, body: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _name(body: Object) -> str:
    name = (body.get("metadata") or {}).get("name")
    if not name:
        raise ValueError("metadata.name is missing in the object to write")
    return str(name)


def _namespace(resource: Resource, body: Object, namespace: str | None) -> str | None:
    if not resource.namespaced:
        return None
    found = namespace or (body.get("metadata") or {}).get("namespace")
    if not found:
        raise ValueError(f"{resource.full_name} is namespaced: the object to write needs a namespace")
    return str(found)
