"""The queue between what changed and who reconciles: no key is lost, none is worked on twice at once.

Level-triggered: a key says that something about an object may have changed, not what. A key added while it is being
worked on runs once more afterwards, so an edit made during a reconcile is never missed.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol, TypeVar

from runtime.api import ApiError
from runtime.backoff import Backoff

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)


class QueueObserver(Protocol):
    """Receives the queue's numbers; `result` is "success", "requeue" or "error"."""

    def queue_depth(self, depth: int) -> None: ...
    def reconciled(self, result: str, seconds: float) -> None: ...


class Retry(Exception):  # noqa: N818 - raised by a reconcile as an answer, not as a fault
    """A reconcile cannot finish yet: run it again after `seconds` (None: the backoff decides). Logged quietly."""

    def __init__(self, why: str, seconds: float | None = None) -> None:
        super().__init__(why)
        self.seconds = seconds


class WorkQueue(Generic[K]):
    """Keys waiting to be reconciled. Use it within one event loop.

    A reconcile returns None (done), or seconds after which it wants to run again; it raises to be retried with a
    per-key backoff that doubles from `base_delay` to `max_delay` seconds, half of it random.
    """

    def __init__(
        self,
        name: str,
        *,
        base_delay: float = 0.5,
        max_delay: float = 300.0,
        observer: QueueObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: random.Random | None = None,
    ) -> None:
        self.name = name
        self._base = base_delay
        self._cap = max_delay
        self._observer = observer
        self._clock = clock
        self._random = jitter or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._ready: dict[K, None] = {}
        self._running: set[K] = set()
        self._dirty: set[K] = set()
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []
        self._timer_count = 0
        self._backoffs: dict[K, Backoff] = {}
        self._wake = asyncio.Event()
        self._stopping = False

    def add(self, key: K) -> None:
        """Reconcile `key` as soon as possible; once more if it is being worked on right now."""
        self._due.pop(key, None)
        if key in self._running:
            self._dirty.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._kick()
        self._report_depth()

    def add_after(self, key: K, seconds: float) -> None:
        """Reconcile `key` after `seconds`; of several such wishes the earliest holds."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock() + seconds
        if key in self._ready or key in self._dirty or self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._timer_count += 1
        heapq.heappush(self._timers, (due, self._timer_count, key))
        self._kick()

    def discard(self, key: K) -> None:
        """Take back a key that waits: what it was added for is no more. One being worked on, or with a time in the
        future, stays."""
        self._ready.pop(key, None)
        self._report_depth()

    def retry(self, key: K, *, at_least: float = 0.0) -> float:
        """Reconcile `key` after its backoff, which grows; returns the seconds chosen."""
        backoff = self._backoffs.get(key)
        if backoff is None:
            backoff = self._backoffs[key] = Backoff(self._base, self._cap, self._random)
        seconds = max(backoff.next(), at_least)
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        """Start the backoff of `key` over (it succeeded, or its object is gone)."""
        self._backoffs.pop(key, None)

    def failures(self, key: K) -> int:
        """Failures in a row of `key`."""
        backoff = self._backoffs.get(key)
        return backoff.failures if backoff else 0

    @property
    def depth(self) -> int:
        """Keys that are due and wait for a worker."""
        return len(self._ready) + len(self._dirty)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs; keys with a time in the future do not count."""
        return not (self._ready or self._running or self._dirty)

    async def run(self, workers: int, reconcile: Callable[[K], Awaitable[float | None]]) -> None:
        """Work with `workers` tasks until `stop()`; then let the running reconciles finish and return.

        Cancelling it cancels the running reconciles too.
        """
        if workers < 1:
            raise ValueError(f"a queue needs at least one worker, not {workers}")
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(self._work(reconcile), name=f"{self.name} worker {number}")

    def stop(self) -> None:
        """Start no further reconcile; `run` returns when the running ones are done."""
        self._stopping = True
        self._kick()

    async def _work(self, reconcile: Callable[[K], Awaitable[float | None]]) -> None:
        while (key := await self._take()) is not None:
            started = self._clock()
            result = "error"
            try:
                again = await reconcile(key)
            except Retry as wish:
                result = "requeue"
                self._again(key, wish)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Something that the reconcile waited for was cancelled, not this worker.
                self._failed(key, RuntimeError("the reconcile was cancelled from within"))
            except Exception as error:
                self._failed(key, error)
            else:
                result = "success" if again is None else "requeue"
                self.forget(key)
                if again is not None:
                    self.add_after(key, again)
            finally:
                self._done(key)
                if self._observer is not None:
                    self._observer.reconciled(result, self._clock() - started)

    def _again(self, key: K, wish: Retry) -> None:
        if wish.seconds is None:
            seconds = self.retry(key)
        else:
            seconds = wish.seconds
            self.add_after(key, seconds)
        log.info("%s: %s: again in %.1f s: %s", self.name, key, seconds, wish)

    def _failed(self, key: K, error: Exception) -> None:
        expected = isinstance(error, ApiError)
        wait = (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
        seconds = self.retry(key, at_least=wait)
        # A traceback tells something about a bug only; what the API server says is in the message.
        trace = None if expected else error
        log.error("%s: %s: failed, again in %.1f s: %s", self.name, key, seconds, error, exc_info=trace)

    async def _take(self) -> K | None:
        """The next key that is due, now marked as running; None once the queue stops."""
        while not self._stopping:
            next_due = self._promote()
            if self._ready:
                key = next(iter(self._ready))
                del self._ready[key]
                self._running.add(key)
                self._report_depth()
                return key
            self._wake.clear()
            try:
                async with asyncio.timeout(None if next_due is None else max(0.0, next_due - self._clock())):
                    await self._wake.wait()
            except TimeoutError:
                pass
        return None

    def _promote(self) -> float | None:
        """Add every key whose time has come; returns the time of the next one."""
        now = self._clock()
        while self._timers:
            due, _, key = self._timers[0]
            if self._due.get(key) != due:
                heapq.heappop(self._timers)  # superseded by an earlier wish or by `add`
            elif due <= now:
                heapq.heappop(self._timers)
                self.add(key)
            else:
                return due
        return None

    def _done(self, key: K) -> None:
        self._running.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self._ready[key] = None
            self._kick()
        self._report_depth()

    def _kick(self) -> None:
        self._wake.set()

    def _report_depth(self) -> None:
        if self._observer is not None:
            self._observer.queue_depth(self.depth)
