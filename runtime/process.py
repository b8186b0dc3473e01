"""The life of a process: signals, supervised tasks, a bounded shutdown, an exit code that tells the truth.

A task that dies takes the process down with its error in the log: half a process that looks alive is the worst state.
Exit codes: 0 stopped as asked, 3 anything else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType
from typing import Any

from runtime.credentials import CredentialsError
from runtime.health import ListenError

log = logging.getLogger(__name__)

CLEAN = 0
FAILED = 3

_LAST_RESORT_SECONDS = 5.0


class Process:
    """What `main` gets: `stop` is set when the process shall end, for whatever reason."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.failure: str | None = None
        """Why the process ends with a failure; None for an end that was asked for."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def supervise(self, work: Coroutine[Any, Any, Any], name: str, *, finite: bool = False) -> asyncio.Task[Any]:
        """Run `work` beside `main`. If it raises, or (unless `finite`) returns before `stop`, the process ends.

        Whatever still runs when `main` has returned is cancelled.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, finite))
        return task

    def fail(self, why: str) -> None:
        """End the process with exit code 3; the first reason is kept."""
        if self.failure is None:
            self.failure = why
        self.stop.set()

    def _ended(self, task: asyncio.Task[Any], finite: bool) -> None:
        self._tasks.discard(task)
        name = task.get_name()
        if task.cancelled():
            if not self.stop.is_set():
                log.error("Task %s was cancelled by something else than a shutdown", name)
                self.fail(f"task {name} was cancelled")
            return
        error = task.exception()
        if error is not None:
            log.error("Task %s failed: %s", name, error, exc_info=error)
            self.fail(f"task {name} failed: {error}")
        elif not finite and not self.stop.is_set():
            log.error("Task %s ended though it should run for as long as the process", name)
            self.fail(f"task {name} ended")

    async def _cancel_rest(self) -> None:
        rest = list(self._tasks)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def run(main: Callable[[Process], Awaitable[None]], *, shutdown_seconds: float = 20.0) -> int:
    """Run `main` to its end and return the exit code. Call it once, in the main thread.

    SIGTERM and SIGINT set `stop`; a second one ends the process at once. From `stop` on, `main` has
    `shutdown_seconds` to return; then it is cancelled, and if that does not help either the process ends anyway.
    """
    # Closing the loop waits for its threads without a limit, so the last resort outlasts it.
    last_resort = threading.Timer(_LAST_RESORT_SECONDS, _give_up)
    last_resort.daemon = True
    try:
        return asyncio.run(_run(main, shutdown_seconds, last_resort))
    finally:
        last_resort.cancel()


async def _run(
    main: Callable[[Process], Awaitable[None]], shutdown_seconds: float, last_resort: threading.Timer
) -> int:
    process = Process()
    loop = asyncio.get_running_loop()
    signals = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        # A plain handler, not the loop's: the second signal must work even when the loop hangs.
        nonlocal signals
        signals += 1
        if signals > 1:
            os._exit(FAILED)
        loop.call_soon_threadsafe(process.stop.set)

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    work = asyncio.ensure_future(main(process))
    try:
        stopped = asyncio.ensure_future(process.stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if process.stop.is_set():
            log.info("Stopping: %s", process.failure or "asked to")
        if not work.done():
            await asyncio.wait({work}, timeout=shutdown_seconds)
        last_resort.start()
        if not work.done():
            process.fail(f"the shutdown took more than {shutdown_seconds:g} s")
            work.cancel()
            await asyncio.wait({work})
        _judge(work, process)
        process.stop.set()
        await process._cancel_rest()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if process.failure is not None:
        log.error("Ended: %s", process.failure)
        return FAILED
    return CLEAN


def _judge(work: asyncio.Future[None], process: Process) -> None:
    if work.cancelled():
        process.fail("main was cancelled")
        return
    error = work.exception()
    if error is None:
        return
    expected = isinstance(error, (CredentialsError, ListenError))
    log.error("%s", error, exc_info=None if expected else error)
    process.fail(str(error) or type(error).__name__)


def _give_up() -> None:
    log.error("A task or a thread does not end: ending the process without it")
    logging.shutdown()
    os._exit(FAILED)


async def unless_stopped(process: Process, work: Coroutine[Any, Any, Any]) -> bool:
    """Wait for `work`; False when the process shall stop before it is done."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(process.stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return task.done() and not process.stop.is_set()
    finally:
        task.cancel()
        stopped.cancel()
