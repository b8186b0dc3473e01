"""Rules and their register: each has an id for ever, a title, a reason, and examples that tests run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final

from crds.models.kinds import BY_NAME
from webhooks.rules.pointers import fingerprint
from webhooks.rules.subject import Operation, Subject
from webhooks.rules.view import View
from webhooks.rules.violation import Severity, Violation


class Layer(IntEnum):
    """Who finds a fault, in the order in which a server reveals them: it stops at the first layer that has any.

    LINT is what only a look at a whole rendered set can know.
    """

    FIELDS = 0
    SCHEMA = 1
    CEL = 2
    WEBHOOK = 3
    LINT = 4

    @property
    def title(self) -> str:
        """The layer in words."""
        return {
            Layer.FIELDS: "unknown fields",
            Layer.SCHEMA: "schema",
            Layer.CEL: "rules between fields",
            Layer.WEBHOOK: "webhook",
            Layer.LINT: "whole set of files",
        }[self]


@dataclass(frozen=True, slots=True)
class Fault:
    """What a rule's function finds, before the register adds the rule's id. ``severity`` None: the rule's own.

    ``about`` is what tells the fault from others of its rule at the same place, a JSON value; None: the value at the
    pointer. ``excess`` is how far it is from being right: the same fault with less of it is no worse than before.
    """

    pointer: str
    message: str
    fix: str = ""
    severity: Severity | None = None
    about: Any = None
    excess: int = 0


Check = Callable[[Subject, View], Iterator[Fault]]


@dataclass(frozen=True, slots=True)
class Example:
    """An object that keeps or breaks a rule, as YAML; one without apiVersion is the spec of the rule's first kind.

    ``others`` are documents that stand around it (objects of our kinds, Nodes, Namespaces), ``old`` what it was before,
    ``user`` and ``groups`` of who asks (user ``git`` is a writer). Time stands still at 2026-11-30T12:00:00Z.
    """

    text: str
    others: str = ""
    old: str = ""
    groups: tuple[str, ...] | None = None
    user: str = ""
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``kinds`` are names of kinds. A rule that is not ``ratcheted`` holds for what was there before, too.

    Where it finds a fault at the same place, the rule that it ``supersedes`` says nothing.
    """

    id: str
    kinds: tuple[str, ...]
    layer: Layer
    severity: Severity
    title: str
    reason: str
    good: tuple[Example, ...]
    bad: tuple[Example, ...]
    find: Check
    ratcheted: bool = True
    on_delete: bool = False
    supersedes: str = ""

    def check(self, subject: Subject, view: View) -> Iterator[Violation]:
        """What the rule finds wrong with the subject; nothing for kinds that it does not speak of."""
        if subject.kind.name not in self.kinds:
            return
        for fault in self.find(subject, view):
            about, place = (subject.content, fault.pointer) if fault.about is None else (fault.about, "")
            value = fingerprint(about, place)
            severity = fault.severity or self.severity
            message, fix = _bounded(fault.message), _bounded(fault.fix)
            yield Violation(self.id, severity, fault.pointer, message, fix, value, fault.excess)


def _bounded(text: str) -> str:
    """A text that repeats what somebody wrote, no longer than people read."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"


_LONGEST: Final = 1000
_RULES: Final[dict[str, Rule]] = {}


def register(rule: Rule) -> None:
    """Add a rule to the register. Raises ValueError when its id is taken, or a kind is not known."""
    if rule.id in _RULES:
        raise ValueError(f"there are two rules {rule.id}")
    for kind in rule.kinds:
        if kind not in BY_NAME:
            raise ValueError(f"rule {rule.id} speaks of {kind}, which is no kind")
    _RULES[rule.id] = rule


def rule(
    id: str,
    *,
    kinds: tuple[str, ...],
    title: str,
    reason: str,
    good: tuple[Example | str, ...],
    bad: tuple[Example | str, ...],
    layer: Layer = Layer.WEBHOOK,
    severity: Severity = Severity.ERROR,
    ratcheted: bool = True,
    on_delete: bool = False,
    supersedes: str = "",
) -> Callable[[Check], Check]:
    """Registers the decorated function, which finds the faults, as a rule."""

    def registered(find: Check) -> Check:
        register(
            Rule(
                id,
                kinds,
                layer,
                severity,
                title,
                " ".join(reason.split()),
                tuple(_example(example) for example in good),
                tuple(_example(example) for example in bad),
                find,
                ratcheted,
                on_delete,
                supersedes,
            )
        )
        return find

    return registered


def _example(example: Example | str) -> Example:
    return Example(example) if isinstance(example, str) else example


def all_rules() -> Mapping[str, Rule]:
    """Every rule by id, in the order of the ids."""
    return MappingProxyType(dict(sorted(_RULES.items())))
