"""Real child processes under real signals: ends in order, ends in time, tells the truth in the exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

HEAD = """
import asyncio, logging, sys, threading, time
from runtime import logs, process
from runtime.credentials import CredentialsError
logs.setup("test", log_format="text")
"""


class Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.started = time.monotonic()

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            return (await self.process.stdout.readline()).decode().strip()

    def signal(self, number: int) -> None:
        self.started = time.monotonic()
        self.process.send_signal(number)

    async def end(self) -> tuple[int, str, float]:
        """Exit code, stderr, seconds since the last signal."""
        async with asyncio.timeout(30):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode(), time.monotonic() - self.started


@asynccontextmanager
async def child(code: str, shutdown: float = 10.0) -> AsyncIterator[Child]:
    program = HEAD + textwrap.dedent(code) + f"\nsys.exit(process.run(main, shutdown_seconds={shutdown}))\n"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_in_order_with_exit_code_0(number: int) -> None:
    code = """
    async def main(p):
        async def work():
            await asyncio.sleep(1000)
        p.supervise(work(), "work")
        print("up", flush=True)
        await p.stop.wait()
        print("drained", flush=True)
    """
    async with child(code) as running:
        assert await running.line() == "up"
        running.signal(number)
        assert await running.line() == "drained"
        exit_code, errors, _ = await running.end()
        assert exit_code == 0 and "Stopping: asked to" in errors


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ("raise RuntimeError('the feed broke')", "the feed broke"),
        ("return", "ended though it should run"),
        ("asyncio.current_task().cancel(); await asyncio.sleep(1)", "cancelled"),
    ],
)
async def test_a_task_that_dies_takes_the_process_down_with_its_error(work: str, said: str) -> None:
    code = f"""
    async def main(p):
        async def work():
            {work}
        p.supervise(work(), "the-feed")
        await p.stop.wait()
    """
    async with child(code) as running:
        exit_code, errors, _ = await running.end()
        assert exit_code == 3
        assert said in errors and "the-feed" in errors


async def test_a_finite_task_may_end_and_main_may_return_by_itself() -> None:
    code = """
    async def main(p):
        async def work():
            return 7
        print(await p.supervise(work(), "once", finite=True), flush=True)
    """
    async with child(code) as running:
        assert await running.line() == "7"
        exit_code, errors, _ = await running.end()
        assert exit_code == 0 and errors == ""


async def test_an_error_of_main_is_logged_and_an_expected_one_without_a_traceback() -> None:
    async with child("async def main(p): raise RuntimeError('a bug')") as running:
        exit_code, errors, _ = await running.end()
        assert exit_code == 3 and "a bug" in errors and "Traceback" in errors
    async with child("async def main(p): raise CredentialsError('kubeconfig /x: no such file')") as running:
        exit_code, errors, _ = await running.end()
        assert exit_code == 3 and "kubeconfig /x: no such file" in errors and "Traceback" not in errors


async def test_a_shutdown_that_takes_too_long_is_cut_off() -> None:
    code = """
    async def main(p):
        print("up", flush=True)
        await asyncio.sleep(1000)
    """
    async with child(code, shutdown=0.3) as running:
        await running.line()
        running.signal(signal.SIGTERM)
        exit_code, errors, seconds = await running.end()
        assert exit_code == 3 and "more than 0.3 s" in errors and seconds < 5


@pytest.mark.parametrize(
    "stuck",
    [
        "while True:\n            try:\n                await asyncio.sleep(1000)\n"
        "            except asyncio.CancelledError: pass",
        "await asyncio.to_thread(time.sleep, 1000)",
    ],
)
async def test_a_task_or_thread_that_never_ends_cannot_hold_the_process(stuck: str) -> None:
    code = f"""
    async def main(p):
        print("up", flush=True)
        {stuck}
    """
    async with child(code, shutdown=0.2) as running:
        await running.line()
        running.signal(signal.SIGTERM)
        exit_code, errors, seconds = await running.end()
        assert exit_code == 3 and "does not end" in errors and seconds < 15


@pytest.mark.parametrize("wait", ["await asyncio.sleep(1000)", "while True: pass", "time.sleep(1000)"])
async def test_a_second_signal_ends_at_once_even_when_the_loop_hangs(wait: str) -> None:
    code = f"""
    async def main(p):
        print("up", flush=True)
        {wait}
    """
    async with child(code, shutdown=60) as running:
        await running.line()
        running.signal(signal.SIGTERM)
        # Signals of one kind that come together are one; the next must find the first one handled.
        deadline = time.monotonic() + 10
        while running.process.returncode is None and time.monotonic() < deadline:
            running.signal(signal.SIGINT)
            try:
                async with asyncio.timeout(0.1):
                    await running.process.wait()
            except TimeoutError:
                continue
        exit_code, _, _ = await running.end()
        assert exit_code == 3
