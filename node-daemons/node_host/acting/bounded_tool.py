"""A program of the host that may never end, with a deadline for whoever waits for it.

It is not ended at the deadline: a vendor's tool that is stopped half-way leaves a card without its driver. It keeps the
card's locks for as long as it runs, whatever becomes of the daemon.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final

from node_host.acting.locks import Locks
from node_host.host import HostWithTools, ToolResult
from runtime.own_thread import in_own_thread

TOOL_SECONDS: Final = 120.0
"""Enabling the functions of eight cards has been seen to take more than 30 s."""


class ToolStuckError(Exception):
    """The program has not ended before the deadline; it may still do its work."""


class BoundedTools:
    """Programs of one host. ``on_ended`` is called when one that was given up has ended."""

    def __init__(
        self,
        host: HostWithTools,
        *,
        deadline_seconds: float = TOOL_SECONDS,
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._host = host
        self._deadline = deadline_seconds
        self._on_ended = on_ended
        self._stuck: dict[str, str] = {}

    @property
    def stuck(self) -> dict[str, str]:
        """Names of locks that programs without an end hold, each with the program in words."""
        return dict(self._stuck)

    async def run(self, path: str, arguments: Sequence[str], locks: Locks) -> ToolResult:
        """Run it to its end. Raises FileNotFoundError without such a program, OSError, or ToolStuckError."""
        descriptors = locks.descriptors()

        def work() -> ToolResult:
            try:
                return self._host.run_tool(path, arguments, inherit=descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

        done = in_own_thread(f"run {path}", work)
        await asyncio.wait({done}, timeout=self._deadline)
        if not done.done():
            done.add_done_callback(lambda _: self._ended(locks.names))
            text = f"{path} {' '.join(arguments)} has not ended"
            self._stuck.update(dict.fromkeys(locks.names, text))
            raise ToolStuckError(f"{text} after {self._deadline:g} s")
        return done.result()

    def _ended(self, names: Sequence[str]) -> None:
        for name in names:
            self._stuck.pop(name, None)
        self._on_ended()
