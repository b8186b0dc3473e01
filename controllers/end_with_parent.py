"""A script: becomes the given program, which the kernel ends when the process that started it dies, for any reason.

Usage: python -I -S end_with_parent.py PARENT_PID PROGRAM [ARGUMENT...]. The wish (PR_SET_PDEATHSIG, prctl(2)) outlives
execve(2). Being a step of its own it needs nothing to run between fork and exec, where Python code is not safe.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, program = int(arguments[0]), arguments[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone already")
    os.execv(program[0], program)  # noqa: S606 - the whole purpose


if __name__ == "__main__":
    main(sys.argv[1:])
