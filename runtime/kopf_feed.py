"""Feeds the Store from kopf's watch, for the user kinds, and heals what kopf does not tell.

kopf 1.45 delivers no deletion for objects that vanished while it listed again, and tells no handler that a list is
over. But it hands out the objects of a list as events of type None, so such an event means that it has listed: then
this feed lists by itself, authoritatively, and replaces the store. A list every few minutes covers an empty one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import kopf

from runtime.api import Api, ApiError, Object
from runtime.backoff import Backoff
from runtime.list_watch import describe, list_into
from runtime.resources import Resource
from runtime.store import MalformedObject, Store

T = TypeVar("T")

log = logging.getLogger(__name__)


class KopfFeed(Generic[T]):
    """Registers a handler for `resource` on `registry`; `run()` does the lists. `synced` follows the first of them."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        store: Store[T],
        registry: kopf.OperatorRegistry,
        *,
        debounce_seconds: float = 1.0,
        resync_seconds: float = 300.0,
        failing_after: float = 90.0,
        on_health: Callable[[bool], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self.resource = resource
        self.store = store
        self.state = "not started"
        self.lists = 0
        self._api = api
        self._debounce = debounce_seconds
        self._resync = resync_seconds
        self._failing_after = failing_after
        self._on_health = on_health
        self._clock = clock
        self._sleep = sleep
        self._random = jitter or random.Random()  # noqa: S311 - spreads lists, guards nothing
        self._backoff = Backoff(0.5, 30.0, self._random)
        self._wanted = asyncio.Event()
        self._synced = asyncio.Event()
        self._failing_since: float | None = clock()
        self._loop = asyncio.get_running_loop()
        kopf.on.event(
            resource.group, resource.version, resource.plural, registry=registry, id=f"feed-{resource.plural}"
        )(self._from_kopf)

    @property
    def synced(self) -> bool:
        """True once the first authoritative list was taken in."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def healthy(self, now: float | None = None) -> bool:
        """False before the first list, and when lists have failed for longer than `failing_after` seconds."""
        now = self._clock() if now is None else now
        failing = self._failing_since
        return self.synced and (failing is None or now - failing <= self._failing_after)

    def reason(self, now: float | None = None) -> str | None:
        """None when healthy, else why not: the form that the health endpoint's checks want."""
        return None if self.healthy(now) else f"{self.resource.full_name}: {self.state}"

    def take(self, kind: str | None, item: Object) -> None:
        """One event as kopf delivers it; None is the kind of what a list contained. Call it in the feed's loop."""
        try:
            self.store.apply_event(kind or "MODIFIED", item)
        except MalformedObject as error:
            log.error("%s: listing again: %s", self.resource.full_name, error)
            self._wanted.set()
        if kind is None:
            self._wanted.set()

    async def run(self) -> None:
        """List now, then whenever kopf has listed, and every `resync_seconds`. Runs until cancelled."""
        while True:
            self._wanted.clear()
            try:
                await list_into(self._api, self.resource, self.store, sleep=self._sleep)
            except (ApiError, MalformedObject) as error:
                self._failed(describe(error, self.resource))
                await self._sleep(self._backoff.next())
                continue
            self._succeeded()
            await self._until_wanted()

    async def _until_wanted(self) -> None:
        try:
            async with asyncio.timeout(self._resync * self._random.uniform(0.9, 1.0)):
                await self._wanted.wait()
        except TimeoutError:
            return
        # kopf hands out a list object by object: one list of ours answers them all.
        await self._sleep(self._debounce)

    def _failed(self, state: str) -> None:
        if state != self.state:
            log.warning("%s: %s", self.resource.full_name, state)
        self.state = state
        if self._failing_since is None:
            self._failing_since = self._clock()
        if self._on_health is not None and not self.healthy():
            self._on_health(False)

    def _succeeded(self) -> None:
        self.lists += 1
        self.state = "following"
        self._failing_since = None
        self._backoff.reset()
        self._synced.set()
        if self._on_health is not None:
            self._on_health(True)

    async def _from_kopf(self, event: Any, **_: Any) -> None:
        """Runs in kopf's thread."""
        try:
            self._loop.call_soon_threadsafe(self.take, event["type"], dict(event["object"]))
        except RuntimeError:
            log.debug("An event arrived after the main loop was closed")
