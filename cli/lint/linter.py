"""Judges a set of texts: everything that is wrong with each object, and with all of them together. No I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from cli.lint.findings import Finding, Spot, in_order, of_file, rule_of
from cli.lint.foreign import BUILT_IN_GROUPS, GVK, ForeignKinds
from cli.lint.metadata import metadata_faults
from cli.lint.objects import FileObject, Identity, is_ours, take_apart
from cli.lint.rendered_view import rendered_view
from cli.lint.sources import Source
from cli.lint.unquoted import Trap, quoted, reading, traps
from crds.models.base import API_VERSION, GROUP
from crds.models.kinds import BY_NAME, Kind
from crds.near_matches import did_you_mean
from crds.yaml_documents import find_node
from crds.yaml_nodes import Node, Scalar
from webhooks.rules import UNKNOWN, KnownView, Layer, Severity, Subject, Violation
from webhooks.rules.files import KUBERNETES_VALUE, LEADING_ZERO, SIZE, TWICE, UNKNOWN_KIND
from webhooks.rules.judge import ALL_LAYERS, judge_change
from webhooks.rules.pointers import steps_of

_TYPE_RULES: Final = frozenset({"NPF-ALL-002", KUBERNETES_VALUE})
_PART: Final = (
    "these files are taken for a part of what is applied, so that a profile map that is not among them may exist; "
    "lint the directory or the kustomization to have its name looked up"
)
_NAMESPACE: Final = "NPF-ALL-113"
_MOST: Final = 500
"""Findings of one object: nobody reads more, and the first mended one often mends the others."""

_PREFIXED_ID: Final = re.compile(r"0[xX][0-9A-Fa-f]{4}")
"""As lspci and sysfs write the id of a vendor or a device, which YAML takes for a number."""

_CRD: Final = ("apiextensions.k8s.io", "CustomResourceDefinition")


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked of the linter beside the texts. ``is_whole``: they are all that is applied, not a part of it."""

    now: datetime
    kubernetes_version: str
    is_whole: bool = True
    skip_built_in: bool = False
    allowed_groups: frozenset[str] = frozenset()


@dataclass(slots=True)
class Outcome:
    """What was found, and how much was looked at. ``objects`` are those of the texts, in their order."""

    findings: list[Finding] = field(default_factory=list)
    objects: list[FileObject] = field(default_factory=list)
    kinds: dict[FileObject, Kind] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class _Views(NamedTuple):
    """What stands around the objects now, and what stood around them at the base."""

    now: KnownView
    before: KnownView


