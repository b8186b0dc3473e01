"""One change of claims at a time: within this process, and between two that serve the kubelet during an update."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from dra_publisher.checkpoint.store import BusyError, CheckpointStore

DEADLINE_SECONDS: Final = 25.0  # less than the kubelet waits for an answer
_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.1

T = TypeVar("T")


class ClaimLock:
    """The lock of one process. It is not handed on to callees: who has it must not ask for it again."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._deadline = deadline_seconds
        self._sleep = sleep
        self._own = asyncio.Lock()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """In the order in which callers of this process come. Raises BusyError after the deadline, CheckpointError."""
        async with self._own:
            waited, pause = 0.0, _FIRST_PAUSE
            while True:
                lock = self._store.locked()
                try:
                    lock.__enter__()
                except BusyError:
                    if waited >= self._deadline:
                        raise
                else:
                    break
                await self._sleep(pause)
                waited, pause = waited + pause, min(pause * 2, _LONGEST_PAUSE)
            try:
                yield
            finally:
                lock.__exit__(None, None, None)


async def to_its_end(work: Callable[[], T]) -> T:
    """Work on files in a thread, for whoever holds the lock.

    It is waited for even by a caller that is cancelled: it must not go on without the lock.
    """
    done = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait({done})
        raise
