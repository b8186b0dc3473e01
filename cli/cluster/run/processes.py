"""Starting and ending the components: none may outlive its plane, and no process of somebody else may ever be hit.

A process is known by pid, start time and boot, and is signalled through a pidfd, so a reused pid is never signalled.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from cli.cluster.errors import ClusterError
from cli.cluster.run.launch import boot_id, start_ticks

LAUNCHER = Path(__file__).with_name("launch.py")
RECORD_SECONDS = 20.0


class _LastingThread:
    """Runs calls in one thread that lives as long as the process: the kernel's parent-death signal is tied to the
    THREAD that started the child, and a caller's thread may end long before its process does."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]]
        self._owner = 0
        self._guard = threading.Lock()

    def run(self, call: Callable[[], subprocess.Popen[bytes]]) -> Future[subprocess.Popen[bytes]]:
        with self._guard:
            if self._owner != os.getpid():  # first use, or a fork that did not take the thread along
                self._calls = queue.SimpleQueue()
                threading.Thread(target=self._serve, args=(self._calls,), name="component-starter", daemon=True).start()
                self._owner = os.getpid()
        future: Future[subprocess.Popen[bytes]] = Future()
        self._calls.put((call, future))
        return future

    @staticmethod
    def _serve(
        calls: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]],
    ) -> None:
        while True:
            call, future = calls.get()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


_starter = _LastingThread()


def spawn(
    command: list[str],
    *,
    output: Path,
    record: Path | None = None,
    die_with_starter: bool = True,
    environment: dict[str, str] | None = None,
    directory: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own (a Ctrl-C at the terminal must not reach it before the orderly stop does)
    with its output appended to `output`. With `record` returns once the record is on disk.

    Raises ClusterError when the launcher cannot be started or ends before it has left its record.
    """
    fate = "die" if die_with_starter else "stay"
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(record or "-"), str(os.getpid()), fate]

    def call() -> subprocess.Popen[bytes]:
        with output.open("ab") as log:
            return subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=directory,
                start_new_session=True,
            )

    if record is not None:
        record.unlink(missing_ok=True)
    future = _starter.run(call)
    try:
        child = future.result()
        if record is not None:
            _await_record(record, child)
        return child
    except OSError as error:
        raise ClusterError(f"cannot start {command[0]}: {error.strerror}") from error
    except BaseException:
        # Interrupted between the start and the hand-over: the child is ours and nobody else would end it.
        started = future.result()
        started.kill()
        started.wait()
        raise


def _await_record(record: Path, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + RECORD_SECONDS
    while not record.exists():
        if child.poll() is not None or time.monotonic() > deadline:
            raise ClusterError(f"the launcher of {record.stem} ended before it wrote {record}: is the disk full?")
        time.sleep(0.005)


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process, for good: `pid` with the start time (clock ticks since boot) and the boot it belongs to."""

    pid: int
    started: int
    boot: str


def read_record(path: Path) -> ProcessRecord | None:
    """The record that the launcher left; None when there is none or it is not one of ours."""
    try:
        content = json.loads(path.read_bytes())
        record = ProcessRecord(pid=content["pid"], started=content["started"], boot=content["bootID"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    numbers = isinstance(record.pid, int) and isinstance(record.started, int) and record.pid > 1
    return record if numbers and isinstance(record.boot, str) else None


def open_process(record: ProcessRecord) -> int | None:
    """A pidfd of exactly this process, or None when it has ended (whoever has its pid now)."""
    if record.boot != boot_id():
        return None
    try:
        descriptor = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return None
    # Checked after the pidfd is open: from here on the descriptor cannot come to mean another process.
    try:
        same = start_ticks(record.pid) == record.started and not _ended(descriptor)
    except OSError:
        same = False
    if not same:
        os.close(descriptor)
        return None
    return descriptor


def _ended(descriptor: int, timeout_seconds: float = 0.0) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_seconds * 1000))


def is_running(record: ProcessRecord | None) -> bool:
    descriptor = open_process(record) if record is not None else None
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def end_processes(records: Iterable[ProcessRecord], *, grace_seconds: float) -> None:
    """SIGTERM to all, SIGKILL after `grace_seconds` to those that are left; returns when every one has ended.

    Raises ClusterError when a process survives SIGKILL for 10 s (stuck in the kernel).
    """
    open_ones = {record.pid: pidfd for record in records if (pidfd := open_process(record)) is not None}
    try:
        deadline = time.monotonic() + grace_seconds
        for pidfd in open_ones.values():
            _signal(pidfd, signal.SIGTERM)
        for pidfd in open_ones.values():
            if not _ended(pidfd, max(0.0, deadline - time.monotonic())):
                _signal(pidfd, signal.SIGKILL)
        stuck = [pid for pid, pidfd in open_ones.items() if not _ended(pidfd, 10.0)]
        if stuck:
            raise ClusterError(f"processes {stuck} did not end after SIGKILL: see /proc/PID/stack for where they hang")
    finally:
        for pidfd in open_ones.values():
            os.close(pidfd)


def end_children(children: Iterable[subprocess.Popen[bytes]], *, grace_seconds: float) -> None:
    """The same for processes that this one has started, and collects their exit codes."""
    # A child whose exit code nobody has asked for keeps its pid, so that its record can still be made here.
    living = [child for child in children if child.poll() is None]
    records = [ProcessRecord(child.pid, start_ticks(child.pid), boot_id()) for child in living]
    end_processes(records, grace_seconds=grace_seconds)
    for child in living:
        child.wait()


def _signal(pidfd: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return  # ended by itself in between
    except PermissionError as error:
        raise ClusterError("a component runs as another user: stop it as the user that started it") from error
