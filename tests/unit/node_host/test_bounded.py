"""Calls and writes that hang end for whoever waits for them, and are heard of when they end after all."""

import asyncio
import errno
import threading
import time
from pathlib import Path

import pytest

from node_host.acting.bounded_write import BoundedWriter, WriteStuckError
from node_host.acting.locks import LockedError, Locks
from node_host.bounded_call import BoundedCalls, HungError
from node_host.host import KernelFiles, open_host
from node_host.pci.device import DEVICES, DRIVERS
from simulated_node.kernel import SimulatedKernel
from simulated_node.server import SimulatedKernelServer
from tests.builders.binder import NPU, host, npu
from tests.builders.waiting import until

OVERRIDE = f"{DEVICES}/{NPU}/driver_override"


async def test_a_call_gives_its_result_or_its_error() -> None:
    calls = BoundedCalls(deadline_seconds=5)
    assert await calls.run("x", lambda: 7) == 7

    def fails() -> int:
        raise OSError(errno.EIO, "failed")

    with pytest.raises(OSError, match="failed"):
        await calls.run("x", fails)
    results = await calls.each({"a": lambda: 1, "b": fails})
    assert results["a"] == 1
    assert isinstance(results["b"], OSError)


async def test_a_call_that_hangs_is_not_asked_again_until_it_has_answered() -> None:
    calls = BoundedCalls(deadline_seconds=0.05)
    answer = threading.Event()
    asked = []

    def hangs() -> int:
        asked.append(1)
        answer.wait(20)
        return 1

    for _ in range(3):
        with pytest.raises(HungError, match=r"no answer within 0.05 s \(x\)"):
            await calls.run("x", hangs)
    assert len(asked) == 1
    assert await calls.run("y", lambda: 2) == 2
    answer.set()
    await until(lambda: not calls._hung)
    assert await calls.run("x", lambda: 3) == 3


@pytest.mark.parametrize("served", [False, True], ids=["in-process", "child-process"])
async def test_a_write_reaches_the_kernel_or_its_errno_comes_back(tmp_path: Path, served: bool) -> None:
    with SimulatedKernel(tmp_path / "root", host(npu())) as kernel:
        server = SimulatedKernelServer(kernel) if served else None
        made = open_host(kernel.root) if served else kernel.host()
        results: list[str] = []
        writer = BoundedWriter(made, deadline_seconds=20, on_result=results.append)
        with Locks(made, ["group-20"], owner="test") as locks:
            await writer.write(OVERRIDE, b"none\n", locks)
            assert made.read(OVERRIDE) == b"none\n"
            await writer.write(OVERRIDE, b"\n", locks)
            with pytest.raises(OSError) as caught:
                await writer.write(f"{DRIVERS}/rebellions/bind", NPU.encode(), locks)
            assert caught.value.errno == errno.EBUSY
            with pytest.raises(FileNotFoundError):
                await writer.write(f"{DRIVERS}/nothing/bind", NPU.encode(), locks)
        assert results == ["ok", "ok", "EBUSY", "ENOENT"]
        assert [record.result for record in kernel.writes] == results
        if server is not None:
            server.close()


@pytest.mark.parametrize("served", [False, True], ids=["in-process", "child-process"])
async def test_a_write_that_is_stuck_keeps_its_locks_until_it_ends(tmp_path: Path, served: bool) -> None:
    with SimulatedKernel(tmp_path / "root", host(npu())) as kernel:
        server = SimulatedKernelServer(kernel) if served else None
        made = open_host(kernel.root) if served else kernel.host()
        unstuck: list[int] = []
        writer = BoundedWriter(made, deadline_seconds=1, on_unstuck=lambda: unstuck.append(1))
        block = kernel.block(OVERRIDE)
        with Locks(made, ["group-20"], owner="test") as locks, pytest.raises(WriteStuckError):
            await writer.write(OVERRIDE, b"none\n", locks)
        assert writer.stuck == {"group-20": f"writing 'none' to {OVERRIDE} has not come back"}
        with pytest.raises(LockedError), Locks(made, ["group-20"], owner="test"):
            pass
        block.release()
        await until(lambda: unstuck)
        assert writer.stuck == {}
        with Locks(made, ["group-20"], owner="test"):
            pass
        assert made.read(OVERRIDE) == b"none\n"
        if server is not None:
            server.close()


async def test_a_waiter_that_is_cancelled_leaves_the_write_to_the_kernel(tmp_path: Path) -> None:
    with SimulatedKernel(tmp_path / "root", host(npu())) as kernel:
        made = kernel.host()
        writer = BoundedWriter(made, deadline_seconds=20)
        block = kernel.block(OVERRIDE)

        async def work() -> None:
            with Locks(made, ["group-20"], owner="test") as locks:
                await writer.write(OVERRIDE, b"none\n", locks)

        waiting = asyncio.create_task(work())
        assert await asyncio.to_thread(block.wait_until_blocked)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(LockedError), Locks(made, ["group-20"], owner="test"):
            pass
        block.release()
        await until(lambda: made.read(OVERRIDE) == b"none\n")


def answers_at_the_deadline(answer: threading.Event, thread: str, seconds: float) -> None:
    """Answers in the very turn of the loop in which the deadline passes: the answer is queued first."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds

    def busy() -> None:
        asked = next(one for one in threading.enumerate() if one.name == thread)
        answer.set()
        asked.join(20)
        while loop.time() <= deadline + loop_resolution:
            pass

    loop_resolution = 2 * time.get_clock_info("monotonic").resolution + 0.01
    loop.call_soon(busy)


async def test_a_call_that_answers_at_the_deadline_is_not_taken_for_one_that_hangs() -> None:
    calls = BoundedCalls(deadline_seconds=1)
    answer = threading.Event()
    asked = asyncio.create_task(calls.run("x", lambda: answer.wait(20)))
    await until(lambda: any(one.name == "x" for one in threading.enumerate()))
    answers_at_the_deadline(answer, "x", 1)
    assert await asked
    assert not calls._hung
    assert await calls.run("x", lambda: 2) == 2


async def test_a_write_that_ends_at_the_deadline_is_not_taken_for_one_that_is_stuck(tmp_path: Path) -> None:
    answer = threading.Event()

    class Slow(KernelFiles):
        def write_command(self, path: str, data: bytes) -> list[str] | None:
            return None

        def write(self, path: str, data: bytes) -> None:
            assert answer.wait(20)

    made = Slow(tmp_path)
    results: list[str] = []
    writer = BoundedWriter(made, deadline_seconds=1, on_result=results.append)
    with Locks(made, ["group-20"], owner="test") as locks:
        written = asyncio.create_task(writer.write(OVERRIDE, b"none\n", locks))
        await until(lambda: any(one.name == f"write {OVERRIDE}" for one in threading.enumerate()))
        answers_at_the_deadline(answer, f"write {OVERRIDE}", 1)
        await written
    assert (results, writer.stuck) == (["ok"], {})
