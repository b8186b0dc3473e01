"""Takes documents apart into objects, as kubectl does: a List of any kind is its items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from cli.lint.findings import Finding, Spot, of_file, of_yaml
from cli.lint.kustomizations import KUSTOMIZATION_NAMES
from cli.lint.sources import Source, is_template
from crds.models.base import GROUP
from crds.models.kinds import BY_NAME
from crds.yaml_documents import Document, find, find_key, read_all
from crds.yaml_nodes import FaultKind, Node
from webhooks.rules import Violation
from webhooks.rules.files import LEFT_OUT, NO_OBJECT, REPEATED_KEY, SEPARATION, SIZE, SYNTAX
from webhooks.rules.pointers import steps_of

_RULES = {
    FaultKind.SYNTAX: SYNTAX,
    FaultKind.REPEATED_KEY: REPEATED_KEY,
    FaultKind.SEPARATION: SEPARATION,
    FaultKind.SIZE: SIZE,
}
_KUSTOMIZE_GROUP = "kustomize.config.k8s.io"


class Identity(NamedTuple):
    """What makes two objects the same one for the API server."""

    group: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class FileObject:
    """One object of a file. ``prefix`` are the steps from the document to it, for an item of a List."""

    source: Source
    root: Node | None
    prefix: tuple[str, ...]
    content: dict[str, Any]

    @property
    def api_version(self) -> str:
        return _text(self.content.get("apiVersion"))

    @property
    def kind(self) -> str:
        return _text(self.content.get("kind"))

    @property
    def group(self) -> str:
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    @property
    def identity(self) -> Identity | None:
        """None while it has no name."""
        metadata = self.content.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        name = _text(metadata.get("name"))
        if not name:
            return None
        kind = BY_NAME.get(self.kind) if self.group == GROUP else None
        # The API server drops the namespace of an object that belongs to the whole cluster.
        namespace = "" if kind is not None and not kind.namespaced else _text(metadata.get("namespace"))
        return Identity(self.group, self.kind, namespace, name)

    @property
    def title(self) -> str:
        """E.g. ``VNPUQuota/team-a/quota``."""
        identity = self.identity
        if identity is None:
            return self.kind
        return "/".join(part for part in (identity.kind, identity.namespace, identity.name) if part)

    def spot(self, pointer: str, *, key: bool = False) -> Spot:
        """Where the field stands, or what is nearest to it; ``key`` asks for the field's name instead of its value."""
        if self.source.is_built or self.root is None:
            return Spot(self.source.name)
        steps = (*self.prefix, *steps_of(pointer))
        place = find_key(self.root, steps) if key else None
        if place is None:
            place, _ = find(self.root, steps)
        return Spot(self.source.name, place.line, place.column)

    def finding(self, violation: Violation, *, at_key: bool = False) -> Finding:
        """The violation with its place."""
        return Finding(self.spot(violation.pointer, key=at_key), violation, self.title)


@dataclass(frozen=True, slots=True)
class Taken:
    """A source taken apart."""

    objects: list[FileObject]
    findings: list[Finding]
    documents: list[Document]


def take_apart(source: Source) -> Taken:
    """The objects of a source, and what is wrong before they are looked at one by one."""
    reading = read_all(source.text)
    if reading.faults and not source.is_named and is_template(source.text):
        fix = "render it first, and lint what comes out"
        return Taken([], [of_file(LEFT_OUT, source.name, "left out: it looks like a template", fix)], [])
    findings = [of_yaml(_RULES[fault.kind], source.name, fault) for fault in reading.faults]
    if source.is_built:
        findings = [_without_place(one) for one in findings]
    objects: list[FileObject] = []
    for document in reading.documents:
        objects += _objects(source, document, findings)
    return Taken(objects, findings, reading.documents)


def _without_place(finding: Finding) -> Finding:
    return Finding(Spot(finding.spot.file), finding.violation, finding.object)


def _objects(source: Source, document: Document, findings: list[Finding]) -> Iterator[FileObject]:
    waiting: list[tuple[Any, tuple[str, ...], str]] = [(document.content, (), "")]
    while waiting:
        content, prefix, given = waiting.pop(0)
        if not isinstance(content, dict):
            what = "a list" if isinstance(content, list) else "a single value"
            _refuse(source, document, prefix, f"no Kubernetes object, but {what}", findings, looks_like_one=False)
            continue
        items = content.get("items")
        kind = content.get("kind")
        if isinstance(items, list) and isinstance(kind, str) and kind.endswith("List"):
            version = content.get("apiVersion")
            typed = f"{version} {kind.removesuffix('List')}" if kind != "List" and isinstance(version, str) else ""
            waiting[:0] = [(item, (*prefix, "items", str(index)), typed) for index, item in enumerate(items)]
            continue
        if kind == "List" and content.get("apiVersion") == "v1":
            what = "items is no list" if content.get("items") is not None else "items is missing"
            _refuse(source, document, prefix, f"a List without objects: {what}", findings, fix="give it items")
            continue
        if given and "kind" not in content and "apiVersion" not in content:
            version, _, kind = given.partition(" ")
            content = {"apiVersion": version, "kind": kind} | content
        missing = [key for key in ("apiVersion", "kind") if not _text(content.get(key))]
        if missing and not _is_kustomization(source, content):
            words = " and ".join(
                f"{key} is {'no string' if content.get(key) not in (None, '') else 'missing'}" for key in missing
            )
            known = {"apiVersion", "kind", "metadata", "spec"} & set(content)
            _refuse(source, document, prefix, f"no Kubernetes object: {words}", findings, looks_like_one=bool(known))
            continue
        found = FileObject(source, document.root, prefix, content)
        if found.group != _KUSTOMIZE_GROUP and not _is_kustomization(source, content):
            yield found


def _is_kustomization(source: Source, content: dict[str, Any]) -> bool:
    """It is read by kustomize, and never sent to a server; apiVersion and kind may be left out in it."""
    return source.path is not None and source.path.name in KUSTOMIZATION_NAMES and not _text(content.get("kind"))


def _refuse(
    source: Source,
    document: Document,
    prefix: tuple[str, ...],
    message: str,
    findings: list[Finding],
    *,
    looks_like_one: bool = True,
    fix: str = "give it apiVersion and kind",
) -> None:
    line, column = document.line, 1
    if document.root is not None:
        (line, column, _, _), _ = find(document.root, prefix)
    if source.is_built:
        line = column = 0
    passed_over = not source.is_named and not looks_like_one
    fix = "passed over" if passed_over else fix
    findings.append(of_file(NO_OBJECT, source.name, message, fix, line=line, column=column, warning=passed_over))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def is_ours(found: FileObject) -> bool:
    """Whether the object belongs to npufleet's API group, its kind known or not."""
    return found.group == GROUP
