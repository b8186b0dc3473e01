"""The one list+watch of the project: keeps a Store equal to the server, and says so honestly when it cannot.

List, then watch from the list's resourceVersion with bookmarks; resume after breaks; list again after 410. A feed that
has lost its server keeps what it has: absence is not an order, and a kind that is refused or not served is not empty.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from runtime.api import Api, ApiError, Forbidden, Gone, NotFound, ServerTimeout, Unauthorized
from runtime.backoff import Backoff
from runtime.resources import Resource
from runtime.store import MalformedObject, Store, parse_version

T = TypeVar("T")

log = logging.getLogger(__name__)

WATCHING = "watching"
"""`ListWatch.state` while the server answers as it should."""
_WATCH_SECONDS = (300, 600)
_SETTLED_SECONDS = 5.0
_OLDER_LISTS = 5
_OLDER_LIST_SECONDS = 1.0


async def list_into(
    api: Api,
    resource: Resource,
    store: Store[T],
    namespace: str | None = None,
    *,
    field_selector: str | None = None,
    label_selector: str | None = None,
    page: int = 500,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> str:
    """One authoritative list into the store; returns its resourceVersion to watch from.

    The caller sees to it that only one of these runs at a time per store. A list that is older than the last one comes
    of a server that lags behind or, if it goes on so, of a history that was set back: only then it is the truth.
    """
    for attempt in range(_OLDER_LISTS):
        listing = await api.list(
            resource,
            namespace,
            field_selector=field_selector,
            label_selector=label_selector,
            page=page,
            convert=store.convert,
        )
        last = attempt + 1 == _OLDER_LISTS
        if store.replace(listing.items, listing.resource_version, restart=last):
            break
        log.warning("%s: a list is older than the one before it, asking again", resource.full_name)
        await sleep(_OLDER_LIST_SECONDS)
    return listing.resource_version


class ListWatch(Generic[T]):
    """Feeds `store` with `resource` until cancelled. `field_selector="metadata.name=X"` follows a single object.

    `state` says in words what the feed does or why it cannot; `healthy(now)` is for readiness checks.
    """

    def __init__(
        self,
        api: Api,
        resource: Resource,
        store: Store[T],
        *,
        namespace: str | None = None,
        field_selector: str | None = None,
        label_selector: str | None = None,
        page: int = 500,
        inactivity_seconds: float = 70.0,
        silent_after: float = 90.0,
        max_backoff_seconds: float = 30.0,
        on_health: Callable[[bool], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self.resource = resource
        self.store = store
        self.state = "not started"
        self.lists = 0
        """How many lists were taken in; a feed that lists all the time is a feed in trouble."""
        self._api = api
        self._namespace = namespace
        self._fields = field_selector
        self._labels = label_selector
        self._page = page
        self._inactivity = inactivity_seconds
        self._silent_after = silent_after
        self._on_health = on_health
        self._clock = clock
        self._sleep = sleep
        self._random = jitter or random.Random()  # noqa: S311 - spreads reconnects, guards nothing
        self._backoff = Backoff(0.5, max_backoff_seconds, self._random)
        self._started = clock()
        self._contact: float | None = None
        self._version: str | None = None
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """True once a whole list was taken in; stays true while the server cannot be reached (see `healthy`)."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def healthy(self, now: float | None = None) -> bool:
        """False before the first list, and when the last contact is more than `silent_after` seconds old."""
        now = self._clock() if now is None else now
        return self._contact is not None and self.synced and now - self._contact <= self._silent_after

    def reason(self, now: float | None = None) -> str | None:
        """None when healthy, else why not: the form that the health endpoint's checks want."""
        if self.healthy(now):
            return None
        now = self._clock() if now is None else now
        since = self._contact if self._contact is not None else self._started
        return f"{self.resource.full_name}: no contact for {now - since:.0f} s: {self.state}"

    async def run(self) -> None:
        """Runs until cancelled. Errors of the server never end it; they end in `state` and in a pause."""
        self._started = self._clock()
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except Gone as error:
                log.info("%s: listing again: %s", self.resource.full_name, error)
                self._version = None
                await self._pause("the watch fell behind, listing again")
            except MalformedObject as error:
                log.error("%s: listing again: %s", self.resource.full_name, error)
                self._version = None
                await self._pause(f"the server sent a malformed object: {error}")
            except ApiError as error:
                if isinstance(error, ServerTimeout) and _version_too_large(error):
                    self._version = None
                await self._pause(describe(error, self.resource))

    async def _list(self) -> None:
        version = await list_into(
            self._api,
            self.resource,
            self.store,
            self._namespace,
            field_selector=self._fields,
            label_selector=self._labels,
            page=self._page,
            sleep=self._sleep,
        )
        self._version = version
        self.lists += 1
        self._synced.set()
        self._touch()

    async def _watch(self) -> None:
        assert self._version is not None
        opened = self._clock()
        events = self._api.watch(
            self.resource,
            self._namespace,
            resource_version=self._version,
            field_selector=self._fields,
            label_selector=self._labels,
            # Spread, so that a fleet of daemons does not reconnect in step after an API server restart.
            timeout_seconds=self._random.randint(*_WATCH_SECONDS),
            inactivity_seconds=self._inactivity,
        )
        try:
            async with aclosing(events):
                async for event in events:
                    self._take(event)
                    self._touch()
                    self._backoff.reset()
        finally:
            if self._clock() - opened >= _SETTLED_SECONDS:
                self._backoff.reset()
        if self._clock() - opened < _SETTLED_SECONDS:
            # A server that ends each stream at once must not be answered with a tight loop.
            await self._pause("the server ends the watch at once")

    def _take(self, event: dict[str, Any]) -> None:
        item = event["object"]
        version = str((item.get("metadata") or {}).get("resourceVersion") or "")
        parse_version(version)
        self.store.apply_event(str(event.get("type")), item)
        self._version = version

    @property
    def not_served(self) -> bool:
        """The server answers, and has no such kind now (its CRD was deleted, say): no object of it exists."""
        return self.state == not_served(self.resource)

    def _touch(self) -> None:
        self._contact = self._clock()
        self.state = WATCHING
        if self._on_health is not None:
            self._on_health(True)

    async def _pause(self, state: str) -> None:
        if state != self.state:
            log.warning("%s: %s", self.resource.full_name, state)
        self.state = state
        if self._on_health is not None and not self.healthy():
            self._on_health(False)
        await self._sleep(self._backoff.next())


def _version_too_large(error: ApiError) -> bool:
    """The server does not know our resourceVersion yet: it lags behind, or its history was set back."""
    return any(cause.reason == "ResourceVersionTooLarge" for cause in error.causes)


def describe(error: Exception, resource: Resource) -> str:
    """Why a kind cannot be followed, with the fix where there is one: text for states, conditions and probes."""
    if isinstance(error, Forbidden):
        return f"refused: grant list and watch on {resource.full_name} to this identity: {error.message}"
    if isinstance(error, Unauthorized):
        return f"the credentials are not accepted: {error.message}"
    if isinstance(error, NotFound):
        return not_served(resource)
    return str(error)


def not_served(resource: Resource) -> str:
    """The state of a feed whose kind the server does not know."""
    return f"{resource.full_name} ({resource.version}) is not served: is its CRD installed?"
