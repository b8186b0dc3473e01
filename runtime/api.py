"""The one way to the API server: raw JSON, a deadline for each call, one limit on writes, errors by type.

`kubernetes.aio` carries connections, TLS and credentials. Its generated models and its watch are not used: models
cost several times the time and memory of plain dicts, and its watch has no inactivity limit.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, overload
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

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
from runtime.resources import Resource

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

# Deadlines are ours (asyncio.timeout), because aiohttp's total covers neither connecting nor retries as one.
_NO_LIMIT = aiohttp.ClientTimeout(total=None)
_LIST_RESTARTS = 3
_RETRY_BASE_SECONDS = 0.1
_RETRY_MAX_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of a list as of one `resource_version` (the server's text, to watch from)."""

    items: list[T]
    resource_version: str


class WriteCounter(Protocol):
    """Counts the outcome of each write: `result` is "ok" or the name of the error class."""

    def count_write(self, kind: str, result: str) -> None: ...


class Api:
    """A connection to one API server under one identity. Safe for concurrent use within one event loop.

    Every method raises ApiError or a subclass (see `runtime.errors`); a deadline that passes is Unreachable.
    """

    def __init__(
        self,
        client: ApiClient,
        credentials: Credentials,
        *,
        component: str,
        bucket: TokenBucket,
        timeout_seconds: float = 10.0,
        writes: WriteCounter | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self.component = component
        self.credentials = credentials
        self.timeout_seconds = timeout_seconds
        self._client = client
        self._host = str(credentials.configuration.host).rstrip("/")
        self._bucket = bucket
        self._writes = writes
        self._clock = clock
        self._sleep = sleep
        self._random = jitter or random.Random()  # noqa: S311 - spreads retries, guards nothing

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
        client = credentials.client(_send_writes_once)
        client.user_agent = component
        try:
            bucket = TokenBucket(writes_per_second, burst)
            yield cls(
                client,
                credentials,
                component=component,
                bucket=bucket,
                timeout_seconds=timeout_seconds,
                writes=writes,
            )
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
    ) -> Object:
        """POST. With `subresource` (and the `name` of its object): e.g. pods/eviction, serviceaccounts/token."""
        where = _namespace(resource, body, namespace)
        path = resource.path(where, name, subresource) if subresource else resource.path(where)
        if not subresource:
            body = _typed(resource, body)
        query = {"fieldManager": self.component}
        return await self._call("POST", resource, path, query=query, body=body, urgent=urgent)

    async def replace(
        self,
        resource: Resource,
        body: Object,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        urgent: bool = False,
    ) -> Object:
        """PUT; metadata.resourceVersion in `body` makes it a compare-and-swap (Conflict when it lost)."""
        path = resource.path(_namespace(resource, body, namespace), _name(body), subresource)
        query = {"fieldManager": self.component}
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
    ) -> None:
        """Delete in the background. `uid` and `resource_version` are preconditions (Conflict); NotFound is raised."""
        preconditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if preconditions:
            body["preconditions"] = preconditions
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
        path = resource.path(namespace)
        call = f"WATCH {resource.full_name}"
        response = await self._open_stream(self._url(path, query), call)
        try:
            buffer = bytearray()
            while True:
                try:
                    async with asyncio.timeout(inactivity_seconds):
                        chunk = await response.content.readany()
                except TimeoutError:
                    message = f"no event and no bookmark for {inactivity_seconds:g} s"
                    raise Unreachable(0, "Silent", message, call=call) from None
                except (aiohttp.ClientError, OSError) as error:
                    raise Unreachable(0, "StreamBroken", str(error) or type(error).__name__, call=call) from error
                if not chunk:
                    return
                buffer += chunk
                *lines, rest = buffer.split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _event(line, call)
                buffer = rest
        finally:
            response.close()

    async def _open_stream(self, url: str, call: str) -> aiohttp.ClientResponse:
        refreshed = False
        while True:
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    response = await self._send("GET", url, None, None)
                    if response.status == 200:
                        return response
                    body = await response.read()
            except TimeoutError:
                message = f"no answer within {self.timeout_seconds:g} s"
                raise Unreachable(0, "Deadline", message, call=call) from None
            except (aiohttp.ClientError, OSError) as error:
                raise Unreachable(0, "ConnectionFailed", str(error) or type(error).__name__, call=call) from error
            failure = errors.from_response(response.status, body, response.headers, call=call)
            if not isinstance(failure, Unauthorized) or refreshed or not await self.credentials.refresh():
                raise failure
            refreshed = True

    async def _call(
        self,
        method: str,
        resource: Resource,
        path: str,
        *,
        query: dict[str, str | None] | dict[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        idempotent: bool | None = None,
        urgent: bool = False,
    ) -> Object:
        """One call with its retries, all within one deadline; writes pass the limit first and are counted."""
        call = f"{method} {path}"
        url = self._url(path, query)
        write = method != "GET"
        if idempotent is None:
            idempotent = not write
        if not write:
            return await self._with_retries(method, url, body, content_type, idempotent, urgent, call)
        result = "ok"
        try:
            return await self._with_retries(method, url, body, content_type, idempotent, urgent, call)
        except ApiError as error:
            result = type(error).__name__  # a bounded set, unlike the reasons that webhooks invent
            raise
        except asyncio.CancelledError:
            result = "Cancelled"
            raise
        finally:
            if self._writes is not None:
                self._writes.count_write(resource.kind, result)

    async def _with_retries(
        self, method: str, url: str, body: Any, content_type: str, idempotent: bool, urgent: bool, call: str
    ) -> Object:
        deadline: float | None = None
        refreshed = False
        attempt = 0
        while True:
            attempt += 1
            if method != "GET":
                await self._bucket.take(urgent=urgent)
            if deadline is None:
                deadline = self._clock() + self.timeout_seconds
            try:
                return await self._attempt(method, url, body, content_type, deadline - self._clock(), call)
            except NotFound:
                if method == "DELETE" and attempt > 1:
                    return {}  # an earlier attempt of ours, whose answer was lost, has deleted it
                raise
            except Unauthorized:
                if refreshed or not await self.credentials.refresh():
                    raise
                refreshed = True
            except ApiError as error:
                # 429 and a refused connection mean that nothing was done; anything else leaves that open.
                untouched = isinstance(error, TooManyRequests) or error.reason == "ConnectionFailed"
                if not error.transient or not (untouched or idempotent) or _is_disruption_budget(error):
                    raise
                wait = error.retry_after or self._random.uniform(0.5, 1.0) * min(
                    _RETRY_MAX_SECONDS, _RETRY_BASE_SECONDS * 2 ** min(attempt, 10)
                )
                if self._clock() + wait >= deadline:
                    raise
                await self._sleep(wait)

    async def _attempt(self, method: str, url: str, body: Any, content_type: str, seconds: float, call: str) -> Object:
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                response = await self._send(method, url, body, content_type)
                try:
                    data = await response.read()
                except BaseException:
                    response.close()
                    raise
        except TimeoutError:
            raise Unreachable(0, "Deadline", f"no answer within {self.timeout_seconds:g} s", call=call) from None
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(0, "ConnectionFailed", str(error), call=call) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(0, "AnswerLost", str(error) or type(error).__name__, call=call) from error
        if not 200 <= response.status < 300:
            raise errors.from_response(response.status, data, response.headers, call=call)
        try:
            answer = json.loads(data)
        except ValueError as error:
            raise Unreachable(0, "NotJSON", f"the answer is not JSON: {data[:80]!r}", call=call) from error
        if not isinstance(answer, dict):
            raise Unreachable(0, "NotJSON", f"the answer is not a JSON object: {data[:80]!r}", call=call)
        return answer

    async def _send(self, method: str, url: str, body: Any, content_type: str | None) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "User-Agent": self.component}
        if content_type is not None:
            headers["Content-Type"] = content_type
        authorization = self.credentials.authorization()
        if authorization is not None:
            headers["Authorization"] = authorization
        answer = await self._client.call_api(method, url, header_params=headers, body=body, _request_timeout=_NO_LIMIT)
        response: aiohttp.ClientResponse = answer.response
        return response

    def _url(self, path: str, query: dict[str, str | None] | dict[str, str] | None) -> str:
        present = {key: value for key, value in (query or {}).items() if value is not None}
        return f"{self._host}{path}?{urlencode(present)}" if present else f"{self._host}{path}"


class _AnswerLost(aiohttp.ClientError):
    """The connection broke after the request went out: the server may or may not have acted on it."""


async def _send_writes_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from repeating a PUT or DELETE by itself when the connection breaks.

    A repeated compare-and-swap answers Conflict though the first one took effect. What is repeated is decided here.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method == "GET":
            raise
        raise _AnswerLost(str(error) or type(error).__name__) from error


def _event(line: bytes | bytearray, call: str) -> Object:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise Unreachable(0, "NotJSON", f"an event is not JSON: {bytes(line[:80])!r}", call=call) from error
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        raise Unreachable(0, "NotJSON", f"an event has no object: {bytes(line[:80])!r}", call=call)
    if event.get("type") == "ERROR":
        raise errors.from_status(event["object"], call=call)
    return event


def _is_disruption_budget(error: ApiError) -> bool:
    """An eviction refused by a PodDisruptionBudget is a 429 too, but an answer to report, not one to hammer on."""
    return any(cause.reason == "DisruptionBudget" for cause in error.causes)


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
