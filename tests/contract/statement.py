"""Statements about a Linux host (the phrases of `phrases.py`), each with the act that shows it.

A statement quotes the phrase that it shows. Its function does the thing on a machine and returns a raw result, a short
text that would be another one if the kernel behaved otherwise.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.contract.machine import Machine

Facts: TypeAlias = Mapping[str, Any]
Act: TypeAlias = Callable[[Machine], str]
ActAfterReboot: TypeAlias = Callable[[Machine, Facts], str]
Before: TypeAlias = Callable[[Machine], Facts]

_ID = re.compile(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Statement:
    """``run`` is for the boot that goes on, ``before`` and ``after`` for a statement about a reboot: what the first
    returns (JSON) the second gets in the next boot. Without either nothing of ours shows the statement.
    ``not_on_linux`` says why the Linux guest does not.
    """

    id: str
    phrase: str
    run: Act | None = None
    before: Before | None = None
    after: ActAfterReboot | None = None
    not_on_linux: str | None = None

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    @property
    def is_shown(self) -> bool:
        return self.run is not None or self.after is not None


STATEMENTS: dict[str, Statement] = {}


def statement(identifier: str, phrase: str, *, not_on_linux: str | None = None) -> Callable[[Act], Act]:
    """Register what shows a statement in one boot."""

    def register(act: Act) -> Act:
        _register(Statement(identifier, phrase, run=act, not_on_linux=not_on_linux))
        return act

    return register


def over_reboot(
    identifier: str, phrase: str, before: Before, *, not_on_linux: str | None = None
) -> Callable[[ActAfterReboot], ActAfterReboot]:
    """Register what shows a statement over a reboot: ``before`` it, and the decorated function after it."""

    def register(act: ActAfterReboot) -> ActAfterReboot:
        _register(Statement(identifier, phrase, before=before, after=act, not_on_linux=not_on_linux))
        return act

    return register


def unshown(identifier: str, phrase: str, reason: str) -> None:
    """Register a statement that neither machine can show, and why."""
    _register(Statement(identifier, phrase, not_on_linux=reason))


def _register(made: Statement) -> None:
    if not _ID.fullmatch(made.id):
        raise ValueError(f"{made.id!r} is not <area>.<kebab-case>")
    if made.id in STATEMENTS:
        raise ValueError(f"{made.id} is registered twice")
    STATEMENTS[made.id] = made


def all_statements() -> list[Statement]:
    """Every statement there is, sorted by id."""
    package = importlib.import_module("tests.contract.statements")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return [STATEMENTS[identifier] for identifier in sorted(STATEMENTS)]
