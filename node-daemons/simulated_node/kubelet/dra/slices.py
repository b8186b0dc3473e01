"""Deletes ResourceSlices that nobody stands behind, as a kubelet does: all of the node when it starts, and those of a
driver 30 s after its last plugin went.

Source: kubelet pkg/kubelet/cm/dra/plugin (dra_plugin_manager.go, wipeResourceSlices).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from runtime.api import Api, ApiError, Conflict, NotFound
from runtime.backoff import Backoff
from runtime.resources import RESOURCE_SLICES

log = logging.getLogger(__name__)

GRACE_SECONDS: Final = 30.0


class SliceCleaner:
    """For one node. Use it within one event loop; ``close`` takes back what is still to be done."""

    def __init__(
        self,
        api: Api,
        node: str,
        *,
        grace_seconds: float = GRACE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self._api = api
        self._node = node
        self._grace = grace_seconds
        self._sleep = sleep
        self._random = jitter or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._waiting: dict[str, asyncio.Task[None]] = {}

    async def clean(self, driver: str | None = None) -> None:
        """Delete the node's slices, or those of one driver; tried until it succeeds."""
        backoff = Backoff(0.2, 10.0, self._random)
        while True:
            try:
                await self._delete(driver)
            except ApiError as error:
                pause = backoff.next()
                log.warning("ResourceSlices of %s: again in %.1f s: %s", driver or "all drivers", pause, error)
                await self._sleep(pause)
            else:
                return

    def gone(self, driver: str) -> None:
        """No plugin of the driver is connected any more."""
        if driver not in self._waiting:
            task = asyncio.ensure_future(self._clean_later(driver))
            self._waiting[driver] = task
            task.add_done_callback(lambda done: self._ended(driver, done))

    def back(self, driver: str) -> None:
        """One is."""
        task = self._waiting.pop(driver, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        for driver in list(self._waiting):
            self.back(driver)

    async def _clean_later(self, driver: str) -> None:
        await self._sleep(self._grace)
        log.info("No plugin of driver %s for %g s: its ResourceSlices are deleted", driver, self._grace)
        await self.clean(driver)

    def _ended(self, driver: str, task: asyncio.Task[None]) -> None:
        if self._waiting.get(driver) is task:
            del self._waiting[driver]

    async def _delete(self, driver: str | None) -> None:
        terms = [f"spec.nodeName={self._node}", *([f"spec.driver={driver}"] if driver else [])]
        listing = await self._api.list(RESOURCE_SLICES, field_selector=",".join(terms))
        for item in listing.items:
            metadata = item["metadata"]
            try:
                await self._api.delete(RESOURCE_SLICES, metadata["name"], uid=metadata["uid"])
            except (NotFound, Conflict):
                continue
