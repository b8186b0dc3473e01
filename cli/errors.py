"""How a command ends: its exit codes, and the one way in which it says that it could not do what was asked."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What every sub-command ends with."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    INTERNAL = 3
    CHANGES = 4


class CommandError(Exception):
    """An expected failure: ends a command with this text on stderr (what is wrong, and what to do) and this exit code.

    Whatever else is raised is a bug and keeps its traceback.
    """

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.INTERNAL) -> None:
        super().__init__(message)
        self.exit_code = exit_code
