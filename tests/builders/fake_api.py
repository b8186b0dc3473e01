"""An API server in memory, over real HTTP: list, watch, apply and compare-and-swap like the real one, and faults.

    async with FakeApi() as server, server.client("npufleet-test") as api:
        server.objects.create(NODES, {"metadata": {"name": "node-atom"}})
        server.fail("PATCH", NODES, code=429, retry_after=1, times=3)

State is changed through `server.objects` as by another client. Every request is logged in `server.requests`.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import tempfile
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from runtime import resources
from runtime.api import Api
from runtime.metrics import Metrics
from runtime.resources import Resource
from tests.builders.fake_objects import Object, Objects, Refused, Selector, Step, encode, event_for

ALL_RESOURCES = tuple(value for value in vars(resources).values() if isinstance(value, Resource))


@dataclass(frozen=True)
class Request:
    """One request as it arrived; `verb` is GET, LIST, WATCH, POST, PUT, PATCH or DELETE."""

    verb: str
    resource: Resource
    name: str | None
    namespace: str | None
    subresource: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]
    at: float


@dataclass
class Fault:
    """What happens to matching requests: an error answer, or (`hang`) none; `after` lets the write happen first."""

    verb: str
    resource: Resource | None
    name: str = "*"
    times: int | None = None
    code: int = 500
    reason: str = "InternalError"
    message: str = "injected"
    retry_after: int | None = None
    hang: bool = False
    drop: bool = False
    after: bool = False
    raw: bytes | None = None
    causes: list[Object] = field(default_factory=list)
    hits: int = 0


@dataclass(eq=False)
class _Watcher:
    resource: Resource
    selector: Selector
    lines: asyncio.Queue[bytes | None]
    silent: bool = False


class FakeApi:
    """The server. `async with` starts and stops it on a free loopback port."""

    def __init__(self, *, served: tuple[Resource, ...] = ALL_RESOURCES, bookmark_seconds: float = 60.0) -> None:
        self.objects = Objects()
        self.served = set(served)
        self.requests: list[Request] = []
        self.tokens: set[str] | None = None
        self.url = ""
        self._faults: list[Fault] = []
        self._watchers: set[_Watcher] = set()
        self._bookmark_seconds = bookmark_seconds
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self._runner: web.AppRunner | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="fake-api-")
        self._hung = asyncio.Event()
        self.objects.listeners.append(self._tell_watchers)

    # For tests.

    def kubeconfig(self, token: str = "test-token", *, token_file: Path | None = None) -> Path:
        """A kubeconfig for this server in its own temporary directory."""
        user = {"tokenFile": str(token_file)} if token_file else {"token": token}
        path = Path(self._directory.name) / f"kubeconfig-{len(list(Path(self._directory.name).iterdir()))}"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": user}],
        }
        path.write_text(json.dumps(document))
        return path

    def client(
        self, component: str = "npufleet-test", *, metrics: Metrics | None = None, **options: Any
    ) -> AbstractAsyncContextManager[Api]:
        """An Api of its own for this server, with limits that do not slow a test down unless given."""
        options = {"writes_per_second": 10000, "burst": 10000, "timeout_seconds": 5.0, **options}
        options.setdefault("kubeconfig", self.kubeconfig())
        return Api.connect(component=component, writes=metrics, **options)

    def fail(self, verb: str, resource: Resource | None = None, **options: Any) -> Fault:
        """Make requests fail: `verb` "*" is any; for the options see Fault. Returns it, to be given to `heal`."""
        fault = Fault(verb, resource, **options)
        self._faults.append(fault)
        return fault

    def heal(self, fault: Fault | None = None) -> None:
        """End one fault, or all."""
        self._faults = [] if fault is None else [one for one in self._faults if one is not fault]
        self._hung.set()
        self._hung = asyncio.Event()

    def calls(self, verb: str = "*", resource: Resource | None = None) -> list[Request]:
        return [
            request for request in self.requests if verb in {"*", request.verb} and resource in {None, request.resource}
        ]

    def writes(self) -> list[Request]:
        """All writes but those to Leases."""
        return [
            request
            for request in self.requests
            if request.verb in {"POST", "PUT", "PATCH", "DELETE"} and request.resource != resources.LEASES
        ]

    @property
    def watching(self) -> int:
        """Open watches."""
        return len(self._watchers)

    def break_watches(self) -> None:
        """End every open watch, as a restarting server does."""
        for watcher in list(self._watchers):
            watcher.lines.put_nowait(None)

    def silence_watches(self) -> None:
        """Open watches stay open and carry nothing any more, not even bookmarks; new ones work."""
        for watcher in self._watchers:
            watcher.silent = True

    def send_to_watches(self, resource: Resource, event: Object) -> None:
        """Put a line of the test's own into the open watches of a kind."""
        for watcher in self._watchers:
            if watcher.resource == resource:
                watcher.lines.put_nowait(encode(event) + b"\n")

    def expire_watches(self) -> None:
        """410 in every open watch, with the history compacted: what happened meanwhile is never told."""
        self.objects.compact()
        status = Refused(410, "Expired", "too old resource version").status()
        for watcher in list(self._watchers):
            watcher.lines.put_nowait(encode({"type": "ERROR", "object": status}) + b"\n")
            watcher.lines.put_nowait(None)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hung.set()
        self.break_watches()
        assert self._runner is not None
        await self._runner.cleanup()
        self._directory.cleanup()

    # The server.

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        discovery = self._discovery(request.path)
        if discovery is not None:
            return web.json_response(discovery)
        found = self._route(request.path)
        if found is None:
            return web.Response(status=404, text="404 page not found\n")
        resource, namespace, name, subresource = found
        verb = request.method
        if verb == "GET" and name is None:
            verb = "WATCH" if request.query.get("watch") in {"true", "1"} else "LIST"
        raw = await request.read()
        body = json.loads(raw) if raw else None
        seen = Request(
            verb,
            resource,
            name,
            namespace,
            subresource,
            dict(request.query),
            body,
            dict(request.headers),
            time.monotonic(),
        )
        self.requests.append(seen)
        try:
            if self.tokens is not None and request.headers.get("Authorization", "")[7:] not in self.tokens:
                raise Refused(401, "Unauthorized", "Unauthorized")
            fault = self._fault(seen)
            if fault is not None and not fault.after:
                return await self._broken(request, fault)
            if verb == "WATCH":
                return await self._watch(request, seen)
            answer = self._answer(seen, request.content_type)
            if fault is not None:
                return await self._broken(request, fault)
            return web.json_response(answer, status=201 if verb == "POST" else 200)
        except Refused as refusal:
            return web.json_response(refusal.status(), status=refusal.code)

    def _answer(self, request: Request, content_type: str) -> Object:
        objects, resource, body = self.objects, request.resource, request.body
        name, namespace, part = request.name or "", request.namespace, request.subresource
        match request.verb:
            case "LIST":
                return self._list(request)
            case "GET":
                return objects.get(resource, name, namespace)
            case "POST" if part == "eviction":
                wanted = (body.get("deleteOptions") or {}).get("preconditions") or {}
                objects.delete(resource, name, namespace, uid=wanted.get("uid"))
                return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            case "POST":
                return objects.create(resource, body, namespace)
            case "PUT":
                return objects.replace(resource, body, namespace, part)
            case "DELETE":
                wanted = (body or {}).get("preconditions") or {}
                return objects.delete(
                    resource, name, namespace, uid=wanted.get("uid"), version=wanted.get("resourceVersion")
                )
            case "PATCH" if content_type == "application/apply-patch+yaml":
                return objects.apply(resource, name, body, request.query["fieldManager"], namespace, part)
            case "PATCH" if content_type == "application/json-patch+json":
                return objects.json_patch(resource, name, body, namespace, part)
            case "PATCH" if content_type == "application/merge-patch+json":
                return objects.merge_patch(resource, name, body, namespace, part)
        raise Refused(415, "UnsupportedMediaType", f"{request.verb} {content_type}")

    def _list(self, request: Request) -> Object:
        selector = _selector(request)
        token = request.query.get("continue")
        if token:
            version, rest = self._pages.get(token, (-1, []))
            if version < self.objects.compacted or version < 0:
                raise Refused(410, "Expired", "The provided continue parameter is too old")
        else:
            version = self.objects.version
            rest = [item for item in self.objects.items(request.resource) if selector.matches(item)]
        limit = int(request.query.get("limit") or 0) or len(rest)
        page, rest = rest[:limit], rest[limit:]
        metadata: Object = {"resourceVersion": str(version)}
        if rest:
            metadata["continue"] = f"page-{version}-{len(self._pages)}"
            metadata["remainingItemCount"] = len(rest)
            self._pages[metadata["continue"]] = (version, rest)
        resource = request.resource
        return {
            "apiVersion": resource.api_version,
            "kind": f"{resource.kind}List",
            "metadata": metadata,
            "items": page,
        }

    async def _watch(self, request: web.Request, seen: Request) -> web.StreamResponse:
        selector = _selector(seen)
        since = int(seen.query.get("resourceVersion") or self.objects.version)
        if since < self.objects.compacted:
            raise Refused(410, "Expired", f"too old resource version: {since} ({self.objects.compacted})")
        if since > self.objects.version:
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version", "field": ""}
            raise Refused(504, "Timeout", f"Too large resource version: {since}", [cause])
        watcher = _Watcher(seen.resource, selector, asyncio.Queue())
        for step in self.objects.since(seen.resource, since):
            self._tell(watcher, step)
        self._watchers.add(watcher)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        deadline = time.monotonic() + float(seen.query.get("timeoutSeconds") or 3600)
        try:
            await response.prepare(request)
            while (left := deadline - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(min(left, self._bookmark_seconds)):
                        line = await watcher.lines.get()
                except TimeoutError:
                    if watcher.silent or "allowWatchBookmarks" not in seen.query:
                        continue
                    line = encode({"type": "BOOKMARK", "object": self._bookmark(seen.resource)}) + b"\n"
                if line is None:
                    break
                await response.write(line)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._watchers.discard(watcher)
        return response

    def _bookmark(self, resource: Resource) -> Object:
        return {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(self.objects.version)},
        }

    def _tell_watchers(self, step: Step) -> None:
        for watcher in self._watchers:
            if watcher.resource == step.resource:
                self._tell(watcher, step)

    def _tell(self, watcher: _Watcher, step: Step) -> None:
        event = event_for(step, watcher.selector)
        if event is not None and not watcher.silent:
            watcher.lines.put_nowait(encode(event) + b"\n")

    def _fault(self, request: Request) -> Fault | None:
        for fault in self._faults:
            if fault.verb not in {"*", request.verb} or fault.resource not in {None, request.resource}:
                continue
            if not fnmatch.fnmatch(request.name or "", fault.name):
                continue
            if fault.times is not None and fault.hits >= fault.times:
                continue
            fault.hits += 1
            return fault
        return None

    async def _broken(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.hang:
            await self._hung.wait()
        if fault.hang or fault.drop:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after is not None else {}
        if fault.raw is not None:
            return web.Response(body=fault.raw, status=fault.code, headers=headers)
        status = Refused(fault.code, fault.reason, fault.message, fault.causes).status()
        return web.json_response(status, status=fault.code, headers=headers)

    def _route(self, path: str) -> tuple[Resource, str | None, str | None, str] | None:
        parts = path.strip("/").split("/")
        group, rest = ("", parts[1:]) if parts[0] == "api" else (parts[1] if len(parts) > 1 else "", parts[2:])
        if not rest:
            return None
        version, rest = rest[0], rest[1:]
        namespace = None
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        for resource in self.served:
            if (resource.group, resource.version, resource.plural) == (group, version, rest[0] if rest else ""):
                return (
                    resource,
                    namespace,
                    rest[1] if len(rest) > 1 else None,
                    rest[2] if len(rest) > 2 else "",
                )
        return None

    def _discovery(self, path: str) -> Object | None:
        """The part of discovery that kopf scans at its start."""
        groups = sorted({(one.group, one.version) for one in self.served if one.group})
        if path in {"/api", "/api/"}:
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path in {"/apis", "/apis/"}:
            entries = [
                {
                    "name": group,
                    "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                    "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
                }
                for group, version in groups
            ]
            return {"kind": "APIGroupList", "groups": entries}
        for group, version in [("", "v1"), *groups]:
            base = f"/apis/{group}/{version}" if group else "/api/v1"
            if path.rstrip("/") == base:
                return {
                    "kind": "APIResourceList",
                    "groupVersion": f"{group}/{version}" if group else version,
                    "resources": [
                        {
                            "name": one.plural,
                            "singularName": one.kind.lower(),
                            "kind": one.kind,
                            "namespaced": one.namespaced,
                            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
                        }
                        for one in self.served
                        if (one.group, one.version) == (group, version)
                    ],
                }
        return None


def _selector(request: Request) -> Selector:
    def terms(key: str) -> tuple[str, ...]:
        return tuple(term for term in request.query.get(key, "").split(",") if term)

    return Selector(terms("labelSelector"), terms("fieldSelector"), request.namespace)
