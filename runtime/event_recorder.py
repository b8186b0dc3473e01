"""Kubernetes Events for transitions, posted in the background: recording one never blocks, fails or floods anybody."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from runtime.api import Api, ApiError, Object
from runtime.backoff import Backoff
from runtime.resources import EVENTS, Resource

log = logging.getLogger(__name__)

# Limits of events.k8s.io/v1 (k8s.io/api/events/v1 types.go), in bytes of UTF-8: the server refuses longer ones.
_NOTE_LIMIT = 1024
_REASON_LIMIT = 128
_NAME_LIMIT = 253
_ATTEMPTS = 3


def _now() -> datetime:
    return datetime.now(UTC)


class EventRecorder:
    """Posts Events of one component. `run()` does the posting; without it events only pile up to `capacity`.

    The same (object, reason, message) is posted once per `window_seconds`, however often it is recorded. When more
    than `capacity` wait, the oldest are dropped and counted in `dropped`.
    """

    def __init__(
        self,
        api: Api,
        *,
        component: str,
        instance: str,
        window_seconds: float = 600.0,
        capacity: int = 256,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self.dropped = 0
        self._api = api
        self._component = component
        self._instance = instance[:_REASON_LIMIT]
        self._window = window_seconds
        self._capacity = capacity
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._random = jitter or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._waiting: deque[Object] = deque()
        self._recent: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._wake = asyncio.Event()

    def normal(self, resource: Resource, item: Mapping[str, Any], reason: str, message: str) -> None:
        """Something went as it should. `item` needs metadata only (name, uid, namespace)."""
        self._record("Normal", resource, item, reason, message)

    def warning(self, resource: Resource, item: Mapping[str, Any], reason: str, message: str) -> None:
        """Something needs a person. `reason` is that of the condition that changed."""
        self._record("Warning", resource, item, reason, message)

    def _record(self, kind: str, resource: Resource, item: Mapping[str, Any], reason: str, message: str) -> None:
        metadata = item.get("metadata") or {}
        identity = (str(metadata.get("uid") or metadata.get("name") or ""), reason, message)
        now = self._clock()
        self._forget_old(now)
        if identity in self._recent:
            return
        self._recent[identity] = now
        self._waiting.append(self._event(kind, resource, metadata, reason, message))
        if len(self._waiting) > self._capacity:
            self._waiting.popleft()
            self.dropped += 1
        self._wake.set()

    def _forget_old(self, now: float) -> None:
        while self._recent:
            identity, at = next(iter(self._recent.items()))
            if now - at < self._window and len(self._recent) < 16 * self._capacity:
                return
            del self._recent[identity]

    async def run(self) -> None:
        """Post what was recorded, one at a time, until cancelled. An event that cannot be posted is given up."""
        while True:
            while self._waiting:
                await self._post(self._waiting.popleft())
            self._wake.clear()
            await self._wake.wait()

    async def drain(self, seconds: float) -> None:
        """At shutdown, after `run` was cancelled: post what still waits, for at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self._waiting:
                    await self._post(self._waiting.popleft())
        except TimeoutError:
            self.dropped += len(self._waiting)
            self._waiting.clear()

    async def _post(self, event: Object) -> None:
        backoff = Backoff(1.0, 30.0, self._random)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._api.create(EVENTS, event)
                return
            except ApiError as error:
                if not error.transient or attempt == _ATTEMPTS:
                    self.dropped += 1
                    log.warning("An Event (%s) was not posted: %s", event["reason"], error)
                    return
                await self._sleep(max(backoff.next(), error.retry_after or 0.0))

    def _event(self, kind: str, resource: Resource, metadata: Mapping[str, Any], reason: str, message: str) -> Object:
        name = str(metadata.get("name") or "")
        moment = self._now()
        # Events of cluster-scoped objects must live in "default"; kubectl describe looks for them there.
        namespace = str(metadata.get("namespace") or "default")
        seed = f"{metadata.get('uid')}/{reason}/{message}/{moment.isoformat()}/{self._instance}"
        digest = hashlib.sha256(seed.encode()).hexdigest()[:16]
        regarding = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": name,
            "uid": metadata.get("uid"),
            "namespace": metadata.get("namespace"),
            "resourceVersion": metadata.get("resourceVersion"),
        }
        return {
            "metadata": {"name": f"{name[: _NAME_LIMIT - 17].rstrip('.-')}.{digest}", "namespace": namespace},
            "eventTime": moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": kind,
            "reason": _cut(reason, _REASON_LIMIT),
            "action": "Reconcile",
            "note": _cut(message, _NOTE_LIMIT),
            "regarding": {key: value for key, value in regarding.items() if value},
            "reportingController": f"npufleet.io/{self._component}",
            "reportingInstance": self._instance,
        }


def _cut(text: str, limit: int) -> str:
    """`text` in at most `limit` bytes of UTF-8, with a mark where it was cut."""
    data = text.encode()
    if len(data) <= limit:
        return text
    return data[: limit - 3].decode(errors="ignore") + "..."
