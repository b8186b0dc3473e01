"""The test accelerator keeps exact account of every call: what counts calls in the kernel is judged against it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.guest.conftest import Lab
from tests.kernel.modules import sim_accel_abi as abi
from tests.kernel.modules.call32 import ioctl32
from tests.kernel.modules.kernel_log import no_complaints
from tests.kernel.modules.loaded import ModuleInUseError, loaded, mount_debugfs, unload
from tests.kernel.modules.polling import until
from tests.kernel.modules.processes import exit_code, forked
from tests.kernel.modules.refusals import refused
from tests.kernel.modules.sim_accel_device import AccelFile, calls, node_below, state

pytestmark = pytest.mark.guest("kernel")

PLATFORM = Path("/sys/bus/platform/devices")
PCI = Path("/sys/bus/pci/devices")
DEVICE = "sim_accel.0"
DRM_IOCTL_GEM_CLOSE = 0x40086409
LONG = 3600.0


@pytest.fixture(autouse=True)
def watched_kernel() -> Iterator[None]:
    with no_complaints():
        yield


@pytest.fixture(scope="module")
def module() -> Iterator[None]:
    mount_debugfs()
    with loaded("sim_accel"):
        yield


@pytest.fixture
def node(module: None) -> Path:
    found = node_below(PLATFORM / DEVICE)
    assert found is not None
    return found


@pytest.fixture
def accel(node: Path) -> Iterator[AccelFile]:
    with AccelFile(node) as opened:
        yield opened


def counted(pid: int, device: str = DEVICE) -> dict[str, tuple[int, int]]:
    """(succeeded, failed) by kind, of one process."""
    return {kind: (count.succeeded, count.failed) for (who, kind), count in calls(device).items() if who == pid}


def test_the_node_is_an_accelerator_below_its_device(node: Path) -> None:
    status = node.stat()
    assert (os.major(status.st_rdev), node.parent.name) == (abi.ACCEL_MAJOR, "accel")
    assert (PLATFORM / DEVICE / "driver").resolve().name == abi.DRIVER_NAME
    assert (PLATFORM / DEVICE / "accel" / node.name / "dev").read_text() == f"{abi.ACCEL_MAJOR}:{node.name[5:]}\n"


def test_each_call_of_four_processes_is_counted_once_under_its_process_and_kind(node: Path) -> None:
    jobs = state(DEVICE)["jobs"]
    workloads = [{"submit": 700 + 10 * n, "alloc": 50 + n, "fail": 300 + n, "bad": 40 + n} for n in range(4)]
    children = [forked(functools.partial(calling, node, work)) for work in workloads]
    assert [exit_code(child) for child in children] == [0] * 4
    for child, work in zip(children, workloads, strict=True):
        assert counted(child) == {
            "submit": (work["submit"], work["bad"]),
            "alloc": (work["alloc"], 1),
            "free": (work["alloc"] - 2, 1),
            "fail": (0, work["fail"]),
            "release": (1, 0),
            "wait": (1, 2),
            "other": (2, 1),
            "foreign": (0, 1),
        }
    assert state(DEVICE)["jobs"] - jobs == 3 * sum(work["submit"] for work in workloads)
    assert state(DEVICE)["bytes"] == 0


def calling(node: Path, work: dict[str, int]) -> None:
    """In a process of its own: known numbers of calls that succeed and that fail, of every kind."""
    with AccelFile(node) as accel:
        for _ in range(work["submit"]):
            accel.submit(jobs=3)
        handles = [accel.alloc(4096) for _ in range(work["alloc"] - 2)]
        for handle in handles:
            accel.free(handle)
        for _ in range(work["fail"]):
            with refused(errno.EIO):
                accel.fail(errno.EIO)
        for _ in range(work["bad"]):
            with refused(errno.EINVAL):
                accel.submit(jobs=0)
        with refused(errno.EINVAL):
            accel.alloc(0)
        with refused(errno.EINVAL):
            accel.free(12345)
        accel.wait(accel.release(), LONG)
        for _ in range(2):
            with refused(errno.ETIME):
                accel.wait(2**63, 0)
        # Calls that are not this driver's are counted as well: handles closed, an unknown number, a foreign type byte.
        for handle in (accel.alloc(4096), accel.alloc(4096)):
            fcntl.ioctl(accel.descriptor, DRM_IOCTL_GEM_CLOSE, abi.FREE_LAYOUT.pack(handle, 0))
        with refused(errno.EINVAL):
            fcntl.ioctl(accel.descriptor, 0x40086479, abi.FREE_LAYOUT.pack(0, 0))
        with refused(errno.ENOTTY):
            fcntl.ioctl(accel.descriptor, abi.SUBMIT ^ 0x100, abi.SUBMIT_LAYOUT.pack(1, 0))


@pytest.mark.parametrize("number", [1, errno.EIO, errno.ENOSPC, errno.ETIMEDOUT, abi.MAX_ERROR])
def test_a_call_fails_with_the_error_that_was_asked_for(accel: AccelFile, number: int) -> None:
    with refused(number):
        accel.fail(number)


@pytest.mark.parametrize("number", [0, abi.MAX_ERROR + 1, 512, 2**32 - 1])
def test_no_error_number_beyond_those_of_user_space_is_returned(accel: AccelFile, number: int) -> None:
    with refused(errno.EINVAL):
        accel.fail(number)


def test_a_submit_takes_as_long_as_it_was_told_to(accel: AccelFile) -> None:
    start = time.monotonic()
    accel.submit(busy_us=200_000)
    assert time.monotonic() - start >= 0.2
    assert calls(DEVICE)[os.getpid(), "submit"].nanoseconds >= 200_000_000
    with refused(errno.EINVAL):
        accel.submit(busy_us=abi.MAX_BUSY_US + 1)


def test_memory_is_bounded_and_given_back_with_the_handle_or_the_file(node: Path) -> None:
    with AccelFile(node) as accel:
        first = accel.alloc(512 << 20)
        accel.alloc((512 << 20) - 4095)
        assert state(DEVICE)["bytes"] == 1024 << 20
        for size in (1, 2**40, 2**64 - 1):
            with refused(errno.ENOMEM):
                accel.alloc(size)
        accel.free(first)
        assert state(DEVICE)["bytes"] == 512 << 20
    assert state(DEVICE)["bytes"] == 0


def test_waiters_sleep_until_the_timeline_reaches_their_point(node: Path, accel: AccelFile) -> None:
    start = accel.release(0)
    children = [forked(functools.partial(waiting, node, start + n)) for n in (1, 2, 2)]
    until(lambda: state(DEVICE)["waiting"] == 3, "three calls sleep")
    assert all("wait" not in counted(child) for child in children)
    accel.release()
    assert exit_code(children[0]) == 0
    assert state(DEVICE)["waiting"] == 2
    accel.release()
    assert [exit_code(child) for child in children[1:]] == [0, 0]
    assert [counted(child)["wait"] for child in children] == [(1, 0)] * 3


def waiting(node: Path, point: int) -> None:
    with AccelFile(node) as accel:
        accel.wait(point, LONG)


def test_a_wait_ends_at_its_deadline(accel: AccelFile) -> None:
    start = time.monotonic()
    with refused(errno.ETIME):
        accel.wait(accel.release(0) + 1, 0.3)
    assert 0.3 <= time.monotonic() - start < 30


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_a_wait_and_the_call_is_counted_as_failed(node: Path, accel: AccelFile, number: int) -> None:
    child = forked(lambda: waiting(node, accel.release(0) + 1))
    until(lambda: state(DEVICE)["waiting"] == 1, "the call sleeps")
    os.kill(child, number)
    assert exit_code(child) == -number
    assert (state(DEVICE)["waiting"], counted(child)) == (0, {"release": (1, 0), "wait": (0, 1)})


def test_a_handled_signal_interrupts_a_wait(node: Path, accel: AccelFile) -> None:
    child = forked(lambda: interrupted(node, accel.release(0) + 1))
    until(lambda: state(DEVICE)["waiting"] == 1, "the call sleeps")
    os.kill(child, signal.SIGUSR1)
    assert exit_code(child) == 0


def interrupted(node: Path, point: int) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.siginterrupt(signal.SIGUSR1, True)
    with AccelFile(node) as accel, refused(errno.EINTR):
        accel.wait(point, LONG)


def test_who_calls_counts_not_who_opened(accel: AccelFile) -> None:
    """The file is passed to another process through a socket."""
    before = counted(os.getpid()).get("submit")
    ours, theirs = socket.socketpair()
    child = forked(lambda: submitting_on_a_passed_file(theirs))
    socket.send_fds(ours, [b"file"], [accel.descriptor])
    assert exit_code(child) == 0
    assert (counted(child), counted(os.getpid()).get("submit")) == ({"submit": (5, 0)}, before)


def submitting_on_a_passed_file(channel: socket.socket) -> None:
    _, (descriptor,), *_ = socket.recv_fds(channel, 16, 1)
    for _ in range(5):
        fcntl.ioctl(descriptor, abi.SUBMIT, abi.SUBMIT_LAYOUT.pack(1, 0))


def test_threads_of_one_process_lose_no_count(node: Path) -> None:
    child = forked(lambda: submitting_in_threads(node, threads=4, each=500))
    assert exit_code(child) == 0
    assert counted(child) == {"submit": (2000, 0)}


def submitting_in_threads(node: Path, threads: int, each: int) -> None:
    """All threads begin at once, which is when the process's counters are made."""
    gate = threading.Barrier(threads)
    libc = ctypes.CDLL(None, use_errno=True)
    request = ctypes.create_string_buffer(abi.SUBMIT_LAYOUT.pack(1, 0))

    def submit(descriptor: int) -> None:
        gate.wait(20)
        for _ in range(each):
            # Without the interpreter's lock, unlike fcntl.ioctl with a short argument.
            assert libc.ioctl(descriptor, ctypes.c_ulong(abi.SUBMIT), request) == 0

    with AccelFile(node) as accel:
        running = [threading.Thread(target=submit, args=(accel.descriptor,)) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()


def test_a_32_bit_caller_is_served_and_counted(node: Path) -> None:
    child = forked(lambda: calling_with_32_bits(node))
    assert exit_code(child) == 0
    assert counted(child) == {"submit": (3, 0), "alloc": (1, 0), "fail": (0, 1), "foreign": (0, 1)}


def calling_with_32_bits(node: Path) -> None:
    with AccelFile(node) as accel:
        for _ in range(3):
            ioctl32(accel.descriptor, abi.SUBMIT, abi.SUBMIT_LAYOUT.pack(1, 0))
        size, handle, _ = abi.ALLOC_LAYOUT.unpack(
            ioctl32(accel.descriptor, abi.ALLOC, abi.ALLOC_LAYOUT.pack(4096, 0, 0))
        )
        assert (size, handle) == (4096, 1)
        with refused(errno.ENOSPC):
            ioctl32(accel.descriptor, abi.FAIL, abi.FAIL_LAYOUT.pack(errno.ENOSPC, 0))
        with refused(errno.ENOTTY):
            ioctl32(accel.descriptor, abi.SUBMIT ^ 0x100, abi.SUBMIT_LAYOUT.pack(1, 0))


def test_the_module_stays_while_a_file_is_open(accel: AccelFile) -> None:
    with pytest.raises(ModuleInUseError):
        unload("sim_accel")
    accel.submit()


@contextlib.contextmanager
def bound(bdf: str) -> Iterator[Path]:
    """A PCI device on the driver by its override."""
    device = PCI / bdf
    (device / "driver_override").write_text(abi.DRIVER_NAME)
    try:
        Path("/sys/bus/pci/drivers_probe").write_text(bdf)
        yield device
    finally:
        if (device / "driver").exists():
            (device / "driver/unbind").write_text(bdf)
        (device / "driver_override").write_text("\n")


def test_a_pci_device_gets_a_node_by_its_override_and_its_twin_none(module: None, lab: Lab) -> None:
    with bound(lab["twin_a"]) as device:
        node = node_below(device)
        assert node is not None
        with AccelFile(node) as accel:
            accel.submit()
            assert counted(os.getpid(), device.name) == {"submit": (1, 0)}
        assert not (PCI / lab["twin_b"] / "driver").exists()
    assert not node.exists()


def test_the_driver_goes_from_under_an_open_file_and_a_sleeper(module: None, lab: Lab) -> None:
    with bound(lab["twin_a"]) as device:
        node = node_below(device)
        assert node is not None
        with AccelFile(node) as accel:
            child = forked(lambda: sleeping_until_the_device_goes(node))
            until(lambda: state(device.name)["waiting"] == 1, "the call sleeps")
            (device / "driver/unbind").write_text(device.name)
            assert exit_code(child) == 0
            with refused(errno.ENODEV):
                accel.submit()
            assert not node.exists()
            Path("/sys/bus/pci/drivers_probe").write_text(device.name)
            again = node_below(device)
            assert again is not None
            with AccelFile(again) as other:
                other.submit()
            assert counted(os.getpid(), device.name) == {"submit": (1, 0)}


def sleeping_until_the_device_goes(node: Path) -> None:
    with AccelFile(node) as accel, refused(errno.ENODEV):
        accel.wait(2**63, LONG)


def test_parameters_decide_how_many_devices_there_are_and_whether_edu_devices_are_taken(lab: Lab) -> None:
    mount_debugfs()
    with loaded("sim_accel", devices=3, pci=1):
        nodes = [node_below(PLATFORM / f"sim_accel.{n}") for n in range(3)]
        nodes += [node_below(PCI / lab[name]) for name in ("twin_a", "twin_b")]
        assert None not in nodes
        assert len(set(nodes)) == 5
    assert not any((PCI / lab[name] / "driver").exists() for name in ("twin_a", "twin_b"))
    with loaded("sim_accel", devices=0):
        assert not list(PLATFORM.glob("sim_accel.*"))
