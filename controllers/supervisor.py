"""Runs several programs as child processes, starts those anew that end, and leaves none behind.

For demo and tests; in a cluster the kubelet does this. A child gets SIGTERM when this process is told to stop, and from
the kernel when it dies: not even a SIGKILL here leaves one running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime import process
from runtime.backoff import Backoff

log = logging.getLogger(__name__)

_LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("end_with_parent.py")))
_STOP_SECONDS = 15.0
_SETTLED_SECONDS = 60.0
_PAUSES = (0.5, 30.0)


def supervise(commands: Mapping[str, Sequence[str]], *, stop_seconds: float = _STOP_SECONDS) -> int:
    """Keep every command running until SIGTERM or SIGINT; returns the exit code.

    `commands`: program (its whole path) and arguments, by name. A child that ends is started again after a pause, which
    grows up to 30 s and is short again once it has run for a minute.
    """

    async def main(life: process.Process) -> None:
        keepers = [
            life.supervise(_keep(life, name, command, stop_seconds), name, finite=True)
            for name, command in commands.items()
        ]
        await life.stop.wait()
        await asyncio.wait(keepers)

    return process.run(main, shutdown_seconds=stop_seconds + 5.0)


async def _keep(life: process.Process, name: str, command: Sequence[str], stop_seconds: float) -> None:
    backoff = Backoff(*_PAUSES, random.Random())  # noqa: S311 - spreads restarts, guards nothing
    loop = asyncio.get_running_loop()
    while not life.stop.is_set():
        started = loop.time()
        # In a session of its own: a Ctrl-C at the terminal reaches it as our SIGTERM, and as nothing else.
        child = await asyncio.create_subprocess_exec(*_LAUNCHER, str(os.getpid()), *command, start_new_session=True)
        log.info("Started %s as process %d", name, child.pid)
        code = await _until_end(child, life.stop, stop_seconds)
        if life.stop.is_set():
            log.info("Stopped %s (exit code %d)", name, code)
            return
        if loop.time() - started >= _SETTLED_SECONDS:
            backoff.reset()
        pause = backoff.next()
        log.warning("%s ended with code %d; starting it again in %.1f s", name, code, pause)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await life.stop.wait()


async def _until_end(child: asyncio.subprocess.Process, stop: asyncio.Event, stop_seconds: float) -> int:
    """Wait for the child; once `stop` is set, end it: politely first, by force after `stop_seconds`."""
    ended = asyncio.ensure_future(child.wait())
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            _signal(child, signal.SIGTERM)
            await asyncio.wait({ended}, timeout=stop_seconds)
        if not ended.done():
            log.warning("Process %d did not stop within %g s: killing it", child.pid, stop_seconds)
            _signal(child, signal.SIGKILL)
        return await ended
    except asyncio.CancelledError:
        _signal(child, signal.SIGKILL)
        raise
    finally:
        stopped.cancel()


def _signal(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)
