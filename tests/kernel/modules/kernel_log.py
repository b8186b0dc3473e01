"""What the guest's kernel complained about while a test ran: a driver that survives by luck must not pass."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

COMPLAINT = re.compile(
    r"WARNING:|BUG:|\bOops\b|general protection|refcount_t|list_(add|del) corruption|use-after-free|Call Trace"
    r"|blocked for more than|possible (circular|recursive)|sysfs: cannot create duplicate|debugfs: .*already present"
)


@contextlib.contextmanager
def no_complaints() -> Iterator[None]:
    """Raises AssertionError with the lines when the kernel logged a complaint between enter and exit."""
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
        yield
        lines = _rest(descriptor)
    finally:
        os.close(descriptor)
    found = [line for line in lines if COMPLAINT.search(line)]
    assert not found, "the kernel complained:\n" + "\n".join(lines)


def _rest(descriptor: int) -> list[str]:
    lines: list[str] = []
    while True:
        try:
            record = os.read(descriptor, 8192)
        except BlockingIOError:
            return lines
        except BrokenPipeError:
            # Records were overwritten before they were read; the next read goes on with the oldest one left.
            lines.append("(lines lost)")
            continue
        lines.append(record.decode(errors="replace").partition(";")[2].rstrip())
