"""Runs the rules over an object: all that is wrong at once, and on a change only what the change made wrong."""

import hashlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Final

from crds.catalogue import Catalogue
from webhooks.rules import RULES
from webhooks.rules.pointers import canonical, without_indices
from webhooks.rules.rule import Layer
from webhooks.rules.subject import Operation, Subject
from webhooks.rules.view import View
from webhooks.rules.violation import Severity, Violation

ALL_LAYERS: Final = tuple(Layer)
SERVER_LAYERS: Final = (Layer.WEBHOOK,)
"""What is left to a webhook: the API server has looked at the layers before it."""

_BEFORE: Final = "it was there before"

StillTime = Callable[[], bool]


class OutOfTimeError(Exception):
    """The judge was told to stop before the verdict; the text names the rule that was at work."""


def _always() -> bool:
    return True


def judge(
    subject: Subject, view: View, *, layers: Collection[Layer] = ALL_LAYERS, still_time: StillTime = _always
) -> list[Violation]:
    """Everything that is wrong with the subject, in the order in which a server would reveal it.

    ``still_time`` is asked before each rule and after each fault; OutOfTimeError is raised when it says no.
    """
    found = list(_found(subject, view, layers, still_time))
    told = {(RULES[one.rule].supersedes, one.pointer) for one in found}
    found = [one for one in found if (one.rule, one.pointer) not in told]
    return sorted(found, key=lambda one: (RULES[one.rule].layer, _place(one.pointer), one.rule, one.message))


def _found(subject: Subject, view: View, layers: Collection[Layer], still_time: StillTime) -> Iterator[Violation]:
    for rule in RULES.values():
        if rule.layer not in layers or (subject.operation is Operation.DELETE and not rule.on_delete):
            continue
        if not still_time():
            raise OutOfTimeError(f"before {rule.id}")
        for violation in rule.check(subject, view):
            yield violation
            if not still_time():
                raise OutOfTimeError(f"at {rule.id}")


def judge_change(
    subject: Subject,
    view: View,
    *,
    layers: Collection[Layer] = SERVER_LAYERS,
    before: View | None = None,
    still_time: StillTime = _always,
) -> list[Violation]:
    """What is wrong with a change of an object; an error that the old object has as well becomes a warning.

    Nothing is wrong with an object that is being deleted and keeps its spec. The same fault is one of the same rule, at
    the same place whatever the index of an item, in the same value, and no further from being right; twice what was
    there once is one new fault. ``before`` is what stood around the old object, where that is known: what breaks an
    object that did not change is a change as well. Raises OutOfTimeError as ``judge`` does.
    """
    if subject.is_going and subject.operation is not Operation.DELETE and not subject.changes_spec:
        return []
    found = judge(subject, view, layers=layers, still_time=still_time)
    if subject.operation is not Operation.UPDATE or subject.old is None:
        return found
    if not any(one.severity is Severity.ERROR and RULES[one.rule].ratcheted for one in found):
        return found
    told = _old_ones(found, judge(subject.before(), before or view, layers=layers, still_time=still_time))
    return [_softened(one) if index in told else one for index, one in enumerate(found)]


def _old_ones(found: list[Violation], before: list[Violation]) -> set[int]:
    """Indices of the faults that the old object has as well, each of its faults counted once and none grown."""
    known: dict[tuple[str, str, str], list[int]] = {}
    for one in sorted(before, key=lambda one: -one.excess):
        known.setdefault(_identity(one), []).append(one.excess)
    places = {(one.rule, one.pointer, one.value) for one in before}
    # One that stayed in its place is the old one, rather than its copy.
    order = sorted(
        range(len(found)),
        key=lambda i: (-found[i].excess, (found[i].rule, found[i].pointer, found[i].value) not in places, i),
    )
    told = set()
    for index in order:
        left = known.get(_identity(found[index]))
        if left and found[index].excess <= left[0]:
            del left[0]
            told.add(index)
    return told


def version(catalogue: Catalogue) -> str:
    """A short hash of the rules and of the catalogue that they judge by: the same verdicts come of the same version."""
    rules = [[one.id, one.layer, one.severity, one.title] for one in RULES.values()]
    known = [catalogue.products[name].model_dump(mode="json") for name in sorted(catalogue.products)]
    return hashlib.sha256(canonical([rules, known]).encode()).hexdigest()[:12]


def _softened(violation: Violation) -> Violation:
    if violation.severity is not Severity.ERROR or not RULES[violation.rule].ratcheted:
        return violation
    fix = f"{violation.fix}; {_BEFORE}" if violation.fix else _BEFORE
    return replace(violation, severity=Severity.WARNING, fix=fix)


def _identity(violation: Violation) -> tuple[str, str, str]:
    return violation.rule, without_indices(violation.pointer), violation.value


def _place(text: str) -> tuple[tuple[int, str], ...]:
    """Sorts pointers as a reader meets the fields: indices as numbers."""
    return tuple((int(step), "") if step.isdecimal() else (-1, step) for step in text.split("/"))
