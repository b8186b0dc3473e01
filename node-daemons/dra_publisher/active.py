"""Which of two publishers of a node publishes: during an update the old pod and the new one serve the kubelet, and one
of them alone writes slices, tokens and the report.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from node_host.acting.locks import LOCKS, LockedError, Locks
from node_host.host import Host

_log = logging.getLogger(__name__)

LOCK: Final = "publisher"
EVERY_SECONDS: Final = 1.0


class Active:
    """The lock; it goes with the process, however that ends."""

    def __init__(
        self,
        host: Host,
        *,
        owner: str,
        wake: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._host = host
        self._owner = owner
        self._wake = wake
        self._sleep = sleep
        self._held: Locks | None = None
        self.waits: str | None = None
        """Why it is not held, or None."""
        self.problem: str | None = None
        """Why it cannot be taken by anybody, for readiness; None when all is well, or another one has it."""

    @property
    def is_held(self) -> bool:
        """Whether this process is the one."""
        return self._held is not None

    def take(self) -> bool:
        """Take it, if nobody has it."""
        if self._held is not None:
            return True
        locks = Locks(self._host, (LOCK,), owner=self._owner)
        try:
            locks.__enter__()
        except LockedError as error:
            if self.waits is None:
                _log.info("Another publisher of this node is at work: %s", error)
            self.waits, self.problem = str(error), None
            return False
        except OSError as error:
            self.waits = self.problem = f"{LOCKS}/{LOCK}.lock: {error.strerror or error}"
            return False
        self._held, self.waits, self.problem = locks, None, None
        return True

    async def run(self) -> None:
        """Take it as soon as it is free, and call ``wake`` then."""
        while not self.take():
            await self._sleep(EVERY_SECONDS)
        self._wake()

    def release(self) -> None:
        """Leave it to another one."""
        if self._held is not None:
            self._held.__exit__(None, None, None)
            self._held = None
