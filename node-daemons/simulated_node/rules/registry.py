"""What the simulated kernel promises, rule by rule.

A rule is one sentence that a real kernel keeps as well, with a stable id, the errno it answers with where it refuses,
and the place where the fact comes from. Tests name the rules they show, the reference page is written from them, and
every refused write carries the id of the rule that refused it.
"""

import errno as errnos
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

RULES: dict[str, "Rule"] = {}
_ID = re.compile(r"[a-z]+(?:\.[a-z0-9]+(?:-[a-z0-9]+)*)")
_observers: list[list[str]] = []


@dataclass(frozen=True, slots=True)
class Rule:
    """``errno`` is a name ("ENODEV"), "probe" where the error is the driver's own, or None for a rule that refuses
    nothing.
    """

    id: str
    statement: str
    source: str
    errno: str | None = None

    def fires(self) -> None:
        """Say that the rule decided something; tests listen."""
        for seen in tuple(_observers):
            seen.append(self.id)

    def refuses(self, message: str, *, errno: str | None = None) -> "KernelError":
        """The error to raise; ``errno`` is for a rule that passes a driver's own error on."""
        self.fires()
        name = errno or self.errno
        assert name is not None, f"{self.id} refuses nothing"
        return KernelError(self, name, message)


class KernelError(Exception):
    """A refusal by the simulated kernel."""

    def __init__(self, rule: Rule, errno: str, message: str) -> None:
        super().__init__(f"{message} ({rule.id})")
        self.rule = rule
        self.errno = errno
        self.number: int = getattr(errnos, errno)


class WouldBlockError(Exception):
    """The operation sleeps in the kernel: try again when the state has changed.

    ``holds`` are the addresses of the devices whose locks it keeps meanwhile: none when it waits for the first itself.
    """

    def __init__(self, rule: Rule, holds: tuple[str, ...]) -> None:
        super().__init__(rule.id)
        rule.fires()
        self.rule = rule
        self.holds = holds


def rule(identifier: str, statement: str, *, source: str, errno: str | None = None) -> Rule:
    """Register a rule; ids are stable and never reused."""
    if not _ID.fullmatch(identifier):
        raise ValueError(f"{identifier!r} is not <area>.<kebab-case>")
    if identifier in RULES:
        raise ValueError(f"{identifier} is registered twice")
    if errno not in (None, "probe") and not hasattr(errnos, str(errno)):
        raise ValueError(f"{identifier}: no errno is called {errno}")
    RULES[identifier] = made = Rule(identifier, statement, source, errno)
    return made


@contextmanager
def observed() -> Iterator[list[str]]:
    """The ids of the rules that decide something while the context is open, in order."""
    seen: list[str] = []
    _observers.append(seen)
    try:
        yield seen
    finally:
        _observers.remove(seen)
