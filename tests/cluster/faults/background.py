"""What works beside a run: binders, watches, whoever starts the controller again. None of it may end unnoticed.

A task that fails is otherwise seen by nobody, and what waits for its work waits until its time is over, with nothing to
show for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Background:
    """Starts tasks, and tells everybody who `check`s of the first one that failed, or that ended though it should go
    on. `on_failure` are called at that moment."""

    def __init__(self) -> None:
        self.on_failure: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: tuple[str, BaseException | None] | None = None

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def start(self, work: Coroutine[Any, Any, None], name: str, *, finite: bool = False) -> asyncio.Task[None]:
        """`finite`: it may end."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, finite=finite))
        return task

    def check(self) -> None:
        """Raises AssertionError when a task failed."""
        if self._failure is not None:
            told, error = self._failure
            raise AssertionError(told) from error

    async def end(self) -> None:
        """Cancel what still runs, and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None], *, finite: bool) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None and finite:
            return
        if self._failure is None:
            words = f"failed: {type(error).__name__}: {error}" if error is not None else "ended though it should go on"
            self._failure = (f"{task.get_name()}, which works beside the run, {words}", error)
        for tell in self.on_failure:
            tell()
