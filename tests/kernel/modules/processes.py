"""Children that do one thing: a fork, because starting an interpreter in the guest takes seconds."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def forked(action: Callable[[], None]) -> int:
    """The process id of a child that does the action and ends with 0, or with 1 and a traceback when it raises."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def exit_code(child: int) -> int:
    """Waits for the child; negative: the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
