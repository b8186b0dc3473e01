"""Operations that take their time, by a clock that a test may hold; and more than one sleeper."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import DRIVERS, NPU, TWIN, Sleeper
from tests.builders.kernel_rules import shows
from tests.builders.waiting import eventually

UNBIND = f"{DRIVERS}/rebellions/unbind"
BIND = f"{DRIVERS}/rebellions/bind"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kernel(tmp_path: Path, clock: Clock) -> Iterator[SimulatedKernel]:
    with SimulatedKernel(tmp_path / "host", hosts.bench(), clock=clock) as kernel:
        yield kernel


def passes(kernel: SimulatedKernel, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    kernel.time_passed()


@shows("unbind.takes-its-time", "device.one-operation-at-a-time")
def test_slow_unbind_keeps_the_lock_for_its_time(kernel: SimulatedKernel, clock: Clock) -> None:
    host = kernel.host()
    hold = kernel.block(f"remove:rebellions:{NPU}", seconds=30)
    unbind = Sleeper(lambda: host.write(UNBIND, NPU.encode()))
    assert hold.wait_until_blocked()
    bind = Sleeper(lambda: host.write(BIND, NPU.encode()))
    eventually(lambda: sorted(kernel.sleeping) == [BIND, UNBIND], every=0.005)
    host.write(UNBIND, TWIN.encode())
    passes(kernel, clock, 29)
    assert unbind.asleep
    passes(kernel, clock, 1)
    assert unbind.result() == "ok"
    assert bind.result() == "ok"
    assert hosts.driver_of(host, NPU) == "rebellions", "the bind came after it"
    again = Sleeper(lambda: host.write(UNBIND, NPU.encode()))
    assert hold.wait_until_blocked(), "the next one takes as long"
    hold.release()
    assert again.result() == "ok"


@shows("unbind.takes-its-time")
def test_blocked_unbind_ends_when_it_is_released(kernel: SimulatedKernel) -> None:
    hold = kernel.block(f"remove:*:{NPU}")
    unbind = Sleeper(lambda: kernel.host().write(UNBIND, NPU.encode()))
    assert hold.wait_until_blocked()
    hold.release()
    assert unbind.result() == "ok"
    assert hosts.driver_of(kernel.host(), NPU) is None


def test_slow_write_takes_its_time_before_it_reaches_the_kernel(kernel: SimulatedKernel, clock: Clock) -> None:
    override = hosts.attribute(NPU, "driver_override")
    hold = kernel.block("*/driver_override", seconds=5)
    write = Sleeper(lambda: kernel.host().write(override, b"vfio-pci"))
    assert hold.wait_until_blocked()
    assert hosts.text(kernel.host(), override) == "(null)\n", "the lock is free"
    passes(kernel, clock, 5)
    assert write.result() == "ok"


def test_real_clock_runs_by_itself(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        kernel.block("remove:*", seconds=0.05)
        started = time.monotonic()
        kernel.host().write(UNBIND, NPU.encode())
        assert time.monotonic() - started >= 0.05
        assert kernel.sleeping == []


def test_many_sleepers_leave_each_other_asleep(kernel: SimulatedKernel) -> None:
    holds = [kernel.block(f"*/{address}/driver_override") for address in (NPU, TWIN)]
    writes = [
        Sleeper(lambda address=address: kernel.host().write(hosts.attribute(address, "driver_override"), b"x"))  # type: ignore[misc]
        for address in (NPU, TWIN)
    ]
    assert all(hold.wait_until_blocked() for hold in holds)
    before = time.process_time()
    eventually(lambda: len(kernel.sleeping) == 2, every=0.005)
    assert not kernel.block("nothing").wait_until_blocked(0.3)
    assert time.process_time() - before < 0.2, "they wake each other again and again"
    for hold in holds:
        hold.release()
    assert [write.result() for write in writes] == ["ok", "ok"]
