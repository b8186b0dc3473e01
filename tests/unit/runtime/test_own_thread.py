"""Threads whose work nobody needs any more keep no process from its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from runtime.own_thread import in_own_thread

NEVER_ENDS = """
import asyncio, threading
from runtime.own_thread import in_own_thread

async def main():
    begun = threading.Event()
    in_own_thread("busy", lambda: (begun.set(), threading.Event().wait()))
    await asyncio.to_thread(begun.wait)

asyncio.run(main())
"""


def test_process_ends_while_a_thread_computes_for_ever() -> None:
    done = subprocess.run([sys.executable, "-c", NEVER_ENDS], capture_output=True, text=True, timeout=40, check=False)
    assert (done.returncode, done.stderr) == (0, "")


async def test_result_and_error_come_back() -> None:
    def fails() -> None:
        raise ValueError("wrong")

    assert await in_own_thread("good", lambda: 7) == 7
    with pytest.raises(ValueError, match="wrong"):
        await in_own_thread("bad", fails)


async def test_result_that_nobody_waits_for_any_more_is_dropped() -> None:
    release = threading.Event()
    work = in_own_thread("late", release.wait)
    (late,) = (thread for thread in threading.enumerate() if thread.name == "late")
    work.cancel()
    release.set()
    await asyncio.to_thread(late.join, 10)
    await asyncio.sleep(0)
    assert work.cancelled()