def lint(
    sources: Iterable[Source],
    options: Options,
    *,
    base: Iterable[Source] = (),
    crds: Iterable[Source] = (),
    tick: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Everything that is wrong with the texts. ``base`` is what stood there before, ``crds`` defines further kinds.

    Raises CommandError when schemas that are needed are not installed.
    """
    outcome = Outcome()
    foreign = ForeignKinds(options.kubernetes_version)
    for source in sources:
        tick(source.name)
        taken = take_apart(source)
        outcome.findings += taken.findings
        outcome.objects += taken.objects
    outcome.findings += _twins(outcome.objects)
    for found in [*(one for source in crds for one in take_apart(source).objects), *outcome.objects]:
        if (found.group, found.kind) == _CRD:
            foreign.add_crd(found.content)
    before = _by_identity(base, outcome.notes)
    subjects = _subjects(outcome, before)
    namespaces = dict(_namespaces(outcome.objects))
    view = rendered_view(subjects.values(), options.now, is_whole=options.is_whole, namespaces=namespaces)
    old = [Subject.of(BY_NAME[identity.kind], content) for identity, content in before.items()]
    views = _Views(view, rendered_view(old, options.now, is_whole=options.is_whole) if old else view)
    if not options.is_whole and view.profile_maps() is UNKNOWN:
        outcome.notes.append(_PART)
    for found in outcome.objects:
        tick(found.title)
        judged = _judged(found, subjects.get(found), views, foreign, options)
        outcome.findings += judged[:_MOST]
        if len(judged) > _MOST:
            outcome.notes.append(f"{found.source.name}: {found.title}: {len(judged) - _MOST} more faults are not shown")
    outcome.findings = in_order(outcome.findings)
    return outcome


def _namespaces(objects: Iterable[FileObject]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The labels of the Namespaces among the objects, by name."""
    for one in objects:
        if (one.api_version, one.kind) == ("v1", "Namespace") and one.identity is not None:
            labels = one.content["metadata"].get("labels")
            told = labels.items() if isinstance(labels, dict) else ()
            yield one.identity.name, {str(key): str(value) for key, value in told}


def _by_identity(sources: Iterable[Source], notes: list[str]) -> Mapping[Identity, dict[str, Any]]:
    found: dict[Identity, dict[str, Any]] = {}
    for source in sources:
        taken = take_apart(source)
        if any(one.is_error for one in taken.findings):
            notes.append(
                f"{source.name} could not be read in full as it was at the base: what is missing counts as new"
            )
        for one in taken.objects:
            if one.api_version == API_VERSION and one.kind in BY_NAME and one.identity is not None:
                found.setdefault(one.identity, one.content)
    return found


def _subjects(outcome: Outcome, before: Mapping[Identity, dict[str, Any]]) -> dict[FileObject, Subject]:
    found: dict[FileObject, Subject] = {}
    for one in outcome.objects:
        kind = BY_NAME.get(one.kind)
        if kind is not None and one.api_version == API_VERSION:
            outcome.kinds[one] = kind
            old = before.get(one.identity) if one.identity is not None else None
            found[one] = Subject.of(kind, one.content, old)
    return found


def _twins(objects: Iterable[FileObject]) -> list[Finding]:
    first: dict[Identity, FileObject] = {}
    findings = []
    for one in objects:
        identity = one.identity
        if identity is None:
            continue
        if identity not in first:
            first[identity] = one
            continue
        same = first[identity]
        severity = Severity.ERROR if same.source is one.source else Severity.WARNING
        where = f"it is in {same.spot('/metadata/name')} first" if not one.source.is_built else ""
        message = f"{one.title} is there twice"
        findings.append(one.finding(Violation(TWICE, severity, "/metadata/name", message, where)))
    return findings


def _judged(
    found: FileObject, subject: Subject | None, views: _Views, foreign: ForeignKinds, options: Options
) -> list[Finding]:
    try:
        if subject is not None:
            violations = judge_change(subject, views.now, layers=ALL_LAYERS, before=views.before)
            violations += metadata_faults(found.content, subject.kind)
            if found.source.is_built:
                # kustomize gives its namespace to every kind that it does not know: nobody can leave it out.
                violations = [one for one in violations if one.rule != _NAMESPACE]
        elif is_ours(found):
            violations = [_unknown_kind(found)]
        else:
            violations = _foreign(found, foreign, options)
    except RecursionError:
        return [
            of_file(
                SIZE, found.source.name, f"{found.title} is nested too deeply to be judged", line=found.spot("").line
            )
        ]
    return _with_traps(found, violations)


def _unknown_kind(found: FileObject) -> Violation:
    if found.kind in BY_NAME:
        at, message, fix = "/apiVersion", f"{GROUP} has no version {found.api_version.partition('/')[2]}", API_VERSION
        return Violation(UNKNOWN_KIND, Severity.ERROR, at, message, f"write {fix}", value=found.api_version)
    message = f"{GROUP} has no kind {found.kind}"
    fix = did_you_mean(found.kind, BY_NAME).removeprefix("; ") or f"there are {', '.join(BY_NAME)}"
    return Violation(UNKNOWN_KIND, Severity.ERROR, "/kind", message, fix, value=found.kind)


def _foreign(found: FileObject, foreign: ForeignKinds, options: Options) -> list[Violation]:
    if options.skip_built_in and found.group in BUILT_IN_GROUPS:
        return []
    if found.group in options.allowed_groups:
        return list(metadata_faults(found.content))
    gvk = GVK(found.group, found.api_version.rpartition("/")[2], found.kind)
    if not foreign.knows(gvk):
        return [foreign.unknown(gvk)]
    return [*foreign.faults(gvk, found.content), *metadata_faults(found.content)]


def _with_traps(found: FileObject, violations: list[Violation]) -> list[Finding]:
    node = find_node(found.root, found.prefix) if found.root is not None else None
    faulty = {one.pointer for one in violations if one.severity is Severity.ERROR}
    told = [_with_text(one, node) for one in violations]
    findings = [found.finding(one, at_key=_is_about_the_key(one)) for one in told]
    if node is not None:
        findings += [
            _of_trap(found, trap) for trap in traps(node) if trap.pointer not in faulty and not _is_mode(found, trap)
        ]
    return findings


def _is_about_the_key(violation: Violation) -> bool:
    return violation.rule != UNKNOWN_KIND and rule_of(violation.rule).layer is Layer.FIELDS


def _with_text(violation: Violation, root: Node | None) -> Violation:
    """A violation by a scalar that lacks quotes, with the text that the quotes belong around."""
    node = find_node(root, steps_of(violation.pointer)) if root is not None and violation.rule in _TYPE_RULES else None
    if isinstance(node, Scalar) and node.tag is None and "quotes" in violation.fix:
        if _PREFIXED_ID.fullmatch(node.text) and "/match/" in violation.pointer:
            return replace(violation, fix=f"write {quoted(node.text[2:])}: ids have no 0x")
        taken_for = reading(node.text)
        why = "" if taken_for == f"the number {node.text}" else f": unquoted it is {taken_for}"
        return replace(violation, fix=f"write {quoted(node.text)}{why}")
    return violation


def _is_mode(found: FileObject, trap: Trap) -> bool:
    """Modes of files are written in octal everywhere, and every reader of Kubernetes files takes them so."""
    is_mode = trap.pointer.rpartition("/")[2].lower().endswith("mode")
    return trap.rule == LEADING_ZERO and is_mode and not is_ours(found)


def _of_trap(found: FileObject, trap: Trap) -> Finding:
    violation = Violation(trap.rule, Severity.WARNING, trap.pointer, trap.message, trap.fix, value=trap.node.text)
    spot = Spot(found.source.name)
    if not found.source.is_built:
        spot = Spot(found.source.name, trap.node.place.line, trap.node.place.column)
    return Finding(spot, violation, found.title)
