"""Becomes one component of the control plane, after leaving a record by which it can be found and ended.

Run as `python -I -S launch.py RECORD PARENT_PID die|stay PROGRAM ARGUMENT...`: it imports nothing of ours. The record
is written before the program runs: whoever dies in between, `npufleet cluster down` finds every process. `die` asks the
kernel to kill the program when the thread that started this process ends. RECORD may be `-` (no record).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot (proc(5), field 22 of /proc/PID/stat)."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib would double the start-up time
        return int(file.read().rpartition(b")")[2].split()[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
        return file.read().strip()


def main() -> None:
    record, parent, fate, *command = sys.argv[1:]
    if fate == "die":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if record != "-":
        pid = os.getpid()
        content = {"pid": pid, "started": start_ticks(pid), "bootID": boot_id(), "program": command[0]}
        with open(record + ".new", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(content, file)
        os.replace(record + ".new", record)  # noqa: PTH105
    if os.getppid() != int(parent):
        sys.exit("the process that started this component has ended")
    try:
        os.execv(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
