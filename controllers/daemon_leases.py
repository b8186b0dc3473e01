"""Which daemons have fallen silent: their Leases, read by a paged list every few minutes and never watched.

A Lease's age is taken from one list to the next, not from the clocks of two machines: a node whose clock is wrong is
not silent, and one whose clock runs ahead is not alive for ever. A list that failed makes nobody older.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from crds.models.conditions import parse_timestamp
from runtime.api import Api, ApiError
from runtime.backoff import Backoff
from runtime.lease import daemon_lease_name
from runtime.list_watch import describe
from runtime.resources import LEASES, NAMESPACE

log = logging.getLogger(__name__)

SILENT_AFTER = timedelta(seconds=900)
LIST_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Daemon:
    """One daemon of one node, which is expected to have a Lease because it has reported something."""

    component: str
    node: str


@dataclass(frozen=True, slots=True)
class _Known:
    renewed: str
    at: datetime


class LeaseBook:
    """When each Lease was last renewed, as far as lists can tell."""

    def __init__(self) -> None:
        self._known: dict[Daemon, _Known] = {}
        self._listed: datetime | None = None

    def update(self, renewals: Mapping[str, str], expected: Iterable[Daemon], now: datetime) -> None:
        """Take in a whole list: `renewals` is the text of renewTime by the Lease's name. Times in UTC."""
        known: dict[Daemon, _Known] = {}
        for daemon in expected:
            renewed = renewals.get(daemon_lease_name(daemon.component, daemon.node), "")
            before = self._known.get(daemon)
            if before is not None and before.renewed == renewed:
                known[daemon] = before
                continue
            # It was renewed after the last list, whatever the node's clock says; at first sight its word must do.
            earliest = self._listed if before is not None and self._listed is not None else None
            known[daemon] = _Known(renewed, _clamped(parse_timestamp(renewed), earliest, now))
        self._known = known
        self._listed = now

    def silent(self) -> dict[str, frozenset[str]]:
        """By node: the components whose Lease had run out at the last list."""
        found: dict[str, set[str]] = {}
        for daemon, lease in self._known.items():
            if self._listed is not None and self._listed - lease.at > SILENT_AFTER:
                found.setdefault(daemon.node, set()).add(daemon.component)
        return {node: frozenset(components) for node, components in found.items()}


class LeaseReader:
    """Keeps a LeaseBook up to date. `silent` is its answer; `on_change` is called when that has changed."""

    def __init__(
        self,
        api: Api,
        expected: Callable[[], Iterable[Daemon]],
        on_change: Callable[[], None],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self.silent: dict[str, frozenset[str]] = {}
        self.problem: str | None = "not read yet"
        self._api = api
        self._expected = expected
        self._on_change = on_change
        self._now = now
        self._sleep = sleep
        self._random = jitter or random.Random()  # noqa: S311 - spreads lists, guards nothing
        self._book = LeaseBook()
        self._synced = asyncio.Event()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def run(self) -> None:
        """Read now and every five minutes, until cancelled."""
        backoff = Backoff(1.0, 60.0, self._random)
        while True:
            try:
                await self.read()
            except ApiError as error:
                if self.problem is None or not self._synced.is_set():
                    log.warning("Leases of daemons were not read: %s", error)
                self.problem = describe(error, LEASES)
                await self._sleep(backoff.next())
            else:
                backoff.reset()
                await self._sleep(LIST_SECONDS * self._random.uniform(0.9, 1.0))

    async def read(self) -> None:
        """One list. Raises ApiError."""
        listing = await self._api.list(LEASES, NAMESPACE, convert=_renewal)
        self._book.update(dict(listing.items), self._expected(), self._now())
        self.problem = None
        self._synced.set()
        silent = self._book.silent()
        if silent != self.silent:
            self.silent = silent
            self._on_change()


def _renewal(lease: dict[str, Any]) -> tuple[str, str]:
    return str(lease["metadata"]["name"]), str((lease.get("spec") or {}).get("renewTime") or "")


def _clamped(moment: datetime | None, earliest: datetime | None, latest: datetime) -> datetime:
    """`moment`, at most `latest` and at least `earliest`; a Lease that tells no time is as new as it can be."""
    if moment is None or moment > latest:
        return latest
    return max(moment, earliest) if earliest is not None else moment
